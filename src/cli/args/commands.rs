//! The subcommands and their own flags.

use crate::checkpoint::random::SHAPES;
use crate::config::ByteSize;
use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand, ValueHint};
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Open a chat (the default)
    Chat,
    /// Open a chat with a model, which is downloaded if it is missing
    Run(RunArgs),
    /// Serve the model over HTTP: OpenAI's, Anthropic's, ollama's API
    Serve(ServeArgs),
    /// Print another program's settings for a server
    Connect(ConnectArgs),
    /// Draw a saved conversation with what the cache remembers of it
    Show(ShowArgs),
    /// List, download and delete models
    #[command(subcommand)]
    Models(ModelsCommand),
    /// Make predictors that let any model evict, list and delete them
    #[command(subcommand)]
    Adapter(AdapterCommand),
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
    /// Measure prefill and decode speed
    Bench(BenchArgs),
    #[command(hide = true)]
    Score(Moved),
    #[command(hide = true)]
    Compare(Moved),
    #[command(hide = true)]
    Eval(Moved),
}

impl Command {
    /// The command of `dmslab` that does this now.
    pub fn moved_to(&self) -> Option<&'static str> {
        Some(match self {
            Self::Score(_) => "score",
            Self::Compare(_) => "compare",
            Self::Eval(_) => "eval",
            Self::Models(ModelsCommand::Importance(_)) => "importance",
            Self::Doctor(args) if args.speed => "speed",
            Self::Doctor(args) if args.all || args.part.is_some() || args.short => "check",
            _ => return None,
        })
    }
}

#[derive(Args, Debug)]
pub struct RunArgs {
    /// A short name such as qwen3:4b (models list --known), ORG/NAME, a folder or a GGUF file
    #[arg(id = "run_model", value_name = "MODEL", value_hint = ValueHint::AnyPath)]
    pub model: String,
    /// A question, answered as by -p
    #[arg(id = "run_question", value_name = "QUESTION")]
    pub question: Vec<String>,
}

#[derive(Args, Debug)]
pub struct ServeArgs {
    /// Address to listen on; another than this machine's own needs --api-key-file or --no-key
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub host: String,
    /// Port to listen on; 0: any
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    pub port: u16,
    /// File with the keys that are accepted, one a line
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub api_key_file: Option<PathBuf>,
    /// Listen on any address without a key
    #[arg(long, conflicts_with = "api_key_file")]
    pub no_key: bool,
    /// Requests that are answered at once, each with a cache that stays for the next one
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub slots: usize,
    /// Requests that wait for a slot; further ones are sent away
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub queue: usize,
    /// Keep the caches on disk within cache_disk, and go on from them after a restart
    #[arg(long)]
    pub keep_slots: bool,
    /// Origin of web pages that may ask, such as https://chat.example, or *
    #[arg(long, value_name = "ORIGIN")]
    pub cors: Vec<String>,
}

#[derive(Args, Debug)]
pub struct ConnectArgs {
    /// codex, claude-code, opencode, aider, crush or openwebui
    #[arg(value_name = "CLIENT")]
    pub client: String,
    /// Address of the server
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    pub url: String,
    /// Name of the model; each server knows "default"
    #[arg(long, value_name = "MODEL", default_value = "default")]
    pub name: String,
    /// Tokens of the server's context, which it says when it starts
    #[arg(long, value_name = "TOKENS")]
    pub context: Option<u64>,
    /// File whose first key is used, as of dmschat serve
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub api_key_file: Option<PathBuf>,
    /// Start the program with these settings
    #[arg(long)]
    pub run: bool,
    /// With --run: arguments of the program, behind --
    #[arg(value_name = "ARGS", last = true, requires = "run")]
    pub rest: Vec<OsString>,
}

