//! What the command line looks like, and the texts of `--help`. Parses; decides nothing.

use super::devices::cuda_summary;
use crate::config::{ByteSize, CachePolicy, Device, Gemm, Kv, Layer, OnOff};
use clap::{Args, Parser, Subcommand, ValueHint};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::OnceLock;

/// Version and commit.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (commit ", env!("DMSCHAT_BUILD_COMMIT"), ")");

/// What `--version` prints after the name. Only then is the driver asked: that takes a moment.
fn version() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        let asked = std::env::args_os().any(|a| a == "--version" || a == "-V");
        if asked { format!("{VERSION}\ncuda: {}", cuda_summary()) } else { VERSION.to_owned() }
    })
}

/// Chat in the terminal with language models that learned to forget.
///
/// dmschat runs DMS models: every attention head decides for every token whether its key and value
/// may leave the cache, so long conversations and long thoughts take a fraction of the memory. A
/// small model is built in: start `dmschat` without anything, and watch the cache while it thinks.
#[derive(Parser, Debug)]
#[command(name = "dmschat", version = version(), args_conflicts_with_subcommands = false, max_term_width = 100)]
#[command(after_long_help = AFTER)]
pub struct Cli {
    #[command(flatten)]
    pub common: Common,
    #[command(subcommand)]
    pub command: Option<Command>,
}

const AFTER: &str = "\
Settings are taken from flags, then DMSCHAT_* variables (DMSCHAT_MODEL, DMSCHAT_TEMPERATURE, ...), then
the config file (`dmschat config path`), then what the model itself recommends.

Exit codes: 0 answered, 1 failed, 2 wrong use, config or model, 130 interrupted.

Examples:
  dmschat                                      chat with the built-in model
  dmschat -m ./Qwen3-0.6B --eviction off       chat with a model in a folder, densely
  dmschat -p \"Solve 3x + 4 = 19\" --json        one answer, with its numbers, as JSON
  git diff | dmschat -p \"Summarize:\"           a prompt with a file or pipe appended
  dmschat --continue                           go on with the newest conversation";

#[derive(Args, Debug, Default)]
pub struct Common {
    /// Model to run: `demo` (built in), a folder, or a hub id such as ORG/NAME[@REVISION], which is
    /// downloaded where it is not here yet
    #[arg(short, long, global = true, value_name = "NAME|PATH|HUB_ID", value_hint = ValueHint::AnyPath, help_heading = "Model")]
    pub model: Option<String>,

    /// Adapter file that teaches a dense model to evict, or `none`
    #[arg(long, global = true, value_name = "FILE|none", value_hint = ValueHint::FilePath, help_heading = "Model")]
    pub adapter: Option<String>,

    /// Where to run: auto, cpu or cuda[:N]
    #[arg(long, global = true, value_name = "DEVICE", help_heading = "Model")]
    pub device: Option<Device>,

    /// On a card: launch every kernel by itself instead of replaying recorded steps; the tokens are the same
    #[arg(long, global = true, help_heading = "Model")]
    pub no_graph: bool,

    /// On a card: what multiplies many rows: auto, own or cublaslt
    #[arg(long, global = true, value_name = "METHOD", help_heading = "Model")]
    pub gemm: Option<Gemm>,

    /// Whether tokens that heads have marked leave the cache: on or off
    ///
    /// Off keeps every token, as a dense model does. It can be switched at any time while chatting.
    #[arg(long, global = true, value_name = "on|off", help_heading = "Cache")]
    pub eviction: Option<List<OnOff>>,

    /// Which tokens leave the cache: auto, dense, dms or window
    ///
    /// auto is dms for models trained with it, else dense. window keeps the newest tokens and the first four of any
    /// model, within --budget.
    #[arg(long, global = true, value_name = "POLICY", help_heading = "Cache")]
    pub policy: Option<CachePolicy>,

    /// Slots that each head keeps under --policy window [default: 512]
    #[arg(long, global = true, value_name = "SLOTS", help_heading = "Cache")]
    pub budget: Option<usize>,

    /// How keys and values are stored: auto, f32, bf16, fp8 or int8
    #[arg(long, global = true, value_name = "FORMAT", help_heading = "Cache")]
    pub kv: Option<List<Kv>>,

    /// Most tokens a conversation may have [default: what the model was made for]
    #[arg(long, global = true, value_name = "TOKENS", help_heading = "Cache")]
    pub ctx_size: Option<usize>,

