//! `dmslab eval`: the files of a run, that it repeats, and that it continues where it was stopped.

use crate::dmslab;
use crate::program::{refused, said};
use crate::tiny::{Form, Spec, Tiny};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

fn eval(home: &TempDir, out: &Path, args: &[&str]) -> (i32, String, String) {
    said(&dmslab(home).args(["eval", "--device", "cpu", "--out"]).arg(out).args(args).output().unwrap())
}

/// What `lab/report.py` says with these arguments, behind its own doctests.
fn report(args: &[&Path]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("report.py");
    let python = |args: &[&std::ffi::OsStr]| {
        let (code, stdout, stderr) = said(&Command::new("python3").args(args).output().expect("python3 is needed"));
        assert_eq!(code, 0, "{stdout}{stderr}");
        stdout
    };
    python(&["-m".as_ref(), "doctest".as_ref(), script.as_ref()]);
    python(&std::iter::once(script.as_ref()).chain(args.iter().map(|arg| arg.as_os_str())).collect::<Vec<_>>())
}

/// Few tokens of few problems, under policies of both kinds.
const SHORT: [&str; 15] = [
    "--task",
    "arithmetic,factor",
    "--policy",
    "dense,dms,window,tova,dms+quest",
    "--cr",
    "4",
    "--length",
    "6,12",
    "--width",
    "1,2",
    "--temperature",
    "1",
    "--n",
    "2",
    "--seed=5",
];

#[test]
fn a_seed_gives_the_same_bytes_also_after_a_kill() {
    let home = tempfile::tempdir().unwrap();
    let [first, second] = ["a", "b"].map(|name| home.path().join(name));
    let model = Tiny::new(Spec { speaks: true, ends: true, ..Spec::new(true, Form::Borrowed) }, 3);
    let short = [&SHORT[..], &["-m", model.folder.path().to_str().unwrap()]].concat();
    let (code, table, stderr) = eval(&home, &first, &short);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(table.lines().count(), 1 + 2 * 5 * 2 * 2 + 1, "{table}");
    let shown = report(&[&first]);
    let names = "A dense   B dms   C window   D tova   E dms+quest";
    assert!(shown.contains("window over dense") && shown.contains(names), "{shown}");
    let log = fs::read_to_string(first.join("problems.jsonl")).unwrap();
    // 2 tasks x 2 problems: dense, dms, and three policies with a budget for each of 2 lengths;
    // plus the header.
    assert_eq!(log.lines().count(), 1 + 2 * 2 * (2 + 3 * 2));
    // Killed while it wrote the fifth line.
    let half: String = log.lines().take(4).map(|line| format!("{line}\n")).collect();
    fs::create_dir(&second).unwrap();
    fs::write(second.join("problems.jsonl"), half + &log.lines().nth(4).unwrap()[..40]).unwrap();
    let (code, _, stderr) = eval(&home, &second, &[&short[..], &["--json"]].concat());
    assert_eq!(code, 0, "{stderr}");
    let [csv, again] = [&first, &second].map(|folder| report(&[Path::new("--csv"), folder]));
    assert_eq!(csv, again);
    assert_eq!(csv.lines().count(), 1 + 2 * 5 * 2 * 2);
    let results: Value = serde_json::from_str(&fs::read_to_string(first.join("results.json")).unwrap()).unwrap();
    let rows = results["rows"].as_array().unwrap();
    let dense: Vec<&Value> = rows.iter().filter(|r| r["policy"] == "dense").collect();
    assert!(dense.len() == 8 && dense.iter().all(|r| r["cr_measured"] == 1.0), "{dense:?}");
    // Two chains read what each of them reads.
    let reads = |i: usize| dense[i]["reads"].as_f64().unwrap();
    assert!(reads(1) > reads(0) && reads(2) >= reads(0));
    assert_eq!(results["retention"][0]["heads"].as_array().unwrap().len(), 2);
    // Another run does not write into the folder.
    let other: Vec<&str> = short.iter().map(|&arg| if arg == "--seed=5" { "--seed=6" } else { arg }).collect();
    refused(eval(&home, &first, &other), &["another run", "its seed is 5, here it is 6", "--out"]);
}

/// The ratio of dms+quest is Quest's budget: it stores the same slots as DMS as trained.
#[test]
fn quest_over_dms_leaves_the_dial_as_trained() {
    let home = tempfile::tempdir().unwrap();
    let model = Tiny::new(Spec { speaks: true, ..Spec::new(true, Form::Borrowed) }, 3);
    let args = ["--task", "arithmetic", "--n", "1", "--length", "1", "--policy", "dms,dms+quest", "--cr", "1.2,8"];
    let model = ["--json", "-m", model.folder.path().to_str().unwrap()];
    let (code, json, stderr) = eval(&home, &home.path().join("out"), &[&args[..], &model].concat());
    assert_eq!(code, 0, "{stderr}");
    let results: Value = serde_json::from_str(&json).unwrap();
    let peaks: Vec<f64> = results["rows"].as_array().unwrap().iter().map(|row| row["peak"].as_f64().unwrap()).collect();
    let [low, high, under_quest @ ..] = &peaks[..] else { panic!("{json}") };
    assert!(low > high && under_quest.len() == 2 && under_quest[0] == under_quest[1], "{peaks:?}");
}

