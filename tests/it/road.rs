//! The road from the built-in model to another: short names, what fits, the list, the download.
//! Against a hub on loopback ([`crate::fake_hub`]).

use crate::fake_hub::FakeHub;
use crate::hub::{Home, WEIGHTS, files, healthy};
use crate::pty::{Chat, answer};
use crate::tiny::{Form, Spec, Tiny};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// F10, as terminals send it.
const MODELS: &str = "\x1b[21~";
const MEMORY: &str = "8GiB,12GiB,16GiB,24GiB";

fn known(home: &Home, args: &[&str]) -> (Vec<Value>, String) {
    let all = [&["models", "list", "--known", "--json", "--device", "cpu"], args].concat();
    let (code, stdout, stderr) = home.run(&healthy(), &all);
    assert_eq!(code, 0, "{stderr}");
    (serde_json::from_str(&stdout).unwrap(), stderr)
}

fn of<'a>(list: &'a [Value], name: &str) -> &'a Value {
    list.iter().find(|entry| entry["name"] == name).expect(name)
}

/// Where a model is named, a short name is its repository, without any connection.
#[test]
fn every_short_name_resolves_offline() {
    let (home, hub) = (Home::new(), healthy());
    let (list, _) = known(&home, &[]);
    assert!(list.len() >= 15, "{list:?}");
    for entry in &list {
        let model = entry["model"].as_str().unwrap().split(':').next().unwrap().to_owned();
        for name in entry["names"].as_array().unwrap() {
            let name = name.as_str().unwrap();
            let mut command = home.command(&hub, &["models", "info", name]);
            let output = command.env("HF_HUB_OFFLINE", "1").output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(output.status.code() == Some(2) && said.contains(&model), "{name}: {said}");
        }
    }
    for args in [
        &["run", "SmolLM2", "hi"][..],
        &["-m", "smollm2", "-p", "hi"],
        &["adapter", "train", "-m", "smollm2"],
        &["models", "pull", "smollm2:135m"],
    ] {
        let output = home.command(&hub, args).env("HF_HUB_OFFLINE", "1").output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("HuggingFaceTB/SmolLM2-135M-Instruct") && said.lines().count() == 1, "{args:?}: {said}");
    }
    assert_eq!(hub.connections(), 0);
    // A folder of the same name wins; a name that is near is suggested.
    fs::create_dir(home.0.path().join("smollm2")).unwrap();
    let mut command = home.command(&hub, &["models", "info", "smollm2"]);
    let said = String::from_utf8(command.current_dir(home.0.path()).output().unwrap().stderr).unwrap();
    assert!(said.contains("smollm2/config.json is missing"), "{said}");
    let (code, _, said) = home.run(&hub, &["run", "qwen3:44b", "hi"]);
    assert!(code == 2 && said.contains("did you mean qwen3:4b"), "{said}");
    let (code, _, said) = home.run(&hub, &["-m", "demo", "run", "qwen3:4b"]);
    assert!(code == 2 && said.contains("two models"), "{said}");
}

/// Nothing about fitting is written down: a changed shape changes what fits.
#[test]
fn figures_come_from_the_planner_and_a_bad_copy_is_one_line() {
    let home = Home::new();
    let copy = home.0.path().join("config/models.toml");
    fs::create_dir(home.0.path().join("config")).unwrap();
    let (before, _) = known(&home, &["--memory", MEMORY]);
    for name in before.iter().map(|entry| entry["name"].as_str().unwrap()) {
        fs::write(&copy, format!("[models.{name:?}.config]\nmax_position_embeddings = 4096\n")).unwrap();
        let (after, stderr) = known(&home, &["--memory", MEMORY]);
        let context = |list: &[Value]| of(list, name)["fits"][3]["context"].as_u64().unwrap();
        assert!(stderr.is_empty() && context(&after) == 4096 && context(&before) >= 4096, "{name}: {stderr}");
    }
    let kv_heads = |heads: usize| {
        let text = format!("[models.\"qwen3:8b\".config]\nnum_key_value_heads = {heads}\n");
        fs::write(&copy, text).unwrap();
        let (list, _) = known(&home, &["--memory", "8GiB"]);
        of(&list, "qwen3:8b")["fits"][0]["context"].as_f64().unwrap()
    };
    let (few, many) = (kv_heads(8), kv_heads(16));
    // A format of its own may be chosen for the larger cache.
    assert!((1.5..2.2).contains(&(few / many)), "{few} {many}");
    // It never keeps anyone from another model.
    fs::write(&copy, "[models\n").unwrap();
    let (list, stderr) = known(&home, &["--memory", MEMORY]);
    assert_eq!(list, before);
    assert!(stderr.lines().count() == 1 && stderr.contains("models.toml, line 1"), "{stderr}");
    let (code, stdout, stderr) = home.run(&healthy(), &["-p", "3+4", "--temperature", "0"]);
    assert!(code == 0 && stdout.contains('7') && stderr.is_empty(), "{stderr}");
    let (_, _, said) = home.run(&healthy(), &["run", "my-own", "hi"]);
    assert!(said.lines().count() == 1 && said.contains("no model named") && said.contains("line 1"), "{said}");
}

