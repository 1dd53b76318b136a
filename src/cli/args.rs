//! The command line and the texts of `--help`. Only parses.

use super::devices::cuda_summary;
use crate::checks::Part;
use crate::config::{ByteSize, CacheBudget, CachePolicy, Device, Full, Gemm, Kv, Layer, OnOff, Pin, Width};
use crate::quant::Weights;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueHint};
use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::OnceLock;

/// Version and commit.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (commit ", env!("DMSCHAT_BUILD_COMMIT"), ")");

/// What `--version` prints after the name. The driver is asked only then, because that takes a moment.
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
#[command(after_long_help = AFTER)]
pub struct Cli {
    #[command(flatten)]
    pub common: Common,
    #[command(subcommand)]
    pub command: Option<Command>,
}

impl Cli {
    /// Parses a command line. A negative number after a flag is its value, so that the error says what the flag expects.
    pub fn read(line: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> clap::error::Result<Self> {
        fn with_negative(command: clap::Command) -> clap::Command {
            let arg = |a: clap::Arg| if a.get_action().takes_values() { a.allow_negative_numbers(true) } else { a };
            command.mut_args(arg).mut_subcommands(with_negative)
        }
        Self::from_arg_matches(&with_negative(Self::command()).try_get_matches_from(line)?)
    }
}

const AFTER: &str = "\
Settings come from flags, then DMSCHAT_* variables (DMSCHAT_MODEL, DMSCHAT_TEMPERATURE, ...), then the
config file (`dmschat config path`), then the model's recommendation.

Exit codes: 0 answered, 1 failed or no answer, 2 wrong use, config or model, 130 interrupted.

Examples:
  dmschat                                      chat with the built-in model
  dmschat -m ./Qwen3-0.6B --eviction off       chat with a model in a folder, without eviction
  dmschat -p \"Solve 3x + 4 = 19\" --json        one answer, with its numbers, as JSON
  git diff | dmschat -p \"Summarize:\"           a prompt with the text of a pipe appended
  dmschat --continue                           continue the newest conversation";

#[derive(Args, Debug, Default)]
pub struct Common {
    /// Model: `demo` (built in), a folder, a GGUF file, or a hub id such as ORG/NAME[@REVISION], which is downloaded
    /// if it is not in the cache
    #[arg(short, long, global = true, value_name = "NAME|PATH|HUB_ID", value_hint = ValueHint::AnyPath, help_heading = "Model")]
    pub model: Option<String>,

    /// Adapter file that makes a dense model evict, or `none`
    #[arg(long, global = true, value_name = "FILE|none", value_hint = ValueHint::FilePath, help_heading = "Model")]
    pub adapter: Option<String>,

    /// Device: auto, cpu or cuda[:N]
    #[arg(long, global = true, value_name = "DEVICE", help_heading = "Model")]
    pub device: Option<Device>,

    /// Format of the weights in memory: auto, bf16, int8 or int4
    ///
    /// bf16 is as in the model's files. int8 and int4 need about a half and a quarter of the memory. auto is the first of
    /// them that is expected to fit with the context. Quantized weights are kept in the cache folder for the next start.
    #[arg(long, global = true, value_name = "FORMAT", help_heading = "Model")]
    pub weights: Option<List<Weights>>,

    /// Quantize the weights in memory at every start, without a file in the cache folder
    #[arg(long, global = true, help_heading = "Model")]
    pub no_weight_cache: bool,

    /// How much each input of a matrix matters for its quantization: a file of llama.cpp's imatrix tool
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Model")]
    pub importance: Option<PathBuf>,

    /// On a GPU: launch every kernel instead of replaying captured CUDA graphs; the tokens are the same
    #[arg(long, global = true, help_heading = "Model")]
    pub no_graph: bool,

    /// On a GPU: GEMM kernels of prefill: auto, own or cublaslt
    #[arg(long, global = true, value_name = "METHOD", help_heading = "Model")]
    pub gemm: Option<Gemm>,

    /// Whether tokens that a head has marked leave its cache: on or off
    ///
    /// Off keeps every token, as a dense model does. A chat can switch it at any time.
    #[arg(long, global = true, value_name = "on|off", help_heading = "Cache")]
    pub eviction: Option<List<OnOff>>,

