//! `dmslab score`, `compare` and `importance`, and what all commands refuse.

use crate::dmslab;
use crate::program::{refused, said};
use crate::tiny::{Form, Spec, Tiny};
use serde::Deserialize;
use serde_json::Value;
use std::fs;
use std::path::Path;

fn run(args: &[&str]) -> (i32, String, String) {
    let home = tempfile::tempdir().unwrap();
    said(&dmslab(&home).args(args).output().unwrap())
}

#[test]
fn wrong_use_is_one_line_and_exit_2() {
    refused(run(&["score"]), &["--tokens-file", "--text-file", "dmslab --help"]);
    refused(run(&["eval", "--n", "-1"]), &["'-1'", "--n", "expected a whole number from 0"]);
    refused(run(&["compare", "--text-file", "x", "--dial", "0,nan"]), &["--dial: NaN is not a number"]);
    refused(run(&["score", "--text-file", "x", "--keep-ratio", "2"]), &["--keep-ratio is for conversations"]);
    refused(run(&["score", "--text-file", "x", "--policy", "tova,h2o"]), &["--policy takes one value here"]);
    refused(run(&["check", "--part", "5/4"]), &["such as 2/4"]);
    refused(run(&["speed", "--device", "cpu"]), &["give --device cuda"]);
    refused(
        run(&[]),
        &[
            "dmslab needs a subcommand: score, compare, eval, check, speed, importance, dictionary, train; see dmslab --help",
        ],
    );
    let (code, help, _) = run(&["eval", "--help"]);
    assert!(code == 0 && help.contains("--keep-ratio") && !help.contains("--resume"), "{help}");
    let plain = Tiny::new(Spec::new(true, Form::Plain), 4);
    let folder = plain.folder.path().to_str().unwrap();
    let tokens = plain.folder.path().join("tokens.json");
    fs::write(&tokens, "[1,2,3]").unwrap();
    let dms = ["score", "-m", folder, "--policy", "dms+quest", "--tokens-file", tokens.to_str().unwrap()];
    let (code, _, stderr) = run(&dms);
    assert!(code != 0 && stderr.contains("not trained with DMS") && stderr.lines().count() == 1, "{stderr}");
}

/// Every row of compare against what score says of the same text, and against itself.
#[test]
fn compare_agrees_with_score_and_with_itself() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("text");
    let words: Vec<String> = (0..90).map(|i| format!("{} + {} is {}", i * 37 % 89, i, i * 37 % 89 + i)).collect();
    fs::write(&file, words.join("\n")).unwrap();
    let json = |args: &[&str]| -> Value {
        let mut command = dmslab(&home);
        let output = command.args(args).args(["--json", "--device", "cpu", "--text-file"]).arg(&file).output().unwrap();
        let (code, stdout, stderr) = said(&output);
        assert_eq!(code, 0, "{stderr}");
        serde_json::from_str(&stdout).unwrap()
    };
    let same = |a: &Value, b: &Value| (a.as_f64().unwrap() / b.as_f64().unwrap() - 1.0).abs() < 1e-4;
    for (args, why) in [
        (&["--policy", "dense"][..], "policy dense does not evict; compare formats instead"),
        (&["--policy", "window", "--dial", "0,5"], "--dial: policy window does not use the model's decisions"),
    ] {
        let mut command = dmslab(&home);
        let output = command.arg("compare").args(args).args(["--device", "cpu", "--text-file"]).arg(&file).output();
        refused(said(&output.unwrap()), &[why]);
    }
    let compared = json(&["compare", "--kv", "f32,f32,fp8"]);
    let (on, off) = (json(&["score"]), json(&["score", "--eviction", "off"]));
    assert!(same(&compared["ppl_on"], &on["ppl"]) && same(&compared["ppl_off"], &off["ppl"]), "{compared}");
    assert_eq!((&compared["ratio"], compared["kv"].as_str()), (&on["ratio"], Some("f32")));
    assert!(compared["ratio"].as_f64() > Some(1.5), "nothing was evicted: {compared}");
    let rows = compared["rows"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|r| (r["kv"].as_str().unwrap(), r["eviction"].as_bool().unwrap())).collect();
    assert_eq!(names, [("f32", true), ("f32", false), ("f32", true), ("fp8", false), ("fp8", true)]);
    let number = |row: usize, key: &str| rows[row][key].as_f64().unwrap();
    assert_eq!((number(1, "kl"), number(1, "top1_agreement"), number(1, "ratio")), (0.0, 1.0, 1.0));
    assert_eq!((number(2, "kl"), &compared["kl"]), (number(0, "kl"), &rows[0]["kl"]));
    assert!(number(0, "kl") > number(3, "kl") && number(3, "kl") > 1e-6, "{compared}");
    assert!(number(3, "live_bytes") < 0.5 * number(1, "live_bytes"));
    // One list is enough, and only formats make one.
    refused(run(&["compare", "--eviction", "on,off", "--text-file", "x"]), &["--eviction takes one value here"]);
    let dense = Tiny::new(Spec { context: 4096, ..Spec::new(false, Form::Plain) }, 3);
    let folder = dense.folder.path().to_str().unwrap();
    refused(run(&["compare", "-m", folder, "--text-file", file.to_str().unwrap()]), &["--kv f32,bf16,fp8"]);
}

