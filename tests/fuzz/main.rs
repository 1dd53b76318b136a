//! Fuzzing of every parser of files from outside, without nightly and without instrumentation: a
//! seeded mutator ([`mutate`]) over valid examples, each trial in a child process under a memory
//! limit and a watch.
//!
//! ```text
//! cargo test --release --test fuzz -- --seconds 60                     all targets, a minute
//! cargo test --release --test fuzz -- --seed 7 --target tokenizer.json one target, another seed
//! cargo test --release --test fuzz -- --inputs 10000000                as long as it takes
//! cargo test --release --test fuzz -- --target index --replay FILE     one input again
//! ```
//!
//! Without arguments it runs for 20 s (5 s in a debug build). A trial fails if it panics, ends the
//! child, maps more than 512 MiB, takes longer than 5 s, or gives an error message of several lines
//! or of more than 2,100 characters. Each failure is printed with target, seed and number, and its
//! input is written to a file.

mod cache;
mod corpus;
#[path = "../it/gguf_file.rs"]
mod gguf_file;
mod heads;
mod mutate;
mod parent;
// Files of problems are read by the laboratory.
#[allow(dead_code, unused_imports)]
#[path = "../../lab/src/eval/tasks/file.rs"]
mod file;
#[allow(dead_code, unused_imports)]
#[path = "../../lab/src/eval/problem.rs"]
mod problem;
mod eval {
    pub(crate) use crate::problem;
}
mod targets;
mod trial;
mod weights;

use std::process::ExitCode;
use std::time::Duration;

/// The parsed command line.
pub struct Options {
    seconds: Option<Duration>,
    inputs: Option<u64>,
    seed: u64,
    /// Parts of names; all targets where it is empty.
    targets: Vec<String>,
    replay: Option<String>,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|a| a == trial::CHILD) {
        return trial::child(&args[1..]);
    }
    match options(&args) {
        Some(options) => parent::run(&options),
        None => ExitCode::SUCCESS,
    }
}

/// `None`: the test runner's arguments ask for other tests, or for a list.
fn options(args: &[String]) -> Option<Options> {
    let mut out = Options { seconds: None, inputs: None, seed: 1, targets: Vec::new(), replay: None };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().unwrap_or_else(|| panic!("{arg} needs a value")).clone();
        match arg.as_str() {
            "--seconds" => out.seconds = Some(Duration::from_secs_f64(value().parse().expect("--seconds: a number"))),
            "--inputs" => out.inputs = Some(value().parse().expect("--inputs: a number")),
            "--seed" => out.seed = value().parse().expect("--seed: a number"),
            "--target" => out.targets.push(value()),
            "--replay" => out.replay = Some(value()),
            "--list" | "--ignored" => return None,
            // Of the usual test runner.
            "--test-threads" | "--skip" | "--format" | "--color" | "--logfile" | "-Z" => drop(value()),
            flag if flag.starts_with('-') => {}
            filter if "fuzz".contains(filter) => {}
            _ => return None,
        }
    }
    if out.seconds.is_none() && out.inputs.is_none() {
        out.seconds = Some(Duration::from_secs(if cfg!(debug_assertions) { 5 } else { 20 }));
    }
    Some(out)
}
