//! dmslab: measures what dmschat's library runs. Not part of the product; it may use everything in
//! the library.
//!
//! | module | command | does |
//! | --- | --- | --- |
//! | [`score`], [`schedule`] | `score` | log-probabilities of a text under a schedule of prefills, decodes and toggles |
//! | [`compare`], [`divergence`] | `compare` | what eviction and smaller formats cost on a text: perplexity, KL |
//! | [`eval`] | `eval` | accuracy against KV reads and memory: tasks, grids, frontiers |
//! | [`check`], [`checks`] | `check` | every kernel of a GPU against the CPU's op, cache histories, whole models |
//! | [`gpu`] | | opens the GPU that `check` and `speed` work on |
//! | [`speed`] | `speed` | time of every op alone, at the shapes of a model |
//! | [`train`] | `train` | time of making a predictor for a model of a known shape |
//! | [`dictionary`] | `dictionary` | learns the dictionary of `--kv csr:N` from texts |
//! | [`calls`] | `calls` | the calls of tools in outputs, by the server's parser |
//! | [`importance`] | `importance` | which columns of a model's matrices matter, for `--importance` |

mod calls;
mod check;
mod checks;
mod compare;
mod dictionary;
mod divergence;
mod eval;
mod gpu;
mod importance;
mod schedule;
mod score;
mod speed;
mod train;

use anyhow::{Result, ensure};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use dmschat::cli::args::help::with_flags;
use dmschat::cli::args::{self, Common};
use dmschat::cli::output::wrong_use;
use dmschat::cli::{run_program, settings};
use dmschat::config::Layer;
use std::env::ArgsOs;
use std::process::ExitCode;

/// The laboratory of dmschat: scores, comparisons, evaluations, checks and timings of every op.
#[derive(Parser, Debug)]
#[command(name = "dmslab", version = args::VERSION, max_term_width = 100, subcommand_required = true, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Score a text: perplexity; --json: each token's log-probability
    Score(score::ScoreArgs),
    /// Compare eviction and smaller formats on a text: perplexity, KL
    Compare(compare::CompareArgs),
    /// Measure accuracy against KV reads and memory on tasks
    Eval(eval::run::EvalArgs),
    /// Compare every kernel of a GPU with the CPU's op
    Check(check::CheckArgs),
    /// Measure the speed of every op on a GPU, at the shapes of qwen3-8b if it is large enough
    Speed,
    /// Measure on a text which columns of a model's matrices matter, and write a file for dmschat's
    /// --importance
    Importance(importance::ImportanceArgs),
    /// Learn from texts the dictionary that --kv csr:N codes keys and values with
    Dictionary(dictionary::DictionaryArgs),
    /// Measure how long `dmschat adapter train` takes, on random weights in the shape of a known
    /// model
    Train(train::TrainArgs),
    /// Find the calls of tools in outputs, for tests
    #[command(hide = true)]
    Calls(calls::CallsArgs),
}

/// The ids of dmschat's flags that a command uses.
fn flags_of(command: &str) -> Option<Vec<&'static str>> {
    let [model, cache, answer, sampling] = ["model", "cache", "answer", "sampling"].map(Layer::group);
    let own: &[&[&str]] = match command {
        "score" => &[model, cache, &["config", "json"]],
        "compare" => &[model, cache, &["config", "json", "far", "far_pages"]],
        "eval" => &[
            model,
            &["config", "policy", "kv", "ctx_size", "kv_limit", "keep_ratio", "width", "far", "far_pages", "json"],
            sampling,
            answer,
        ],
        "check" | "speed" | "train" => &[&["device"]],
        "dictionary" => &[model, &["config"]],
        "importance" => &[&["adapter", "device", "config"]],
        _ => &[],
    };
    Some(own.concat())
}

fn read(line: ArgsOs) -> clap::error::Result<Cli> {
    let command = with_flags(Cli::command(), true, &flags_of).mut_args(|arg| arg.hide(true));
    Cli::from_arg_matches(&args::matches(command, line)?)
}

fn dispatch(cli: Cli) -> Result<u8> {
    let Cli { mut common, command } = cli;
    common.one_value_each(match &command {
        Command::Compare(_) => &["--kv", "--weights"],
        Command::Eval(_) => &["--policy", "--width", "--keep-ratio"],
        _ => &[],
    })?;
    if let Command::Eval(mut args) = command {
        // Each is run; none is a setting.
        args.ratios = common.keep_ratio.take().map_or(vec![8.0], |list| list.0);
        return eval::run::run(&settings(&common)?, &args, &common);
    }
    if let Some(why) = common.width_conflict(true) {
        return Err(wrong_use(why));
    }
    ensure!(
        common.keep_ratio.is_none(),
        wrong_use("--keep-ratio is for conversations, bench and eval; compare takes --dial")
    );
    match command {
        Command::Calls(args) => calls::run(&args),
        Command::Score(args) => score::run(&settings(&common)?, &args, common.json),
        Command::Compare(args) => compare::run(&settings(&common)?, &args, &common),
        Command::Train(args) => train::run(&settings(&common)?, &args),
        Command::Dictionary(args) => dictionary::run(&settings(&common)?, &args),
        Command::Importance(args) => importance::run(&settings(&common)?, &args),
        Command::Check(args) => check::run(gpu::index(&common)?, &args),
        Command::Speed => speed::run(gpu::index(&common)?),
        Command::Eval(_) => unreachable!("run above"),
    }
}

fn main() -> ExitCode {
    run_program("dmslab", read, dispatch)
}
