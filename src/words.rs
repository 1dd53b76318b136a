//! Values that flags, environment variables and files write alike: enums of words, and types with a
//! text form; and which name was meant.

use serde::de::{Deserializer, Error, Visitor};
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

/// Gives an enum its words: `ALL`, `name`, `FromStr`, `Display` and serde. The noun completes "...
/// is not".
macro_rules! words {
    ($type:ident, $noun:literal, { $($variant:ident = $word:literal),* $(,)? }) => {
        impl $type {
            pub const ALL: [Self; [$($word),*].len()] = [$(Self::$variant),*];
            pub const WORDS: [&str; [$($word),*].len()] = [$($word),*];

            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $word),* }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = String;
            fn from_str(s: &str) -> Result<Self, String> {
                let found = Self::ALL.into_iter().find(|value| value.name() == s);
                found.ok_or_else(|| $crate::words::not_one_of(s, $noun, &Self::WORDS))
            }
        }

        $crate::words::text_serde!($type, $noun);
    };
}
pub(crate) use words;

/// Serde of a type by its `Display` and `FromStr`. A file may also write TOML's own booleans and
/// numbers.
macro_rules! text_serde {
    ($type:ty, $expected:literal) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                $crate::words::deserialize(d, $expected)
            }
        }
    };
}
pub(crate) use text_serde;

/// `"f16" is not a KV format (expected f32, bf16 or fp8)`.
pub fn not_one_of(text: &str, noun: &str, words: &[&str]) -> String {
    format!("{text:?} is not {noun} (expected {})", one_of(words))
}

/// `f32, bf16 or fp8`
pub fn one_of(words: &[&str]) -> String {
    let (last, others) = words.split_last().unwrap_or((&"", &[]));
    format!("{} or {last}", others.join(", "))
}

/// The name nearest to a mistyped one, when one is near.
pub fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // No name is as long, and a pasted line may be any length.
    let name: String = name.to_lowercase().chars().take(60).collect();
    let begins = |n: &str| !name.is_empty() && n.to_lowercase().starts_with(&name);
    names
        .map(|n| (if begins(n) { 1 } else { strsim::osa_distance(&name, &n.to_lowercase()) }, n))
        .min_by_key(|(d, _)| *d)
        .filter(|(d, n)| *d <= 1 + n.len() / 5)
        .map(|(_, n)| n)
}

/// Reads a value from a string, or from a file's own boolean or number.
pub fn deserialize<'de, D: Deserializer<'de>, T: FromStr<Err = String>>(
    d: D,
    expected: &'static str,
) -> Result<T, D::Error> {
    struct Text<T>(PhantomData<T>, &'static str);
    impl<T: FromStr<Err = String>> Visitor<'_> for Text<T> {
        type Value = T;
        fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
            f.write_str(self.1)
        }
        fn visit_str<E: Error>(self, s: &str) -> Result<T, E> {
            s.parse().map_err(E::custom)
        }
        fn visit_bool<E: Error>(self, b: bool) -> Result<T, E> {
            self.visit_str(&b.to_string())
        }
        fn visit_i64<E: Error>(self, n: i64) -> Result<T, E> {
            self.visit_str(&n.to_string())
        }
        fn visit_u64<E: Error>(self, n: u64) -> Result<T, E> {
            self.visit_str(&n.to_string())
        }
    }
    d.deserialize_any(Text(PhantomData, expected))
}
