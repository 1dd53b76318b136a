//! Suggestions for misspelled names.

use super::names::DEMO;
use strsim::osa_distance;

/// Returns `; did you mean A or B?` for up to three known names that differ from `wanted` by a
/// typo, with or without their organization, or by case; empty if there are none.
pub fn suggestion(wanted: &str, known: &[String]) -> String {
    let low = wanted.to_lowercase();
    let near = |name: &&str| {
        let (is_same, short) = (*name == wanted, name.rsplit('/').next().unwrap_or(name).to_lowercase());
        let (name, slack) = (name.to_lowercase(), 1 + low.len() / 6);
        !is_same && (osa_distance(&low, &name) <= slack || osa_distance(&low, &short) <= slack)
    };
    let names: Vec<&str> = [DEMO].into_iter().chain(known.iter().map(String::as_str)).filter(near).take(3).collect();
    if names.is_empty() { String::new() } else { format!("; did you mean {}?", names.join(" or ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typos_and_other_case_are_suggested_and_the_name_itself_is_not() {
        let known = ["Qwen/Qwen3-0.6B".to_owned(), "ORG/other".to_owned()];
        for wanted in ["qwen/qwen3-0.6b", "Qwen/Qwen3-0.6", "qwen3-0.6b", "Qwen/Qwen30.6B"] {
            assert_eq!(suggestion(wanted, &known), "; did you mean Qwen/Qwen3-0.6B?", "{wanted}");
        }
        assert_eq!(suggestion("Qwen/Qwen3-0.6B", &known), "");
        assert_eq!(suggestion("something/else", &known), "");
    }
}