#[test]
fn the_built_in_model_solves_its_problems() {
    let home = tempfile::tempdir().unwrap();
    let out = home.path().join("out");
    let args = ["--task", "arithmetic", "--n", "1", "--length", "128", "--seed", "1", "--json"];
    let (code, json, stderr) = eval(&home, &out, &args);
    assert_eq!(code, 0, "{stderr}");
    let results: Value = serde_json::from_str(&json).unwrap();
    for row in results["rows"].as_array().unwrap() {
        assert_eq!((&row["accuracy"], &row["n"]), (&Value::from(1.0), &Value::from(1)), "{row}");
    }
    assert_eq!(results["rows"].as_array().unwrap().len(), 2, "dense and dms");
}

#[test]
fn what_cannot_be_run_is_refused_in_a_line() {
    let home = tempfile::tempdir().unwrap();
    let out = home.path().join("out");
    let file = home.path().join("p.jsonl");
    fs::write(&file, "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]}\n").unwrap();
    let path = file.to_str().unwrap();
    for (args, parts) in [
        (&["--task", "sum", "--width", "0"][..], &["--width", "1 to", "not a number of chains"][..]),
        (&["--task", "sum", "--length", "0"], &["--length 0"]),
        (&["--task", "sum", "--n", "0"], &["--n 0"]),
        (&["--task", "sum", "--cr", "0.5"], &["--keep-ratio 0.5"]),
        (&["--task", "sum", "--width", "auto"], &["--width auto"]),
        (&["--task", "sum", "--early-stop", "on"], &["--early-stop"]),
        (&["--task", "sum", "--policy", "window", "--budget", "64"], &["--budget", "--keep-ratio"]),
        (&["--task", "sum", "--width", "2", "--temperature", "0"], &["--width 2", "--temperature"]),
        (&["--task", "chess"], &["chess", "niah-1k", "countdown"]),
        (&["--task", "sum", "--policy", "lru"], &["lru", "--policy", "window"]),
        (&["--task", "sum", "--policy", "window", "--cr", "1"], &["--policy window", "--keep-ratio"]),
        (&["--task", "niah-8k", "--ctx-size", "2000", "--n", "1"], &["niah-8k", "2,000"]),
        (&["--task", "sum", "--length", "8,9000", "--n", "1"], &["sum: --length 9000", "the context of 8,192 tokens"]),
        (&["--problems", path], &["p.jsonl:1", "expected"]),
        (&["--problems", "missing.jsonl"], &["missing.jsonl"]),
        (&[], &["--task", "--problems"]),
    ] {
        refused(eval(&home, &out, args), parts);
        assert!(!out.exists(), "{args:?}");
    }
    // Known once the model is loaded.
    let narrow =
        ["--task", "sum", "--width", "16", "--temperature", "1", "--n", "1", "--length", "4", "--kv-limit", "2MB"];
    refused(eval(&home, &out, &narrow), &["--width 16", "7 chains"]);
    fs::remove_dir_all(&out).unwrap();
    let small = ["--task", "sum", "--n", "1", "--length", "4", "--kv-limit", "1MB"];
    let parts = ["the dial of --policy dms", "give a larger --kv-limit or a smaller --kv format"];
    refused(eval(&home, &out, &[&small[..], &["--policy", "dms", "--cr", "4"]].concat()), &parts);
    let several = ["--task", "sum", "--n", "2", "--length", "4", "--kv-limit", "3MB", "--policy", "dense"];
    fs::remove_dir_all(&out).unwrap();
    let parts = ["give a larger --kv-limit or a smaller --batch or a shorter --length"];
    refused(eval(&home, &out, &several), &parts);
    let no_folder = said(&dmslab(&home).args(["eval", "--task", "sum"]).output().unwrap());
    refused(no_folder, &["--out"]);
}

const EQUATION: &str = "Solve 5*b - 2355 = -50*b - 2740 for b.";

#[test]
fn eval_answers_a_file_of_problems() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("p.jsonl");
    let earlier = r#"{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello"},"#;
    let line = |before: &str| {
        format!(r#"{{"task":"eq","messages":[{before}{{"role":"user","content":"{EQUATION}"}}],"expected":"-7"}}"#)
    };
    fs::write(&file, format!("{}\n{}\n", line(""), line(earlier))).unwrap();
    let mut command = dmslab(&home);
    let output = command.args(["eval", "--temperature", "0", "--problems"]).arg(&file).output().unwrap();
    let (code, stdout, stderr) = said(&output);
    assert_eq!((code, stdout.lines().count()), (0, 2), "{stderr}");
    let answers: Vec<Value> = stdout.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!((answers[0]["task"].as_str(), answers[0]["expected"].as_str()), (Some("eq"), Some("-7")));
    assert!(answers[0]["answer"].as_str().unwrap().ends_with("-7"));
    assert!(answers[1]["prompt_tokens"].as_u64() > answers[0]["prompt_tokens"].as_u64());
    // Greedy unless a flag says otherwise.
    let first = |flags: &[&str]| {
        let mut command = dmslab(&home);
        let output = command.args(["eval", "--max-tokens", "8", "--problems"]).arg(&file).args(flags).output().unwrap();
        let json: Value = serde_json::from_str(said(&output).1.lines().next().unwrap()).unwrap();
        (json["reasoning"].clone(), json["answer"].clone())
    };
    assert_eq!(first(&[]), first(&["--temperature", "0"]));
    assert_ne!(first(&[]), first(&["--temperature", "100", "--seed", "1"]));
    // Nothing is answered of a file with a broken line, or without problems.
    for (text, why) in [(line("") + "\n{broken\n", "p.jsonl:2: "), ("\n".to_owned(), "p.jsonl has no problems")] {
        fs::write(&file, text).unwrap();
        refused(said(&dmslab(&home).arg("eval").arg("--problems").arg(&file).output().unwrap()), &[why]);
    }
}
