//! The command line and the texts of `--help`. Only parses.

mod commands;
pub mod help;

pub use commands::*;

use super::devices::cuda_summary;
use super::output::wrong_use;
use crate::config::{Layer, Origin, Width};
use crate::words::nearest;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, FromArgMatches, Parser, ValueHint};
use std::ffi::OsString;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::sync::OnceLock;

/// Version and commit.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (commit ", env!("DMSCHAT_BUILD_COMMIT"), ")");

/// Text of `--version` after the name. The driver is asked only then, because that takes a moment.
fn version() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        let asked = std::env::args_os().any(|a| a == "--version" || a == "-V");
        if asked { format!("{VERSION}\ncuda: {}", cuda_summary()) } else { VERSION.to_owned() }
    })
}

/// A terminal chat whose conversations run 8x longer in the same GPU memory.
///
/// dmschat runs DMS models: every attention head decides for every token whether its key and value
/// may leave the KV cache, so that long conversations and long reasoning need a fraction of the
/// memory. A small model is built in: start `dmschat` without arguments, and watch its cache while
/// it thinks.
#[derive(Parser, Debug)]
#[command(name = "dmschat", version = version(), args_conflicts_with_subcommands = false, max_term_width = 100)]
#[command(override_usage = "dmschat [FLAGS] [COMMAND]\n       dmschat [FLAGS] \"QUESTION\"")]
#[command(after_help = "dmschat --help shows all flags, dmschat COMMAND --help those of a command.")]
#[command(after_long_help = help::after())]
pub struct Cli {
    #[command(flatten)]
    pub common: Common,
    /// A question, answered as by -p
    #[arg(value_name = "QUESTION", hide = true)]
    pub question: Vec<String>,
    #[command(subcommand)]
    pub command: Option<Command>,
    /// What the question looks like instead, for stderr.
    #[arg(skip)]
    pub hint: Option<String>,
}

/// Commands of similar programs, and the command line of dmschat that does the same.
const FOREIGN: [(&str, &str); 7] = [
    ("pull", "dmschat models pull ORG/NAME"),
    ("list", "dmschat models list"),
    ("ls", "dmschat models list"),
    ("rm", "dmschat models rm ORG/NAME"),
    ("ps", "dmschat doctor --memory"),
    ("model", "dmschat models list"),
    ("session", "dmschat sessions list"),
];
/// Words of a line that may be meant as a command of another program.
const FEW_WORDS: usize = 3;