/// The table of the README, which `dmschat models list --known --memory 8GiB,12GiB,16GiB,24GiB`
/// prints.
#[test]
fn the_readme_has_the_planners_table() {
    let home = Home::new();
    let (code, table, stderr) = home.run(&healthy(), &["models", "list", "--known", "--memory", MEMORY]);
    assert_eq!((code, &*stderr), (0, ""));
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let missing: Vec<&str> = table.lines().filter(|line| !readme.contains(line)).collect();
    assert!(readme.contains(&table), "put the output into the README; it lacks:\n{}", missing.join("\n"));
}

fn start(home: &Path, hub: &FakeHub, more: &[(&str, &str)], args: &[&str]) -> Chat {
    let cache = home.join("hf").display().to_string();
    let env = [&[("HF_HOME", &*cache), ("HF_ENDPOINT", &*hub.url)], more].concat();
    Chat::start(home, 160, 60, &env, &[&["--device", "cpu"], args].concat())
}

/// The text of a screen beside the panel, without the ends of its lines.
fn text(screen: &str) -> String {
    let line = |line: &str| line.split('│').next().unwrap_or_default().trim_matches(['▎', ' ']).to_owned();
    screen.lines().map(line).collect::<Vec<_>>().join(" ")
}

fn until_says(chat: &Chat, words: &str) -> String {
    text(&chat.until(words, |screen| text(screen).contains(words)))
}

/// A hub that has a small model under any name, which keeps every token.
fn hub_of_plain_models() -> FakeHub {
    let spec = Spec { n_layers: 1, tied: false, speaks: true, context: 2304, ..Spec::new(true, Form::Plain) };
    let tiny = Tiny::new(spec, 12);
    let mut plain = files();
    for name in ["config.json", "tokenizer.json", WEIGHTS] {
        plain.insert(name.to_owned(), fs::read(tiny.folder.file(name)).unwrap());
    }
    FakeHub::new(plain)
}

/// From the first screen to an answer by two keys and a download, with a small model in SmolLM2's
/// place.
#[test]
fn two_keys_lead_from_the_first_screen_to_a_real_model() {
    let (home, hub) = (tempfile::tempdir().unwrap(), hub_of_plain_models());
    let mut chat = start(home.path(), &hub, &[], &["--temperature", "0", "--max-tokens", "5"]);
    let first = until_says(&chat, "smollm2 (269 MB) suits this machine.");
    assert!(first.contains("F10 or Enter lists real models"), "{first}");
    chat.keys("\r");
    let list = chat.until_shows("HuggingFaceTB/SmolLM2-135M-Instruct");
    assert!(list.contains("bf16, 8,192 tokens") && list.contains("qwen3:4b"), "{list}");
    chat.keys("\r");
    chat.until_shows("SmolLM2-135M-Instruct · cpu");
    assert!(hub.asked("HuggingFaceTB/SmolLM2-135M-Instruct").len() > 1);
    chat.say("hello");
    answer(&chat, 1);
    chat.keys("\x04");
    assert_eq!(chat.end(), 0);
    // It is on this machine now, for every name, without a network.
    let mut chat = start(home.path(), &hub, &[("HF_HUB_OFFLINE", "1")], &["run", "smollm2:135m"]);
    chat.until_shows("context 0");
    chat.keys(MODELS);
    let list = chat.until_shows("needs the network");
    assert!(list.contains("HuggingFaceTB/SmolLM2-135M-Instruct") && !list.contains("smollm2  download"), "{list}");
    chat.keys("\x1b");
    chat.keys("\x04");
    assert_eq!(chat.end(), 0);
}

