//! Flags and subcommands, one file each. This file parses, dispatches and turns errors into exit
//! codes. Only this module names a concrete backend, loads models and spawns engines.

mod adapter;
pub mod args;
pub mod bench;
pub mod calibrate;
pub mod chat;
mod check;
pub mod client;
pub mod completions;
pub mod config;
mod connect;
pub mod devices;
pub mod doctor;
pub mod download;
mod environment;
mod formats;
pub mod interrupts;
mod known_models;
mod library_paths;
pub mod local_models;
pub mod machine;
pub mod man;
pub mod models;
mod naming;
pub mod output;
mod quantized;
pub mod quantizing;
pub mod reference;
pub mod run;
mod serve;
mod sessions;
mod show;
pub mod spawn;
mod start;
mod training;

pub use start::settings;
use start::{check_theme, quiet_settings};

use crate::config::in_words;
use crate::system::process::{can_open, stdin_is_given};
use anyhow::{Result, ensure};
use args::{Cli, Command};
use clap::error::ErrorKind;
use std::env::ArgsOs;
use std::panic::catch_unwind;
use std::process::ExitCode;
use std::time::Duration;

/// Files that a chat may have open at once.
const FILES: usize = 24;

/// How long the program waits for engines to end before it exits.
const ENGINE_ENDS_WITHIN: Duration = Duration::from_secs(2);

/// The program. Returns its exit code: 0 answered, 1 failed, 2 wrong use, 130 interrupted.
pub fn main() -> ExitCode {
    run_program("dmschat", Cli::read, dispatch)
}

/// Runs a program of that name: reads its command line, does the work, prints an error as one line
/// and returns the exit code.
pub fn run_program<C>(
    name: &'static str,
    read: fn(ArgsOs) -> clap::error::Result<C>,
    work: fn(C) -> Result<u8>,
) -> ExitCode {
    environment::clean();
    output::name_program(name);
    // First of all, because the renderer of untrusted templates limits its own memory.
    if std::env::args_os().nth(1).is_some_and(|a| a == "__render") {
        return crate::chat::template::child_main();
    }
    crate::system::take_shortened_files();
    // The panic hook has printed the message.
    let run = || match read(std::env::args_os()) {
        Ok(cli) => files_can_be_opened().and_then(|()| crate::engine::catch_device_lost(|| work(cli))),
        Err(error) => refused(&error),
    };
    let code = catch_unwind(|| run().unwrap_or_else(|error| output::report(&error))).unwrap_or(output::PANICKED);
    // Exit handlers of NVIDIA's libraries crash while another thread still calls these libraries.
    // If an engine is busy for longer (compiling a kernel, reading from a slow disk), skip the
    // handlers: everything is already saved.
    if !crate::engine::join_all(ENGINE_ENDS_WITHIN) {
        crate::system::exit_now(code);
    }
    ExitCode::from(code)
}

/// Fails if the process may not open as many files as a chat needs, in which case tokio would
/// panic.
fn files_can_be_opened() -> Result<()> {
    ensure!(can_open(FILES), "this process may not open {FILES} more files; raise the limit (ulimit -n 256)");
    Ok(())
}

fn dispatch(cli: Cli) -> Result<u8> {
    let common = &cli.common;
    cli.hint.iter().for_each(|hint| output::notice(hint));
    if let Some(new) = cli.command.as_ref().and_then(Command::moved_to) {
        return Err(output::wrong_use(format!(
            "this is a command of the laboratory now: dmslab {new} (built beside dmschat by cargo build)"
        )));
    }
    if let Some(why) = common.width_conflict(cli.command.is_some()) {
        return Err(output::wrong_use(why));
    }
    // These do not read the settings.
    match &cli.command {
        Some(Command::Completions { shell }) => return completions::run(*shell),
        Some(Command::Man { command }) => return man::run(command.as_deref()),
        Some(Command::Config(command)) => return config::run(command, common),
        Some(Command::Models(command)) => return models::run(command, common),
        Some(Command::Sessions(command)) => return sessions::run(command, common),
        Some(Command::Connect(args)) => return connect::run(args),
        Some(Command::Doctor(args)) => return doctor::run(common, args),
        _ => {}
    }
    let benches = matches!(cli.command, Some(Command::Bench(_)));
    common.one_value_each(if benches { &["--eviction", "--weights", "--kv", "--keep-ratio"] } else { &[] })?;
    let settings = settings(common)?;
    check_theme(&settings).map_err(output::as_wrong_use)?;
    match cli.command {
        Some(Command::Serve(args)) => serve::run(&settings, &args),
        Some(Command::Show(args)) => show::run(&settings, &args, common.json),
        Some(Command::Bench(args)) => bench::run(&settings, &args, common),
        Some(Command::Adapter(command)) => adapter::run(&settings, &command, common),
        _ if common.prompt.is_some() => run::run(&settings, common),
        // A pipe or a file is the question.
        None if stdin_is_given() => run::run(&settings, common),
        _ => chat::run(&settings, common),
    }
}

