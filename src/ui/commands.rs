//! The slash commands: names, words for help and completion, and how a line is read as one. What
//! they do is in `update::commands`.

use nucleo_matcher::pattern::{AtomKind, CaseMatching, Normalization, Pattern};
use nucleo_matcher::{Config, Matcher, Utf32Str};
use std::borrow::Cow;
use strsim::osa_distance;

/// What the argument of a command is, for completion; words behind one that takes none are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    None,
    Compact,
    /// Free text or a file name.
    Text,
    OnOff,
    Forget,
    Pin,
    Unpin,
    Parallel,
    Setting,
    Theme,
    Copy,
    Model,
}

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

/// The heading under which /help lists a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    Chat,
    Memory,
    Model,
    Files,
    /// Works as before but is not listed: another command or a key does the same.
    Hidden,
}

impl Group {
    /// Those that are listed, in order, with their headings.
    pub const LISTED: [(Self, &'static str); 4] =
        [(Self::Chat, "Chat"), (Self::Memory, "Memory"), (Self::Model, "Model and settings"), (Self::Files, "Files")];
}

/// A slash command.
#[derive(Debug)]
pub struct Spec {
    pub name: &'static str,
    pub usage: &'static str,
    pub help: &'static str,
    pub argument: Argument,
    pub group: Group,
}

macro_rules! specs {
    ($($group:ident $name:literal $usage:literal $argument:ident $help:literal),* $(,)?) => {
        /// Every command, in the order that /help lists them.
        pub const SPECS: &[Spec] = &[$(Spec {
            name: $name,
            usage: $usage,
            help: $help,
            argument: Argument::$argument,
            group: Group::$group,
        }),*];
    };
}

specs! {
    Chat "help" "[WORDS]" Text "keys and commands",
    Chat "new" "" None "begin a new conversation; this one stays saved",
    Chat "compact" "[list]" Compact "go on in a new conversation with a summary, or a list of what you said; this one stays saved",
    Chat "regen" "" None "answer the last message again; the old answer stays a branch",
    Chat "edit" "" None "change your last (or the chosen) message and send it again",
    Chat "undo" "" None "remove the last message and its answer from the context",
    Chat "parallel" "N|auto [TEXT]" Parallel "answer with N chains that vote; 1 is off; with a text: this question only",
    Chat "chains" "[N]" Text "the chains of the last (or the chosen) answer, or what chain N said",
    Chat "think" "on|off" OnOff "let the model think before it answers",
    Chat "system" "[TEXT|none]" Text "set the system prompt",
    Chat "copy" "[N|code|all]" Copy "copy the last answer, the Nth from the end, its code, or all",
    Chat "find" "[TEXT]" Text "find text in this conversation",
    Chat "quit" "" None "quit (the conversation is saved)",
    Memory "eviction" "on|off" OnOff "drop what the model marks, or keep everything",
    Memory "forget" "less|more|N|trained" Forget "how much the model forgets from now on (N = compression ratio, as --keep-ratio)",
    Memory "pin" "[system]" Pin "never forget your last (or the chosen) message, or the system prompt",
    Memory "unpin" "" Unpin "take the pin of that message back, or every pin; asks which",
    Memory "recall" "[TEXT]" Text "ask whether the model still knows a text (or the chosen message)",
    Memory "compare" "" None "answer the last question again without eviction, beside the conversation",
    Memory "twin" "on|off" OnOff "compare the next answers with a copy that drops nothing",
    Memory "rebuild" "" None "recompute the cache with the current eviction setting",
    Memory "stats" "" None "the numbers of the cache, head by head",
    Model "model" "[NAME]" Model "load another model: demo, a folder, a GGUF file, or ORG/NAME",
    Model "models" "" None "the models on this machine: size, shape, DMS, licence; Enter loads one",
    Model "set" "[NAME VALUE]" Setting "change a setting; without a name: list them",
    Model "theme" "[NAME]" Theme "change the colours",
    Files "sessions" "[WORDS]" Text "saved conversations: open, rename, delete",
    Files "rename" "TITLE" Text "give this conversation a title",
    Files "delete" "" None "delete this conversation's file",
    Files "export" "FILE" Text "write the conversation as .md or .jsonl",
    Hidden "resume" "[ID]" Text "open a saved conversation",
    Hidden "save" "[FILE]" Text "say where the conversation is saved, or write it to a file",
    Hidden "panel" "" None "show or hide the cache panel",
    Hidden "keep-thinking" "on|off|auto" OnOff "keep earlier thoughts in the context",
}

/// The settings that /set knows, with what they take.
pub const SETTINGS: &[(&str, &str)] = &[
    ("temperature", "0 to 100, or default; 0 is greedy (argmax)"),
    ("top_k", "a number of tokens, or default; 0 is off"),
    ("top_p", "0 to 1, or default; 1 is off"),
    ("min_p", "0 to 1, or default; 0 is off"),
    ("repetition_penalty", "0.01 to 100, or default; 1 is off"),
    ("seed", "a number, or random"),
    ("max_tokens", "a number, or none"),
    ("max_think", "tokens after which a thought is closed, none, or default"),
    ("kv_limit", "bytes of cache (512MiB, 2GB), or none"),
    ("mouse", "on or off"),
    ("think", "on or off"),
    ("keep_thinking", "on, off or auto; auto is as the model's template says"),
    ("width", "a number of chains, or auto; 1 is off"),
    ("theme", "the name of a theme"),
    ("keep_ratio", "1 to 64, or trained"),
];

/// Other names that people bring along from other programs. They are not listed.
pub const ALIASES: &[(&str, &str)] = &[
    ("exit", "quit"),
    ("bye", "quit"),
    ("clear", "new"),
    ("retry", "regen"),
    ("list", "models"),
    ("load", "model"),
    ("search", "find"),
    ("width", "parallel"),
    ("history", "sessions"),
    ("settings", "set"),
    ("context", "stats"),
];

/// The command's own name.
pub fn canonical(name: &str) -> &str {
    ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, name)| name)
}