/// Parses a command line. A negative number after a flag is its value, so that the error says what
/// the flag expects.
pub fn matches(
    command: clap::Command,
    line: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> clap::error::Result<clap::ArgMatches> {
    fn with_negative(command: clap::Command) -> clap::Command {
        let takes_value = |a: &clap::Arg| a.get_num_args().is_none_or(|n| n.takes_values());
        let arg = |a: clap::Arg| match a.get_action().takes_values() && takes_value(&a) && !a.is_positional() {
            true => a.allow_negative_numbers(true),
            false => a,
        };
        command.mut_args(arg).mut_subcommands(with_negative)
    }
    with_negative(command).try_get_matches_from(line)
}

/// [`help::command`] of the whole command line.
pub fn command() -> clap::Command {
    help::command(Cli::command())
}

/// [`help::shown`] of the whole command line.
pub fn shown() -> clap::Command {
    help::shown(Cli::command())
}

impl Cli {
    /// Parses a command line.
    pub fn read(line: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> clap::error::Result<Self> {
        let mut cli = Self::from_arg_matches(&matches(command(), line)?)?;
        cli.take_run()?;
        cli.take_question()?;
        cli.spread();
        Ok(cli)
    }

    /// Turns `run MODEL [QUESTION]` into `-m MODEL` and the question.
    fn take_run(&mut self) -> clap::error::Result<()> {
        let Some(Command::Run(RunArgs { model, question })) = &mut self.command else { return Ok(()) };
        if let Some(other) = self.common.model.replace(std::mem::take(model)) {
            let named = self.common.model.as_deref().unwrap_or_default();
            let message = format!("run {named} and -m {other} are two models; name one");
            return Err(Self::command().error(ErrorKind::ArgumentConflict, message));
        }
        (self.question, self.command) = (std::mem::take(question), None);
        match (self.question.is_empty(), self.common.prompt.is_some()) {
            (true, _) => Ok(()),
            (false, true) => self.take_question(),
            (false, false) => {
                self.common.prompt = Some(std::mem::take(&mut self.question).join(" "));
                Ok(())
            }
        }
    }

    /// Turns words that are not a subcommand into the prompt. A word that could be a mistyped
    /// subcommand is refused.
    fn take_question(&mut self) -> clap::error::Result<()> {
        let Some(first) = self.question.first() else { return Ok(()) };
        let alone = self.question.len() == 1;
        let refused = |kind, message: String| Err(Self::command().error(kind, message));
        if self.common.prompt.is_some() {
            return refused(ErrorKind::ArgumentConflict, format!("-p and the words {first:?} are two questions"));
        }
        // Many questions begin with a word that is near a short name.
        let shortest = if alone { 1 } else { 6 };
        let is_name = !first.is_empty() && first.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
        let command = Self::command();
        let names = command.get_subcommands().map(clap::Command::get_name).filter(|name| name.len() >= shortest);
        let similar = nearest(first, names).filter(|_| is_name);
        let question = self.question.join(" ");
        let foreign = FOREIGN.iter().find(|(word, _)| word == first && self.question.len() <= FEW_WORDS);
        let meant = match (similar, foreign) {
            (_, Some((_, line))) if alone => Some(format!("did you mean {line}?")),
            (Some(name), None) => Some(format!("did you mean '{name}'?")),
            _ => None,
        };
        if let Some(meant) = meant {
            let ask = format!("to ask the model: dmschat -p {question:?}");
            return refused(ErrorKind::InvalidSubcommand, format!("no subcommand '{first}'; {meant} {ask}"));
        }
        self.hint = foreign.map(|(word, line)| format!("'{word}' is no subcommand, so this is a question; see {line}"));
        self.common.prompt = Some(question);
        self.question.clear();
        Ok(())
    }

    /// Gives bench the flags that are settings of a chat elsewhere.
    fn spread(&mut self) {
        let Some(Command::Bench(args)) = &mut self.command else { return };
        if let Some(ratio) = self.common.keep_ratio.take() {
            args.keep = Some(1.0 / ratio.0[0]);
        }
        args.chains.extend(self.common.width.take().iter().flat_map(|list| &list.0).filter_map(|w| match w {
            Width::Chains(n) => Some(*n),
            Width::Auto => None,
        }));
    }
}

#[derive(Args, Debug, Default)]
pub struct Common {
    /// The settings that flags give.
    #[command(flatten)]
    pub layer: Layer,

    /// Answer this on stdout and exit; -: read it from stdin
    ///
    /// Everything else goes to stderr. When stdin is a pipe or a file, its text is appended to the
    /// prompt. No conversation is saved. `dmschat "TEXT"` and `echo TEXT | dmschat` do the same.
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true, help_heading = "Answer")]
    pub prompt: Option<String>,

    /// Print one JSON object instead of text
    #[arg(long, help_heading = "Answer")]
    pub json: bool,

    /// With -p and --width: the first answer that this shell command accepts wins instead of a vote
    ///
    /// The command reads an answer from stdin and exits with 0 if it is right; DMSCHAT_ANSWER holds
    /// the part that the vote counts. A command that takes longer than 10 s is killed, and the vote
    /// decides.
    #[arg(long, value_name = "COMMAND", hide_short_help = true, help_heading = "Answer")]
    pub check: Option<String>,

    /// Continue the newest conversation
    #[arg(long = "continue", conflicts_with = "resume", help_heading = "Sessions")]
    pub continue_: bool,

    /// Continue a saved conversation; without ID: choose
    ///
    /// ID is an id of `dmschat sessions list`, or a unique beginning or end of one; words that only
    /// one conversation has in its title or first message; or an exported .jsonl file.
    #[arg(long, value_name = "ID", num_args = 0..=1, help_heading = "Sessions")]
    pub resume: Option<Option<String>>,

    /// Do not save this conversation
    #[arg(long, help_heading = "Sessions")]
    pub no_session: bool,

    /// Config file instead of the default one
    #[arg(long, value_name = "FILE", env = "DMSCHAT_CONFIG", hide_env = true, value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,

    /// Settings of profiles/NAME.toml beside the config file, which they take precedence over
    #[arg(short = 'P', long, value_name = "NAME", env = "DMSCHAT_PROFILE", hide_env = true, hide_short_help = true)]
    pub profile: Option<String>,
}

impl Common {
    /// Fails if a flag that is not one of `lists` has several values.
    pub fn one_value_each(&self, lists: &[&str]) -> anyhow::Result<()> {
        let mut flags = self.several().map(|key| format!("--{}", key.replace('_', "-")));
        match flags.find(|flag| !lists.contains(&flag.as_str())) {
            Some(flag) => Err(wrong_use(format!("{flag} takes one value here; bench and dmslab take lists"))),
            None => Ok(()),
        }
    }

    /// Describes flags about chains that do not go together, if any. `subcommand`: whether there is
    /// one.
    pub fn width_conflict(&self, subcommand: bool) -> Option<&'static str> {
        let several = self.width.as_ref().is_some_and(|width| width.0[0] != Width::Chains(1));
        match () {
            () if subcommand && (self.width.is_some() || self.early_stop.is_some() || self.check.is_some()) => Some(
                "--width, --early-stop and --check are for a chat or -p, not for this subcommand (bench and dmslab eval have --width)",
            ),
            () if self.check.is_some() && self.prompt.is_none() => Some("--check needs -p"),
            () if self.check.is_some() && !several => Some("--check needs --width 2 or more"),
            () if self.early_stop.is_some() && !several && self.prompt.is_some() => {
                Some("--early-stop needs --width 2 or more")
            }
            () => None,
        }
    }

    /// What the settings of this command line are read from.
    pub fn origin(&self) -> Origin {
        let profile = self.profile.clone().filter(|name| !name.is_empty());
        Origin { flags: self.layer(), config: self.config.clone(), profile }
    }

    /// The flags as a layer of the settings.
    pub fn layer(&self) -> Layer {
        self.layer.clone()
    }
}

impl Deref for Common {
    type Target = Layer;
    fn deref(&self) -> &Layer {
        &self.layer
    }
}

impl DerefMut for Common {
    fn deref_mut(&mut self) -> &mut Layer {
        &mut self.layer
    }
}
