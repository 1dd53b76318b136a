//! Keys of a `config.json` that say which layers see all tokens, and how many the others see.

use super::bounds;
use super::json::Fields;
use anyhow::{Result, ensure};
use serde_json::Value;

/// Tokens that local layers see.
pub fn local_window(config: &Fields) -> Result<usize> {
    Ok(config.size_to("sliding_window", bounds::CONTEXT)?.min(bounds::POSITIONS))
}

/// Whether the attention of each layer is full, for at most `most` layers: decided by `is_full` for
/// its entry in `layer_types`, or else by a key with an interval and its usual value.
pub fn full_layers(
    config: &Fields,
    most: usize,
    is_full: impl Fn(&Value) -> bool,
    (key, usual): (&str, usize),
) -> Result<Vec<bool>> {
    let n = config.size_to("num_hidden_layers", most)?;
    let full: Vec<bool> = match config.get("layer_types").and_then(Value::as_array) {
        Some(listed) => listed.iter().take(n).map(is_full).collect(),
        None => {
            let interval = config.opt_size(key)?.unwrap_or(usual).max(1);
            (1..=n).map(|layer| layer % interval == 0).collect()
        }
    };
    ensure!(full.len() == n, "{}: layer_types is not a list of {n} names", config.place());
    Ok(full)
}
