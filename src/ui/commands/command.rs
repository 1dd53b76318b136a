//! A slash command: its words, its help, and what it runs.

use super::super::completion::Sources;
use super::super::refusal::{Done, Refusal};
use super::super::state::App;
use super::super::text::clean_line;

/// A slash command.
pub struct Command {
    pub name: &'static str,
    /// Names that people bring along from other programs. They are not listed.
    pub aliases: &'static [&'static str],
    /// Argument after the name, for /help: `[N|code|all|answer N]`.
    pub usage: &'static str,
    pub help: &'static str,
    pub group: Group,
    pub args: Args,
    pub run: Run,
}

/// Effect of a command with the words after its name.
pub(super) type Run = fn(&mut App, &str) -> Done;

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
    pub(super) const fn new(group: Group, name: &'static str, usage: &'static str, run: Run) -> Self {
        Self { name, aliases: &[], usage, help: "", group, args: Args::NONE, run }
    }

    pub(super) const fn help(mut self, help: &'static str) -> Self {
        self.help = help;
        self
    }

    pub(super) const fn also(mut self, aliases: &'static [&'static str]) -> Self {
        self.aliases = aliases;
        self
    }

    pub(super) const fn args(mut self, args: Args) -> Self {
        self.args = args;
        self
    }

    /// `/copy [N|code|all|answer N]`
    pub fn label(&self) -> String {
        format!("/{} {}", self.name, self.usage).trim_end().to_owned()
    }

    /// Returns why this argument cannot be meant, if so.
    pub fn mistake(&self, argument: &str) -> Option<String> {
        let known = argument.is_empty() || self.args.words.iter().any(|(word, _)| *word == argument);
        (self.args.closed && !known).then(|| self.takes(argument))
    }

    pub(super) fn takes(&self, argument: &str) -> String {
        takes(&format!("/{}", self.name), self.args.takes, argument)
    }

    /// Shows why the command was not carried out.
    pub(super) fn refuse(&self, app: &mut App, argument: &str, why: Refusal) {
        match why {
            Refusal::Takes => app.error(self.takes(argument)),
            why => refused(app, self.name, why),
        }
    }
}

/// Shows why the command of this name was not carried out with an argument that it takes.
pub(super) fn refused(app: &mut App, name: &str, why: Refusal) {
    match why {
        Refusal::Said => {}
        Refusal::Takes => app.error(format!("/{name} does not take this")),
        Refusal::Wrong(why) => app.error(why),
        Refusal::Price(price) => app.info(price),
        Refusal::Because(why) => app.info(format!("/{name}: {why}")),
    }
}

/// Gives the line of a command back that failed after it had begun, to be corrected, unless
/// something else is typed. False if that command was not the one that was typed last.
pub fn give_line_back(app: &mut App, name: &str) -> bool {
    let Some((_, line)) = app.ran.take_if(|(ran, _)| *ran == name) else { return false };
    let has_argument = line.trim().contains(char::is_whitespace);
    if has_argument && app.input.is_empty() && app.aside.is_none() && app.editing.is_none() {
        app.input.set(&line);
        app.given_back = Some(line);
    }
    true
}

/// Shows why a command failed after it had begun, with its name if the user typed it.
pub fn failed(app: &mut App, name: &str, why: &str) {
    let text = if give_line_back(app, name) { format!("/{name}: {why}") } else { why.to_owned() };
    app.error(text);
}

/// Says what a command or a setting takes.
pub fn takes(name: &str, what: &str, argument: &str) -> String {
    let not = if argument.is_empty() { String::new() } else { format!(", not {:?}", clean_line(argument)) };
    format!("{name} takes {what}{not}")
}

/// The words of a list, for completion.
pub fn pairs(words: &[(&str, &str)]) -> Vec<(String, String)> {
    words.iter().map(|(w, h)| ((*w).to_owned(), (*h).to_owned())).collect()
}
