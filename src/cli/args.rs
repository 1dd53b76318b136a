//! The command line and the texts of `--help`. Only parses.

mod commands;
pub mod help;

pub use commands::*;

use super::devices::cuda_summary;
use super::output::wrong_use;
use crate::codec::Codec;
use crate::config::{Auto, ByteSize, Device, Gemm, Layer, OnOff, Pin, Width};
use crate::policy::{Budget, PolicyKind};
use crate::protocol::WhenFull;
use crate::quant::Weights;
use crate::ui::spelling::nearest;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, FromArgMatches, Parser, ValueHint};
use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
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
/// may leave the KV cache, so that long conversations and long reasoning need a fraction of the memory.
/// A small model is built in: start `dmschat` without arguments, and watch its cache while it thinks.
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
}

/// Parses a command line. A negative number after a flag is its value, so that the error says what the flag expects.
pub fn matches(
    command: clap::Command,
    line: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> clap::error::Result<clap::ArgMatches> {
    fn with_negative(command: clap::Command) -> clap::Command {
        let arg = |a: clap::Arg| match a.get_action().takes_values() && !a.is_positional() {
            true => a.allow_negative_numbers(true),
            false => a,
        };
        command.mut_args(arg).mut_subcommands(with_negative)
    }
    with_negative(command).try_get_matches_from(line)
}

impl Cli {
    /// Parses a command line.
    pub fn read(line: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> clap::error::Result<Self> {
        let mut cli = Self::from_arg_matches(&matches(help::command(), line)?)?;
        cli.take_question()?;
        cli.spread();
        Ok(cli)
    }

    /// Makes words that are not a subcommand the prompt. A single word that could be a mistyped subcommand is refused.
    fn take_question(&mut self) -> clap::error::Result<()> {
        let Some(first) = self.question.first() else { return Ok(()) };
        let refused = |kind, message: String| Err(Self::command().error(kind, message));
        if self.common.prompt.is_some() {
            return refused(ErrorKind::ArgumentConflict, format!("-p and the words {first:?} are two questions"));
        }
        // Many questions begin with a word that is near a short name.
        let shortest = if self.question.len() == 1 { 1 } else { 6 };
        let is_name = !first.is_empty() && first.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
        let command = Self::command();
        let names = command.get_subcommands().map(clap::Command::get_name).filter(|name| name.len() >= shortest);
        let similar = nearest(first, names).filter(|_| is_name);
        let question = self.question.join(" ");
        if similar.is_some() || (is_name && self.question.len() == 1) {
            let hint = similar.map(|name| format!("; did you mean '{name}'?")).unwrap_or_default();
            let ask = format!("to ask the model: dmschat -p {question:?}");
            return refused(ErrorKind::InvalidSubcommand, format!("no subcommand '{first}'{hint}; {ask}"));
        }
        self.common.prompt = Some(question);
        self.question.clear();
        Ok(())
    }

    /// Gives bench the flags that are settings of a chat elsewhere.
    fn spread(&mut self) {
        let Some(Command::Bench(args)) = &mut self.command else { return };
        if let Some(ratio) = self.common.keep_ratio.take() {
            args.keep = Some(1.0 / ratio.first());
        }
        args.chains.extend(self.common.width.take().iter().flat_map(|list| &list.0).filter_map(|w| match w {
            Width::Chains(n) => Some(*n),
            Width::Auto => None,
        }));
    }
}

#[derive(Args, Debug, Default)]
pub struct Common {
    /// `demo` (built in), a folder, a GGUF file or ORG/NAME
    ///
    /// ORG/NAME[@REVISION] is a hub id: the model is downloaded if it is not in the cache.
    #[arg(short, long, global = true, value_name = "MODEL", value_hint = ValueHint::AnyPath, help_heading = "Model")]
    pub model: Option<String>,

    /// Adapter file that makes a dense model evict, or `none`
    #[arg(long, global = true, value_name = "FILE|none", value_hint = ValueHint::FilePath, hide_short_help = true, help_heading = "Model")]
    pub adapter: Option<String>,

    /// auto, cpu or cuda[:N]
    #[arg(long, global = true, value_name = "DEVICE", help_heading = "Model")]
    pub device: Option<Device>,

    /// Format of the weights: auto, bf16, int8 or int4
    ///
    /// bf16 is as in the model's files. int8 and int4 need about a half and a quarter of the memory. auto is the first of
    /// them that is expected to fit with the context. Quantized weights are kept in the cache folder for the next start.
    #[arg(long, global = true, value_name = "FORMAT", help_heading = "Model")]
    pub weights: Option<List<Weights>>,

    /// Quantize the weights in memory at every start, without a file in the cache folder
    #[arg(long, global = true, hide_short_help = true, help_heading = "Model")]
    pub no_weight_cache: bool,

    /// How much each input of a matrix matters for its quantization: a file of llama.cpp's imatrix tool
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath, hide_short_help = true, help_heading = "Model")]
    pub importance: Option<PathBuf>,

    /// On a GPU: launch every kernel instead of replaying captured CUDA graphs; the tokens are the same
    #[arg(long, global = true, hide_short_help = true, help_heading = "Model")]
    pub no_graph: bool,

    /// On a GPU: GEMM kernels of prefill: auto, own or cublaslt
    #[arg(long, global = true, value_name = "METHOD", hide_short_help = true, help_heading = "Model")]
    pub gemm: Option<Gemm>,

    /// Whether marked tokens leave the cache: on or off
    ///
    /// Off keeps every token, as a dense model does. A chat can switch it at any time.
    #[arg(long, global = true, value_name = "on|off", help_heading = "Cache")]
    pub eviction: Option<List<OnOff>>,

    /// Rule: auto, dense, dms, window, tova, h2o or pool
    ///
    /// auto is dms or dmc for models trained with it, else dense. The others work with any model, within --budget. window keeps the
    /// newest tokens and the first four; tova drops what the newest token attends to least; h2o keeps the newest half of the
    /// budget and what has had the most attention. tova and h2o read prompts token by token. quest keeps
    /// everything and reads the pages that may match best, dms+quest those of a DMS model's cache: for bench and
    /// dmslab. pool merges the tokens of each --budget 4x into their mean; dmc merges what a model trained for it decides.
    #[arg(long, global = true, value_name = "POLICY", help_heading = "Cache")]
    pub policy: Option<List<PolicyKind>>,

    /// Slots per head of a policy, or 4x [default: 512]
    ///
    /// 4x keeps one token in four, and at least 64. window takes slots only. pool takes a whole ratio only, 4x if none is given.
    #[arg(long, global = true, value_name = "SLOTS|RATIOx", help_heading = "Cache")]
    pub budget: Option<Budget>,

    /// Format: auto, f32, bf16, fp8, int8 or k8v4
    #[arg(long, global = true, value_name = "FORMAT", help_heading = "Cache")]
    pub kv: Option<List<Auto<Codec>>>,

    /// Context in tokens [default: the model's]
    #[arg(long, global = true, value_name = "TOKENS", help_heading = "Cache")]
    pub ctx_size: Option<usize>,

    /// Memory limit of the cache's pages, such as 512MiB: see --when-full
    #[arg(long, global = true, value_name = "BYTES", hide_short_help = true, help_heading = "Cache")]
    pub kv_limit: Option<ByteSize>,

    /// What to do when a turn runs out of memory: forget, window or stop
    ///
    /// forget drops what the heads need least, and the turn continues; stop ends the turn. Models trained to evict forget, others
    /// stop: their heads rate nothing. window is forget for the first, and drops the oldest tokens but the first four of the
    /// others.
    #[arg(long, global = true, value_name = "forget|window|stop", hide_short_help = true, help_heading = "Cache")]
    pub when_full: Option<WhenFull>,

    /// What is never forgotten in a chat: system, for the system prompt, or none
    #[arg(long, global = true, value_name = "system|none", hide_short_help = true, help_heading = "Cache")]
    pub pin: Option<Pin>,

    /// Compression ratio, from 1 on [default: as trained]
    ///
    /// For models trained to evict. 2 keeps about one token in two of a long conversation. /forget changes it in a chat.
    #[arg(long, alias = "cr", global = true, value_name = "RATIO", help_heading = "Cache")]
    pub keep_ratio: Option<List<f64>>,

    /// Longest answer, with its reasoning
    #[arg(long, global = true, value_name = "TOKENS", help_heading = "Answer")]
    pub max_tokens: Option<usize>,

    /// Close a thought at this length [default: the model's]
    ///
    /// The model answers then. 0 never closes one; the built-in model has 2048.
    #[arg(long, global = true, value_name = "TOKENS", help_heading = "Answer")]
    pub max_think: Option<usize>,

    /// Answer with N chains and take the answer of most
    ///
    /// auto is as many as fit. The chains share the prompt's memory and decode together, each with a seed of its own; the first
    /// is the ordinary answer. In a chat, /parallel changes it.
    #[arg(long, global = true, value_name = "N|auto", help_heading = "Answer")]
    pub width: Option<List<Width>>,

    /// With --width: end once the chains that still run cannot change the vote: on (default) or off
    #[arg(long, global = true, value_name = "on|off", hide_short_help = true, help_heading = "Answer")]
    pub early_stop: Option<OnOff>,

    /// Of sampling; 0 is greedy [default: the model's]
    #[arg(long, global = true, value_name = "T", help_heading = "Answer")]
    pub temperature: Option<f32>,

    /// Sample from the most probable tokens that together have this probability; 1 is off
    #[arg(long, global = true, value_name = "P", hide_short_help = true, help_heading = "Answer")]
    pub top_p: Option<f32>,

    /// Sample from this many of the most probable tokens; 0 is off
    #[arg(long, global = true, value_name = "K", hide_short_help = true, help_heading = "Answer")]
    pub top_k: Option<u32>,

    /// Drop tokens less probable than this fraction of the most probable one; 0 is off
    #[arg(long, global = true, value_name = "P", hide_short_help = true, help_heading = "Answer")]
    pub min_p: Option<f32>,

    /// Make tokens that have occurred less probable; 1 is off
    #[arg(long, global = true, value_name = "X", hide_short_help = true, help_heading = "Answer")]
    pub repetition_penalty: Option<f32>,

    /// Seed of sampling; always reported [default: random]
    #[arg(long, global = true, value_name = "N", help_heading = "Answer")]
    pub seed: Option<u64>,

    /// Whether the model thinks first: on or off
    ///
    /// For models whose template has a switch.
    #[arg(long, global = true, value_name = "on|off", help_heading = "Answer")]
    pub think: Option<OnOff>,

    /// System prompt
    #[arg(long, global = true, value_name = "TEXT", allow_hyphen_values = true, help_heading = "Answer")]
    pub system: Option<String>,

    /// Answer this on stdout and exit; -: read it from stdin
    ///
    /// Everything else goes to stderr. When stdin is a pipe or a file, its text is appended to the prompt. No conversation is
    /// saved. `dmschat "TEXT"` and `echo TEXT | dmschat` do the same.
    #[arg(short, long, global = true, value_name = "TEXT", allow_hyphen_values = true, help_heading = "Answer")]
    pub prompt: Option<String>,

    /// Print one JSON object instead of text
    #[arg(long, global = true, help_heading = "Answer")]
    pub json: bool,

    /// With -p and --width: the first answer that this shell command accepts wins instead of a vote
    ///
    /// It reads an answer from stdin and exits with 0 if that is right; DMSCHAT_ANSWER is what the vote would count of it.
    /// A command that takes longer than 10 s is killed, and the vote decides.
    #[arg(long, global = true, value_name = "COMMAND", hide_short_help = true, help_heading = "Answer")]
    pub check: Option<String>,

    /// Continue the newest conversation
    #[arg(long = "continue", global = true, conflicts_with = "resume", help_heading = "Sessions")]
    pub continue_: bool,

    /// Continue a saved conversation; without ID: choose
    ///
    /// ID is that of `dmschat sessions list` or a unique beginning of it, words that are in the title or the first message of
    /// one conversation only, or an exported .jsonl file.
    #[arg(long, global = true, value_name = "ID", num_args = 0..=1, help_heading = "Sessions")]
    pub resume: Option<Option<String>>,

    /// Do not save this conversation
    #[arg(long, global = true, help_heading = "Sessions")]
    pub no_session: bool,

    /// auto (like the terminal's background), dark, light, ...
    #[arg(long, global = true, value_name = "NAME")]
    pub theme: Option<String>,

    /// Draw with plain characters and no colours
    #[arg(long, global = true, hide_short_help = true)]
    pub plain: bool,

    /// Config file instead of the default one
    #[arg(long, global = true, value_name = "FILE", env = "DMSCHAT_CONFIG", hide_env = true, value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
}

