//! The binary as scripts see it: what goes to stdout, what to stderr, and the exit code.

use crate::program::program;
#[cfg(target_os = "linux")]
use crate::program::{catches_ctrl_c, interrupted};
pub use crate::program::{refused, said};
use crate::tiny::{Form, Spec, Tiny};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// A dmschat with folders of its own and nothing in its environment.
pub fn dmschat(home: &TempDir) -> Command {
    program(env!("CARGO_BIN_EXE_dmschat"), home)
}

fn run(args: &[&str]) -> (i32, String, String) {
    let home = tempfile::tempdir().unwrap();
    said(&dmschat(&home).args(args).output().unwrap())
}

fn with_stdin(args: &[&str], stdin: &[u8]) -> (i32, String, String) {
    let home = tempfile::tempdir().unwrap();
    let mut child = dmschat(&home).args(args).stdin(Stdio::piped()).spawn().unwrap();
    let _ = child.stdin.take().unwrap().write_all(stdin);
    said(&child.wait_with_output().unwrap())
}

const EQUATION: &str = "Solve 5*b - 2355 = -50*b - 2740 for b.";

#[test]
fn one_answer_goes_to_stdout_and_nothing_else() {
    let home = tempfile::tempdir().unwrap();
    let output = dmschat(&home).args(["-p", EQUATION, "--temperature", "0"]).output().unwrap();
    let (code, stdout, stderr) = said(&output);
    assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
    assert!(stdout.trim_end().ends_with("-7") && stdout.ends_with('\n') && !stdout.contains('\x1b'), "{stdout}");
    assert!(!stdout.contains("think"), "{stdout}");
    assert!(!home.path().join("data").exists(), "no session is written");
    // What a pipe brings is appended.
    let (code, piped, _) = with_stdin(&["-p", "Solve 5*b - 2355"], b"= -50*b - 2740 for b.\n");
    assert_eq!(code, 0, "{piped}");
    // A pipe alone, `-p -` and words are questions too.
    let question = EQUATION.as_bytes();
    for result in [with_stdin(&[], question), with_stdin(&["-p", "-"], question), run(&[EQUATION])] {
        assert_eq!(result, (0, stdout.clone(), String::new()));
    }
    refused(with_stdin(&[], b"\n"), &["the prompt is empty"]);
    // Of its thoughts, nothing goes to stdout.
    let (code, nothing, stderr) = run(&["-p", EQUATION, "--max-tokens", "5"]);
    assert!(code == 1 && nothing.is_empty() && stderr.contains("no answer: "), "{stderr}");
}

#[test]
fn json_is_one_object_whose_numbers_agree() {
    let (code, stdout, _) = run(&["-p", EQUATION, "--json", "--seed", "7", "--temperature", "0"]);
    assert_eq!((code, stdout.lines().count()), (0, 1));
    let json: Value = serde_json::from_str(&stdout).unwrap();
    // Whether drafts are tried depends on what steps take.
    let keys: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).filter(|key| *key != "draft").collect();
    let wanted = [
        "answer",
        "reasoning",
        "stop_reason",
        "prompt_tokens",
        "answer_tokens",
        "reasoning_tokens",
        "ttft_ms",
        "prefill_tok_s",
        "decode_tok_s",
        "seed",
        "model",
        "device",
        "weights",
        "eviction",
        "kv",
        "decisions",
    ];
    assert_eq!(keys, wanted);
    assert_eq!(
        (json["decisions"]["kind"].as_str(), json["decisions"]["name"].as_str()),
        (Some("borrowed"), Some("demo"))
    );
    assert!(json["answer"].as_str().unwrap().ends_with("-7") && json["stop_reason"] == "end", "{json}");
    assert_eq!((json["seed"].as_u64(), json["model"].as_str()), (Some(7), Some("demo")));
    let kv = &json["kv"];
    let number = |v: &Value| v.as_u64().unwrap();
    let live: Vec<Vec<u64>> = serde_json::from_value(kv["live"].clone()).unwrap();
    let (layers, heads) = (live.len() as u64, live[0].len() as u64);
    let sum: u64 = live.iter().flatten().sum();
    let fed = number(&json["prompt_tokens"]) + number(&json["answer_tokens"]) + number(&json["reasoning_tokens"]) - 1;
    assert_eq!((number(&kv["live_slots"]), number(&kv["dense_slots"])), (sum, fed * layers * heads));
    let ratio = number(&kv["dense_slots"]) as f64 / sum as f64;
    assert!((kv["ratio"].as_f64().unwrap() - ratio).abs() < 1e-9);
    assert_eq!(number(&kv["live_bytes"]) * number(&kv["dense_slots"]), number(&kv["dense_bytes"]) * sum);
    assert!(number(&kv["bytes"]) >= number(&kv["live_bytes"]));
    let (_, dense, _) = run(&["-p", EQUATION, "--json", "--eviction", "off", "--temperature", "0"]);
    let dense: Value = serde_json::from_str(&dense).unwrap();
    assert_eq!((dense["kv"]["ratio"].as_f64(), dense["eviction"].as_bool()), (Some(1.0), Some(false)));
}

