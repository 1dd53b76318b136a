//! Quantized weights as users meet them: made once, listed, used without the original, deleted.

use crate::tiny::{Form, Spec, Tiny};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

const ID: &str = "org/tiny";

/// A machine with a hub model whose matrices can be quantized.
struct Home(TempDir);

impl Home {
    fn new() -> Self {
        let home = Self(tempfile::tempdir().unwrap());
        let spec = Spec { hidden: 64, speaks: true, ..Spec::new(true, Form::Borrowed) };
        let tiny = Tiny::new(spec, 7);
        let repo = home.path("hf/hub/models--org--tiny");
        fs::create_dir_all(repo.join("snapshots/abc")).unwrap();
        fs::create_dir_all(repo.join("refs")).unwrap();
        fs::write(repo.join("refs/main"), "abc").unwrap();
        for entry in fs::read_dir(tiny.folder.path()).unwrap() {
            let from = entry.unwrap().path();
            fs::copy(&from, repo.join("snapshots/abc").join(from.file_name().unwrap())).unwrap();
        }
        home
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dmschat"));
        command.env_clear().env("HOME", self.0.path()).env("HF_HUB_OFFLINE", "1").env("HF_HOME", self.path("hf"));
        for (variable, folder) in [("CONFIG", "config"), ("DATA", "data"), ("CACHE", "cache")] {
            command.env(format!("DMSCHAT_{variable}_DIR"), self.path(folder));
        }
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, args: &[&str]) -> (i32, String, String) {
        let output = self.command(args).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
    }

    /// The JSON object on stdout, and what else than the end at the token limit is said on stderr.
    fn json(&self, args: &[&str]) -> (Value, String) {
        let (code, stdout, stderr) = self.run(&[args, &["--json"]].concat());
        assert_eq!(code, 0, "{stderr}");
        let said = stderr.lines().filter(|l| !l.contains("stopped at the token limit")).collect();
        (serde_json::from_str(&stdout).unwrap(), said)
    }

    fn answer(&self, weights: &[&str]) -> (Value, String) {
        let ask = ["-m", ID, "--device", "cpu", "-p", "hello", "--max-tokens", "8", "--temperature", "0"];
        self.json(&[&ask, weights].concat())
    }

    fn refused(&self, args: &[&str], parts: &[&str]) {
        let (code, stdout, stderr) = self.run(args);
        assert_eq!((code, stdout.as_str(), stderr.lines().count()), (2, "", 1), "{stderr}");
        assert!(parts.iter().all(|p| stderr.contains(p)), "{stderr}");
    }
}

fn files(folder: &Path) -> usize {
    fs::read_dir(folder).map_or(0, Iterator::count)
}

#[test]
fn quantized_weights_are_made_once_and_stand_in_for_the_original() {
    let home = Home::new();
    let (plain, _) = home.answer(&[]);
    assert_eq!((&plain["weights"]["format"], &plain["weights"]["cached"]), (&"bf16".into(), &false.into()), "{plain}");
    let (first, said) = home.answer(&["--weights", "int4"]);
    assert!(
        said.contains("measuring which weights matter: 2 layers") && said.contains("packing the weights: 2 layers"),
        "{said}"
    );
    let weights = &first["weights"];
    assert_eq!((&weights["format"], &weights["cached"]), (&"int4".into(), &true.into()));
    let bits = weights["bits"].as_f64().unwrap();
    assert!((4.25..8.5).contains(&bits) && weights["bytes"].as_u64() < plain["weights"]["bytes"].as_u64(), "{weights}");
    let (second, said) = home.answer(&["--weights", "int4"]);
    assert_eq!((said.as_str(), &second["answer"], &second["weights"]), ("", &first["answer"], &first["weights"]));
    let (in_memory, said) = home.answer(&["--weights", "int4", "--no-weight-cache"]);
    assert!(said.contains("packing the weights"), "{said}");
    assert_eq!((&in_memory["answer"], &in_memory["weights"]["cached"]), (&first["answer"], &false.into()));

    let (list, _) = home.json(&["models", "list"]);
    let model = list.as_array().unwrap().iter().find(|m| m["name"] == ID).unwrap();
    assert_eq!(model["quantized"][0]["format"], "int4");
    let (_, text, _) = home.run(&["models", "list"]);
    let line = text.lines().find(|l| l.starts_with(ID)).unwrap();
    assert!(line.contains(" kB, int4 "), "{line}");

    // The original goes, its quantized weights answer.
    let (code, _, said) = home.run(&["models", "rm", ID]);
    assert!(code == 0 && said.contains("are kept; dmschat models rm --weights int4 org/tiny deletes them"), "{said}");
    let (alone, _) = home.answer(&[]);
    assert_eq!((&alone["answer"], &alone["weights"]), (&first["answer"], &first["weights"]));
    let (_, text, _) = home.run(&["models", "list"]);
    assert!(text.contains("(without the original)"), "{text}");
    let (code, said, _) = home.run(&["models", "rm", "--weights", "int4", ID]);
    assert!(code == 0 && said.starts_with("deleted int4 ") && files(&home.path("cache/weights")) == 0, "{said}");
    home.refused(&["-m", ID, "-p", "hello"], &["HF_HUB_OFFLINE is set and org/tiny is not in"]);
    home.refused(&["models", "rm", "--weights", "int4", ID], &["there are no int4 weights of org/tiny"]);
}

