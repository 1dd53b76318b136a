//! The slash commands. Each is one entry of [`ALL`]; what it does is in a file of
//! [`commands`](self).

pub mod cache;
mod chains;
pub mod command;
pub mod compact;
pub mod compare;
mod copy;
mod cost;
mod draft;
pub mod find;
pub mod help;
pub mod logprobs;
mod model;
pub mod models;
mod pin;
mod prelude;
pub mod profile;
pub mod recall;
pub mod search;
mod session;
pub mod sessions;
pub mod set;
mod surprise;
pub mod train;
mod turns;
pub mod twin;

pub use command::{Args, Command, Group, pairs, takes};

use super::completion::fuzzy;
use super::refusal::Done;
use super::state::App;
use crate::words::nearest;

use Group::{Chat, Files, Hidden, Memory, Model};

/// Every command, in the order that /help lists them.
pub const ALL: &[Command] = &[
    Command::new(Chat, "help", "[WORDS]", help).help("keys and commands").args(Args::TEXT),
    Command::new(Chat, "new", "", session::new).help("begin a new conversation; this one stays saved").also(&["clear"]),
    Command::new(Chat, "compact", "[list]", compact::begin)
        .help("continue in a new conversation with a summary, or a list of your messages; this one stays saved")
        .args(Args::words("list or nothing", &[("list", "your messages, word for word")])),
    Command::new(Chat, "regen", "", turns::regenerate)
        .help("answer the last message again; the old answer stays a branch")
        .also(&["retry"]),
    Command::new(Chat, "edit", "", turns::edit).help("change your last (or the chosen) message and send it again"),
    Command::new(Chat, "undo", "", turns::undo).help("remove the last message and its answer from the context"),
    Command::new(Chat, "parallel", "N|auto [TEXT]", chains::parallel)
        .help("answer with N chains that vote; 1 is off; with a text: this question only")
        .also(&["width"])
        .args(
            Args::words(
                "1 to 1024 chains, or auto",
                &[("1", "off"), ("4", ""), ("8", ""), ("16", ""), ("auto", "as many as fit")],
            )
            .open(),
        ),
    Command::new(Chat, "chains", "[N]", chains::show)
        .help("the chains of the last (or the chosen) answer, or chain N's reply")
        .args(Args::text("the number of a chain")),
    Command::new(Model, "draft", "on|off|N", draft::run)
        .help("guess several tokens per step (speculative decoding); same answer, faster")
        .args(
            Args::words(
                "on, off, or the most tokens of a step (1 to 15)",
                &[("on", "as many as are faster"), ("off", "one token a step")],
            )
            .open(),
        ),
    Command::new(Chat, "think", "on|off", set::think).help("let the model think before it answers").args(Args::ON_OFF),
    Command::new(Chat, "system", "[TEXT|none]", set::system).help("set the system prompt").args(Args::TEXT),
    Command::new(Chat, "copy", "[N|code|all|answer N]", copy::run)
        .help("the last or chosen answer, its code block N, its last block, all, or the Nth answer from the end")
        .args(
            Args::words(
                "a number, code, all or answer N",
                &[("code", "the last code block"), ("all", "the whole conversation")],
            )
            .open(),
        ),
    Command::new(Chat, "find", "[TEXT]", find::run).help("find text in this conversation").args(Args::TEXT),
    Command::new(Chat, "quit", "", session::quit).help("quit (the conversation is saved)").also(&["exit", "bye"]),
    Command::new(Memory, "eviction", "on|off", cache::eviction)
        .help("drop the tokens that the model marks, or keep all")
        .args(Args::ON_OFF),
    Command::new(Memory, "forget", "less|more|N|trained", cache::forget)
        .help("how much the model forgets from now on (N = compression ratio, as --keep-ratio)")
        .args(
            Args::words(
                "less, more, trained, or a ratio of 1 to 64",
                &[("less", "keep more"), ("more", "keep less"), ("trained", "what the model was trained to keep")],
            )
            .open(),
        ),
    Command::new(Memory, "pin", "[system]", pin::pin)
        .help("never forget your last (or the chosen) message, or the system prompt")
        .args(Args::words("system, or nothing for your last (or the chosen) message", &[pin::SYSTEM])),
    Command::new(Memory, "unpin", "", pin::unpin)
        .help("take the pin of that message back, or every pin; asks which")
        .args(Args::words(
            "system, all, or nothing for your last (or the chosen) message",
            &[pin::SYSTEM, ("all", "every pin")],
        )),
    Command::new(Memory, "recall", "[TEXT]", recall::run)
        .help("ask whether the model still knows a text (or the chosen message)")
        .args(Args::TEXT),
    Command::new(Memory, "compare", "", compare::run)
        .help("answer the last question again without eviction, beside the conversation"),
    Command::new(Memory, "twin", "on|off", twin::run)
        .help("compare the next answers with a copy that drops nothing")
        .args(Args::ON_OFF),
    Command::new(Memory, "logprobs", "", logprobs::run)
        .help("how sure the model was of each token of the last answer")
        .also(&["probs"]),
    Command::new(Memory, "surprise", "[N]", surprise::run)
        .help("the N tokens of the last answer that the model expected least (8), and what it expected")
        .args(Args::text("a number from 1 to 50")),
    Command::new(Memory, "rebuild", "", cache::rebuild).help("recompute the cache with the current eviction setting"),
    Command::new(Memory, "cost", "", cost::run)
        .help("what the last (or the chosen) answer cost: time, tokens, cache, drafts, energy"),
    Command::new(Memory, "stats", "", cache::stats).help("the numbers of the cache, head by head").also(&["context"]),
    Command::new(Model, "model", "[NAME]", model::model)
        .help("load another model: demo, a short name such as qwen3:4b, a folder, a GGUF file, or ORG/NAME")
        .also(&["load"])
        .args(Args { more: model::known, ..Args::TEXT }),
    Command::new(Model, "models", "", models::open)
        .help("models on this machine, and known ones to download: size, licence, what fits; Enter loads one")
        .also(&["list"]),
    Command::new(Model, "profile", "[NAME|none]", profile::run)
        .help("switch to the settings of a profile; without a name: list them")
        .also(&["profiles"])
        .args(Args { more: profile::names, ..Args::TEXT }),
    Command::new(Model, "train", "[stop]", train::run)
        .help("make a model that forgets nothing forget: trains a predictor in the background, minutes on a CPU")
        .args(Args::words("stop or nothing", &[("stop", "end the training; nothing is changed")])),
    Command::new(Model, "set", "[NAME VALUE]", set::set)
        .help("change a setting; without a name: list them; --save [PROFILE] writes them to a file")
        .also(&["settings"])
        .args(Args { more: set::complete, ..Args::TEXT }),
    Command::new(Model, "theme", "[NAME]", set::theme)
        .help("change the colours")
        .args(Args { more: set::themes, ..Args::TEXT }),
    Command::new(Files, "sessions", "[WORDS]", sessions::open)
        .help("saved conversations: open, rename, delete")
        .also(&["history"])
        .args(Args::TEXT),
    Command::new(Files, "search", "WORDS", search::run)
        .help("find words, or a \"phrase\", in all saved conversations; Enter opens one there")
        .args(Args::text("words to look for")),
    Command::new(Files, "tag", "[NAME|-NAME]", session::tag)
        .help("tag this conversation, or take a tag off; #NAME finds it in /sessions")
        .args(Args::text("a tag, or -TAG to take it off")),
    Command::new(Files, "rename", "TITLE", session::rename)
        .help("give this conversation a title")
        .args(Args::text("a title")),
    Command::new(Files, "delete", "", session::delete).help("delete this conversation's file"),
    Command::new(Files, "export", "FILE", session::export)
        .help("write the conversation as .md or .jsonl")
        .args(Args::text("a file name that ends in .md or .jsonl")),
    Command::new(Hidden, "resume", "[ID]", session::resume).help("open a saved conversation").args(Args::TEXT),
    Command::new(Hidden, "save", "[FILE]", session::save)
        .help("say where the conversation is saved, or write it to a file")
        .args(Args::TEXT),
    Command::new(Hidden, "panel", "", cache::panel).help("show or hide the cache panel"),
    Command::new(Hidden, "keep-thinking", "on|off|auto", set::keep_thinking)
        .help("keep earlier thoughts in the context")
        .args(Args::words("on, off or auto", &[("on", ""), ("off", ""), ("auto", "as the model's template says")])),
];