#[test]
fn wrong_use_is_one_line_and_exit_2() {
    refused(run(&["--temprature", "1"]), &["--temprature", "--temperature"]);
    refused(run(&["-p", "x", "--model", "/no/such/model"]), &["/no/such/model"]);
    refused(run(&["-p", "x", "--device", "cuda:99"]), &["--device cuda", "--device cpu"]);
    refused(run(&["-p", "x", "--temperature", "-1"]), &["--temperature", "-1"]);
    refused(run(&["-p", "x", "--resume", "nothing like it"]), &["nothing like it"]);
    refused(run(&["-p", "x", "--continue"]), &["no session"]);
    refused(run(&["-p", "x", "--theme", "nosuch"]), &["nosuch", "dark"]);
    // Each of the flags with several values is looked at.
    refused(run(&["bench", "--weights", "bf16,int8", "--policy", "dense,dms"]), &["--policy takes one value here"]);
    refused(run(&["-p", " "]), &["empty"]);
    refused(run(&[]), &["-p"]);
    refused(with_stdin(&["-p", "x"], b"abc\xff\xfe"), &["stdin", "byte 3", "UTF-8"]);
    refused(run(&["models", "pull", "demo"]), &["demo is not a hub id"]);
    refused(run(&["models", "rm", "a/b"]), &["a/b is not in the Hugging Face cache"]);
    refused(run(&["adapter", "rm", "nothing"]), &["nothing", "adapter list"]);
    refused(run(&["adapter", "train", "--ratio", "1"]), &["--ratio 1 is out of range"]);
    refused(run(&["adapter", "train", "--device", "cpu"]), &["-m MODEL is missing"]);
    refused(run(&["adapter", "train", "-m", "demo", "--device", "cpu"]), &["demo evicts by itself"]);
    refused(run(&["bench", "--ctx", "99999", "--device", "cpu"]), &["--ctx 99999", "context of demo", "8,192 tokens"]);
}