pub fn spec(name: &str) -> Option<&'static Spec> {
    let name = canonical(name);
    SPECS.iter().find(|s| s.name == name)
}

/// Reads a line as a command: its name and the rest. `None` when it is a message: no slash in
/// front, a second slash in the first word (a path), or `//` to say something with a slash.
pub fn parse(line: &str) -> Option<(&str, &str)> {
    let rest = line.strip_prefix('/')?;
    let (name, argument) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let plain = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '-' || c == '_');
    plain.then_some((name, argument.trim()))
}

/// What a line says when it is no command: `//x` is `/x`.
pub fn message(line: &str) -> Cow<'_, str> {
    match line.strip_prefix("//") {
        Some(rest) => Cow::Owned(format!("/{rest}")),
        None => Cow::Borrowed(line),
    }
}

/// The name nearest to a mistyped one, when one is near.
pub fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // No command is as long, and a pasted line may be any length.
    let name: String = name.to_lowercase().chars().take(40).collect();
    names
        .map(|n| (if n.starts_with(&name) { 1 } else { osa_distance(&name, n) }, n))
        .min_by_key(|(d, _)| *d)
        .filter(|(d, n)| *d <= 1 + n.len() / 5)
        .map(|(_, n)| n)
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

/// The path of a candidate that attaches a file: `@notes.md`, `@"my notes.md"`.
pub fn attachment(insert: &str) -> Option<&str> {
    let path = insert.strip_prefix('@')?;
    let path = path.strip_prefix('"').map_or(Some(path), |quoted| quoted.strip_suffix('"'))?;
    (!path.is_empty() && !path.ends_with('/')).then_some(path)
}

/// The words of a message that may name files to attach: `@notes.md`, `@"my notes.md"`, with what follows up to a space.
pub fn mentions(text: &str) -> Vec<&str> {
    let starts =
        text.match_indices('@').filter(|(at, _)| text[..*at].chars().next_back().is_none_or(char::is_whitespace));
    let word = |(at, _): (usize, &str)| {
        let rest = &text[at..];
        let quoted = rest.strip_prefix("@\"").and_then(|inner| Some(inner.find('"')? + 3));
        let end = quoted.unwrap_or_else(|| rest.find(char::is_whitespace).unwrap_or(rest.len()));
        text.get(at..at + end)
    };
    starts.filter_map(word).collect()
}

/// A mention without the punctuation that ends a sentence.
pub fn without_end(mention: &str) -> &str {
    mention.trim_end_matches(END)
}

/// Whether a mention ends before this text.
pub fn ends_before(rest: &str) -> bool {
    rest.trim_start_matches(END).chars().next().is_none_or(char::is_whitespace)
}

/// Punctuation behind a mention.
const END: [char; 8] = ['.', ',', ';', ':', '!', '?', ')', '\''];

/// The first word of a message that looks like a file to attach, and is not attached: `@notes.md`, `@src/main.rs`.
pub fn unattached(text: &str) -> Option<&str> {
    let is_path = |path: &str| path.contains(['.', '/']) && !path.contains('@');
    mentions(text).into_iter().map(without_end).find(|word| word.len() > 2 && is_path(&word[1..]))
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
            let start = before.len() - argument.len();
            (start, argument_candidates(spec(name)?.argument, argument, sources))
        }
    };
    (!candidates.is_empty()).then_some(Completion { start, candidates, selected: 0 })
}

/// Listed commands whose name begins as typed, then those with its letters in order; an unlisted name that begins so, if
/// nothing else does.
fn command_candidates(typed: &str) -> Vec<Candidate> {
    let listed = || SPECS.iter().filter(|s| s.group != Group::Hidden);
    let mut found: Vec<&Spec> = listed().filter(|s| s.name.starts_with(typed)).collect();
    let candidate = |name: &str, s: &Spec| Candidate {
        insert: format!("/{name}{}", if s.usage.is_empty() { "" } else { " " }),
        label: format!("/{name} {}", s.usage).trim_end().to_owned(),
        help: s.help.to_owned(),
    };
    if found.is_empty() && !typed.is_empty() {
        let hidden = SPECS.iter().filter(|s| s.group == Group::Hidden).map(|s| (s.name, s.name));
        let mut others = hidden.chain(ALIASES.iter().copied()).filter(|(name, _)| name.starts_with(typed));
        if let Some((name, spec)) = others.next().and_then(|(name, own)| Some((name, spec(own)?))) {
            return vec![candidate(name, spec)];
        }
    }
    if typed.len() > 1 {
        let rest = listed().filter(|s| !s.name.starts_with(typed)).map(|s| (s.name, s));
        found.extend(fuzzy(typed, rest));
    }
    found.into_iter().map(|s| candidate(s.name, s)).collect()
}

