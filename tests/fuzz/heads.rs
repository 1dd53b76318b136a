//! Files read beside a model: predictors of our second format and of KVzap, retention gates, heads
//! of EAGLE-3 and for multi-token prediction. Their headers and configurations keep their form, so
//! that most inputs get past them.

use crate::corpus::{self, CONFIG, Files, INDEX, WEIGHTS};
use crate::mutate::{Example, Shape};
use anyhow::Result;
use dmschat::checkpoint::adapter::Adapter;
use dmschat::checkpoint::{AdapterChoice, Checkpoint, eagle};
use dmschat::tensor::SharedBytes;
use serde_json::{Value, json};
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const KVZAP: [&str; 2] = ["tests/golden/kvzap/mlp-qwen3_gqa", "tests/golden/kvzap/linear-qwen3_gqa"];
const GATES: &str = "tests/golden/trimkv/rg10";
const PTH: [&str; 3] = ["state_dict", "parameters", "tensors"];
const EAGLE: [&str; 2] = ["tests/golden/eagle/plain", "tests/golden/eagle/speculators"];
/// The model that the golden head for multi-token prediction belongs to.
const MTP_BASE: &str = "tests/golden/qwen3_5";
const MTP: &str = "tests/golden/mtp/mtp.safetensors";

fn values(all: impl IntoIterator<Item = Vec<u8>>) -> Vec<Example> {
    all.into_iter().map(|bytes| Example::new(Shape::Values, bytes)).collect()
}

/// The JSON in a safetensors header.
fn header_of(file: &[u8]) -> Vec<u8> {
    corpus::split(file).0[8..].to_vec()
}

/// A safetensors file of a header's JSON and data.
fn file_of(header: &[u8], data: &[u8]) -> Vec<u8> {
    let mut text = header.to_vec();
    text.resize(text.len().next_multiple_of(8), b' ');
    [&(text.len() as u64).to_le_bytes()[..], &text, data].concat()
}

/// A linear predictor for the first golden model, in our second format.
fn predictor() -> (Value, usize) {
    let card = r#"{"date":"2026-11-23","command":"c","texts":"t","measured":[{"texts":"prose","threshold":-4.0,"window":64,"tokens":100,"ratio":3.0,"kl":0.01}]}"#;
    let mut header = json!({"__metadata__": {"format": "dmschat-adapter-2", "base": "org/tiny", "shift": "0",
        "threshold": "-4.0", "window": "64", "sinks": "4", "card": card, "num_hidden_layers": "3", "hidden_size": "48",
        "num_key_value_heads": "2", "vocab_size": "128", "model_type": "qwen3"}});
    let mut end = 0;
    for layer in 0..3 {
        for (name, shape) in [("weight", vec![2, 48]), ("bias", vec![2])] {
            let begin = end;
            end += 4 * shape.iter().product::<usize>();
            header[format!("layers.{layer}.{name}")] =
                json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, end]});
        }
    }
    (header, end)
}

pub fn predictors() -> Vec<Example> {
    values([predictor().0.to_string().into_bytes()])
}

pub fn run_predictor(path: &Path, model: Files, bytes: &[u8]) -> Result<()> {
    std::fs::write(path, file_of(bytes, &vec![0x3c; predictor().1])).expect("written");
    open_with(model, path)
}

pub fn kvzaps() -> Vec<Example> {
    values(KVZAP.map(|folder| corpus::bytes(&format!("{folder}/{CONFIG}"))))
}

pub fn run_kvzap(folder: &Path, model: Files, bytes: &[u8]) -> Result<()> {
    let folder = whole(folder, KVZAP[bytes.len() % 2], bytes);
    Adapter::open(&folder, None)?;
    open_with(model, &folder)
}

pub fn gates() -> Vec<Example> {
    let small = PTH.map(|name| corpus::bytes(&format!("tests/golden/trimkv/pth/{name}.pth")));
    let whole = corpus::bytes(&format!("{GATES}/trimkv_weights.pth"));
    small.into_iter().chain([whole]).map(|bytes| Example::new(Shape::Binary, bytes)).collect()
}

/// Gates of the golden model, whose tensors a file of torch has.
pub fn run_gates(folder: &Path, model: Files, bytes: &[u8]) -> Result<()> {
    let to = folder.join("gates");
    std::fs::create_dir_all(&to).expect("a folder");
    std::fs::write(to.join(CONFIG), corpus::bytes(&format!("{GATES}/{CONFIG}"))).expect("written");
    std::fs::write(to.join("trimkv_weights.pth"), bytes).expect("written");
    open_with(model, &to)
}

pub fn eagles() -> Vec<Example> {
    values(EAGLE.map(|folder| corpus::bytes(&format!("{folder}/{CONFIG}"))))
}

pub fn run_eagle(folder: &Path, bytes: &[u8]) -> Result<()> {
    let kind = usize::from(bytes.windows(12).any(|w| w == b"speculators_"));
    let head = eagle::named(&whole(folder, EAGLE[kind], bytes), 4)?;
    black_box(head.layer.tensors.len());
    Ok(())
}

pub fn mtps() -> Vec<Example> {
    values([header_of(&corpus::bytes(MTP))])
}

/// The model in a shard, and the head in another.
pub fn run_mtp(bytes: &[u8]) -> Result<()> {
    let base = corpus::bytes(&format!("{MTP_BASE}/{WEIGHTS}"));
    let head = file_of(bytes, &corpus::split(&corpus::bytes(MTP)).1);
    let mut map = serde_json::Map::new();
    for (shard, header) in [("1.safetensors", header_of(&base)), ("2.safetensors", bytes.to_vec())] {
        let Ok(Value::Object(names)) = serde_json::from_slice(&header) else { continue };
        map.extend(names.into_iter().map(|(name, _)| (name, shard.into())));
    }
    map.remove("__metadata__");
    let index = json!({ "weight_map": map }).to_string().into_bytes();
    let config = corpus::bytes(&format!("{MTP_BASE}/{CONFIG}"));
    let files = [(CONFIG, config), (INDEX, index), ("1.safetensors", base), ("2.safetensors", head)];
    let files = files.into_iter().map(|(name, bytes)| (name.to_owned(), Arc::new(bytes) as SharedBytes));
    let checkpoint = Checkpoint::from_memory("fuzz", files.collect(), &AdapterChoice::None)?;
    black_box(checkpoint.own_head()?.is_some());
    Ok(())
}

/// A golden folder with another configuration.
fn whole(folder: &Path, golden: &str, config: &[u8]) -> PathBuf {
    let to = folder.join("beside");
    std::fs::create_dir_all(&to).expect("a folder");
    std::fs::write(to.join(WEIGHTS), corpus::bytes(&format!("{golden}/{WEIGHTS}"))).expect("written");
    std::fs::write(to.join(CONFIG), config).expect("written");
    to
}

fn open_with(model: Files, adapter: &Path) -> Result<()> {
    let checkpoint = Checkpoint::from_memory("fuzz", model, &AdapterChoice::File(adapter.to_owned()))?;
    black_box(checkpoint.evicts_by());
    Ok(())
}