#[test]
fn a_typo_in_the_config_names_file_line_and_key() {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join("config")).unwrap();
    let file = home.path().join("config/config.toml");
    fs::write(&file, "# mine\ntemprature = 1\n").unwrap();
    let result = said(&dmschat(&home).args(["-p", "x"]).output().unwrap());
    refused(result, &[&format!("{}:2", file.display()), "`temprature`", "`temperature`"]);
    let asked = |args: &[&str]| said(&dmschat(&home).args(args).output().unwrap());
    assert_eq!(asked(&["config", "path"]).1.trim_end(), file.display().to_string());
    fs::write(&file, "# mine\ntheme = \"drk\"\ntop_p = 0.5\n").unwrap();
    fs::write(home.path().join("config/keymap.toml"), "quit = [\"ctrl+q\"]\n").unwrap();
    let (code, doctor, _) = asked(&["doctor"]);
    assert!(code == 1 && doctor.ends_with("a chat would not start\n"), "{doctor}");
    assert!(doctor.contains("did you mean dark?") && doctor.contains("below [chat]"), "{doctor}");
    assert_eq!(doctor.matches("keymap.toml").count(), 1, "{doctor}");
    let keymap = doctor.lines().find_map(|line| line.strip_prefix("!!  keymap ")).unwrap();
    assert!(keymap.trim_start().starts_with(home.path().to_str().unwrap()), "{doctor}");
    let other = home.path().join("other.toml");
    fs::write(&other, "").unwrap();
    let (_, doctor, _) = asked(&["doctor", "--config", other.to_str().unwrap()]);
    let line = doctor.lines().find(|line| line.starts_with("ok  config")).unwrap();
    assert!(line.ends_with("other.toml"), "{line}");
    // A long value has its source on the next line, below the others.
    let (_, shown, _) = asked(&["config", "show", "--system", &"word ".repeat(30), "--seed", "7"]);
    let column = shown.lines().find(|l| l.starts_with("seed")).unwrap().find("--seed");
    let source = shown.lines().skip_while(|l| !l.starts_with("system")).nth(1).unwrap();
    assert_eq!(source.find("--system"), column, "{shown}");
    let (code, shown, _) = asked(&["config", "show", "--seed", "7"]);
    let line = |key: &str| shown.lines().find(|l| l.starts_with(key)).unwrap().split_whitespace().collect::<Vec<_>>();
    assert_eq!((code, line("seed")), (0, vec!["seed", "7", "--seed"]));
    assert_eq!(line("top_p"), ["top_p", "0.5", &format!("{}:3", file.display())]);
    assert!(shown.contains("generation_config.json of demo"), "{shown}");
    let (code, theme, _) = asked(&["config", "theme", "light"]);
    assert!(code == 0 && theme.contains("[roles]"), "{theme}");
}

#[test]
fn completions_man_version_and_doctor_exist() {
    for shell in ["bash", "zsh", "fish"] {
        let (code, script, _) = run(&["completions", shell]);
        assert!(code == 0 && script.contains("eviction") && script.contains("presence"), "{shell}");
    }
    let (code, page, _) = run(&["man"]);
    assert!(code == 0 && page.starts_with(".ie") && page.contains(".TH") && page.contains("kv\\-limit"), "{page}");
    assert!(run(&["man", "bench"]).1.contains("presence"));
    assert!(page.contains(".SH \"FILES\"") && page.contains(".nf\n") && !page.contains("EXTRA"), "{page}");
    assert!(page.contains("\\fB/compact") && page.contains("\\fBF1, Alt+H\\fR"), "{page}");
    let (code, version, _) = run(&["--version"]);
    assert!(code == 0 && version.contains("commit") && version.contains("cuda: "), "{version}");
    let cuda = version.lines().find_map(|line| line.strip_prefix("cuda: ")).unwrap();
    assert!(cuda.len() < 100, "{cuda}");
    let (code, help, stderr) = run(&["--help"]);
    assert!(code == 0 && stderr.is_empty() && help.contains("--kv-limit") && !help.contains("eval"), "{help}");
    let (code, doctor, _) = run(&["doctor", "--json"]);
    let json: Value = serde_json::from_str(&doctor).unwrap();
    assert!(code == 0 && json["ok"] == true && json["threads"].as_u64() > Some(0), "{doctor}");
    assert_eq!(json["cuda"], cuda, "the same words");
    let (code, out, _) = run(&["doctor", "-m", "/no/such"]);
    assert!(code == 1 && out.contains("!!  model") && out.ends_with("a chat would not start\n"), "{out}");
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("data"), "a file").unwrap();
    let (code, said, _) = said(&dmschat(&home).arg("doctor").output().unwrap());
    let line = said.lines().find(|line| line.contains("data_folder")).unwrap();
    assert!(code == 1 && line.starts_with("!!") && line.ends_with("data is not a folder"), "{said}");
    assert!(said.ends_with("a chat would start, but it would not be saved\n"), "{said}");
    refused(run(&["show", "--json", "x"]), &["show prints no JSON"]);
    let (code, list, _) = run(&["models", "list"]);
    assert!(code == 0 && list.lines().nth(1).is_some_and(|row| row.starts_with("demo")), "{list}");
}

