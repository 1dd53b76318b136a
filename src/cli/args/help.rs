//! Which flags each subcommand shows, and the first page of help.

use crate::config::Layer;
use clap::{Arg, Command};

/// Flags that only `-p` has.
const ONE_ANSWER: &[&str] = &["prompt", "json", "check"];

/// Ids of the common flags that a subcommand uses; `None` means a chat.
fn flags_of(path: &str) -> Option<Vec<&'static str>> {
    let [model, cache, sampling] = ["model", "cache", "sampling"].map(Layer::group);
    let own: &[&[&str]] = match path {
        "chat" | "run" | "config show" => return None,
        "show" | "config theme" => &[&["theme", "config", "profile"]],
        "serve" => &[
            model,
            cache,
            sampling,
            &["when_full", "keep_ratio", "max_tokens", "max_think", "draft", "seed", "think", "system"],
            &["config", "profile"],
        ],
        "bench" => &[model, cache, &["config", "profile", "keep_ratio", "width", "far", "far_pages", "json"]],
        "doctor" => &[model, cache, &["config", "profile", "json", "theme"]],
        "models list" => &[&["model", "device", "json", "config"]],
        "models pull" => &[&["device", "json", "config"]],
        "models rm" => &[&["weights", "json"]],
        "models quantize" => &[&["weights", "importance", "device", "json", "config"]],
        "models info" => &[&["adapter", "device", "weights", "importance", "kv", "ctx_size", "json", "config"]],
        "adapter train" => &[&["model", "device", "weights", "kv", "json", "config"]],
        "adapter list" | "adapter info" | "adapter rm" => &[&["json", "config"]],
        "sessions list" | "sessions prune" => &[&["json", "config"]],
        "config path" => &[&["config"]],
        _ => &[],
    };
    Some(own.concat())
}

/// The command line for parsing and for help. A common flag may be before a subcommand or after it.
/// A subcommand shows only the flags that it uses, but accepts all of them, because older scripts
/// may name them.
pub fn command(root: Command) -> Command {
    with_flags(root, true, &flags_of)
}

/// The command line for completions and man pages, in which a subcommand has only the flags that it
/// uses.
pub fn shown(root: Command) -> Command {
    let local = |arg: Arg| arg.global(false);
    with_flags(root, false, &flags_of).mut_args(local).mut_subcommands(move |sub| sub.mut_args(local))
}

/// The ids of the common flags that a subcommand uses, by its path; `None`: all.
type FlagsOf<'a> = &'a dyn Fn(&str) -> Option<Vec<&'static str>>;

/// Gives every subcommand the common flags that it uses. `others`: also those that it does not use,
/// hidden.
pub fn with_flags(root: Command, others: bool, flags_of: FlagsOf<'_>) -> Command {
    let root = root.mut_args(|arg| if arg.is_positional() { arg } else { arg.global(true) });
    let common: Vec<Arg> = root.get_arguments().filter(|arg| arg.is_global_set()).cloned().collect();
    root.mut_subcommands(|sub| add_flags(sub, "", &common, others, flags_of))
}

fn add_flags(sub: Command, parent: &str, common: &[Arg], others: bool, flags_of: FlagsOf<'_>) -> Command {
    let path = format!("{parent}{}", sub.get_name());
    let flags = flags_of(&path);
    let uses = |id: &str| flags.as_ref().map_or(!ONE_ANSWER.contains(&id), |flags| flags.contains(&id));
    let has_subcommands = sub.has_subcommands();
    let args = common.iter().filter_map(|arg| {
        let uses = uses(arg.get_id().as_str());
        // "Answer" is not a heading for the output of a measurement.
        let arg = if arg.get_id() == "json" { arg.clone().help_heading(None::<&str>) } else { arg.clone() };
        let arg = arg.hide(!uses || has_subcommands);
        (uses || others).then_some(arg)
    });
    let sub = sub.args(args.collect::<Vec<_>>());
    let parent = format!("{path} ");
    sub.mut_subcommands(|below| add_flags(below, &parent, common, others, flags_of))
}

pub const SOURCES: &str = "\
Settings come from flags, then DMSCHAT_* variables (DMSCHAT_MODEL, DMSCHAT_TEMPERATURE, ...), then the profile (-P), then the \
config file, then the model's recommendation. `dmschat config show` prints all of them.";

pub const EXIT_CODES: &str = "\
0 answered, 1 failed or no answer, 2 usage, config or model error, 130 interrupted.";

pub const EXAMPLES: &str = "\x20 dmschat                                    chat with the built-in model
  dmschat run qwen3:4b                       a known model, downloaded if it is missing
  dmschat -m ./Qwen3-0.6B --eviction off     a model in a folder, no eviction
  dmschat \"Solve 3x + 4 = 19\" --json         one answer with its numbers
  git diff | dmschat -p \"Summarize:\"         a prompt and the text of a pipe
  dmschat --continue                         continue the newest conversation";

/// The end of `--help`.
pub fn after() -> String {
    format!("{SOURCES}\n\nExit codes: {EXIT_CODES}\n\nExamples:\n{EXAMPLES}")
}