impl Common {
    /// Fails if a flag that is not one of `lists` has several values.
    pub fn one_value_each(&self, lists: &[&str]) -> anyhow::Result<()> {
        fn several<T>(list: &Option<List<T>>) -> bool {
            list.as_ref().is_some_and(|list| list.0.len() > 1)
        }
        let flags = [
            ("--eviction", several(&self.eviction)),
            ("--weights", several(&self.weights)),
            ("--policy", several(&self.policy)),
            ("--width", several(&self.width)),
            ("--kv", several(&self.kv)),
            ("--keep-ratio", several(&self.keep_ratio)),
        ];
        match flags.into_iter().find(|(flag, several)| *several && !lists.contains(flag)) {
            Some((flag, _)) => Err(wrong_use(format!("{flag} takes one value here; bench and dmslab take lists"))),
            None => Ok(()),
        }
    }

    /// What makes no sense of the flags about chains, if anything. `subcommand`: whether there is one.
    pub fn width_conflict(&self, subcommand: bool) -> Option<&'static str> {
        let several = self.width.as_ref().is_some_and(|width| width.first() != Width::Chains(1));
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

    /// The flags as a layer of the settings.
    pub fn layer(&self) -> Layer {
        Layer {
            model: self.model.clone(),
            adapter: self.adapter.clone(),
            device: self.device,
            weights: self.weights.as_ref().map(List::first),
            weight_cache: self.no_weight_cache.then_some(OnOff(false)),
            importance: self.importance.clone(),
            eviction: self.eviction.as_ref().map(List::first),
            policy: self.policy.as_ref().map(List::first),
            budget: self.budget,
            kv: self.kv.as_ref().map(List::first),
            ctx_size: self.ctx_size,
            graph: self.no_graph.then_some(OnOff(false)),
            gemm: self.gemm,
            kv_limit: self.kv_limit,
            when_full: self.when_full,
            pin: self.pin,
            keep_ratio: self.keep_ratio.as_ref().map(|list| list.first() as f32),
            max_tokens: self.max_tokens,
            max_think: self.max_think,
            width: self.width.as_ref().map(List::first),
            early_stop: self.early_stop,
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            seed: self.seed,
            think: self.think,
            system: self.system.clone(),
            theme: self.theme.clone(),
            plain: self.plain.then_some(OnOff(true)),
            ..Layer::default()
        }
    }
}

/// Comma-separated values. Only `bench` and dmslab's commands accept more than one.
#[derive(Clone, Debug)]
pub struct List<T>(pub Vec<T>);

impl<T: Copy> List<T> {
    fn first(&self) -> T {
        self.0[0]
    }
}

impl<T: FromStr> FromStr for List<T> {
    type Err = T::Err;
    fn from_str(s: &str) -> Result<Self, T::Err> {
        // Splitting gives at least one part, so there is a first value.
        s.split(',').map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}