#[test]
fn what_dmslab_does_now_is_named_in_a_line() {
    for (line, new) in [
        (&["score", "--model", "m", "--tokens-file", "x", "--json"][..], "dmslab score"),
        (&["--device", "cpu", "compare", "--text-file", "x"], "dmslab compare"),
        (&["eval"], "dmslab eval"),
        (&["models", "importance", "demo", "--text-file", "x", "-o", "y"], "dmslab importance"),
        (&["doctor", "--device", "cuda", "--all"], "dmslab check"),
        (&["doctor", "--part", "1/2", "--short"], "dmslab check"),
        (&["doctor", "--speed"], "dmslab speed"),
    ] {
        refused(run(line), &[new]);
    }
}

#[cfg(unix)]
#[test]
fn a_closed_pipe_is_no_error() {
    let home = tempfile::tempdir().unwrap();
    // The last one has no answer, which is a failure only where somebody waits for one.
    let unanswered = ["-p", EQUATION, "--max-tokens", "5"];
    for args in [&["completions", "bash"][..], &["--help"], &["-p", EQUATION], &["-p", EQUATION, "--json"], &unanswered]
    {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = dmschat(&home).args(args).stdout(writer).output().unwrap();
        let (code, _, stderr) = said(&output);
        assert_eq!((code, stderr.as_str()), (0, ""), "{args:?}");
    }
}

#[test]
fn several_chains_vote_or_are_checked() {
    let spec = Spec { tied: false, speaks: true, context: 1024, ..Spec::new(true, Form::Borrowed) };
    let model = Tiny::new(spec, 310);
    let folder = model.folder.path().to_str().unwrap();
    let ask = |more: &[&str]| {
        let fixed =
            ["--device", "cpu", "-m", folder, "-p", "a question", "--seed", "5", "--max-tokens", "30", "--json"];
        run(&[&fixed[..], more].concat())
    };
    let json = |more: &[&str]| -> Value {
        let (code, stdout, stderr) = ask(more);
        assert_eq!(code, 0, "{stdout}{stderr}");
        serde_json::from_str(&stdout).unwrap()
    };
    let (one, ordinary, three) = (json(&["--width", "1"]), json(&[]), json(&["--width", "3", "--early-stop", "off"]));
    assert_eq!((&one["answer"], &one["kv"], &one["chains"]), (&ordinary["answer"], &ordinary["kv"], &Value::Null));
    let chains = three["chains"].as_array().unwrap();
    assert_eq!((chains.len(), chains[0]["seed"].as_u64()), (3, Some(5)), "{three}");
    // The JSON of an answer is trimmed.
    let text = |value: &Value| value.as_str().unwrap().trim().to_owned();
    assert_eq!(text(&chains[0]["answer"]), text(&ordinary["answer"]));
    assert!(chains.iter().any(|chain| !text(&chain["answer"]).is_empty()), "{three}");
    assert_eq!(text(&chains[three["winner"].as_u64().unwrap() as usize]["answer"]), text(&three["answer"]));
    let reads: f64 = chains.iter().map(|chain| chain["reads"].as_f64().unwrap()).sum();
    assert!(
        (three["kv"]["reads"].as_f64().unwrap() - reads).abs() < 1e-9 && chains[0]["reads"] == ordinary["kv"]["reads"]
    );
    assert!(three["kv"]["peak_slots"].as_f64() > ordinary["kv"]["peak_slots"].as_f64());
    let votes: u64 = three["votes"].as_array().unwrap().iter().map(|vote| vote["count"].as_u64().unwrap()).sum();
    assert_eq!(votes as usize, chains.iter().filter(|chain| chain["extracted"].is_string()).count());
    // A command that says yes, one that says no, and one that is not there.
    let yes = json(&["--width", "3", "--check", "cat > /dev/null"]);
    assert_eq!((&yes["checked"], yes["chains"].as_array().unwrap().len()), (&Value::Bool(true), 3), "{yes}");
    assert_eq!(json(&["--width", "3", "--check", "exit 1"])["checked"], false);
    refused(ask(&["--width", "2", "--check", "/nowhere/to/be/found"]), &["--check", "cannot run"]);
    for (flags, parts) in [
        (&["--width", "0"][..], &["--width", "1 to 1024, or auto"][..]),
        (&["--width", "4000"], &["--width", "1 to 1024, or auto"]),
        (&["--check", "true"], &["--check needs --width"]),
        (&["--early-stop", "off"], &["--early-stop needs --width"]),
    ] {
        refused(ask(flags), parts);
    }
    for command in ["doctor", "models list", "sessions list", "config path"] {
        let words: Vec<&str> = command.split(' ').chain(["--width", "4"]).collect();
        refused(run(&words), &["--width", "bench and dmslab eval"]);
    }
    refused(run(&["--width", "4", "--check", "true"]), &["--check needs -p"]);
}

