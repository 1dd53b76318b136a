//! The subcommands and their own flags.

use super::List;
use crate::checks::Part;
use clap::{Args, Subcommand, ValueHint};
use std::path::PathBuf;

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Open a chat (the default)
    Chat,
    /// Draw a saved conversation with what the cache remembers of it
    Show(ShowArgs),
    /// List, download and delete models
    #[command(subcommand)]
    Models(ModelsCommand),
    /// List saved conversations, and remove their caches
    #[command(subcommand)]
    Sessions(SessionsCommand),
    /// Show the settings and what set them; print a keymap or theme
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Check this machine: CPU, memory, GPU, folders, the built-in model
    Doctor(DoctorArgs),
    /// Print a completion script for a shell
    Completions {
        /// bash, elvish, fish, powershell or zsh
        shell: clap_complete::Shell,
    },
    /// Print the man page (roff): dmschat man | man -l -
    Man {
        /// Subcommand whose page to print
        command: Option<String>,
    },
    /// Score a text: perplexity; --json: each token's log-probability
    Score(ScoreArgs),
    /// Compare eviction and smaller formats on a text: perplexity, KL
    Compare(CompareArgs),
    /// Measure prefill and decode speed
    Bench(BenchArgs),
    /// Measure accuracy against KV reads and memory on tasks
    Eval(EvalArgs),
}

#[derive(Args, Debug)]
pub struct ShowArgs {
    /// Its id, words of its title, or its file
    #[arg(value_name = "ID|WORDS|FILE.jsonl", value_hint = ValueHint::FilePath)]
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
    /// UTF-8 text of at least four windows of the model
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub text_file: PathBuf,

    /// What decisions must exceed to mark, one row each: 0 as trained, more to keep more, such as 0,5,10
    #[arg(long, value_name = "X,...")]
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
    /// Sequences that decode in one step, with a prompt each [default: 1, without --width]
    #[arg(long = "batch", alias = "parallel", value_name = "N,...", value_delimiter = ',')]
    pub parallel: Vec<usize>,
    /// Chains of --width: forks of one prompt
    #[arg(long, value_name = "N,...", value_delimiter = ',', hide = true)]
    pub chains: Vec<usize>,
    /// The inverse of --keep-ratio
    #[arg(long, value_name = "SHARE", conflicts_with = "offset", hide = true)]
    pub keep: Option<f64>,
    /// Offset of the eviction decisions that an earlier run with --keep-ratio printed: the same tokens, without measuring again
    #[arg(long, value_name = "X", conflicts_with = "keep_ratio")]
    pub offset: Option<f32>,
    /// While decoding, read which tokens are kept five times a second, as the chat's memory page does
    #[arg(long)]
    pub presence: bool,
    /// CPU threads [default: one per core]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Only measure how long a conversation of --ctx tokens takes to resume: replayed, and with its cache from a file
    #[arg(long, conflicts_with_all = ["parallel", "chains", "width", "presence", "runs"])]
    pub resume_cache: bool,
    /// Runs of each measurement; the median is reported
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub runs: usize,
}

impl BenchArgs {
    /// The values of `--batch`.
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
    /// List the saved conversations, newest first
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
    /// Print every setting, its value and what set it
    Show,
    /// Print the path of the config file
    Path,
    /// Print a keymap.toml with all actions and their keys
    Keymap,
    /// Print a theme as a file for themes/
    Theme {
        /// dark, light, cividis, ascii or one of themes/ [default: the theme in use]
        name: Option<String>,
    },
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
    /// The values of `--keep-ratio`.
    #[arg(skip)]
    pub ratios: Vec<f64>,
    /// Longest chains, in tokens with their reasoning; they must fit in the context behind a prompt
    #[arg(long, value_name = "TOKENS,...", value_delimiter = ',', default_value = "512")]
    pub length: Vec<usize>,
    /// Problems of each task
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub n: usize,
    /// Most chains that decode in one step
    #[arg(long = "batch", alias = "parallel", value_name = "N", default_value_t = 32)]
    pub parallel: usize,
}