    /// Which tokens leave the cache: auto, dense, dms, window, tova, h2o; merge: pool, dmc; or are read: quest, dms+quest
    ///
    /// auto is dms or dmc for models trained with it, else dense. The others work with any model, within --budget. window keeps the
    /// newest tokens and the first four; tova drops what the newest token attends to least; h2o keeps the newest half of the
    /// budget and what has had the most attention. tova and h2o read prompts token by token. quest keeps
    /// everything and reads the pages that may match best, dms+quest those of a DMS model's cache: for score, compare and
    /// bench. pool merges the tokens of each --budget 4x into their mean; dmc merges what a model trained
    /// for it decides.
    #[arg(long, global = true, value_name = "POLICY", help_heading = "Cache")]
    pub policy: Option<List<CachePolicy>>,

    /// How much each head keeps or reads under such a policy: slots, or a ratio such as 4x [default: 512]
    ///
    /// 4x keeps one token in four, and at least 64. window takes slots only. pool takes a whole ratio only, 4x if none is given.
    #[arg(long, global = true, value_name = "SLOTS|RATIOx", help_heading = "Cache")]
    pub budget: Option<CacheBudget>,

    /// Format of keys and values in the cache: auto, f32, bf16, fp8, int8 or k8v4
    #[arg(long, global = true, value_name = "FORMAT", help_heading = "Cache")]
    pub kv: Option<List<Kv>>,

    /// Longest conversation in tokens [default: the model's context]
    #[arg(long, global = true, value_name = "TOKENS", help_heading = "Cache")]
    pub ctx_size: Option<usize>,

    /// Memory limit of the cache's pages, such as 512MiB: see --when-full
    #[arg(long, global = true, value_name = "BYTES", help_heading = "Cache")]
    pub kv_limit: Option<ByteSize>,

    /// Where memory or --kv-limit does not suffice for a turn: forget, window or stop
    ///
    /// forget drops what the heads need least, and the turn goes on; stop ends the turn. Models trained to evict forget, others
    /// stop: their heads rate nothing. window is forget for the first, and drops the oldest tokens but the first four of the
    /// others.
    #[arg(long, global = true, value_name = "forget|window|stop", help_heading = "Cache")]
    pub when_full: Option<Full>,

    /// What is never forgotten in a chat: system, for the system prompt, or none
    #[arg(long, global = true, value_name = "system|none", help_heading = "Cache")]
    pub pin: Option<Pin>,

    /// Compression ratio that chats begin with, from 1 on [default: what the model was trained for]
    ///
    /// For models trained to evict. 2 keeps about one token in two of a long conversation. /forget changes it in a chat.
    #[arg(long, global = true, value_name = "RATIO", help_heading = "Cache")]
    pub keep_ratio: Option<f32>,

    /// Longest answer in tokens, including its reasoning [default: the rest of the context]
    #[arg(long, global = true, value_name = "TOKENS", help_heading = "Answer")]
    pub max_tokens: Option<usize>,

    /// Close a thought that has this many tokens, so that the model answers; 0 never [default: 2048 for the built-in model]
    #[arg(long, global = true, value_name = "TOKENS", help_heading = "Answer")]
    pub max_think: Option<usize>,

    /// Answer with this many chains at once and take the answer that most of them agree on; auto is as many as fit
    ///
    /// The chains share the prompt's memory and decode together, each with a seed of its own; the first is the ordinary
    /// answer. In a chat, /parallel changes it.
    #[arg(long, global = true, value_name = "N|auto", help_heading = "Answer")]
    pub width: Option<List<Width>>,

    /// With --width: end once the chains that still run cannot change the vote: on (default) or off
    #[arg(long, global = true, value_name = "on|off", help_heading = "Answer")]
    pub early_stop: Option<OnOff>,

    /// Temperature of sampling; 0 always picks the most probable token [default: the model's]
    #[arg(long, global = true, value_name = "T", help_heading = "Answer")]
    pub temperature: Option<f32>,

    /// Sample from the most probable tokens that together have this probability; 1 is off
    #[arg(long, global = true, value_name = "P", help_heading = "Answer")]
    pub top_p: Option<f32>,

    /// Sample from this many of the most probable tokens; 0 is off
    #[arg(long, global = true, value_name = "K", help_heading = "Answer")]
    pub top_k: Option<u32>,

    /// Drop tokens less probable than this fraction of the most probable one; 0 is off
    #[arg(long, global = true, value_name = "P", help_heading = "Answer")]
    pub min_p: Option<f32>,

    /// Make tokens that have occurred less probable; 1 is off
    #[arg(long, global = true, value_name = "X", help_heading = "Answer")]
    pub repetition_penalty: Option<f32>,