/// The model of these tests never ends its turn, so there is always something to interrupt.
#[cfg(target_os = "linux")]
#[test]
fn ctrl_c_keeps_what_there_is_and_says_130() {
    use rustix::process::{Pid, Signal, kill_process};
    use std::io::Read;
    let home = tempfile::tempdir().unwrap();
    let talker = Tiny::new(Spec { speaks: true, context: 1 << 20, ..Spec::new(true, Form::Borrowed) }, 3);
    let begin = |args: &[&str]| {
        let mut talk = dmschat(&home);
        talk.args(["-p", "x", "--temperature", "0", "--model"]).arg(talker.folder.path());
        talk.args(args).spawn().unwrap()
    };
    let mut child = begin(&[]);
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0]).unwrap();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "the text came, so it was answering");

    let child = begin(&["--json"]);
    while !catches_ctrl_c(child.id()) {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    std::thread::sleep(std::time::Duration::from_millis(300));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let (code, stdout, stderr) = said(&child.wait_with_output().unwrap());
    assert_eq!(code, 130, "{stdout}{stderr}");
    // On a slow machine it was still loading, and there is no answer to print.
    if !stdout.is_empty() {
        let json: Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!(json["stop_reason"], "cancelled");
    }
}

/// Whether a process runs, and is not only waiting to be reaped.
#[cfg(target_os = "linux")]
fn runs(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

#[cfg(target_os = "linux")]
#[test]
fn a_command_that_checks_answers_ends_with_the_program() {
    use rustix::process::{Pid, Signal, kill_process};
    let pause = || std::thread::sleep(std::time::Duration::from_millis(10));
    let talker = Tiny::new(Spec { tied: false, speaks: true, context: 1024, ..Spec::new(true, Form::Borrowed) }, 310);
    let asked = ["-p", "a question", "--seed", "5", "--max-tokens", "30", "--width", "3", "--json", "--check"];
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let home = tempfile::tempdir().unwrap();
        let pids = home.path().join("pids");
        // The second process is in the command's group, and ignores all but SIGKILL.
        let check = format!("(trap '' TERM HUP INT; sleep 1000) & echo $$ $! done > {}; wait", pids.display());
        let mut child = dmschat(&home);
        let child = child.args(asked).arg(check).arg("--model").arg(talker.folder.path()).spawn().unwrap();
        let group = loop {
            match fs::read_to_string(&pids) {
                Ok(text) if text.ends_with("done\n") => break text,
                _ => pause(),
            }
        };
        let group: Vec<&str> = group.split_whitespace().take(2).collect();
        assert!(group.iter().all(|pid| runs(pid)));
        kill_process(Pid::from_child(&child), signal).unwrap();
        let (ended, stdout, stderr) = said(&child.wait_with_output().unwrap());
        assert_eq!(ended, code, "{stdout}{stderr}");
        // The system needs a moment to end them.
        while group.iter().any(|pid| runs(pid)) {
            pause();
        }
        if signal == Signal::INT {
            let json: Value = serde_json::from_str(&stdout).unwrap();
            assert_eq!(
                (&json["stop_reason"], &json["stopped"]),
                (&Value::from("cancelled"), &Value::Bool(true)),
                "{json}"
            );
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn ctrl_c_ends_a_measurement_in_one_line_with_130() {
    let home = tempfile::tempdir().unwrap();
    let mut bench = dmschat(&home);
    bench.args(["bench", "--shape", "demo", "--ctx", "8000", "--device", "cpu"]);
    let (code, _, stderr) = interrupted(bench);
    assert!(code == 130 && stderr.ends_with("dmschat: interrupted\n"), "{code}: {stderr}");
}

#[test]
fn config_errors_name_file_line_and_key() {
    let home = tempfile::tempdir().unwrap();
    let config = home.path().join("config/config.toml");
    fs::create_dir_all(home.path().join("config")).unwrap();
    for (text, parts) in [
        ("seed = 1\ntheme = \"nope\"", ["config.toml:2: theme: ", "no theme \"nope\"; themes: "]),
        ("\nkeys = \"none.toml\"", ["config.toml:2: keys: the file ", "none.toml"]),
        ("\n\nmodel = \"\"", ["config.toml:3: model: ", "the name is empty"]),
        ("top_k = -1", ["config.toml:1: ", "top_k"]),
    ] {
        fs::write(&config, text).unwrap();
        refused(said(&dmschat(&home).args(["-p", "hi"]).output().unwrap()), &parts);
    }
    fs::write(&config, "").unwrap();
    let output = dmschat(&home).env("DMSCHAT_THEME", "nope").args(["-p", "hi"]).output().unwrap();
    refused(said(&output), &["DMSCHAT_THEME: no theme"]);
}

#[test]
fn one_answer_names_no_slash_command_and_says_what_thinking_can_be_switched() {
    // Too long by tokens, and by bytes alone.
    let (long, longer) = ("7 ".repeat(300), "word ".repeat(400));
    let (_, _, stderr) = run(&["-p", &longer, "--ctx-size", "128"]);
    assert!(stderr.contains("shorten it") && !stderr.contains(" /"), "{stderr}");
    let (code, stdout, stderr) = run(&["-p", &long, "--think", "off", "--ctx-size", "128"]);
    assert_eq!((code, stdout.as_str()), (1, ""), "{stderr}");
    assert!(stderr.contains("the context holds 128") && stderr.contains("--ctx-size"), "{stderr}");
    assert!(!stderr.contains(" /"), "{stderr}");
    let (code, _, stderr) = run(&["-p", "2+2", "--ctx-size", "20"]);
    assert!(
        code == 1 && stderr.contains("no answer: context full while the model was still thinking; shorten the prompt"),
        "{stderr}"
    );
    // A thought that is cut off is no answer, and one that is closed is.
    let (code, stdout, stderr) = run(&["-p", EQUATION, "--temperature", "0", "--max-tokens", "20"]);
    assert_eq!((code, stdout.as_str()), (1, ""), "{stderr}");
    assert!(stderr.contains("no answer: the model was still thinking; raise --max-tokens"), "{stderr}");
    let (code, stdout, stderr) = run(&["-p", EQUATION, "--temperature", "0", "--max-think", "20", "--json"]);
    let json: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &json["thought_closed_at"], &json["reasoning_tokens"]), (0, &20.into(), &21.into()), "{json}");
    assert!(stderr.contains("the thought was closed after 20 tokens (--max-think)"), "{stderr}");
    refused(run(&["models"]), &["dmschat models needs a subcommand: list, path, pull, rm, quantize, info"]);
}

#[test]
fn policies_and_budgets_that_cannot_be_are_refused_in_one_line() {
    let ask = |args: &[&str]| run(&[&["-p", "x"], args].concat());
    refused(ask(&["--policy", "tova", "--budget", "12"]), &["12 slots are less than a page"]);
    refused(ask(&["--policy", "window", "--budget", "4x"]), &["--budget: policy window takes slots"]);
    refused(ask(&["--policy", "h2o", "--budget", "0.5x"]), &["expected 1x to 64x"]);
    refused(ask(&["--policy", "dense", "--budget", "512"]), &["no budget"]);
    for budget in ["512", "2.5x"] {
        refused(ask(&["--policy", "pool", "--budget", budget]), &["policy pool takes a whole ratio from 1x to 64x"]);
    }
    refused(ask(&["--policy", "dmc", "--budget", "4x"]), &["no budget"]);
    refused(ask(&["--policy", "quest"]), &["quest", "conversations cannot have it"]);
    let (code, _, stderr) = run(&["-p", "x", "--policy", "dmc"]);
    assert!(code != 0 && stderr.contains("not trained with DMC") && stderr.lines().count() == 1, "{stderr}");
}

#[test]
fn bench_shares_one_line_with_figures_and_machine() {
    let (code, stdout, stderr) =
        run(&["bench", "--ctx", "40,0", "--gen", "2", "--runs", "1", "--device", "cpu", "--share"]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    let line = stdout.lines().last().unwrap();
    let parts: Vec<&str> = line.split(" | ").collect();
    assert_eq!((parts.len(), parts[2]), (5, "demo"), "{line}");
    assert!(parts[0].starts_with("dmschat ") && parts[0].contains("(commit "), "{line}");
    assert!(parts[1].starts_with("cpu, ") && parts[1].contains(std::env::consts::ARCH), "{line}");
    assert!(parts[3].starts_with("bf16 f32 eviction on ctx 40: prefill ") && parts[3].contains("decode "), "{line}");
    assert!(parts[4].starts_with("bf16 f32 eviction on ctx 0: decode "), "{line}");
}

#[test]
fn bench_repeats_the_offset_that_an_earlier_run_found() {
    let bench = |args: &[&str]| {
        run(&[&["bench", "--shape", "demo", "--ctx", "300", "--gen", "1", "--runs", "1", "--json"], args].concat())
    };
    let (code, stdout, stderr) = bench(&["--keep", "0.3"]);
    assert_eq!(code, 0, "{stderr}");
    let found: Value = serde_json::from_str(&stdout).unwrap();
    let offset = stderr.split_once("--offset ").unwrap().1.split_once(',').unwrap().0;
    let (code, stdout, stderr) = bench(&["--offset", offset]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    let again: Value = serde_json::from_str(&stdout).unwrap();
    assert!(found["offset"].is_number() && found["offset"] == again["offset"], "{found} {again}");
    assert_eq!(
        (&again["keep"], &again["results"][0]["live_slots"]),
        (&Value::Null, &found["results"][0]["live_slots"])
    );
    let resume = ["bench", "--shape", "demo", "--ctx", "300", "--json", "--resume-cache", "--eviction", "on"];
    let (_, stdout, stderr) = run(&[&resume[..], &["--offset", offset]].concat());
    let row: Value = serde_json::from_str(&stdout).expect(&stderr);
    assert_eq!([&row["offset"], &row["eviction"], &row["kv"]], [&found["offset"], &Value::Bool(true), &"f32".into()]);
    refused(bench(&["--share"]), &["--share", "--json"]);
    refused(bench(&["--offset", "1", "--keep", "0.3"]), &["--offset", "--keep"]);
    refused(run(&[&resume[..], &["--parallel", "8"]].concat()), &["--resume-cache", "--batch"]);
    refused(bench(&["--offset", "x"]), &["--offset", "'x'"]);
    refused(bench(&["--offset", "nan"]), &["--offset NaN is not an offset", "bench --keep-ratio"]);
}

/// Few files and little memory: an answer, or one line and code 1, and no panic.
#[cfg(target_os = "linux")]
#[test]
fn a_system_that_gives_little_is_told_in_one_line() {
    let limited = |limit: &str, n: usize| {
        let home = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        let script = format!("ulimit -c 0; ulimit {limit} {n}; exec \"$0\" -p 2+2 --max-tokens 1 --device cpu");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_dmschat")]).env_clear().env("HOME", home.path());
        command.env("DMSCHAT_CONFIG_DIR", home.path()).env("DMSCHAT_DATA_DIR", home.path());
        said(&command.stdin(Stdio::null()).output().unwrap())
    };
    for files in [5, 6, 7, 8, 12, 20] {
        let (code, stdout, stderr) = limited("-n", files);
        assert_eq!((code, stdout.as_str(), stderr.lines().count()), (1, "", 1), "{files} files: {stderr}");
        assert!(stderr.contains("ulimit -n"), "{stderr}");
    }
    // What is mapped of a binary with symbols is not known, but it is no more than its file.
    let binary = std::fs::metadata(env!("CARGO_BIN_EXE_dmschat")).unwrap().len() as usize / 1024;
    for more in [15_500, 16_500, 25_000, 35_000] {
        let kilobytes = binary + more;
        let (code, _, stderr) = limited("-v", kilobytes);
        assert!((0..=2).contains(&code) && stderr.lines().count() <= 1, "{kilobytes} kB: {code} {stderr}");
    }
}
