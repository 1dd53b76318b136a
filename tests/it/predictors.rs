//! Predictors of importance in use: one from the hub with its model, and one that is trained here.

use crate::fake_hub::{COMMIT, FakeHub};
use crate::hub::{Home, WEIGHTS, files, healthy, said};
use crate::tiny::{Form, Spec, Tiny};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};

const ID: &str = "any/model";

/// A linear KVzap predictor for [`files`], whose scores are all -10: every token is marked.
fn predictor() -> BTreeMap<String, Vec<u8>> {
    let config = json!({
        "model_type": "kvzap", "input_dim": 48, "output_dim": 2, "hidden_dim": null, "n_modules": 2,
    });
    let (mut header, mut data) = (json!({}), Vec::<u8>::new());
    for layer in 0..2 {
        for (name, shape, values) in [("weight", vec![2, 48], vec![0f32; 96]), ("bias", vec![2], vec![-10.0; 2])] {
            let begin = data.len();
            data.extend(values.iter().flat_map(|x| x.to_le_bytes()));
            let about = json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, data.len()]});
            header[format!("layers.{layer}.{name}")] = about;
        }
    }
    [("config.json", config.to_string().into_bytes()), (WEIGHTS, crate::folder::assemble(&header, &data))]
        .map(|(name, bytes)| (name.to_owned(), bytes))
        .into()
}

#[test]
fn a_published_predictor_is_pulled_with_its_model_and_used_offline() {
    const ZAP: &str = "nvidia/KVzap-mlp-Qwen3-8B";
    let card = b"---\nlicense: mit\nbase_model:\n- Qwen/Qwen3-8B\n---\n";
    let plain = Tiny::new(Spec { tied: false, speaks: true, ..Spec::new(true, Form::Plain) }, 11);
    let mut files = files();
    for name in ["config.json", "tokenizer.json", WEIGHTS] {
        files.insert(name.to_owned(), fs::read(plain.folder.file(name)).unwrap());
    }
    files.insert("README.md".to_owned(), card.to_vec());
    let (hub, home) = (FakeHub::new(files.clone()), Home::new());
    hub.predictor(predictor());
    let ask = |offline: &str, more: &[&str]| {
        let args = ["-p", "hi", "-m", ID, "--max-tokens", "8", "--temperature", "0", "--json"];
        let (code, stdout, stderr) =
            said(home.command(&hub, &[&args, more].concat()).env("HF_HUB_OFFLINE", offline).spawn().unwrap());
        (code, serde_json::from_str::<Value>(&stdout).unwrap_or_default()["decisions"].clone(), stderr)
    };
    // Its shapes are not those of Qwen3-8B, so that nothing is offered.
    let (code, decisions, stderr) = ask("0", &[]);
    assert!(code == 0 && decisions.is_null() && !stderr.contains("KVzap"), "{stderr}");
    let (code, decisions, stderr) = ask("0", &["--adapter", ZAP]);
    assert_eq!((code, &decisions["kind"], &decisions["threshold"]), (0, &json!("kvzap"), &json!(-4.0)), "{stderr}");
    let parts = ["nvidia/KVzap-mlp-Qwen3-8B at 01234567: 2 files", "was made for Qwen3-8B, not for any/model"];
    assert!(parts.iter().all(|part| stderr.contains(part)), "{stderr}");
    // From then on it is used without a word, and without a connection.
    let before = hub.connections();
    let (_, found, stderr) = ask("1", &[]);
    assert_eq!((&found["name"], &found["hash"]), (&json!("KVzap-mlp-Qwen3-8B"), &decisions["hash"]), "{stderr}");
    assert!(stderr.contains("forgets with KVzap-mlp-Qwen3-8B, made for a different model than any/model"), "{stderr}");
    assert!(ask("1", &["--adapter", "none"]).1.is_null());
    assert_eq!(ask("1", &["--adapter", &format!("{ZAP}@{COMMIT}")]).1["hash"], decisions["hash"]);
    let (code, _, stderr) = ask("1", &["--adapter", &format!("{ZAP}@v9")]);
    assert!(code == 2 && stderr.contains("HF_HUB_OFFLINE") && stderr.lines().count() == 1, "{stderr}");
    // What the dial expects belongs to the threshold at which it was measured.
    for threshold in ["--threshold=-4", "--threshold=-12"] {
        let (code, decisions, stderr) = ask("1", &["--keep-ratio", "2", threshold]);
        assert!(code == 0 && decisions["kind"] == "kvzap", "{stderr}");
    }
    assert_eq!(fs::read_dir(home.0.path().join(".cache/dmschat/dials")).unwrap().count(), 2);
    assert_eq!(hub.connections(), before);
    let (_, list, _) = home.run(&hub, &["models", "list"]);
    assert!(list.lines().any(|line| line.starts_with(ZAP) && line.contains("a predictor")), "{list}");

    // A model of the right shapes is pulled with its predictor and its draft head.
    let mut config: Value = serde_json::from_slice(&files["config.json"]).unwrap();
    for (key, value) in [
        ("num_hidden_layers", 36),
        ("hidden_size", 4096),
        ("num_attention_heads", 32),
        ("num_key_value_heads", 8),
        ("head_dim", 128),
    ] {
        config[key] = json!(value);
    }
    hub.file("config.json", config.to_string().as_bytes());
    let home = Home::new();
    let (code, stdout, stderr) = home.pull(&hub);
    let folders = ["models--nvidia--KVzap-mlp-Qwen3-8B", "models--RedHatAI--Qwen3-8B-speculator.eagle3"];
    assert!(code == 0 && stdout.lines().count() == 3, "{stdout} {stderr}");
    assert!(folders.iter().all(|folder| stdout.contains(folder)), "{stdout}");
    assert!(home.cache().join("models--nvidia--KVzap-mlp-Qwen3-8B/snapshots").join(COMMIT).join(WEIGHTS).exists());
    for (adapter, lines) in [("none", 1), ("auto", 2)] {
        let mut pull = home.command(&hub, &["models", "pull", ID]);
        let (code, stdout, stderr) =
            said(pull.envs([("DMSCHAT_ADAPTER", adapter), ("DMSCHAT_DRAFT", "off")]).spawn().unwrap());
        assert!(code == 0 && stdout.lines().count() == lines, "{stdout} {stderr}");
    }
}