    /// Seed of sampling; the one in use is always reported [default: random]
    #[arg(long, global = true, value_name = "N", help_heading = "Answer")]
    pub seed: Option<u64>,

    /// Whether the model thinks before it answers, if its template has a switch: on or off
    #[arg(long, global = true, value_name = "on|off", help_heading = "Answer")]
    pub think: Option<OnOff>,

    /// System prompt
    #[arg(long, global = true, value_name = "TEXT", allow_hyphen_values = true, help_heading = "Answer")]
    pub system: Option<String>,

    /// Answer this prompt and exit: the answer goes to stdout, everything else to stderr
    ///
    /// When stdin is a pipe or a file, its text is appended to the prompt. No session is written.
    #[arg(short, long, global = true, value_name = "TEXT", allow_hyphen_values = true, help_heading = "One answer")]
    pub prompt: Option<String>,

    /// Print one JSON object instead of text
    #[arg(long, global = true, help_heading = "One answer")]
    pub json: bool,

    /// With -p and --width: the first answer that this shell command accepts wins instead of a vote
    ///
    /// It reads an answer from stdin and exits with 0 if that is right; DMSCHAT_ANSWER is what the vote would count of it.
    /// A command that takes longer than 10 s is killed, and the vote decides.
    #[arg(long, global = true, value_name = "COMMAND", help_heading = "One answer")]
    pub check: Option<String>,

    /// Continue the newest conversation
    #[arg(long = "continue", global = true, conflicts_with = "resume", help_heading = "Sessions")]
    pub continue_: bool,

    /// Continue a saved conversation: its id, words of its title, or an exported .jsonl file; without a value, choose from a list
    #[arg(long, global = true, value_name = "ID", num_args = 0..=1, help_heading = "Sessions")]
    pub resume: Option<Option<String>>,

    /// Do not save this conversation
    #[arg(long, global = true, help_heading = "Sessions")]
    pub no_session: bool,

    /// Theme: auto (dark or light, like the terminal's background) or a name
    #[arg(long, global = true, value_name = "NAME", help_heading = "Screen")]
    pub theme: Option<String>,

    /// Draw with plain characters and no colours
    #[arg(long, global = true, help_heading = "Screen")]
    pub plain: bool,

    /// Config file to use instead of the default one
    #[arg(long, global = true, value_name = "FILE", env = "DMSCHAT_CONFIG", hide_env = true, value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
}

impl Common {
    /// The flags with several values.
    pub fn several(&self) -> impl Iterator<Item = &'static str> {
        fn several<T>(list: &Option<List<T>>) -> bool {
            list.as_ref().is_some_and(|list| list.0.len() > 1)
        }
        let flags = [
            ("--eviction", several(&self.eviction)),
            ("--weights", several(&self.weights)),
            ("--policy", several(&self.policy)),
            ("--width", several(&self.width)),
            ("--kv", several(&self.kv)),
        ];
        flags.into_iter().filter_map(|(flag, several)| several.then_some(flag))
    }

