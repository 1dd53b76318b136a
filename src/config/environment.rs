//! The environment variable of a setting, and how errors of its value are worded.

use crate::words::nearest;
use anyhow::{Context, Result, anyhow};
use std::ffi::OsString;
use std::str::FromStr;

/// Known keys that an error lists.
const LISTED: usize = 8;

/// Name of a key's variable.
pub fn env_name(key: &str) -> String {
    format!("DMSCHAT_{}", key.to_ascii_uppercase())
}

/// Reads the variable of a key; an empty one counts as unset.
pub(super) fn env_value<T: FromStr>(var: &impl Fn(&str) -> Option<OsString>, key: &str) -> Result<Option<T>>
where
    T::Err: std::fmt::Display,
{
    let name = env_name(key);
    let Some(value) = var(&name).filter(|v| !v.is_empty()) else { return Ok(None) };
    let text = value.to_str().with_context(|| format!("{name}: not UTF-8 text"))?;
    text.parse().map(Some).map_err(|e: T::Err| anyhow!("{name}={text}: {}", in_words(&e.to_string())))
}

/// The message of a parser in one line, without the names of Rust's types. For an unknown key it
/// names the most similar known key, and all known keys if they are few.
pub fn in_words(message: &str) -> String {
    const WORDS: [(&str, &str); 12] = [
        ("\n", ", "),
        ("expected f32", "expected a number"),
        ("expected u32", "expected a whole number from 0"),
        ("expected u64", "expected a whole number from 0"),
        ("expected usize", "expected a whole number from 0"),
        ("expected path string", "expected a path"),
        ("` as i128", "`"),
        ("unknown field", "unknown key"),
        ("invalid digit found in string", "expected a whole number from 0"),
        ("invalid float literal", "expected a number"),
        ("is not in 0..=4294967295", "is out of range, expected 0 to 4294967295"),
        ("number too large to fit in target type", "the number is too large"),
    ];
    let mut message = WORDS.iter().fold(message.to_owned(), |text, (from, to)| text.replace(from, to));
    if let Some((before, name)) = message.split_once("expected struct ") {
        message = format!("{before}expected a table{}", name.trim_start_matches(char::is_alphanumeric));
    }
    let Some((unknown, known)) = message.split_once(", expected one of ") else { return message };
    let name = unknown.split('`').nth(1).unwrap_or("");
    let known: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
    let hint = nearest(name, known.iter().copied()).map(|key| format!("; did you mean `{key}`?")).unwrap_or_default();
    let all = if known.len() <= LISTED { format!("; expected one of {}", known.join(", ")) } else { String::new() };
    format!("{unknown}{hint}{all}")
}
