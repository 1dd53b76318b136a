//! The slash commands. Each is one entry of [`ALL`]; what it does is in a file of
//! [`commands`](self).

pub mod cache;
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
mod surprise;
mod turns;
pub mod twin;

use super::completion::{Sources, fuzzy};
use super::refusal::{Done, Refusal};
use super::state::App;
use super::text::clean_line;
use crate::words::nearest;

use Group::{Chat, Files, Hidden, Memory, Model};

/// Every command, in the order that /help lists them.
pub const ALL: &[Command] = &[
    Command::new(Chat, "help", "[WORDS]", help::open).help("keys and commands").args(Args::TEXT),
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
    Command::new(Chat, "copy", "[N|code|all]", copy::run)
        .help("copy the last answer, the Nth from the end, its code, or all")
        .args(
            Args::words("a number, code or all", &[("code", "the last code block"), ("all", "the whole conversation")])
                .open(),
        ),
    Command::new(Chat, "find", "[TEXT]", find::run)
        .help("find text in this conversation")
        .also(&["search"])
        .args(Args::TEXT),
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
    Command::new(Memory, "stats", "", cache::stats).help("the numbers of the cache, head by head").also(&["context"]),
    Command::new(Model, "model", "[NAME]", model::model)
        .help("load another model: demo, a folder, a GGUF file, or ORG/NAME")
        .also(&["load"])
        .args(Args { more: model::known, ..Args::TEXT }),
    Command::new(Model, "models", "", models::open)
        .help("the models on this machine: size, shape, DMS, licence; Enter loads one")
        .also(&["list"]),
    Command::new(Model, "set", "[NAME VALUE]", set::set)
        .help("change a setting; without a name: list them")
        .also(&["settings"])
        .args(Args { more: set::complete, ..Args::TEXT }),
    Command::new(Model, "theme", "[NAME]", set::theme)
        .help("change the colours")
        .args(Args { more: set::themes, ..Args::TEXT }),
    Command::new(Files, "sessions", "[WORDS]", sessions::open)
        .help("saved conversations: open, rename, delete")
        .also(&["history"])
        .args(Args::TEXT),
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

/// A slash command.
pub struct Command {
    pub name: &'static str,
    /// Names that people bring along from other programs. They are not listed.
    pub aliases: &'static [&'static str],
    /// Argument after the name, for /help: `[N|code|all]`.
    pub usage: &'static str,
    pub help: &'static str,
    pub group: Group,
    pub args: Args,
    pub run: Run,
}

/// Effect of a command with the words after its name.
type Run = fn(&mut App, &str) -> Done;

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
    /// A command without arguments or other names.
    const fn new(group: Group, name: &'static str, usage: &'static str, run: Run) -> Self {
        Self { name, aliases: &[], usage, help: "", group, args: Args::NONE, run }
    }

    const fn help(mut self, help: &'static str) -> Self {
        self.help = help;
        self
    }

    const fn also(mut self, aliases: &'static [&'static str]) -> Self {
        self.aliases = aliases;
        self
    }

    const fn args(mut self, args: Args) -> Self {
        self.args = args;
        self
    }

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

    /// Shows why the command was not carried out.
    fn refuse(&self, app: &mut App, argument: &str, why: Refusal) {
        match why {
            Refusal::Said => {}
            Refusal::Takes => app.error(self.takes(argument)),
            Refusal::Wrong(why) => app.error(why),
            Refusal::Price(price) => app.info(price),
            Refusal::Because(why) => app.info(format!("/{}: {why}", self.name)),
        }
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

/// Carries out a command, or shows why not. False if its line is to be corrected or confirmed.
pub fn run(app: &mut App, command: &Command, argument: &str) -> bool {
    let Err(why) = (command.run)(app, argument) else { return true };
    let stays = why.keeps_line();
    command.refuse(app, argument, why);
    !stays
}

/// Carries out the command of this name.
pub fn run_named(app: &mut App, name: &str, argument: &str) {
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
