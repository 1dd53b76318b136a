//! The slash commands. Each is one entry of the table [`ALL`]; what it does is in a file of
//! [`commands`](self).

mod cache;
mod chains;
pub mod compact;
pub mod compare;
mod copy;
mod draft;
pub mod find;
pub mod help;
pub mod logprobs;
mod model;
pub mod models;
mod pin;
mod prelude;
pub mod recall;
mod session;
pub mod sessions;
pub mod set;
mod turns;
pub mod twin;

use super::completion::{Sources, fuzzy};
use super::refusal::{Done, Refusal};
use super::state::App;
use super::text::clean_line;
use crate::words::nearest;

/// Declares the commands: group, name, other names, usage, what it does, arguments, help.
macro_rules! commands {
    ($($group:ident $name:literal $(also $alias:literal)* $usage:literal: $run:path, $args:expr, $help:literal;)*) => {
        /// Every command, in the order that /help lists them.
        pub const ALL: &[Command] = &[$(Command {
            name: $name,
            aliases: &[$($alias),*],
            usage: $usage,
            help: $help,
            group: Group::$group,
            args: $args,
            run: $run,
        }),*];
    };
}

commands! {
    Chat "help" "[WORDS]": help::open, Args::TEXT, "keys and commands";
    Chat "new" also "clear" "": session::new, Args::NONE, "begin a new conversation; this one stays saved";
    Chat "compact" "[list]": compact::begin,
        Args::words("list or nothing", &[("list", "your messages, word for word")]),
        "continue in a new conversation with a summary, or a list of your messages; this one stays saved";
    Chat "regen" also "retry" "": turns::regenerate, Args::NONE,
        "answer the last message again; the old answer stays a branch";
    Chat "edit" "": turns::edit, Args::NONE, "change your last (or the chosen) message and send it again";
    Chat "undo" "": turns::undo, Args::NONE, "remove the last message and its answer from the context";
    Chat "parallel" also "width" "N|auto [TEXT]": chains::parallel,
        Args::words(
            "1 to 1024 chains, or auto",
            &[("1", "off"), ("4", ""), ("8", ""), ("16", ""), ("auto", "as many as fit")],
        ).open(),
        "answer with N chains that vote; 1 is off; with a text: this question only";
    Chat "chains" "[N]": chains::show, Args::text("the number of a chain"),
        "the chains of the last (or the chosen) answer, or chain N's reply";
    Model "draft" "on|off|N": draft::run,
        Args::words(
            "on, off, or the most tokens of a step (1 to 15)",
            &[("on", "as many as are faster"), ("off", "one token a step")],
        ).open(),
        "try several tokens in one step; the answer is the same";
    Chat "think" "on|off": set::think, Args::ON_OFF, "let the model think before it answers";
    Chat "system" "[TEXT|none]": set::system, Args::TEXT, "set the system prompt";
    Chat "copy" "[N|code|all]": copy::run,
        Args::words(
            "a number, code or all",
            &[("code", "the last code block"), ("all", "the whole conversation")],
        ).open(),
        "copy the last answer, the Nth from the end, its code, or all";
    Chat "find" also "search" "[TEXT]": find::run, Args::TEXT, "find text in this conversation";
    Chat "quit" also "exit" also "bye" "": session::quit, Args::NONE, "quit (the conversation is saved)";
    Memory "eviction" "on|off": cache::eviction, Args::ON_OFF, "drop the tokens that the model marks, or keep all";
    Memory "forget" "less|more|N|trained": cache::forget,
        Args::words(
            "less, more, trained or a ratio",
            &[("less", "keep more"), ("more", "keep less"), ("trained", "as the model was trained")],
        ).open(),
        "how much the model forgets from now on (N = compression ratio, as --keep-ratio)";
    Memory "pin" "[system]": pin::pin,
        Args::words("system, or nothing for your last (or the chosen) message", &[pin::SYSTEM]),
        "never forget your last (or the chosen) message, or the system prompt";
    Memory "unpin" "": pin::unpin,
        Args::words(
            "system, all, or nothing for your last (or the chosen) message",
            &[pin::SYSTEM, ("all", "every pin")],
        ),
        "take the pin of that message back, or every pin; asks which";
    Memory "recall" "[TEXT]": recall::run,
        Args::text("a text of this conversation, from its beginning on, or the chosen message"),
        "ask whether the model still knows a text (or the chosen message)";
    Memory "compare" "": compare::run, Args::NONE,
        "answer the last question again without eviction, beside the conversation";
    Memory "twin" "on|off": twin::run, Args::ON_OFF, "compare the next answers with a copy that drops nothing";
    Memory "logprobs" also "probs" "": logprobs::run, Args::NONE,
        "how sure the model was of each token of the last answer";
    Memory "rebuild" "": cache::rebuild, Args::NONE, "recompute the cache with the current eviction setting";
    Memory "stats" also "context" "": cache::stats, Args::NONE, "the numbers of the cache, head by head";
    Model "model" also "load" "[NAME]": model::model, Args { more: model::known, ..Args::TEXT },
        "load another model: demo, a folder, a GGUF file, or ORG/NAME";
    Model "models" also "list" "": models::open, Args::NONE,
        "the models on this machine: size, shape, DMS, licence; Enter loads one";
    Model "set" also "settings" "[NAME VALUE]": set::set, Args { more: set::complete, ..Args::TEXT },
        "change a setting; without a name: list them";
    Model "theme" "[NAME]": set::theme, Args { more: set::themes, ..Args::TEXT }, "change the colours";
    Files "sessions" also "history" "[WORDS]": sessions::open, Args::TEXT,
        "saved conversations: open, rename, delete";
    Files "rename" "TITLE": session::rename, Args::text("a title"), "give this conversation a title";
    Files "delete" "": session::delete, Args::NONE, "delete this conversation's file";
    Files "export" "FILE": session::export, Args::text("a file name that ends in .md or .jsonl"),
        "write the conversation as .md or .jsonl";
    Hidden "resume" "[ID]": session::resume, Args::TEXT, "open a saved conversation";
    Hidden "save" "[FILE]": session::save, Args::TEXT,
        "say where the conversation is saved, or write it to a file";
    Hidden "panel" "": cache::panel, Args::NONE, "show or hide the cache panel";
    Hidden "keep-thinking" "on|off|auto": set::keep_thinking,
        Args::words("on, off or auto", &[("on", ""), ("off", ""), ("auto", "as the model's template says")]),
        "keep earlier thoughts in the context";
}

