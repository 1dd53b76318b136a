//! Suggestions for misspelled names.

use super::names::DEMO;
use strsim::osa_distance;

/// Returns `; did you mean A or B?` for up to three known names that differ from `wanted` by a
/// typo, with or without their organization and in any case; empty if there are none. A name that
/// differs in case alone is not suggested.
pub fn suggestion(wanted: &str, known: &[String]) -> String {
    let low = wanted.to_lowercase();
    let near = |name: &&str| {
        let (name, short) = (name.to_lowercase(), name.rsplit('/').next().unwrap_or(name).to_lowercase());
        let slack = 1 + low.len() / 6;
        name != low && (osa_distance(&low, &name) <= slack || osa_distance(&low, &short) <= slack)
    };
    let names: Vec<&str> = [DEMO].into_iter().chain(known.iter().map(String::as_str)).filter(near).take(3).collect();
    if names.is_empty() { String::new() } else { format!("; did you mean {}?", names.join(" or ")) }
}
