//! Families as people have them: a folder and a GGUF file of each compute what transformers does, and answer a prompt.

use crate::fake_hub::sha256;
use crate::gguf::{converted, golden};
use crate::golden::computes;
use crate::program::{program, said};
use dmschat::checkpoint::{AdapterChoice, Checkpoint};
use dmschat::tensor::SharedBytes;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub const FAMILIES: [&str; 7] = ["qwen2", "mistral", "phi3_longrope", "smollm3", "granite", "qwen3_moe", "gemma3"];

fn place(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// The GGUF file of a family: a header that llama.cpp's own package wrote, and the data that it wrote, by their hash.
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
        // Mistral is llama there, and Gemma's norms are whole.
        config.family = folder.config.family;
        config.spec.norm_offset = folder.config.spec.norm_offset;
        assert_eq!(config, folder.config, "{name}");
        computes(name, &file);
    }
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
