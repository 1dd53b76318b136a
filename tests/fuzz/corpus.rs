//! Valid inputs to begin from: the golden models, the built-in files, the examples of the
//! documentation.

use crate::gguf_file::{F32, GgufFile, Meta};
use crate::mutate::{Example, Shape};
use dmschat::tensor::SharedBytes;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
pub const CONFIG: &str = "config.json";
pub const WEIGHTS: &str = "model.safetensors";
pub const INDEX: &str = "model.safetensors.index.json";
pub const EXPERTS: &str = "tests/golden/qwen3_moe/config.json";
/// The golden models, of which the first is the smallest and the last is sharded.
const MODELS: [&str; 4] = ["qwen3_gqa", "qwen3_yarn", "llama_tied_llama3", "llama_bias_sharded"];

pub type Files = BTreeMap<String, SharedBytes>;

pub fn bytes(path: &str) -> Vec<u8> {
    std::fs::read(Path::new(ROOT).join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn examples(shape: Shape, all: impl IntoIterator<Item = Vec<u8>>) -> Vec<Example> {
    all.into_iter().map(|bytes| Example::new(shape, bytes)).collect()
}

fn json_examples(all: impl IntoIterator<Item = Value>) -> Vec<Example> {
    examples(Shape::Json, all.into_iter().map(|v| v.to_string().into_bytes()))
}

/// The files of the golden models.
pub fn models() -> Vec<Files> {
    let files = |name: &&str| {
        let folder = Path::new(ROOT).join("tests/golden").join(name);
        let entries = std::fs::read_dir(folder).expect("a golden model").map(|e| e.expect("an entry").path());
        let read = |path: std::path::PathBuf| {
            let name = path.file_name()?.to_str()?.to_owned();
            let needed =
                name.ends_with(".safetensors") || ["config.json", "generation_config.json", INDEX].contains(&&*name);
            needed.then(|| (name, Arc::new(std::fs::read(&path).expect("a file")) as SharedBytes))
        };
        entries.filter_map(read).collect()
    };
    MODELS.iter().map(files).collect()
}

pub fn configs() -> Vec<Example> {
    let golden = MODELS.map(|m| bytes(&format!("tests/golden/{m}/config.json")));
    examples(Shape::Json, golden.into_iter().chain([bytes("assets/demo/config.json")]))
}

pub fn generation_configs() -> Vec<Example> {
    let golden = MODELS.map(|m| bytes(&format!("tests/golden/{m}/generation_config.json")));
    examples(Shape::Json, golden.into_iter().chain([bytes("assets/demo/generation_config.json")]))
}

pub fn dms_metadata() -> Vec<Example> {
    let own = json!({"window_size": 7, "alpha_scale": 50.0, "alpha_offset": 2.5, "target_cr": 4});
    json_examples([own.clone(), json!({ "config": own })])
}

pub fn indexes() -> Vec<Example> {
    examples(Shape::Json, [bytes("tests/golden/llama_bias_sharded/model.safetensors.index.json")])
}

pub fn headers() -> Vec<Example> {
    examples(Shape::Header, [split(&bytes("tests/golden/qwen3_gqa/model.safetensors")).0])
}

/// A safetensors file's length and header, and its data.
pub fn split(file: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let length = u64::from_le_bytes(*file.first_chunk().expect("a length")) as usize;
    let (head, data) = file.split_at(8 + length);
    (head.to_vec(), data.to_vec())
}

pub fn tokenizer_configs() -> Vec<Example> {
    let template = String::from_utf8(bytes("tests/golden/tokenizer/chat_template.jinja")).expect("UTF-8");
    let named = json!({"chat_template": [{"name": "default", "template": template}, {"name": "tool", "template": "x"}],
        "bos_token": {"content": "<s>", "special": true}, "eos_token": "</s>"});
    let files = ["tests/golden/tokenizer/tokenizer_config.json", "assets/demo/tokenizer_config.json"].map(bytes);
    examples(Shape::Json, files.into_iter().chain([named.to_string().into_bytes()]))
}

pub fn tokenizers() -> Vec<Example> {
    // Other kinds of parts than the byte-level ones of the golden tokenizer.
    let word = json!({"version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [{"id": 4, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u{2581}"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"}, {"type": "NFKC"}, {"type": "Lowercase"}]},
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\s+|\\p{L}+"}, "behavior": "Isolated", "invert": false},
        "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}], "special_tokens": {"<s>": {"id": "<s>", "ids": [4], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "b", "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": true, "byte_fallback": true, "ignore_merges": false, "vocab": {"a": 0, "b": 1, "ab": 2, "<0x0A>": 3, "\u{2581}": 5},
            "merges": [["a", "b"]]}});
    let files = ["tests/golden/tokenizer/tokenizer.json", "assets/demo/tokenizer.json"].map(bytes);
    examples(Shape::Json, files.into_iter().chain([word.to_string().into_bytes()]))
}

pub fn sessions() -> Vec<Example> {
    examples(Shape::JsonLines, [bytes("tests/fuzz/session.jsonl")])
}

/// An adapter for the first golden model: its beginning, and its data.
pub fn adapter() -> (Vec<u8>, Vec<u8>) {
    let (layers, heads, hidden) = (3, 2, 48);
    let mut header = json!({"__metadata__": {"format": "dmschat-adapter-1", "base": "org/tiny", "model_type": "qwen3",
        "num_hidden_layers": "3", "hidden_size": "48", "num_key_value_heads": "2", "vocab_size": "128", "window": "16",
        "shift": "1", "alpha_scale": "100.0", "alpha_offset": "5.0", "alpha_per": "head", "license": "Apache-2.0"}});
    let mut end = 0;
    for layer in 0..layers {
        for (name, shape) in [("", vec![heads, hidden]), ("_norm", vec![hidden])] {
            let begin = end;
            end += 2 * shape.iter().product::<usize>();
            header[format!("model.layers.{layer}.self_attn.dms_proj_alpha{name}.weight")] =
                json!({"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]});
        }
    }
    let mut text = header.to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut head = (text.len() as u64).to_le_bytes().to_vec();
    head.extend(text);
    (head, vec![0x3c; end])
}

pub fn adapters() -> Vec<Example> {
    examples(Shape::Header, [adapter().0])
}

/// The header of a GGUF file. [`gguf_data`] has its data.
pub fn ggufs() -> Vec<Example> {
    let mut qwen = GgufFile::tiny();
    let keys: Vec<String> = qwen.meta.keys().filter(|k| k.starts_with("llama.")).cloned().collect();
    for key in keys {
        let value = qwen.meta.remove(&key).expect("a value");
        qwen.meta.insert(key.replace("llama.", "qwen3."), value);
    }
    qwen.set("general.architecture", Meta::text("qwen3"));
    for name in ["q", "k"] {
        qwen.tensor(&format!("blk.0.attn_{name}_norm.weight"), &[32], F32, &[1.0; 32]);
    }
    let mut rope = GgufFile::tiny();
    rope.tensor("rope_freqs.weight", &[16], F32, &[1.0; 16]);
    rope.set("general.alignment", Meta::U32(64)).set("tokenizer.ggml.pre", Meta::text("llama-bpe"));
    examples(Shape::Binary, [GgufFile::tiny(), qwen, rope].map(|file| file.parts().0))
}

/// Importance matrices of some matrices of the model [`EXPERTS`], in both forms.
pub fn imatrices() -> Vec<Example> {
    let number = |n: usize| (n as i32).to_le_bytes().to_vec();
    let (mut new, mut old) = (GgufFile::default(), number(3));
    new.set("general.type", Meta::text("imatrix"));
    for (name, experts, cols) in
        [("blk.0.attn_q.weight", 1, 64), ("blk.0.ffn_gate_exps.weight", 12, 64), ("blk.1.ffn_down.weight", 1, 80)]
    {
        let values: Vec<f32> = (0..experts * cols).map(|i| 0.5 + (i % 7) as f32).collect();
        new.tensor(&format!("{name}.in_sum2"), &[cols, experts], F32, &values);
        new.tensor(&format!("{name}.counts"), &[1, experts], F32, &vec![3.0; experts]);
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        old.extend([number(name.len()), name.into(), number(3), number(values.len()), bytes].concat());
    }
    examples(Shape::Binary, [old, new.bytes()])
}

/// The metadata about a vocabulary of [`GgufFile::tiny`] as JSON.
pub fn gguf_vocabularies() -> Vec<Example> {
    let is_of = |key: &str| key.starts_with("tokenizer.") || key.starts_with("general.sampling.");
    let value = |meta: &Meta| match meta {
        Meta::U32(n) => json!(n),
        Meta::I32(n) => json!(n),
        Meta::F32(x) => json!(x),
        Meta::Bool(b) => json!(b),
        Meta::Text(text) => json!(text),
        Meta::Texts(all) => json!(all),
        Meta::I32s(all) => json!(all),
        Meta::F32s(all) => json!(all),
    };
    let meta = GgufFile::tiny().meta;
    json_examples([meta.iter().filter(|(key, _)| is_of(key)).map(|(key, meta)| (key.clone(), value(meta))).collect()])
}

/// [`GgufFile::tiny`] with the vocabulary that an input of [`gguf_vocabularies`] describes.
pub fn gguf_with(bytes: &[u8]) -> GgufFile {
    let mut file = GgufFile::tiny();
    file.meta.retain(|key, _| !key.starts_with("tokenizer."));
    let Ok(Value::Object(map)) = serde_json::from_slice(bytes) else { return file };
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    for (key, value) in map {
        let meta = match value {
            Value::Bool(b) => Meta::Bool(b),
            Value::Number(n) if n.is_f64() => Meta::F32(n.as_f64().unwrap_or_default() as f32),
            Value::Number(n) => Meta::U32(n.as_u64().unwrap_or(u64::MAX) as u32),
            Value::Array(all) if all.iter().all(Value::is_i64) => {
                Meta::I32s(all.iter().filter_map(Value::as_i64).map(|n| n as i32).collect())
            }
            Value::Array(all) if all.iter().all(Value::is_f64) => {
                Meta::F32s(all.iter().filter_map(Value::as_f64).map(|x| x as f32).collect())
            }
            Value::Array(all) => Meta::Texts(all.iter().map(text).collect()),
            other => Meta::Text(text(&other)),
        };
        file.set(&key, meta);
    }
    file
}

/// As many bytes as the longest data of [`ggufs`].
pub fn gguf_data() -> Vec<u8> {
    let file = GgufFile::tiny();
    let mut data = file.bytes().split_off(file.parts().0.len());
    data.resize(data.len() + 4096, 0x3c);
    data
}

pub fn settings() -> Vec<Example> {
    let page = String::from_utf8(bytes("docs/config.md")).expect("UTF-8");
    let example = page.split("```toml\n").nth(1).and_then(|p| p.split("```").next()).expect("an example");
    examples(Shape::Lines, [example.as_bytes().to_vec(), b"model = \"demo\"\nseed = 7\ntop_p = 0.9\n".to_vec()])
}

pub fn keymaps() -> Vec<Example> {
    examples(Shape::Lines, [bytes("assets/keymap.toml"), b"[chat]\npanel = [\"ctrl+x\"]\nmouse = []\n".to_vec()])
}

pub fn themes() -> Vec<Example> {
    let names = ["dark", "light", "cividis", "ascii"];
    let own =
        b"inherits = \"dark\"\n[palette]\na = \"#112233\"\n[roles]\ntext = { fg = \"a\", bold = true }\n".to_vec();
    examples(Shape::Lines, names.map(|n| bytes(&format!("themes/{n}.toml"))).into_iter().chain([own]))
}

/// Replies of models.
pub fn answers() -> Vec<Example> {
    let all = [
        "Let us see.\nSo the total is \\boxed{1{,}234}.\n",
        "The answer is **42**. Done.",
        "Answer: (3+7)*7",
        "x = 5\ny = 7 - 2 = 5\n#### 5",
        "Sorted: 3, 20, 1/2, 50%, -7",
        "The answer is (B) because a-b-c.\n\nAnswer: 9+5",
    ];
    examples(Shape::Lines, all.map(|text| text.as_bytes().to_vec()))
}

pub fn problems() -> Vec<Example> {
    let line = |task: &str, content: &str, expected: Value| {
        json!({"task": task, "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "reasoning_content": "c"}, {"role": "user", "content": content}],
            "expected": expected})
    };
    let lines =
        [line("a", "2+2?", json!("4")), line("b", "the answer is 1,000", json!(1000)), line("a", "x", json!("Paris"))];
    examples(Shape::JsonLines, [lines.map(|l| l.to_string()).join("\n").into_bytes()])
}

pub fn listings() -> Vec<Example> {
    let (git, sha) = ("0123456789abcdef0123456789abcdef01234567", "ab".repeat(32));
    let files = json!([{"rfilename": "config.json", "size": 726, "blobId": git},
        {"rfilename": "model.safetensors", "size": 269_060_552u64, "blobId": git, "lfs": {"sha256": sha, "size": 269_060_552u64, "pointerSize": 134}}]);
    json_examples([
        json!({"id": "any/model", "sha": git, "gated": false, "tags": ["license:apache-2.0", "safetensors"],
            "config": {"model_type": "qwen3"}, "cardData": {"license": "apache-2.0"}, "siblings": files}),
        json!({"sha": "main", "gated": "manual", "siblings": [{"rfilename": "a/b.json"}]}),
    ])
}

pub fn templates() -> Vec<Example> {
    let config: Value = serde_json::from_slice(&bytes("assets/demo/tokenizer_config.json")).expect("JSON");
    let own = config["chat_template"].as_str().unwrap_or("{{ messages }}").as_bytes().to_vec();
    examples(Shape::Lines, [bytes("tests/golden/tokenizer/chat_template.jinja"), own])
}
