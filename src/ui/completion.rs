//! Completion in the input: commands and their arguments, and files after `@`.

use super::commands::{self, pairs};
use nucleo_matcher::pattern::{AtomKind, CaseMatching, Normalization, Pattern};
use nucleo_matcher::{Config, Matcher, Utf32Str};

/// Where names for completion come from.
pub struct Sources<'a> {
    pub themes: &'a dyn Fn() -> Vec<String>,
    /// Hub ids in the cache.
    pub models: &'a [String],
    /// Model folders and files that earlier conversations were held with.
    pub used: &'a [String],
    /// Paths that begin as typed; folders only, where it is set.
    pub paths: &'a dyn Fn(&str, bool) -> Vec<String>,
}

/// One line of the completion list.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// What takes the place of the word.
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
fn files(before: &str, sources: &Sources) -> Option<Completion> {
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

/// What fits what stands before the caret: commands and their arguments, files after `@`.
pub fn complete(text: &str, caret: usize, sources: &Sources) -> Option<Completion> {
    let before = text.get(..caret)?;
    if !text.starts_with('/') || text.contains('\n') || before.is_empty() {
        return files(before, sources);
    }
    let (start, candidates) = match before[1..].split_once(' ') {
        None => (0, command_candidates(&before[1..])),
        Some((name, argument)) => {
            (before.len() - argument.len(), argument_candidates(&commands::find(name)?.args, argument, sources))
        }
    };
    (!candidates.is_empty()).then_some(Completion { start, candidates, selected: 0 })
}

fn command_candidates(typed: &str) -> Vec<Candidate> {
    let candidate = |(name, command): (&str, &commands::Command)| Candidate {
        insert: format!("/{name}{}", if command.usage.is_empty() { "" } else { " " }),
        label: format!("/{name} {}", command.usage).trim_end().to_owned(),
        help: command.help.to_owned(),
    };
    commands::beginning(typed).into_iter().map(candidate).collect()
}

fn argument_candidates(args: &commands::Args, typed: &str, sources: &Sources) -> Vec<Candidate> {
    let words = pairs(args.words).into_iter().chain((args.more)(typed, sources));
    let fitting = words.filter(|(word, _)| word.starts_with(typed) && word != typed);
    fitting.map(|(word, help)| Candidate { label: word.trim_end().to_owned(), insert: word, help }).collect()
}

/// Items whose name has the typed letters in order, best first.
pub fn fuzzy<'a, T>(typed: &str, items: impl Iterator<Item = (&'a str, T)>) -> Vec<T> {
    let pattern = Pattern::new(typed, CaseMatching::Ignore, Normalization::Smart, AtomKind::Fuzzy);
    let (mut matcher, mut buffer) = (Matcher::new(Config::DEFAULT), Vec::new());
    let scored =
        items.filter_map(|(name, item)| Some((pattern.score(Utf32Str::new(name, &mut buffer), &mut matcher)?, item)));
    let mut scored: Vec<_> = scored.collect();
    scored.sort_by_key(|(score, _)| std::cmp::Reverse(*score));
    scored.into_iter().map(|(_, item)| item).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ui::attach::*;
    use crate::ui::commands::{ALL, Group};

    #[test]
    fn a_path_with_spaces_is_quoted_when_attached() {
        let paths = |typed: &str, _| if typed == "my n" { vec!["my notes.md".to_owned()] } else { Vec::new() };
        let sources = Sources { themes: &Vec::new, models: &[], used: &[], paths: &paths };
        let text = "read @\"my n";
        let found = complete(text, text.len(), &sources).unwrap();
        assert_eq!((found.start, &*found.candidates[0].insert), (5, "@\"my notes.md\""));
        assert_eq!(attachment(&found.candidates[0].insert), Some("my notes.md"));
        assert_eq!(attachment("@src/"), None);
        let found = mentions("a@b.c see @notes.md, @\"my notes.md\". @x");
        assert_eq!(found, ["@notes.md,", "@\"my notes.md\"", "@x"]);
        assert_eq!(without_end(found[0]), "@notes.md");
        assert_eq!(unattached("to a@b.c, @bob and @todo.md?"), Some("@todo.md"));
        assert!(ends_before("") && ends_before("., then") && !ends_before(".bak"));
    }

    #[test]
    fn completion_offers_commands_and_arguments() {
        let themes = || vec!["dark".to_owned(), "light".to_owned()];
        let models = ["nvidia/Qwen3-8B-DMS-8x".to_owned()];
        let used = ["/models/smol.gguf".to_owned()];
        let paths = |typed: &str, _| if typed == "./Q" { vec!["./Qwen3/".to_owned()] } else { Vec::new() };
        let sources = Sources { themes: &themes, models: &models, used: &used, paths: &paths };
        let labels = |text: &str| {
            complete(text, text.len(), &sources)
                .map(|c| c.candidates.into_iter().map(|c| c.label).collect::<Vec<_>>())
                .unwrap_or_default()
        };
        assert_eq!(labels("/").len(), ALL.iter().filter(|c| c.group != Group::Hidden).count());
        assert_eq!(labels("/re")[..4], ["/regen", "/recall [TEXT]", "/rebuild", "/rename TITLE"]);
        // Letters in order; a name that is not listed, once nothing else begins like it.
        assert_eq!(labels("/evc"), ["/eviction on|off"]);
        assert_eq!(labels("/rcl"), ["/recall [TEXT]"]);
        assert_eq!(labels("/res"), ["/resume [ID]"]);
        assert_eq!(labels("/bye"), ["/bye"]);
        assert_eq!(labels("/eviction o"), ["on", "off"]);
        assert_eq!(labels("/theme l"), ["light"]);
        assert_eq!(labels("/model "), ["demo", "nvidia/Qwen3-8B-DMS-8x", "/models/smol.gguf"]);
        assert_eq!(labels("/model nv"), ["nvidia/Qwen3-8B-DMS-8x"]);
        assert_eq!(labels("/model ./Q"), ["./Qwen3/"]);
        assert_eq!(labels("see @./Q"), ["./Qwen3/"]);
        assert!(labels("see me@./Q").is_empty());
        assert_eq!(labels("/set top"), ["top_k", "top_p"]);
        assert_eq!(labels("/set keep_thinking a"), ["keep_thinking auto"]);
        assert!(labels("hello /").is_empty());
        assert!(labels("/nonsense x").is_empty());
    }
}