/// Finds a command by its name or another.
pub fn find(name: &str) -> Option<&'static Command> {
    ALL.iter().find(|c| c.name == name || c.aliases.contains(&name))
}

/// Finds the command that a line begins with. An error says which was meant, or what it takes.
pub fn read(name: &str, argument: &str) -> Result<&'static Command, String> {
    let Some(command) = find(name) else {
        let names = ALL.iter().flat_map(|c| std::iter::once(c.name).chain(c.aliases.iter().copied()));
        let near = nearest(name, names).and_then(find);
        let hint = near.map_or_else(|| "/help lists them".to_owned(), |c| format!("did you mean /{}?", c.name));
        return Err(format!("no command /{name}; {hint}"));
    };
    command.mistake(argument).map_or(Ok(command), Err)
}

/// Carries out a command, or shows why not. False if its line is to be corrected or confirmed.
pub fn run(app: &mut App, command: &Command, argument: &str) -> bool {
    let Err(why) = (command.run)(app, argument) else { return true };
    // A name alone is typed again soon, and would be in the way of the next message.
    let stays = why.keeps_line() || !argument.is_empty();
    command.refuse(app, argument, why);
    !stays
}

fn help(app: &mut App, words: &str) -> Done {
    help::open(app, words, ALL);
    Ok(())
}