    /// Most memory the cache's pages may take, such as 512MiB; a turn that needs more ends
    #[arg(long, global = true, value_name = "BYTES", help_heading = "Cache")]
    pub kv_limit: Option<ByteSize>,

    /// Most tokens of an answer, its thoughts included [default: what is left of the context]
    #[arg(long, global = true, value_name = "TOKENS", help_heading = "Answer")]
    pub max_tokens: Option<usize>,

    /// Randomness of the answer; 0 always takes the likeliest token [default: the model's]
    #[arg(long, global = true, allow_negative_numbers = true, value_name = "T", help_heading = "Answer")]
    pub temperature: Option<f32>,

    /// Choose among the likeliest tokens that together have this probability; 1 is off
    #[arg(long, global = true, allow_negative_numbers = true, value_name = "P", help_heading = "Answer")]
    pub top_p: Option<f32>,

    /// Choose among this many of the likeliest tokens; 0 is off
    #[arg(long, global = true, value_name = "K", help_heading = "Answer")]
    pub top_k: Option<u32>,

    /// Leave out tokens less likely than this fraction of the likeliest; 0 is off
    #[arg(long, global = true, allow_negative_numbers = true, value_name = "P", help_heading = "Answer")]
    pub min_p: Option<f32>,

    /// Make tokens that occurred already less likely; 1 is off
    #[arg(long, global = true, allow_negative_numbers = true, value_name = "X", help_heading = "Answer")]
    pub repetition_penalty: Option<f32>,

    /// Seed of the randomness; the one used is always reported [default: random]
    #[arg(long, global = true, value_name = "N", help_heading = "Answer")]
    pub seed: Option<u64>,

    /// Whether the model thinks before it answers, where its template lets one choose: on or off
    #[arg(long, global = true, value_name = "on|off", help_heading = "Answer")]
    pub think: Option<OnOff>,

    /// System prompt
    #[arg(long, global = true, value_name = "TEXT", allow_hyphen_values = true, help_heading = "Answer")]
    pub system: Option<String>,

    /// Answer this and exit: the answer goes to stdout, everything else to stderr
    ///
    /// When stdin is a pipe or a file, its text is appended to the prompt. No session is written.
    #[arg(short, long, global = true, value_name = "TEXT", allow_hyphen_values = true, help_heading = "One answer")]
    pub prompt: Option<String>,

    /// Print one JSON object instead of text
    #[arg(long, global = true, help_heading = "One answer")]
    pub json: bool,

    /// Go on with the newest conversation
    #[arg(long = "continue", global = true, conflicts_with = "resume", help_heading = "Sessions")]
    pub continue_: bool,

    /// Go on with a saved conversation: its id, words of its title, or an exported .jsonl file; without any, choose from a list
    #[arg(long, global = true, value_name = "ID", num_args = 0..=1, help_heading = "Sessions")]
    pub resume: Option<Option<String>>,

    /// Keep this conversation out of the data folder
    #[arg(long, global = true, help_heading = "Sessions")]
    pub no_session: bool,

    /// Colours of the chat: auto (dark or light, as the terminal's background) or a theme's name
    #[arg(long, global = true, value_name = "NAME", help_heading = "Screen")]
    pub theme: Option<String>,

    /// Draw with plain characters and without colours
    #[arg(long, global = true, help_heading = "Screen")]
    pub plain: bool,

    /// Config file to use instead of the usual one
    #[arg(long, global = true, value_name = "FILE", env = "DMSCHAT_CONFIG", hide_env = true, value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
}

