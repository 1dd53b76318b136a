//! The slash commands. Each is one entry, in a file of [`commands`](self) with what it does, and a
//! line of [`ALL`].

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

/// Every command, in the order that /help lists them.
pub const ALL: &[Command] = &[
    help::HELP,
    session::NEW,
    compact::COMPACT,
    turns::REGEN,
    turns::EDIT,
    turns::UNDO,
    chains::PARALLEL,
    chains::CHAINS,
    draft::DRAFT,
    set::THINK,
    set::SYSTEM,
    copy::COPY,
    find::FIND,
    session::QUIT,
    cache::EVICTION,
    cache::FORGET,
    pin::PIN,
    pin::UNPIN,
    recall::RECALL,
    compare::COMPARE,
    twin::TWIN,
    logprobs::LOGPROBS,
    cache::REBUILD,
    cache::STATS,
    model::MODEL,
    models::MODELS,
    set::SET,
    set::THEME,
    sessions::SESSIONS,
    session::RENAME,
    session::DELETE,
    session::EXPORT,
    session::RESUME,
    session::SAVE,
    cache::PANEL,
    set::KEEP_THINKING,
];

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
    /// One without arguments and other names.
    const fn new(
        group: Group,
        name: &'static str,
        usage: &'static str,
        help: &'static str,
        run: fn(&mut App, &str) -> Done,
    ) -> Self {
        Self { name, aliases: &[], usage, help, group, args: Args::NONE, run }
    }

    const fn args(mut self, args: Args) -> Self {
        self.args = args;
        self
    }

    const fn also(mut self, aliases: &'static [&'static str]) -> Self {
        self.aliases = aliases;
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
    pub fn refuse(&self, app: &mut App, argument: &str, why: Refusal) {
        match why {
            Refusal::Said => {}
            Refusal::Takes => app.error(self.takes(argument)),
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

/// Carries out a command, or shows why not.
pub fn run(app: &mut App, command: &Command, argument: &str) {
    if let Err(why) = (command.run)(app, argument) {
        command.refuse(app, argument, why);
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
        found.extend(fuzzy(typed, listed().filter(|(name, _)| !name.starts_with(typed)).map(|c| (c.0, c))));
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