/// Prints help and version to stdout, and an error as one line to stderr.
fn refused(error: &clap::Error) -> Result<u8> {
    let text = error.render().to_string();
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        output::out(&text)?;
        return Ok(output::OK);
    }
    let missing = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    output::notice(&if missing { subcommands(&text) } else { one_line(&text) });
    Ok(output::WRONG_USE)
}

/// One line with the subcommands in a help text.
fn subcommands(help: &str) -> String {
    let usage = help.lines().find_map(|l| l.trim().strip_prefix("Usage: ")).unwrap_or(output::program());
    let program: Vec<&str> = usage.split_whitespace().take_while(|w| !w.starts_with(['[', '<'])).collect();
    let program = program.join(" ");
    let listed = help.lines().skip_while(|l| l.trim() != "Commands:").skip(1).take_while(|l| !l.trim().is_empty());
    // Continuation lines of a description are indented further.
    let names = listed.filter_map(|l| l.strip_prefix("  ").filter(|l| !l.starts_with(' ')));
    let names: Vec<&str> = names.filter_map(|l| l.split_whitespace().next()).filter(|n| *n != "help").collect();
    format!("{program} needs a subcommand: {}; see {program} --help", names.join(", "))
}

/// clap's message in one line, without its usage.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim);
    let message: Vec<&str> = lines
        .take_while(|l| !l.starts_with("Usage:") && !l.starts_with("For more information"))
        .filter(|l| !l.is_empty())
        .collect();
    let line = in_words(&message.join("; ").replace(":;", ":"));
    format!("{}; see {} --help", line.trim_start_matches("error: "), output::program())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{List, OnOff};

    fn parse(line: &[&str]) -> Result<Cli, String> {
        Cli::read(std::iter::once(&"dmschat").chain(line)).map_err(|e| one_line(&e.render().to_string()))
    }

    #[test]
    fn flags_stand_before_and_after_subcommands() {
        args::command().debug_assert();
        args::shown().debug_assert();
        let cli = parse(&["bench", "--model", "m", "--gen", "3", "--eviction", "off", "--json"]).unwrap();
        assert!(cli.common.json && cli.common.eviction == Some(List::of(OnOff(false))));
        let cli = parse(&["-m", "x", "-p", "-5 + 3?", "--resume"]).unwrap();
        assert_eq!((cli.common.prompt.as_deref(), cli.common.resume), (Some("-5 + 3?"), Some(None)));
        assert!(matches!(parse(&["chat", "--seed", "3"]).unwrap().command, Some(Command::Chat)));
    }

    #[test]
    fn help_fits_and_each_subcommand_shows_its_own_flags() {
        let help = |line: &[&str]| {
            let words = std::iter::once(&"dmschat").chain(line);
            let asked = args::command().term_width(80).try_get_matches_from(words);
            asked.unwrap_err().render().to_string()
        };
        let short = help(&["-h"]);
        assert!(short.lines().count() <= 60 && short.lines().all(|l| l.chars().count() <= 80), "{short}");
        assert!(short.contains("bench ") && !short.contains("score") && !short.contains("--gemm"), "{short}");
        assert!(help(&["--help"]).contains("--gemm"));
        for (line, own, other) in [
            (&["bench", "--help"][..], "--keep-ratio", "--temperature"),
            (&["config", "path", "--help"], "--config", "--model"),
            (&["models", "--help"], "pull", "--device"),
            (&["sessions", "prune", "--help"], "--all", "--kv"),
            (&["chat", "--help"], "--resume", "--json"),
        ] {
            let shown = help(line);
            assert!(shown.contains(own) && !shown.contains(other), "{shown}");
        }
        // Scripts of older versions name any flag anywhere.
        assert_eq!(parse(&["doctor", "--temperature", "1"]).unwrap().common.temperature, Some(1.0));
        let line =
            ["--device", "cpu", "bench", "--weights", "int8", "--kv", "int8", "--parallel", "2", "--keep", "0.5"];
        let cli = parse(&line).unwrap();
        assert!(cli.common.weights.is_some() && cli.common.kv.is_some() && cli.common.device.is_some());
        let Some(Command::Bench(bench)) = cli.command else { panic!() };
        assert_eq!((bench.parallel, bench.keep), (vec![2], Some(0.5)));
    }

    #[test]
    fn words_that_are_no_subcommand_are_a_question() {
        let asked = |line: &[&str]| parse(line).map(|cli| cli.common.prompt.unwrap_or_default());
        assert_eq!(asked(&["What is 2 + 2?", "--json"]).unwrap(), "What is 2 + 2?");
        assert_eq!(asked(&["--seed", "1", "what", "is", "2+2"]).unwrap(), "what is 2+2");
        assert_eq!(asked(&["2+2"]).unwrap(), "2+2");
        // A word that is near no subcommand is a question too.
        assert_eq!(asked(&["hello"]).unwrap(), "hello");
        let hint = |line: &[&str]| parse(line).unwrap().hint.unwrap_or_default();
        assert!(hint(&["pull", "demo"]).ends_with("dmschat models pull ORG/NAME"), "{}", hint(&["pull", "demo"]));
        assert_eq!([hint(&["list", "three", "red", "fruits"]), hint(&["hello"])], ["", ""]);
        assert_eq!(asked(&["-p", "-"]).unwrap(), "-");
        assert_eq!(asked(&["\u{4f60}\u{597d}"]).unwrap(), "\u{4f60}\u{597d}");
        for (line, parts) in [
            (&["bnch"][..], &["did you mean 'bench'?", "-p \"bnch\""][..]),
            (&["modles", "pull", "x"], &["did you mean 'models'?"]),
            (&["ls"], &["no subcommand 'ls'", "dmschat models list", "dmschat -p \"ls\""]),
            (&["serv"], &["did you mean 'serve'?"]),
            (&["sessoins"], &["did you mean 'sessions'?"]),
            (&["-p", "x", "a question"], &["two questions"]),
        ] {
            let said = asked(line).unwrap_err();
            assert!(parts.iter().all(|part| said.contains(part)), "{said}");
        }
    }

    #[test]
    fn a_missing_subcommand_lists_what_there_is() {
        let error = Cli::read(["dmschat", "models"]).unwrap_err();
        let said = subcommands(&error.render().to_string());
        assert_eq!(
            said,
            "dmschat models needs a subcommand: list, path, pull, rm, quantize, info; see dmschat models --help"
        );
    }

    #[test]
    fn mistakes_are_one_line_that_names_them() {
        for (line, parts) in [
            (&["--temprature", "1"][..], &["'--temprature'", "'--temperature'"][..]),
            (&["--kv", "f16"], &["'f16'", "--kv", "auto, f32, bf16, fp8, int8, k8v4, csr:4, csr:8 or csr:16"]),
            (&["--device", "tpu"], &["'tpu'", "cpu, cuda or cuda:N"]),
            (&["--seed", "-1"], &["'-1'", "--seed", "expected a whole number from 0"]),
            (&["--kv-limit", "-1"], &["'-1'", "--kv-limit", "512MiB"]),
            (&["--top-k", "-1"], &["--top-k", "-1 is out of range, expected 0 to"]),
            (&["bench", "--gen", "-1"], &["'-1'", "--gen", "expected a whole number from 0"]),
            (&["comletions"], &["'comletions'", "'completions'"]),
            (&["--continue", "--resume", "x"], &["--continue", "--resume"]),
        ] {
            let said = parse(line).unwrap_err();
            assert!(!said.contains('\n') && parts.iter().all(|p| said.contains(p)), "{said}");
        }
    }
}
