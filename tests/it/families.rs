//! Published forms of families: a folder and a GGUF file of each compute what transformers does,
//! and answer a prompt.

use crate::fake_hub::sha256;
use crate::folder::assemble;
use crate::gguf::{converted, golden};
use crate::gguf_file::{GgufFile, Meta};
use crate::golden::computes;
use crate::hybrids::fed;
use crate::local::images;
use crate::program::{program, said};
use crate::tiny::Rng;
use dmschat::backend::cpu::Cpu;
use dmschat::checkpoint::{AdapterChoice, Checkpoint, ModelConfig, ModelRef, Tuning};
use dmschat::codec::Codec;
use dmschat::engine::{EngineOptions, Runner};
use dmschat::policy::{Budget, PolicyKind, PolicyRequest};
use dmschat::protocol::Token;
use dmschat::tensor::SharedBytes;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub const FAMILIES: [&str; 16] = [
    "qwen2",
    "mistral",
    "phi3_longrope",
    "smollm3",
    "granite",
    "qwen3_moe",
    "gemma3",
    "gemma4",
    "gemma4_wide",
    "gemma4_seeing",
    "gemma4_experts",
    "qwen3_5",
    "qwen3_5_moe",
    "gpt_oss",
    "mistral3",
    "ministral3",
];

fn place(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// The GGUF file of a family: a header written by llama.cpp's own package, and the data that it
/// wrote, by hash.
fn gguf_file(name: &str) -> Vec<u8> {
    let header = fs::read(place(&format!("gguf/{name}.header"))).unwrap();
    let hashes: Value = serde_json::from_slice(&fs::read(place("gguf/families.json")).unwrap()).unwrap();
    let (_, data) = converted(&golden(name)).parts();
    assert_eq!(hashes[name], sha256(&data), "{name}: tests/golden/gguf/make_families.py makes other data");
    [header, data].concat()
}

fn opened(name: &str) -> Checkpoint {
    let files = BTreeMap::from([("x.gguf".to_owned(), Arc::new(gguf_file(name)) as SharedBytes)]);
    Checkpoint::from_memory("x", files, &AdapterChoice::None).unwrap_or_else(|e| panic!("{name}: {e:#}"))
}

#[test]
fn gguf_files_compute_what_transformers_does() {
    for name in FAMILIES {
        let (file, folder) = (opened(name), golden(name));
        let mut config = file.config.clone();
        // In GGUF files Mistral is llama, norms are whole, and value heads of delta nets have
        // another order.
        config.family = folder.config.family;
        config.spec.norm_offset = folder.config.spec.norm_offset;
        config.spec.delta_net = folder.config.spec.delta_net;
        assert_eq!(config, folder.config, "{name}");
        computes(name, &file);
    }
}

/// transformers' class says that heads of `mistral3` are tied, and yet finds those that files have.
#[test]
fn a_head_of_mistral3_is_tied_if_nothing_says_that_it_is_not() {
    let read = |name| fs::read(place("mistral3").join(name)).unwrap();
    let (whole, file): (Value, _) = (serde_json::from_slice(&read("config.json")).unwrap(), read("model.safetensors"));
    let start = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&file[8..start]).unwrap();
    for (stored, stated) in [(true, None), (false, None), (true, Some(false)), (false, Some(true))] {
        let (mut config, mut header) = (whole.clone(), header.clone());
        config.as_object_mut().unwrap().remove("tie_word_embeddings");
        if let Some(stated) = stated {
            config["tie_word_embeddings"] = json!(stated);
        }
        if !stored {
            let head = header.as_object_mut().unwrap().remove("language_model.lm_head.weight").unwrap();
            header["unread"] = head;
        }
        let files = [
            ("config.json", config.to_string().into_bytes()),
            ("model.safetensors", assemble(&header, &file[start..])),
        ];
        let shared = |(name, bytes): (&str, Vec<u8>)| (name.to_owned(), Arc::new(bytes) as SharedBytes);
        let opened = Checkpoint::from_memory("m", files.map(shared).into(), &AdapterChoice::None).unwrap();
        assert_eq!((opened.config.tied, opened.unused().is_some()), (!stored, true));
    }
}