/// Items whose name has the typed letters in order, best first.
fn fuzzy<'a, T>(typed: &str, items: impl Iterator<Item = (&'a str, T)>) -> Vec<T> {
    let pattern = Pattern::new(typed, CaseMatching::Ignore, Normalization::Smart, AtomKind::Fuzzy);
    let (mut matcher, mut buffer) = (Matcher::new(Config::DEFAULT), Vec::new());
    let scored =
        items.filter_map(|(name, item)| Some((pattern.score(Utf32Str::new(name, &mut buffer), &mut matcher)?, item)));
    let mut scored: Vec<_> = scored.collect();
    scored.sort_by_key(|(score, _)| std::cmp::Reverse(*score));
    scored.into_iter().map(|(_, item)| item).collect()
}

fn argument_candidates(argument: Argument, typed: &str, sources: &Sources) -> Vec<Candidate> {
    let words: Vec<(String, String)> = match argument {
        Argument::None | Argument::Text => Vec::new(),
        Argument::Compact => pairs(&[("list", "what you said, word for word")]),
        Argument::OnOff => pairs(&[("on", ""), ("off", "")]),
        Argument::Forget => {
            pairs(&[("less", "keep more"), ("more", "keep less"), ("trained", "as the model was trained")])
        }
        Argument::Pin => pairs(&[("system", "the system prompt")]),
        Argument::Unpin => pairs(&[("system", "the system prompt"), ("all", "every pin")]),
        Argument::Parallel => pairs(&[("1", "off"), ("4", ""), ("8", ""), ("16", ""), ("auto", "as many as fit")]),
        Argument::Theme => (sources.themes)().into_iter().map(|t| (t, String::new())).collect(),
        Argument::Model => models(typed, sources),
        Argument::Copy => pairs(&[("code", "the last code block"), ("all", "the whole conversation")]),
        Argument::Setting => match typed.split_once(' ') {
            Some((name @ ("mouse" | "think"), _)) => values(name, &["on", "off"]),
            Some((name @ "keep_thinking", _)) => values(name, &["on", "off", "auto"]),
            Some((name @ "theme", _)) => {
                values(name, &(sources.themes)().iter().map(String::as_str).collect::<Vec<_>>())
            }
            Some(_) => Vec::new(),
            None => SETTINGS.iter().map(|(n, h)| (format!("{n} "), (*h).to_owned())).collect(),
        },
    };
    let fitting = words.into_iter().filter(|(w, _)| w.starts_with(typed) && w != typed);
    fitting.map(|(w, help)| Candidate { label: w.trim_end().to_owned(), insert: w, help }).collect()
}

/// The built-in model, cached ones, folders and files of earlier conversations, and folders once the beginning of a path
/// is typed.
fn models(typed: &str, sources: &Sources) -> Vec<(String, String)> {
    let mut out = pairs(&[("demo", "built in")]);
    out.extend(sources.models.iter().map(|id| (id.clone(), "in the Hugging Face cache".to_owned())));
    out.extend(sources.used.iter().map(|path| (path.clone(), "used before".to_owned())));
    if !typed.is_empty() {
        out.extend((sources.paths)(typed, true).into_iter().map(|path| (path, "folder".to_owned())));
    }
    out
}

/// The values of a setting.
fn values(name: &str, values: &[&str]) -> Vec<(String, String)> {
    values.iter().map(|value| (format!("{name} {value}"), String::new())).collect()
}

fn pairs(words: &[(&str, &str)]) -> Vec<(String, String)> {
    words.iter().map(|(w, h)| ((*w).to_owned(), (*h).to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_commands_or_messages() {
        assert_eq!(parse("/help"), Some(("help", "")));
        assert_eq!(parse("/system  be brief "), Some(("system", "be brief")));
        assert_eq!(parse("/usr/bin/env"), None);
        assert_eq!(parse("// comment"), None);
        assert_eq!(parse("/ x"), None);
        assert_eq!(parse("help"), None);
        assert_eq!(message("//help"), "/help");
    }

    #[test]
    fn mistyped_names_have_a_nearest() {
        let near = |name| nearest(name, SPECS.iter().map(|s| s.name));
        assert_eq!(near("hepl"), Some("help"));
        assert_eq!(near("evicton"), Some("eviction"));
        assert_eq!(near("export-all"), None);
        assert_eq!(near("xyzzy"), None);
        assert_eq!(near("sess"), Some("sessions"));
    }

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
        assert_eq!(labels("/").len(), SPECS.iter().filter(|s| s.group != Group::Hidden).count());
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
