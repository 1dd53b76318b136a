//! Completion in the input: the candidates, files after `@`, and names with the typed letters in
//! order.

use nucleo_matcher::pattern::{AtomKind, CaseMatching, Normalization, Pattern};
use nucleo_matcher::{Config, Matcher};

/// Where names for completion come from.
pub struct Sources<'a> {
    pub themes: &'a dyn Fn() -> Vec<String>,
    pub profiles: &'a dyn Fn() -> Vec<String>,
    /// Prompts of the user, which are typed like commands.
    pub prompts: &'a dyn Fn() -> Vec<String>,
    /// Hub ids in the cache.
    pub models: &'a [String],
    /// Short names of known models, with a word on each.
    pub short: &'a [(String, String)],
    /// Model folders and files that earlier conversations were held with.
    pub used: &'a [String],
    /// Paths that begin as typed; folders only, where it is set.
    pub paths: &'a dyn Fn(&str, bool) -> Vec<String>,
}

/// One line of the completion list.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Replacement of the word.
    pub insert: String,
    pub label: String,
    pub help: String,
}

/// The list over the input while a command is typed.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// Where the word begins that is completed.
    pub start: usize,
    pub candidates: Vec<Candidate>,
    pub selected: usize,
}

/// Files whose path begins as the word before the caret, which begins with `@`.
pub fn files(before: &str, sources: &Sources) -> Option<Completion> {
    // No path is longer, and a text may be any length.
    const MAX_BACK: usize = 4_096;
    let back = before.char_indices().rev().map(|(at, _)| at).take(MAX_BACK).last().unwrap_or(0);
    let line = before[back..].rfind('\n').map_or(back, |at| back + at + 1);
    // A quoted path may hold spaces.
    let quoted = before[line..].rfind("@\"").map(|at| line + at).filter(|at| !before[at + 2..].contains('"'));
    let space = before[line..].char_indices().rev().find(|(_, c)| c.is_whitespace());
    let word = space.map_or(line, |(at, c)| line + at + c.len_utf8());
    let start = quoted.unwrap_or(word);
    let typed = before[start..].strip_prefix('@')?;
    let paths = (sources.paths)(typed.trim_start_matches('"'), false);
    let candidate = |path: String| {
        let quoted = path.contains(char::is_whitespace) || path.contains('"');
        let open = path.ends_with('/');
        let insert = match (quoted, open) {
            (false, _) => format!("@{path}"),
            (true, true) => format!("@\"{path}"),
            (true, false) => format!("@\"{path}\""),
        };
        let help = if open { "" } else { "attach" };
        Candidate { insert, label: path, help: help.to_owned() }
    };
    let candidates: Vec<Candidate> = paths.into_iter().map(candidate).collect();
    (!candidates.is_empty()).then_some(Completion { start, candidates, selected: 0 })
}

/// Names that have the typed letters in order, best first.
pub fn fuzzy<'a>(typed: &str, names: impl Iterator<Item = &'a str>) -> impl Iterator<Item = &'a str> {
    let pattern = Pattern::new(typed, CaseMatching::Ignore, Normalization::Smart, AtomKind::Fuzzy);
    let found = pattern.match_list(names, &mut Matcher::new(Config::DEFAULT));
    found.into_iter().map(|(name, _)| name)
}