/// Carries out the command of this name, for a key or a list.
pub fn run_named(app: &mut App, name: &str, argument: &str) {
    app.ran = None;
    if let Some(command) = find(name) {
        run(app, command, argument);
    }
}

/// Listed commands whose name begins as typed, then those with its letters in order; an unlisted
/// name that begins so, if nothing else does.
pub fn beginning(typed: &str) -> Vec<(&'static str, &'static Command)> {
    let listed = || ALL.iter().filter(|c| c.group != Group::Hidden).map(|c| (c.name, c));
    let mut found: Vec<_> = listed().filter(|(name, _)| name.starts_with(typed)).collect();
    if found.is_empty() && !typed.is_empty() {
        let hidden = ALL.iter().filter(|c| c.group == Group::Hidden).map(|c| (c.name, c));
        let others = hidden.chain(ALL.iter().flat_map(|c| c.aliases.iter().map(move |alias| (*alias, c))));
        let other = others.into_iter().find(|(name, _)| name.starts_with(typed));
        if other.is_some() {
            return other.into_iter().collect();
        }
    }
    if typed.len() > 1 {
        let others = listed().map(|(name, _)| name).filter(|name| !name.starts_with(typed));
        found.extend(fuzzy(typed, others).filter_map(|name| Some((name, find(name)?))));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ui::action::Action;

    #[test]
    fn every_name_is_one_commands_and_mistyped_ones_have_a_nearest() {
        let names: Vec<&str> = ALL.iter().flat_map(|c| std::iter::once(&c.name).chain(c.aliases)).copied().collect();
        assert!(Action::ALL.iter().filter(|a| a.is_command()).all(|a| find(a.name()).is_some()));
        assert!(names.iter().enumerate().all(|(n, name)| !names[..n].contains(name)), "{names:?}");
        let near = |name| nearest(name, names.iter().copied());
        assert_eq!((near("hepl"), near("evicton"), near("sess")), (Some("help"), Some("eviction"), Some("sessions")));
        assert_eq!((near("export-all"), near("xyzzy")), (None, None));
    }
}