#[test]
fn compare_measures_formats_of_weights() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("text");
    fs::write(&file, (0..90).map(|i| format!("{i} and {}\n", i * 37 % 89)).collect::<String>()).unwrap();
    let model = Tiny::new(Spec { context: 4096, ..Spec::new(false, Form::Plain) }, 3);
    let mut command = dmslab(&home);
    command.args(["compare", "--weights", "bf16,int8,int4", "--json", "--device", "cpu", "-m"]);
    let output = command.arg(model.folder.path()).arg("--text-file").arg(&file).output().unwrap();
    let (code, stdout, stderr) = said(&output);
    assert_eq!(code, 0, "{stderr}");
    let compared: Value = serde_json::from_str(&stdout).unwrap();
    let rows = compared["rows"].as_array().unwrap();
    assert_eq!(rows.iter().map(|r| r["weights"].as_str().unwrap()).collect::<Vec<_>>(), ["int8", "int4"]);
    let [eight, four] = [0, 1].map(|row| rows[row]["kl"].as_f64().unwrap());
    assert!(0.0 < eight && eight < 0.1 * four && four < rows[1]["kl_99"].as_f64().unwrap(), "{compared}");
}

/// What a user names for its text may be a pipe, and never fills the memory.
#[cfg(unix)]
#[test]
fn a_text_may_be_a_pipe_and_not_too_long() {
    let home = tempfile::tempdir().unwrap();
    let pipe = home.path().join("text");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    let writer = std::thread::spawn({
        let pipe = pipe.clone();
        move || fs::write(pipe, "Write a word and another word.")
    });
    let (code, stdout, stderr) = run(&["score", "--text-file", pipe.to_str().unwrap(), "--json"]);
    assert!(code == 0 && stdout.contains("logprobs"), "{stderr}");
    writer.join().unwrap().unwrap();
    refused(run(&["score", "--text-file", "/dev/zero"]), &["more than 67108864 bytes"]);
    let long = home.path().join("long");
    fs::write(&long, "a long story, ".repeat(20_000_000 / 14)).unwrap();
    refused(run(&["score", "--text-file", long.to_str().unwrap()]), &["the context holds 8,192"]);
}

#[test]
fn weights_that_are_no_numbers_end_score_and_compare() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("text.txt");
    fs::write(&file, "a text of more than four windows ".repeat(3)).unwrap();
    let text = file.to_str().unwrap();
    for (tensor, place) in [
        ("model.layers.0.mlp.up_proj.weight", "in layer 1"),
        ("model.layers.1.mlp.down_proj.weight", "before the output head"),
        ("lm_head.weight", "in the output head"),
    ] {
        let spec = Spec { tied: false, ..Spec::new(true, Form::Borrowed) };
        let model = Tiny::edited(spec, 9, |block| {
            if block.name == tensor {
                block.words[5] = 0x7fc0;
            }
        });
        let folder = model.folder.path().to_str().unwrap();
        for command in ["score", "compare"] {
            for json in [&[][..], &["--json"]] {
                let args = [&[command, "--device", "cpu", "-m", folder, "--text-file", text], json].concat();
                let (code, stdout, stderr) = run(&args);
                assert_eq!((code, stdout.as_str(), stderr.lines().count()), (1, "", 1), "{stderr}");
                assert!(stderr.contains("no longer finite") && stderr.contains(place), "{stderr}");
            }
        }
    }
}

/// A disk that is full, as far as the process can tell: it is killed while it writes, and the file
/// of an earlier run is whole.
#[cfg(unix)]
#[test]
fn importance_that_cannot_be_written_leaves_the_file_that_was_there() {
    let home = tempfile::tempdir().unwrap();
    let (text, file) = (home.path().join("text"), home.path().join("importance"));
    fs::write(&text, "one two three four five six seven").unwrap();
    let measure = |to: &str, limit: &str| {
        let script = format!("ulimit -c 0; {limit}; exec \"$0\" importance demo --text-file \"$1\" -o \"$2\"");
        let args = ["-c", &script, env!("CARGO_BIN_EXE_dmslab"), text.to_str().unwrap(), to];
        let mut command = std::process::Command::new("sh");
        command.args(args).env_clear().env("HOME", home.path());
        command.env("DMSCHAT_CONFIG_DIR", home.path()).env("DMSCHAT_DATA_DIR", home.path()).output().unwrap()
    };
    let to = file.to_str().unwrap();
    let output = measure(to, "true");
    assert_eq!(output.stdout, format!("{to}\n").into_bytes(), "{}", String::from_utf8_lossy(&output.stderr));
    let whole = fs::read(&file).unwrap();
    assert!(!measure(to, "ulimit -f 0").status.success());
    assert_eq!(fs::read(&file).unwrap(), whole);
    // A stream is written into, and nothing else is on it. What cannot be written is said before
    // the measurement.
    assert_eq!(measure("/dev/stdout", "true").stdout, whole);
    let nowhere = measure("/no/such/folder", "true");
    let said = String::from_utf8_lossy(&nowhere.stderr);
    assert!(nowhere.status.code() == Some(2) && said.starts_with("dmslab: /no/such/folder: "), "{said}");
}