impl Common {
    /// The flag that has several values, if one has.
    pub fn several(&self) -> Option<&'static str> {
        let eviction = self.eviction.as_ref().is_some_and(|l| l.0.len() > 1).then_some("--eviction");
        eviction.or(self.kv.as_ref().is_some_and(|l| l.0.len() > 1).then_some("--kv"))
    }

    /// The flags as the topmost layer of the settings.
    pub fn layer(&self) -> Layer {
        Layer {
            model: self.model.clone(),
            adapter: self.adapter.clone(),
            device: self.device,
            eviction: self.eviction.as_ref().map(List::first),
            policy: self.policy,
            budget: self.budget,
            kv: self.kv.as_ref().map(List::first),
            ctx_size: self.ctx_size,
            graph: self.no_graph.then_some(OnOff(false)),
            gemm: self.gemm,
            kv_limit: self.kv_limit,
            max_tokens: self.max_tokens,
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

/// Values between commas, of which only `bench` and `compare` take more than one.
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

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Chat (what dmschat does without a subcommand)
    Chat,
    /// Log-probabilities of a given text, token by token, under a schedule of prefills and toggles
    Score(ScoreArgs),
    /// What eviction and smaller formats of the cache cost on a text: perplexity, divergence, agreement
    Compare(CompareArgs),
    /// Measure prefill and decode speed with random weights of a real model's shape
    Bench(BenchArgs),
    /// Check this machine: processor, memory, card, folders, the built-in model
    Doctor(DoctorArgs),
    /// Models on this machine
    #[command(subcommand)]
    Models(ModelsCommand),
    /// Where settings come from
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print a completion script for a shell
    Completions {
        /// The shell: bash, elvish, fish, powershell or zsh
        shell: clap_complete::Shell,
    },
    /// Print the manual page (roff): dmschat man | man -l -
    Man {
        /// The subcommand whose page to print
        command: Option<String>,
    },
    /// Answer a file of problems, for the evaluation of a model
    #[command(hide = true)]
    Eval(EvalArgs),
}

#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("input").required(true))]
pub struct ScoreArgs {
    /// Token ids: a JSON list, or numbers between spaces or commas
    #[arg(long, value_name = "FILE", group = "input", value_hint = ValueHint::FilePath)]
    pub tokens_file: Option<PathBuf>,
    /// UTF-8 text, encoded as the tokenizer's own post-processor says
    #[arg(long, value_name = "FILE", group = "input", value_hint = ValueHint::FilePath)]
    pub text_file: Option<PathBuf>,
    /// Comma list of prefill:N, decode:N, off and on that covers the tokens exactly [default: one prefill]
    #[arg(long, value_name = "STEPS")]
    pub schedule: Option<String>,
}

/// `--kv` takes several values here, of which the first, without eviction, is what the others are compared with.
#[derive(Args, Debug)]
pub struct CompareArgs {
    /// UTF-8 text of at least four windows
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub text_file: PathBuf,
}

/// `--eviction` and `--kv` take several values here, as in `on,off`.
#[derive(Args, Debug)]
pub struct BenchArgs {
    /// Random weights in the shape of qwen3-8b, llama-3.2-1b, smollm2-135m or demo, in place of --model
    #[arg(long, value_name = "NAME")]
    pub shape: Option<String>,
    /// Tokens in the cache before decoding begins
    #[arg(long, value_name = "TOKENS,...", value_delimiter = ',', default_value = "512,2048")]
    pub ctx: Vec<usize>,
    /// Tokens to decode at each length
    #[arg(long = "gen", value_name = "TOKENS", default_value_t = 128)]
    pub gen_tokens: usize,
    /// Sequences that decode in one step
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1")]
    pub parallel: Vec<usize>,
    /// Share of the tokens that are kept beyond the window, such as 0.125: sets the offset of the
    /// model's decisions to what leaves that share of random tokens
    #[arg(long, value_name = "SHARE")]
    pub keep: Option<f64>,
    /// Threads [default: one for each core]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Runs of each measurement, of which the median is told
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub runs: usize,
}

#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// With --device cuda: also long histories of the cache and whole models, on the card against the CPU, and
    /// the speed of every op
    #[arg(long)]
    pub all: bool,
    /// With --device cuda: only the speed of every op, at the shapes of qwen3-8b where the card is large enough
    #[arg(long)]
    pub speed: bool,
    /// Puts a wrong kernel among the right ones, which has to be found
    #[arg(long, hide = true)]
    pub plant_wrong_kernel: bool,
}

#[derive(Subcommand, Debug)]
pub enum ModelsCommand {
    /// List the models found on this machine
    List,
    /// Print the folder of downloaded models
    Path,
    /// Download a model, or what is new of it, and print its folder
    Pull {
        /// Hub id, such as ORG/NAME[@REVISION]
        id: String,
    },
    /// Delete a downloaded model, or one revision of it
    Rm {
        /// Hub id, such as ORG/NAME[@REVISION]
        id: String,
    },
    /// Say what a model is, also before it is downloaded
    Info {
        /// Name, folder or hub id
        id: String,
    },
}

#[derive(Subcommand, Debug)]
pub enum ConfigCommand {
    /// Print the path of the config file
    Path,
}

#[derive(Args, Debug)]
pub struct EvalArgs {
    /// JSON lines of {"task", "messages": [{"role", "content"}, ...], "expected"}
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub problems: PathBuf,
}