/// Published models are part of a `mistral3`, whose class has other defaults.
#[test]
fn ministral3_inside_of_mistral3_is_the_same_model() {
    let read = |name| fs::read(place("ministral3").join(name)).unwrap();
    let (text, file): (Value, _) = (serde_json::from_slice(&read("config.json")).unwrap(), read("model.safetensors"));
    let start = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: serde_json::Map<String, Value> = serde_json::from_slice(&file[8..start]).unwrap();
    let inside = header.into_iter().map(|(name, value)| match &*name {
        "__metadata__" => (name, value),
        _ => (format!("language_model.{name}"), value),
    });
    let config = json!({"model_type": "mistral3", "architectures": ["Mistral3ForConditionalGeneration"],
        "text_config": text, "vision_config": {"model_type": "pixtral"}, "spatial_merge_size": 2});
    let files = [
        ("config.json", config.to_string().into_bytes()),
        ("model.safetensors", assemble(&Value::Object(inside.collect()), &file[start..])),
    ];
    let shared = |(name, bytes): (&str, Vec<u8>)| (name.to_owned(), Arc::new(bytes) as SharedBytes);
    let opened = Checkpoint::from_memory("m", files.map(shared).into(), &AdapterChoice::None).unwrap();
    let alone = Checkpoint::open(&ModelRef::Folder(place("ministral3")), &AdapterChoice::None).unwrap();
    assert!(opened.config == alone.config && opened.config.spec.query_growth.is_some());
    assert!(opened.tensors.iter().all(|(name, tensor)| tensor.to_f32() == alone.tensors[name].to_f32()));
    assert_eq!(opened.tensors.len(), alone.tensors.len());
}

/// A folder and a GGUF file of a family, both with the file's vocabulary and template.
pub fn written(name: &str, into: &Path) -> [PathBuf; 2] {
    let (folder, file) = (into.join(name), into.join(format!("{name}.gguf")));
    fs::write(&file, gguf_file(name)).unwrap();
    fs::create_dir(&folder).unwrap();
    for part in ["config.json", "generation_config.json", "model.safetensors"] {
        fs::copy(place(name).join(part), folder.join(part)).unwrap();
    }
    let c = opened(name);
    fs::write(folder.join("tokenizer.json"), &c.tokenizer_json[..]).unwrap();
    let texts = json!({"chat_template": c.chat_template, "eos_token": c.eos_token});
    fs::write(folder.join("tokenizer_config.json"), texts.to_string()).unwrap();
    [folder, file]
}

#[test]
fn a_folder_and_a_gguf_file_answer_a_prompt() {
    for name in FAMILIES {
        let home = tempfile::tempdir().unwrap();
        let answers = written(name, home.path()).map(|model| {
            let mut command = program(env!("CARGO_BIN_EXE_dmschat"), &home);
            command.args("-p rain --device cpu --temperature 0 --max-tokens 12 --json -m".split(' ')).arg(&model);
            let (code, stdout, stderr) = said(&command.output().unwrap());
            assert_eq!(code, 0, "{}: {stderr}", model.display());
            let answer: Value = serde_json::from_str(&stdout).unwrap();
            ["answer", "prompt_tokens", "answer_tokens"].map(|key| answer[key].clone())
        });
        assert!(answers[0] == answers[1] && answers[0][0] != "", "{name}: {answers:?}");
    }
}

/// A KVzap predictor of random weights, whose scores are about its threshold.
pub fn predictor(folder: &Path, c: &ModelConfig) {
    let layers = c.attention_layers();
    let config = json!({
        "model_type": "kvzap", "input_dim": c.hidden, "output_dim": c.deciding_heads().count, "hidden_dim": null, "n_modules": layers,
    });
    let (mut header, mut data, mut rng) = (json!({}), Vec::<u8>::new(), Rng(1));
    let heads = c.deciding_heads().count;
    for layer in 0..layers {
        let weight: Vec<f32> = (0..heads * c.hidden).map(|_| rng.below(2001) as f32 / 1000.0 - 1.0).collect();
        let bias = vec![-4.0; heads];
        for (name, shape, values) in [("weight", vec![heads, c.hidden], weight), ("bias", vec![heads], bias)] {
            let begin = data.len();
            data.extend(values.iter().flat_map(|x| x.to_le_bytes()));
            header[format!("layers.{layer}.{name}")] =
                json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, data.len()]});
        }
    }
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    fs::write(folder.join("model.safetensors"), crate::folder::assemble(&header, &data)).unwrap();
}