/// A slash command.
pub struct Command {
    pub name: &'static str,
    /// Names that people bring along from other programs. They are not listed.
    pub aliases: &'static [&'static str],
    /// What stands behind the name, for /help: `[N|code|all]`.
    pub usage: &'static str,
    pub help: &'static str,
    pub group: Group,
    pub args: Args,
    pub run: fn(&mut App, &str) -> Done,
}

/// The arguments of a command, for completion and for what is refused.
pub struct Args {
    /// What it takes, for "/NAME takes ..., not ...".
    pub takes: &'static str,
    /// Words that completion offers, with their help.
    pub words: &'static [(&'static str, &'static str)],
    /// Words that depend on what was typed and on this machine.
    pub more: fn(&str, &Sources) -> Vec<(String, String)>,
    /// Nothing but `words` is taken.
    pub closed: bool,
}

impl Args {
    pub const NONE: Self = Self::words("nothing behind it", &[]);
    pub const ON_OFF: Self = Self::words("on or off", &[("on", ""), ("off", "")]);
    pub const TEXT: Self = Self { closed: false, ..Self::NONE };

    /// One of these words, or none.
    pub const fn words(takes: &'static str, words: &'static [(&'static str, &'static str)]) -> Self {
        Self { takes, words, more: |_, _| Vec::new(), closed: true }
    }

    /// One of its words, or another.
    pub const fn open(mut self) -> Self {
        self.closed = false;
        self
    }

    /// Any text.
    pub const fn text(takes: &'static str) -> Self {
        Self { takes, ..Self::TEXT }
    }
}

/// The heading under which /help lists a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    Chat,
    Memory,
    Model,
    Files,
    /// Works but is not listed: another command or a key does the same.
    Hidden,
}

impl Group {
    /// Those that are listed, in order, with their headings.
    pub const LISTED: [(Self, &'static str); 4] =
        [(Self::Chat, "Chat"), (Self::Memory, "Memory"), (Self::Model, "Model and settings"), (Self::Files, "Files")];
}

impl Command {
    /// `/copy [N|code|all]`
    pub fn label(&self) -> String {
        format!("/{} {}", self.name, self.usage).trim_end().to_owned()
    }

    /// Returns why this argument cannot be meant, if so.
    pub fn mistake(&self, argument: &str) -> Option<String> {
        let known = argument.is_empty() || self.args.words.iter().any(|(word, _)| *word == argument);
        (self.args.closed && !known).then(|| self.takes(argument))
    }

    fn takes(&self, argument: &str) -> String {
        takes(&format!("/{}", self.name), self.args.takes, argument)
    }
}

/// Says what a command or a setting takes.
pub fn takes(name: &str, what: &str, argument: &str) -> String {
    let not = if argument.is_empty() { String::new() } else { format!(", not {:?}", clean_line(argument)) };
    format!("{name} takes {what}{not}")
}

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

/// Carries out a command, or shows why not.
pub fn run(app: &mut App, command: &Command, argument: &str) {
    let done = (command.run)(app, argument);
    finish(app, command.name, argument, done);
}

/// Carries out the command of this name.
pub fn run_named(app: &mut App, name: &str, argument: &str) {
    if let Some(command) = find(name) {
        run(app, command, argument);
    }
}

/// Shows why a command was not carried out. True if it was.
fn finish(app: &mut App, name: &str, argument: &str, done: Done) -> bool {
    let Err(why) = done else { return true };
    match why {
        Refusal::Said => {}
        Refusal::Takes => app.error(find(name).map_or_else(String::new, |command| command.takes(argument))),
        Refusal::Because(why) => app.info(format!("/{name}: {why}")),
    }
    false
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

/// The words of a list, for completion.
pub fn pairs(words: &[(&str, &str)]) -> Vec<(String, String)> {
    words.iter().map(|(w, h)| ((*w).to_owned(), (*h).to_owned())).collect()
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