/// What is downloaded forgets nothing, is trained beside the chat, and is loaded with its
/// predictor.
#[test]
#[cfg_attr(debug_assertions, ignore = "regressions take minutes without optimisation")]
fn a_model_is_trained_beside_the_chat_and_forgets_then() {
    let (home, hub) = (tempfile::tempdir().unwrap(), hub_of_plain_models());
    let mut chat = start(home.path(), &hub, &[], &["--temperature", "0", "--max-tokens", "5"]);
    chat.until_shows("context 0");
    chat.say("/model smollm2");
    until_says(&chat, "SmolLM2-135M-Instruct forgets nothing yet; /train makes it forget (about ");
    chat.say("/train");
    until_says(&chat, "training a predictor for HuggingFaceTB/SmolLM2-135M-Instruct: about ");
    chat.say("hello");
    until_says(&chat, "the model is loaded again with it");
    until_says(&chat, "forgets with predictor SmolLM2-135M-Instruct");
    chat.say("/train");
    until_says(&chat, "forgets already");
    // The line came back to be corrected.
    chat.keys("\x15");
    chat.until("an empty input", |s| s.contains("ask something"));
    chat.keys("\x04");
    assert_eq!(chat.end(), 0);
    assert!(home.path().join("data/adapters/SmolLM2-135M-Instruct.safetensors").exists());
}

#[test]
fn a_training_that_is_stopped_or_left_leaves_nothing() {
    let home = tempfile::tempdir().unwrap();
    let spec = Spec { n_layers: 1, tied: false, speaks: true, context: 2304, ..Spec::new(true, Form::Plain) };
    let tiny = Tiny::new(spec, 12);
    let folder = tiny.folder.path().display().to_string();
    let mut chat = start(home.path(), &healthy(), &[], &["-m", &folder]);
    chat.until_shows("context 0");
    chat.say("/train");
    until_says(&chat, "measuring how long the training");
    chat.until_shows("training");
    chat.say("/train stop");
    until_says(&chat, "stopped; nothing was changed");
    chat.say("/train");
    until_says(&chat, "measuring how long the training");
    chat.keys("\x04");
    assert_eq!(chat.end(), 0);
    let left = fs::read_dir(home.path().join("data/adapters")).map_or(0, Iterator::count);
    assert_eq!(left, 0);
}

#[test]
fn the_built_in_model_sends_on_what_it_cannot_do_and_never_twice_alike() {
    let home = tempfile::tempdir().unwrap();
    let mut chat = start(home.path(), &healthy(), &[], &["--temperature", "0"]);
    chat.until_shows("F10 or Enter");
    chat.say("2+2*3");
    let first = text(&answer(&chat, 1));
    assert!(first.contains("sort numbers") && first.contains("each step by itself"), "{first}");
    let poem = "Write a poem about the sea";
    for (n, question) in [poem, "2+2*3", poem].iter().enumerate() {
        chat.say(question);
        let screen = text(&answer(&chat, n + 2));
        assert!(screen.matches("sort numbers").count() == 1 && !screen.contains("nvidia/"), "{screen}");
    }
    let screen = text(&chat.screen());
    for said in ["That is beyond me too; F10", "this is none of them; F10", "A real model would answer this: F10"] {
        assert_eq!(screen.matches(said).count(), 1, "{said}: {screen}");
    }
    // What it does is unchanged, and the key opens the list.
    chat.say("3+4");
    assert!(answer(&chat, 5).contains('7'));
    chat.keys(MODELS);
    chat.until_shows("models:");
    chat.keys("\x1b");
    chat.keys("\x04");
    assert_eq!(chat.end(), 0);
}

#[test]
fn without_a_network_each_step_says_what_works() {
    let home = tempfile::tempdir().unwrap();
    let hub = healthy();
    let mut chat = start(home.path(), &hub, &[("HF_HUB_OFFLINE", "1")], &["--temperature", "0"]);
    until_says(&chat, "A demo, offline: F10 or Enter lists the models on this machine.");
    chat.keys(MODELS);
    let list = chat.until_shows("needs the network");
    assert!(list.contains("folders and GGUF files"), "{list}");
    chat.keys("\r");
    chat.until_shows("is not on this machine, and HF_HUB_OFFLINE");
    chat.keys("\x1b");
    chat.say("Write a poem about the sea");
    assert!(text(&answer(&chat, 1)).contains("which need no network"));
    chat.keys("\x04");
    assert_eq!(chat.end(), 0);
    assert_eq!(hub.connections(), 0);
    // A hub that is not there, without the variable.
    let mut chat = start(home.path(), &hub, &[("HF_ENDPOINT", "http://127.0.0.1:9")], &[]);
    chat.until_shows("F10 or Enter");
    chat.say("/model smollm2");
    let said = until_says(&chat, "; without a network, ");
    assert!(said.contains("stays loaded"), "{said}");
    // The line came back to be corrected.
    chat.keys("\x15");
    chat.until("an empty input", |s| s.contains("ask something"));
    chat.keys("\x04");
    assert_eq!(chat.end(), 0);
}