/// With decisions of a predictor and of a window, chunks give the bits, the slots and the pages of
/// single steps.
#[test]
fn each_family_evicts_in_chunks_as_in_single_steps() {
    let tokens: Vec<Token> = (0..80).map(|i| (i * 7919 % 128) as Token).collect();
    for name in FAMILIES {
        let adapter = tempfile::tempdir().unwrap();
        predictor(adapter.path(), &golden(name).config);
        let predicted = (AdapterChoice::File(adapter.path().to_owned()), PolicyRequest::default());
        for (adapter, policy) in [predicted, (AdapterChoice::None, PolicyKind::Window.with(Budget::Slots(20)))] {
            let mut checkpoint = Checkpoint::open(&ModelRef::Folder(place(name)), &adapter).unwrap();
            if checkpoint.adapter.is_some() {
                checkpoint.tune(Tuning { window: Some(9), ..Tuning::default() }).unwrap();
            }
            let options = EngineOptions { context: Some(128), policy, ..EngineOptions::new(Codec::F32) };
            let mut runner = Runner::new(Cpu::new(2), &checkpoint, &options, |_, _| true).unwrap();
            let mut wanted = None;
            for steps in [&[1][..], &[80], &[30, 1, 1, 25, 23]] {
                let seq = runner.create(true).unwrap();
                let logits = fed(&mut runner, seq, &tokens, steps);
                let stats = runner.cache.stats(runner.backend(), seq);
                assert!(stats.live_slots < stats.dense_slots(), "{name}, {policy:?}: nothing is evicted");
                let got = (logits, images(&mut runner, seq));
                assert!(wanted.as_ref().is_none_or(|wanted| *wanted == got), "{name}, {policy:?}: {steps:?}");
                wanted = Some(got);
                runner.release(seq);
            }
        }
    }
}

/// `adapter train` makes a predictor for a model of each family, and the model evicts by it.
#[test]
fn predictors_are_made_for_each_family() {
    let lines: String = (0..550).map(|n| format!("line {n} tells of number {}\n", n * n % 9973)).collect();
    for name in FAMILIES {
        let home = tempfile::tempdir().unwrap();
        let [folder, _] = written(name, home.path());
        // A text and its repetition fit into it, and no window is shorter.
        let mut config: Value = serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap();
        config["max_position_embeddings"] = json!(512);
        if name == "phi3_longrope" {
            config["sliding_window"] = Value::Null;
        }
        fs::write(folder.join("config.json"), config.to_string()).unwrap();
        let (text, out) = (home.path().join("text.txt"), home.path().join("made.safetensors"));
        fs::write(&text, &lines).unwrap();
        let run = |args: &str, rest: &[&Path]| {
            let mut command = program(env!("CARGO_BIN_EXE_dmschat"), &home);
            command.args(args.split(' ')).args(rest).arg("-m").arg(&folder);
            said(&command.output().unwrap())
        };
        let train = "adapter train --device cpu --ratio 1.5 --text";
        let (code, _, stderr) = run(train, &[&text, Path::new("--out"), &out]);
        assert_eq!(code, 0, "{name}: {stderr}");
        let ask = "-p rain --device cpu --temperature 0 --max-tokens 12 --json --adapter";
        let (code, stdout, stderr) = run(ask, &[&out]);
        let answer: Value = serde_json::from_str(&stdout).unwrap_or_default();
        assert_eq!((code, &answer["decisions"]["kind"]), (0, &json!("predictor")), "{name}: {stderr}");
    }
}

/// Published architectures that do not run: they are refused by name before anything else is read
/// from the files.
#[test]
fn other_architectures_are_named_in_one_line() {
    let home = tempfile::tempdir().unwrap();
    let refused = |path: &Path, wanted: &str| {
        let mut command = program(env!("CARGO_BIN_EXE_dmschat"), &home);
        let (code, stdout, stderr) = said(&command.args(["models", "info"]).arg(path).output().unwrap());
        assert!(code == 2 && stdout.is_empty() && stderr.lines().count() == 1, "{code} {stdout} {stderr}");
        assert!(stderr.contains(wanted), "{stderr}");
    };
    let names = "olmo2 olmo3 deepseek_v3 gemma2 gemma3n mixtral mistral4 qwen3_next glm4_moe \
                 cohere2 llama4 falcon_h1 mamba2 granitemoehybrid lfm2 starcoder2 bert";
    for name in names.split_whitespace() {
        let folder = home.path().join(name);
        fs::create_dir(&folder).unwrap();
        let config =
            json!({"architectures": ["XForCausalLM"], "model_type": name, "text_config": {"model_type": "llama"}});
        fs::write(folder.join("config.json"), config.to_string()).unwrap();
        refused(&folder, &format!("model_type \"{name}\" is not supported ("));
    }
    let names = "olmo2 deepseek2 gemma2 gemma3n mistral4 qwen3next glm4moe cohere2 llama4 falcon-h1 \
                 mamba2 granitehybrid lfm2 phi2 starcoder2 bert";
    let file = home.path().join("model.gguf");
    for name in names.split_whitespace() {
        fs::write(&file, GgufFile::tiny().set("general.architecture", Meta::text(name)).bytes()).unwrap();
        refused(&file, &format!("architecture \"{name}\" is not supported ("));
    }
    // Mixtral is llama there.
    fs::write(&file, GgufFile::tiny().set("llama.expert_count", Meta::U32(8)).bytes()).unwrap();
    refused(&file, "llama.expert_count is set: models with experts are not supported");
}