/// A dense model with a predictor that was made from a text of the user's.
#[cfg(unix)]
#[test]
fn a_predictor_is_made_and_used_and_a_stopped_one_leaves_nothing() {
    let spec = Spec { n_layers: 1, tied: false, speaks: true, context: 2304, ..Spec::new(true, Form::Plain) };
    let tiny = Tiny::new(spec, 12);
    let (hub, home) = (healthy(), Home::new());
    let folder = tiny.folder.path().to_str().unwrap();
    let text = home.0.path().join("text.txt");
    let lines: String = (0..550).map(|n| format!("line {n} tells of number {}\n", n * n % 9973)).collect();
    fs::write(&text, lines).unwrap();
    let text = text.to_str().unwrap();
    let train = ["adapter", "train", "-m", folder, "--device", "cpu", "--ratio", "2", "--text", text];
    // A file of another kind is refused before the work begins, and left unchanged; so is a link,
    // whatever its target.
    let weights = format!("{folder}/model.safetensors");
    let link = home.0.path().join("link.safetensors");
    std::os::unix::fs::symlink(text, &link).unwrap();
    let before = [&weights, text].map(|file| fs::read(file).unwrap());
    for (out, why) in [
        (&*weights, "it is not a predictor"),
        (text, "it is not a predictor"),
        (link.to_str().unwrap(), "it is a link"),
    ] {
        let (code, stdout, stderr) = home.run(&hub, &[&train[..], &["-o", out]].concat());
        assert!(code == 2 && stdout.is_empty() && stderr.lines().count() == 1 && stderr.contains(why), "{stderr}");
    }
    assert!([&weights, text].map(|file| fs::read(file).unwrap()) == before && link.is_symlink());
    let made = home.0.path().join("data/adapters");
    let left = || fs::read_dir(&made).map_or(0, Iterator::count);
    let mut child = home.command(&hub, &train).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(stderr.any(|line| line.unwrap().contains("measuring eviction")));
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT).unwrap();
    assert_eq!((child.wait().unwrap().code(), left()), (Some(130), 0));

    let (code, stdout, stderr) = home.run(&hub, &train);
    assert_eq!((code, left()), (0, 1), "{stderr}");
    assert!(stdout.contains("ratio") && stderr.contains("evicts by it from its next start"), "{stdout} {stderr}");
    // It says first how long it takes, and where the texts are few one line for each part.
    let lines: Vec<&str> = stderr.lines().collect();
    assert!(lines[0].contains("making a predictor for") && lines[0].contains(": about "), "{stderr}");
    assert!(lines.iter().filter(|line| line.contains(" left")).count() >= 3, "{stderr}");
    let (_, list, _) = home.run(&hub, &["adapter", "list", "--json"]);
    let list: Value = serde_json::from_str(&list).unwrap();
    let (ratio, name) = (list[0]["ratio"].as_f64().unwrap(), list[0]["name"].as_str().unwrap());
    assert!((ratio - 2.0).abs() < 0.3, "{list}");
    let ask = ["-p", "hi", "-m", folder, "--max-tokens", "8", "--temperature", "0", "--json"];
    let (_, stdout, stderr) = home.run(&hub, &ask);
    let answer: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((&answer["decisions"]["kind"], &answer["decisions"]["name"]), (&json!("predictor"), &json!(name)));
    let said = format!("forgets with predictor {name} (about {ratio:.1}x, KL ");
    assert!(stderr.contains(&said) && stderr.contains("--adapter none keeps everything"), "{stderr}");
    // A second training replaces the first file, which is announced before; a file for another
    // model is refused.
    let file = made.join(format!("{name}.safetensors"));
    let (code, _, stderr) = home.run(&hub, &train);
    let warned = stderr.lines().next().unwrap();
    assert!(code == 0 && warned.contains(&format!("already forgets with the predictor {name} (")), "{stderr}");
    assert!(warned.ends_with("The new predictor (2x) will take its place; --out FILE keeps both."), "{stderr}");
    fs::copy(&weights, &file).unwrap();
    let (code, _, stderr) = home.run(&hub, &train);
    assert!(code == 2 && stderr.contains("it is not a predictor of dmschat"), "{stderr}");
    assert!(fs::read(&file).unwrap() == before[0]);
}