#[test]
fn models_are_quantized_beforehand_and_described_by_format() {
    let home = Home::new();
    let (made, _) = home.json(&["models", "quantize", ID, "--weights", "int8"]);
    assert_eq!((&made["weights"]["format"], &made["name"]), (&"int8".into(), &ID.into()));
    assert!(Path::new(made["path"].as_str().unwrap()).starts_with(home.path("cache/weights")));
    let (info, _) = home.json(&["models", "info", ID, "--device", "cpu"]);
    let formats = info["formats"].as_array().unwrap();
    let of = |key: &str| formats.iter().map(|f| f[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("format"), ["bf16", "int8", "int4"]);
    assert_eq!(of("cached"), [Value::Null, made["path"].clone(), Value::Null]);
    assert_eq!(of("fits"), [true, true, true]);
    let bytes: Vec<u64> = of("bytes").iter().filter_map(Value::as_u64).collect();
    assert!(bytes.is_sorted_by(|a, b| a > b) && bytes[0] == info["weight_bytes"].as_u64().unwrap(), "{bytes:?}");
    // The plan is what loading takes.
    let (answer, said) = home.answer(&["--weights", "int8"]);
    assert_eq!((answer["weights"]["bytes"].as_u64(), said.as_str()), (Some(bytes[1]), ""));
    let (_, text, _) = home.run(&["models", "info", ID, "--device", "cpu"]);
    let line = text.lines().find(|l| l.starts_with("weights int8")).unwrap();
    assert!(line.contains("fits 512 tokens with f32 slots (worst case)") && line.contains("; quantized in "), "{text}");
    // A folder opened by its path has no other line in the list.
    let folder = info["path"].as_str().unwrap();
    home.json(&["models", "quantize", folder, "--weights", "int4"]);
    let (_, text, _) = home.run(&["models", "list"]);
    let line = text.lines().find(|l| l.contains(" int4 ")).unwrap();
    assert!(!line.contains("without the original"), "{text}");
}

#[test]
fn what_cannot_be_quantized_is_said_in_one_line() {
    let home = Home::new();
    home.refused(&["models", "quantize", ID], &["needs --weights int8, --weights int4 or --weights int4-fast"]);
    home.refused(&["models", "quantize", "demo", "--weights", "int4"], &["demo is built in and stays bf16"]);
    let (code, _, said) = home.run(&["-p", "hi", "--max-tokens", "1", "--weights", "int4", "--device", "cpu"]);
    assert!(
        code == 1 && said.contains("the built-in model is small and stays bf16; --weights int4 is not used"),
        "{said}"
    );
    let narrow = Tiny::new(Spec { ffn: 40, n_q_heads: 2, head_dim: 24, ..Spec::new(false, Form::Plain) }, 1);
    let folder = narrow.folder.path().to_str().unwrap();
    let wanted = "cannot be quantized: all its matrices have columns that are not multiples of 64";
    home.refused(&["models", "quantize", folder, "--weights", "int4"], &[wanted]);
    let file = home.path("importance");
    fs::write(&file, "text").unwrap();
    let file = file.to_str().unwrap();
    let args = ["models", "quantize", ID, "--weights", "int4", "--importance", file];
    home.refused(&args, &[file, "truncated or not an imatrix file"]);
    assert_eq!(files(&home.path("cache/weights")), 0);
}

/// Kills a start in the middle of its file, again and again: the next start makes it, and it is
/// whole.
#[cfg(unix)]
#[test]
fn a_killed_quantization_leaves_nothing_that_is_believed() {
    let home = Home::new();
    let quantize = ["models", "quantize", ID, "--weights", "int4"];
    for wait_us in [0, 2_000, 10_000, 30_000, 60_000, 100_000] {
        let mut child = home.command(&quantize).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_micros(wait_us));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let (made, _) = home.json(&quantize);
    let (again, _) = home.json(&[&quantize[..], &["--device", "cpu"]].concat());
    assert_eq!(made, again);
    let (_, said) = home.answer(&["--weights", "int4"]);
    assert_eq!((said.as_str(), files(&home.path("cache/weights"))), ("", 2));
}
