//! Sizes from outside: files and flags that ask for more than there is, each refused in one line by
//! a program that is held to a small address space.

use crate::folder::{Folder, merged};
use crate::tiny::{Form, Spec, Tiny};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

/// Address space of the program, in KiB. It starts with about a third of that.
const ADDRESS_KIB: usize = 1 << 20;

/// Runs the program with these arguments and this stdin in a bounded address space.
fn limited(args: &[&str], env: &[(&str, &str)], stdin: Option<&[u8]>) -> (i32, String, String) {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new("sh");
    let script = format!("ulimit -v {ADDRESS_KIB}; exec \"$0\" \"$@\"");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_dmschat")]).args(args).env_clear();
    command.env("DMSCHAT_CONFIG_DIR", home.path()).env("DMSCHAT_DATA_DIR", home.path()).env("HOME", home.path());
    command.envs(env.iter().copied());
    command.stdin(if stdin.is_some() { Stdio::piped() } else { Stdio::null() });
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    if let Some(bytes) = stdin {
        let _ = child.stdin.take().unwrap().write_all(bytes);
    }
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

/// One line on stderr that holds all of `parts`, nothing on stdout, and this exit code.
fn refused((code, stdout, stderr): (i32, String, String), wanted: i32, parts: &[&str]) {
    assert_eq!((code, stdout.as_str()), (wanted, ""), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(parts.iter().all(|p| stderr.contains(p)), "{parts:?}: {stderr}");
}

fn tiny() -> Tiny {
    Tiny::new(Spec::new(true, Form::Borrowed), 7)
}

/// Changes keys of a folder's JSON file.
fn change(folder: &Folder, name: &str, changes: Value) {
    let old = fs::read(folder.file(name)).map_or(json!({}), |raw| serde_json::from_slice(&raw).unwrap());
    folder.json(name, &merged(old, changes));
}

fn ask(folder: &Folder) -> (i32, String, String) {
    limited(&["--device", "cpu", "-p", "hi", "-m", folder.path().to_str().unwrap()], &[], None)
}

#[test]
fn senseless_sizes_of_a_model_are_refused_before_anything_is_allocated() {
    let cases = [
        (json!({"num_hidden_layers": 2_147_483_647}), "num_hidden_layers is 2147483647, expected at most 1024"),
        (json!({"num_hidden_layers": 1024}), "tensor model.layers.2."),
        (json!({"num_hidden_layers": -1}), "num_hidden_layers is -1, expected a whole number"),
        (json!({"num_key_value_heads": 65_536, "num_attention_heads": 65_536}), "num_attention_heads is 65536"),
        (json!({"num_key_value_heads": 65_536, "num_attention_heads": 1024}), "num_key_value_heads is 65536"),
        (json!({"head_dim": 1 << 20}), "head_dim is 1048576, expected at most 1024"),
        (json!({"head_dim": 2.5}), "head_dim is 2.5, expected a whole number"),
        (json!({"hidden_size": 1 << 30}), "hidden_size is 1073741824, expected at most 65536"),
        (json!({"intermediate_size": 2_000_000_000}), "intermediate_size is 2000000000"),
        (json!({"vocab_size": 1u64 << 31}), "vocab_size is 2147483648, expected a whole number below 2^31"),
        (json!({"vocab_size": 1 << 30}), "vocab_size is 1073741824, expected at most 524288"),
        (json!({"max_position_embeddings": 2_000_000_000}), "max_position_embeddings is 2000000000"),
        (json!({"dms_window_size": 2_000_000_000}), "dms_window_size is 2000000000"),
        (json!({"dms_window_size": -3}), "dms_window_size is -3"),
        (json!({"dms_alpha_scale": 1e300}), "dms_alpha_scale is 1e+300"),
        (json!({"rms_norm_eps": 1e300}), "rms_norm_eps"),
        (json!({"rope_theta": 1e308, "rope_scaling": {"rope_type": "yarn", "factor": 1e-320}}), "RoPE parameters"),
    ];
    let model = tiny();
    let healthy: Value = serde_json::from_slice(&fs::read(model.folder.file("config.json")).unwrap()).unwrap();
    for (changes, wanted) in cases {
        model.folder.json("config.json", &merged(healthy.clone(), changes));
        refused(ask(&model.folder), 2, &[wanted]);
    }
}

#[test]
fn tables_that_memory_has_no_room_for_are_refused() {
    let model = tiny();
    // Rings of 2^20 slots in 4 lanes of each chain are 1 GiB.
    let many = json!({"max_position_embeddings": 1 << 20, "dms_window_size": 1 << 20});
    change(&model.folder, "config.json", many);
    let path = model.folder.path().to_str().unwrap().to_owned();
    let (code, stdout, stderr) = limited(&["--device", "cpu", "--width", "64", "-p", "hi", "-m", &path], &[], None);
    assert_eq!((code, stdout.as_str(), stderr.lines().count()), (2, "", 1), "{stderr}");
    assert!(stderr.contains("does not fit") || stderr.contains("out of host memory"), "{stderr}");
}

#[test]
fn a_context_beyond_every_bound_is_wrong_use() {
    let out_of_range = "is out of range, expected 1 to 1048576 tokens";
    for n in ["1048577", "4294967296", "18446744073709551615"] {
        refused(limited(&["-p", "hi", "--ctx-size", n], &[], None), 2, &["--ctx-size", n, out_of_range]);
        refused(limited(&["-p", "hi"], &[("DMSCHAT_CTX_SIZE", n)], None), 2, &["DMSCHAT_CTX_SIZE", n, out_of_range]);
    }
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("config.toml");
    fs::write(&file, "seed = 1\nctx_size = 4294967296\n").unwrap();
    let path = file.to_str().unwrap();
    refused(limited(&["-p", "hi", "--config", path], &[], None), 2, &[&format!("{path}:2: ctx_size: "), out_of_range]);
    // The longest one has tables that an address space of 1 GiB holds.
    let (code, stdout, stderr) =
        limited(&["--device", "cpu", "-p", "hi", "--ctx-size", "1048576", "--seed", "1"], &[], None);
    assert!(code == 0 && !stdout.is_empty(), "{stderr}");
    refused(limited(&["bench", "--shape", "demo", "--parallel", "18446744073709551615"], &[], None), 2, &["--batch"]);
    refused(limited(&["bench", "--shape", "demo", "--ctx", "18446744073709551615"], &[], None), 2, &["--ctx"]);
}

/// A model whose chat template is this.
fn with_template(source: &str) -> Tiny {
    let model = tiny();
    model.folder.json("tokenizer_config.json", &json!({"chat_template": source}));
    model
}

#[test]
fn a_prompt_longer_than_any_context_is_refused_unrendered() {
    let text = "a long story, ".repeat(20_000_000 / 14);
    for args in [&["-p", "Summarize:"][..], &["-p", "Summarize:", "--json"]] {
        refused(
            limited(args, &[], Some(text.as_bytes())),
            1,
            &["the conversation has at least ", "bytes), and the context holds 8,192"],
        );
    }
}

#[test]
fn what_a_template_renders_is_bounded() {
    let model = with_template("{% for i in range(50000) %}{{ 'x' * 1200 }}{% endfor %}");
    refused(ask(&model.folder), 1, &["chat template: it rendered 60000000 bytes, and the context holds at most 65536"]);
    let model = with_template(&format!("{{{{ raise_exception('{}') }}}}", "no ".repeat(5000)));
    let (code, _, stderr) = ask(&model.folder);
    assert_eq!((code, stderr.lines().count()), (1, 1), "{stderr}");
    assert!(stderr.contains("chat template: no no no") && (2000..2100).contains(&stderr.len()), "{}", stderr.len());
}

#[test]
fn senseless_sampling_defaults_of_a_model_are_ignored_with_a_notice() {
    let model = Tiny::new(Spec { speaks: true, tied: false, ..Spec::new(true, Form::Borrowed) }, 11);
    change(
        &model.folder,
        "generation_config.json",
        json!({"temperature": -1, "top_p": 7.5, "top_k": 3, "repetition_penalty": 1e300, "min_p": "x"}),
    );
    let folder = model.folder.path().to_str().unwrap();
    let (code, stdout, stderr) =
        limited(&["--device", "cpu", "-m", folder, "-p", "hi", "--max-tokens", "3", "--json"], &[], None);
    assert_eq!((code, stderr.lines().count()), (0, 2), "{stderr}");
    let line = stderr.lines().next().unwrap();
    let wanted = "generation_config.json: ignored, out of range: temperature -1 (expected 0 to 100), top_p 7.5 (expected 0 to 1), \
                  min_p \"x\" (expected 0 to 1), repetition_penalty 1e+300 (expected 0.01 to 100)";
    assert!(line.ends_with(wanted), "{line}");
    assert!(serde_json::from_str::<Value>(&stdout).is_ok());
}

#[test]
fn a_tokenizer_with_unbounded_parts_is_refused_by_name() {
    let replace = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaaaa"});
    let chain = vec![replace; 12];
    let cases = [
        (
            json!({"normalizer": {"type": "Sequence", "normalizers": chain}}),
            "normalizers make a text more than 4 times",
        ),
        (json!({"decoder": {"type": "Sequence", "decoders": chain}}), "decoders make a text more than 4 times"),
        (
            json!({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAAgAAAAAA="}}),
            "normalizer \"Precompiled\" is not supported (NFC, NFD,",
        ),
    ];
    for (changes, wanted) in cases {
        let model = tiny();
        change(&model.folder, "tokenizer.json", changes);
        refused(ask(&model.folder), 2, &[wanted]);
    }
}
