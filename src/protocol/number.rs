//! Reads floating-point numbers of files. JSON has neither infinity nor NaN, and serde_json writes
//! them as null, so null is read as well.

use serde::{Deserialize, Deserializer};

/// Reads a number. Null is 0.
pub fn or_zero<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(d: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(d)?.unwrap_or_default())
}

/// Reads a list of numbers. Null is 0.
pub fn each_or_zero<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(d: D) -> Result<Vec<T>, D::Error> {
    Ok(Vec::<Option<T>>::deserialize(d)?.into_iter().map(Option::unwrap_or_default).collect())
}