/// Commands that work on the main thread, each with more to do than fits in the time until the
/// signal.
#[cfg(target_os = "linux")]
#[test]
fn ctrl_c_ends_a_measurement_in_one_line_with_130() {
    let home = tempfile::tempdir().unwrap();
    let model = Tiny::new(Spec { speaks: true, context: 1 << 20, ..Spec::new(true, Form::Borrowed) }, 3);
    let text = home.path().join("text");
    fs::write(&text, "abcd ".repeat(20_000)).unwrap();
    let (model, text) = (model.folder.path().to_str().unwrap(), text.to_str().unwrap());
    let out = home.path().join("out");
    let eval = ["eval", "-m", model, "--task", "arithmetic", "--n", "1", "--policy", "dense", "--length", "100000"];
    for (args, line) in [
        (&["score", "-m", model, "--text-file", text][..], "dmslab: interrupted\n"),
        (&["compare", "-m", model, "--text-file", text], "dmslab: interrupted\n"),
        (
            &[&eval[..], &["--out", out.to_str().unwrap()]].concat(),
            "dmslab: interrupted; the same command continues from here\n",
        ),
    ] {
        let mut command = dmslab(&home);
        command.args(args).args(["--device", "cpu"]);
        let (code, stdout, stderr) = crate::program::interrupted(command);
        assert!(
            code == 130 && stderr.ends_with(line) && !stdout.contains("perplexity"),
            "{args:?} {code} {stdout}{stderr}"
        );
    }
    let log = fs::read_to_string(out.join("problems.jsonl")).unwrap();
    assert!(log.lines().count() == 1 && log.ends_with('\n'), "{log}");
}

#[derive(Deserialize)]
struct Goldens {
    prompt: usize,
    tokens: Vec<u32>,
    cases: Vec<Golden>,
}

#[derive(Deserialize)]
struct Golden {
    policy: String,
    budget: usize,
    live: Vec<Vec<u32>>,
    reads: f64,
    peak: f64,
    logprobs: Vec<f64>,
}

#[derive(Deserialize)]
struct Score {
    live: Vec<Vec<u32>>,
    reads: f64,
    peak: f64,
    logprobs: Vec<Option<f64>>,
}

/// Against tests/golden/make_policies.py, a sequential program in another language.
#[test]
fn policies_give_what_another_program_gives() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/qwen3_gqa");
    let text = fs::read(folder.join("policies.json")).expect("tests/golden/make_policies.py makes it");
    let goldens: Goldens = serde_json::from_slice(&text).unwrap();
    let tokens = tempfile::NamedTempFile::new().unwrap();
    fs::write(tokens.path(), serde_json::to_string(&goldens.tokens).unwrap()).unwrap();
    let schedule = format!("prefill:{},decode:{}", goldens.prompt, goldens.tokens.len() - goldens.prompt);
    let (folder, tokens) = (folder.to_str().unwrap(), tokens.path().to_str().unwrap());
    let fixed =
        ["score", "--json", "--device", "cpu", "--adapter", "none", "--kv", "f32", "-m", folder, "--tokens-file"];
    for case in goldens.cases {
        let own = [tokens, "--schedule", &schedule, "--policy", &case.policy, "--budget", &case.budget.to_string()];
        let (code, stdout, stderr) = run(&[&fixed[..], &own].concat());
        assert_eq!(code, 0, "{stderr}");
        let got: Score = serde_json::from_str(&stdout).unwrap();
        assert_eq!((got.live, got.peak), (case.live, case.peak), "{}", case.policy);
        assert!((got.reads - case.reads).abs() < 1e-9, "{}: {} reads of {}", case.policy, got.reads, case.reads);
        for (ours, theirs) in got.logprobs.iter().skip(1).zip(&case.logprobs) {
            let difference = (ours.unwrap() - theirs).abs();
            assert!(difference < 2e-4, "{}: log-probabilities differ by {difference}", case.policy);
        }
    }
}