    /// What makes no sense of the flags about chains, if anything. `subcommand`: whether there is one; `evaluates`: whether it is
    /// eval.
    pub fn width_conflict(&self, subcommand: bool, evaluates: bool) -> Option<&'static str> {
        let several = self.width.as_ref().is_some_and(|width| width.first() != Width::Chains(1));
        match () {
            () if evaluates && (self.early_stop.is_some() || self.check.is_some()) => Some(
                "--early-stop and --check are for a chat or -p: eval lets every chain end, and checks answers itself",
            ),
            () if evaluates => None,
            () if subcommand && (self.width.is_some() || self.early_stop.is_some() || self.check.is_some()) => Some(
                "--width, --early-stop and --check are for a chat or -p, not for this subcommand (bench has --chains)",
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
            keep_ratio: self.keep_ratio,
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

/// Comma-separated values. Only `bench`, `compare` and `eval` accept more than one.
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
    /// Open a chat (the default)
    Chat,
    /// Draw a saved conversation, tinted by what the cache still remembered of it
    Show(ShowArgs),
    /// Print log-probabilities of a given text, token by token, under a schedule of prefills and toggles
    Score(ScoreArgs),
    /// Measure what eviction and smaller formats of cache and weights cost on a text: perplexity, KL divergence, agreement
    Compare(CompareArgs),
    /// Measure prefill and decode speed with random weights of a real model's shape
    Bench(BenchArgs),
    /// Check this machine: CPU, memory, GPU, folders, the built-in model
    Doctor(DoctorArgs),
    /// List, download and delete models
    #[command(subcommand)]
    Models(ModelsCommand),
    /// List saved conversations, and remove their caches
    #[command(subcommand)]
    Sessions(SessionsCommand),
    /// Show where settings come from
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print a completion script for a shell
    Completions {
        /// Shell: bash, elvish, fish, powershell or zsh
        shell: clap_complete::Shell,
    },
    /// Print the man page (roff): dmschat man | man -l -
    Man {
        /// Subcommand whose page to print
        command: Option<String>,
    },
    /// Measure accuracy against KV reads and memory: tasks, policies, lengths and widths of reasoning
    Eval(EvalArgs),
}

#[derive(Args, Debug)]
pub struct ShowArgs {
    /// Session file, or the id or title of a saved conversation
    #[arg(value_name = "FILE.jsonl", value_hint = ValueHint::FilePath)]
    pub file: String,
    /// Write a self-contained HTML page instead
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub html: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("input").required(true))]
pub struct ScoreArgs {
    /// Token ids: a JSON list, or numbers separated by spaces or commas
    #[arg(long, value_name = "FILE", group = "input", value_hint = ValueHint::FilePath)]
    pub tokens_file: Option<PathBuf>,
    /// UTF-8 text, encoded with the tokenizer's post-processor
    #[arg(long, value_name = "FILE", group = "input", value_hint = ValueHint::FilePath)]
    pub text_file: Option<PathBuf>,
    /// Comma-separated prefill:N, decode:N, off and on that cover the tokens exactly [default: one prefill]
    #[arg(long, value_name = "STEPS")]
    pub schedule: Option<String>,
}

/// `--weights` and `--kv` accept several values: the first of each, without eviction, are the reference for all others.
#[derive(Args, Debug)]
pub struct CompareArgs {
    /// UTF-8 text of at least four windows
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub text_file: PathBuf,

    /// What decisions must exceed to mark, one row each: 0 as trained, more to keep more, such as 0,5,10
    #[arg(long, value_name = "DIALS")]
    pub dial: Option<List<f32>>,
}

/// `--weights`, `--eviction` and `--kv` accept several values here, such as `on,off`.
#[derive(Args, Debug)]
pub struct BenchArgs {
    /// Use random weights in the shape of qwen3-8b, llama-3.2-1b, smollm2-135m or demo instead of --model
    #[arg(long, value_name = "NAME")]
    pub shape: Option<String>,
    /// Tokens in the cache before decoding starts
    #[arg(long, value_name = "TOKENS,...", value_delimiter = ',', default_value = "512,2048")]
    pub ctx: Vec<usize>,
    /// Tokens to decode per sequence
    #[arg(long = "gen", value_name = "TOKENS", default_value_t = 128)]
    pub gen_tokens: usize,
    /// Sequences that decode in one step, with a prompt each [default: 1, without --chains]
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    pub parallel: Vec<usize>,
    /// Forks of one prompt that decode in one step, as the chains of --width do: also reports the speed over that of one
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    pub chains: Vec<usize>,
    /// Share of the tokens beyond the window to keep, such as 0.125: measures which offset of the model's
    /// eviction decisions does so, and prints it
    #[arg(long, value_name = "SHARE", conflicts_with = "offset")]
    pub keep: Option<f64>,
    /// Offset of the eviction decisions that an earlier run with --keep printed: the same tokens, without measuring again
    #[arg(long, value_name = "X")]
    pub offset: Option<f32>,
    /// While decoding, read which tokens are kept five times a second, as the chat's memory page does
    #[arg(long)]
    pub presence: bool,
    /// CPU threads [default: one per core]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Only measure how long a conversation of --ctx tokens takes to resume: replayed, and with its cache from a file
    #[arg(long, conflicts_with_all = ["parallel", "chains", "presence", "runs"])]
    pub resume_cache: bool,
    /// Runs of each measurement; the median is reported
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub runs: usize,
}

impl BenchArgs {
    /// The values of `--parallel`.
    pub fn parallel(&self) -> impl Iterator<Item = usize> + '_ {
        let default = (self.parallel.is_empty() && self.chains.is_empty()).then_some(1);
        self.parallel.iter().copied().chain(default)
    }
}