/// The arguments of a command that moved to `dmslab`.
#[derive(Args, Debug)]
pub struct Moved {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    pub rest: Vec<OsString>,
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

/// `--weights`, `--eviction` and `--kv` accept several values here, such as `on,off`.
#[derive(Args, Debug)]
pub struct BenchArgs {
    /// Use random weights in the shape of a known model instead of --model
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(SHAPES))]
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
    /// Drafts of each sequence in a step; 0: none
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "0")]
    pub drafts: Vec<usize>,
    /// With --drafts: the chance that a draft is right if those before it are
    #[arg(long, value_name = "SHARE", default_value_t = 0.7)]
    pub accept: f64,
    /// The inverse of --keep-ratio
    #[arg(long, value_name = "SHARE", conflicts_with = "offset", hide = true)]
    pub keep: Option<f64>,
    /// Offset of the eviction decisions, as an earlier run with --keep-ratio printed it: keeps the
    /// same tokens without measuring
    #[arg(long, value_name = "X", conflicts_with = "keep_ratio")]
    pub offset: Option<f32>,
    /// While decoding, read which tokens are kept five times a second, as the chat's memory page
    /// does
    #[arg(long)]
    pub presence: bool,
    /// CPU threads [default: one per core]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Only measure how long a conversation of --ctx tokens takes to resume, replayed and from a
    /// cache file
    #[arg(long, conflicts_with_all = ["parallel", "chains", "width", "presence", "runs"])]
    pub resume_cache: bool,
    /// Also print one line with results, model and machine, to paste into an issue
    #[arg(long, conflicts_with = "resume_cache")]
    pub share: bool,
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
    // `dmslab check` and `dmslab speed` have these now.
    #[arg(long, hide = true)]
    pub all: bool,
    #[arg(long, hide = true)]
    pub speed: bool,
    #[arg(long, hide = true)]
    pub part: Option<String>,
    #[arg(long, hide = true)]
    pub short: bool,
    /// Load the model and show where every MiB of the device's memory goes
    #[arg(long)]
    pub memory: bool,
    /// With --memory: use random weights in the shape of a known model instead of --model
    #[arg(long, value_name = "NAME", requires = "memory", value_parser = PossibleValuesParser::new(SHAPES))]
    pub shape: Option<String>,
}

#[derive(Subcommand, Debug)]
pub enum ModelsCommand {
    /// List the models on this machine; with --known those that have short names
    List {
        /// List known models by their short names: size, licence, what makes them forget, what fits
        #[arg(long)]
        known: bool,
        /// With --known: print a table for GPUs with so much memory, such as 8GiB,24GiB
        #[arg(long, value_name = "SIZE,...", value_delimiter = ',', requires = "known")]
        memory: Vec<ByteSize>,
    },
    /// Print the folder of downloaded models
    Path,
    /// Download or update a model, and print its folder
    Pull {
        /// Hub id, such as ORG/NAME[@REVISION]
        id: String,
    },
    /// Delete a downloaded model, or one revision of it; with --weights int8 or int4, its quantized
    /// weights only
    Rm {
        /// Hub id, such as ORG/NAME[@REVISION]; with --weights also a folder
        id: String,
    },
    /// Quantize a model's weights into the cache folder before its first start: needs --weights
    /// int8 or int4
    Quantize {
        /// Folder or hub id
        id: String,
    },
    #[command(hide = true)]
    Importance(Moved),
    /// Describe a model, also before it is downloaded
    Info {
        /// Name, folder, GGUF file or hub id
        id: String,
    },
}

#[derive(Subcommand, Debug)]
pub enum AdapterCommand {
    /// Make a predictor for the model of --model: takes minutes, needs no GPU
    Train(TrainArgs),
    /// List the predictors in the data folder
    List,
    /// Describe a predictor: what it was made for and what it costs
    Info {
        /// Its name in the list, or a file
        name: String,
    },
    /// Delete a predictor from the data folder
    Rm {
        /// Its name in the list
        name: String,
    },
}

#[derive(Args, Debug)]
pub struct TrainArgs {
    /// UTF-8 texts or saved conversations (.jsonl) to learn from, instead of the built-in texts
    #[arg(long, value_name = "FILE", num_args = 1.., value_hint = ValueHint::FilePath)]
    pub text: Vec<PathBuf>,
    /// Compression ratio to reach on held-out texts of 2,048 tokens [default: 3]
    #[arg(long, value_name = "X", conflicts_with = "kl")]
    pub ratio: Option<f64>,
    /// Divergence from the dense model to reach instead, in nats per token, such as 0.01
    #[arg(long, value_name = "X")]
    pub kl: Option<f64>,
    /// File to write; only a predictor of dmschat is replaced [default: the data folder, where the
    /// next start finds it]
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub out: Option<PathBuf>,
    /// Print reports as lines of JSON, for the chat
    #[arg(long, hide = true)]
    pub progress: bool,
    /// With --progress: end after the estimate of how long it takes
    #[arg(long, hide = true, requires = "progress")]
    pub estimate: bool,
}

/// Files of `sessions export`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ExportFormat {
    Jsonl,
    Md,
}

#[derive(Subcommand, Debug)]
pub enum SessionsCommand {
    /// List the saved conversations, newest first
    List,
    /// Find words, or a "phrase", in the texts of all saved conversations
    Search {
        #[arg(required = true)]
        words: Vec<String>,
    },
    /// Write saved conversations to a folder, a file each; again only those that have changed
    Export {
        /// All conversations
        #[arg(long, required_unless_present = "tag")]
        all: bool,
        /// Those with this tag
        #[arg(long, value_name = "NAME")]
        tag: Option<String>,
        /// jsonl (as they are saved; --resume FILE continues them) or md
        #[arg(long, default_value = "jsonl")]
        format: ExportFormat,
        /// The folder, which is made if it is not there
        dir: PathBuf,
    },
    /// Remove orphaned caches and the oldest beyond cache_disk; their conversations are replayed
    /// when opened
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