#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// With --device cuda: also compare long cache histories and whole models with the CPU, and measure the
    /// speed of every op
    #[arg(long)]
    pub all: bool,
    /// With --device cuda: only measure the speed of every op, at the shapes of qwen3-8b if the GPU is large enough
    #[arg(long)]
    pub speed: bool,
    /// With --device cuda: run one part of the checks, such as 2/4, so that several GPUs share them; nothing is timed
    #[arg(long, value_name = "PART/PARTS", conflicts_with_all = ["speed", "memory"])]
    pub part: Option<Part>,
    /// With --device cuda: fewer steps in the checks that take longest, for compute-sanitizer; nothing is timed
    #[arg(long, conflicts_with_all = ["speed", "memory"])]
    pub short: bool,
    /// Load the model and show where every MiB of the device's memory goes
    #[arg(long, conflicts_with_all = ["all", "speed"])]
    pub memory: bool,
    /// With --memory: use random weights in the shape of qwen3-8b, llama-3.2-1b, smollm2-135m or demo instead of --model
    #[arg(long, value_name = "SHAPE", requires = "memory")]
    pub shape: Option<String>,
}

#[derive(Subcommand, Debug)]
pub enum ModelsCommand {
    /// List the models on this machine
    List,
    /// Print the folder of downloaded models
    Path,
    /// Download or update a model, and print its folder
    Pull {
        /// Hub id, such as ORG/NAME[@REVISION]
        id: String,
    },
    /// Delete a downloaded model, or one revision of it; with --weights int8 or int4, its quantized weights only
    Rm {
        /// Hub id, such as ORG/NAME[@REVISION]; with --weights also a folder
        id: String,
    },
    /// Quantize a model's weights into the cache folder before its first start: needs --weights int8 or int4
    Quantize {
        /// Folder or hub id
        id: String,
    },
    /// Measure on a text which columns of a model's matrices matter, and write a file for --importance
    Importance(ImportanceArgs),
    /// Describe a model, also before it is downloaded
    Info {
        /// Name, folder, GGUF file or hub id
        id: String,
    },
}

#[derive(Args, Debug)]
pub struct ImportanceArgs {
    /// Folder, GGUF file or hub id
    pub id: String,
    /// UTF-8 text of the kind that the model will work on: a few thousand tokens
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub text_file: PathBuf,
    /// The file to write, in the form of llama.cpp's imatrix
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: PathBuf,
}

#[derive(Subcommand, Debug)]
pub enum SessionsCommand {
    /// List the saved conversations, newest first, with the bytes of each and of its cache
    List,
    /// Remove caches that belong to no session, and the oldest above cache_disk; conversations without one are replayed
    Prune {
        /// Remove all caches
        #[arg(long)]
        all: bool,
    },
}

#[derive(Subcommand, Debug)]
pub enum ConfigCommand {
    /// Print the path of the config file
    Path,
}

/// `--policy` and `--width` accept several values here, such as `dense,dms` and `1,2,4,8`: a margin is over the first policy,
/// and the answers of a problem's chains vote. `--seed` makes the problems too.
///
/// Run again with the same arguments, a run that was stopped goes on.
#[derive(Args, Debug)]
pub struct EvalArgs {
    /// Tasks: niah-1k to niah-8k, vt-1k to vt-8k, sum, equation, sort, recall, recall-4k, arithmetic, gsm, countdown, subset,
    /// factor, path; or niah, vt, search for all of a kind
    #[arg(long, value_name = "TASK,...", value_delimiter = ',')]
    pub task: Vec<String>,
    /// Problems of your own: JSON lines of {"task", "messages": [{"role", "content"}, ...], "expected"}
    ///
    /// Without --out, one JSON object is printed for each answer, and nothing is compared.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub problems: Option<PathBuf>,
    /// Folder of the results: results.json, results.csv, pareto_reads.svg, pareto_peak.svg, and the file that a stopped run
    /// goes on from
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub out: Option<PathBuf>,
    /// Compression ratios to ask of the policies that compress: a budget of a chain's tokens by this, or the dial of dms
    ///
    /// Under dms+quest it is the budget of what quest reads; dms keeps what it was trained to keep.
    #[arg(long, value_name = "RATIO,...", value_delimiter = ',', default_value = "8")]
    pub cr: Vec<f64>,
    /// Longest chains, in tokens with their reasoning; they must fit in the context behind a prompt
    #[arg(long, value_name = "TOKENS,...", value_delimiter = ',', default_value = "512")]
    pub length: Vec<usize>,
    /// Problems of each task
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub n: usize,
    /// Most chains that decode in one step
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub parallel: usize,
}
