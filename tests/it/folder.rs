//! Model folders made by hand for tests: a tiny configuration, and a safetensors writer that shares
//! nothing with the reader under test.

use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// A tensor to be written: name, shape, and its bf16 words.
#[derive(Clone)]
pub struct Block {
    pub name: String,
    pub shape: Vec<usize>,
    pub words: Vec<u16>,
}

/// The configuration of the tiny model: 2 layers, 2 query heads on 1 KV head of 4 channels.
pub fn config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 6,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "intermediate_size": 5, "vocab_size": 11,
        "rms_norm_eps": 1e-5, "max_position_embeddings": 64, "rope_theta": 1e4, "tie_word_embeddings": true,
        "hidden_act": "silu", "eos_token_id": [3, 4]
    })
}

/// Tensors that [`config`] asks for, with numbers that differ from tensor to tensor.
pub fn blocks() -> Vec<Block> {
    let mut shapes = vec![("model.embed_tokens".to_owned(), vec![11, 6]), ("model.norm".to_owned(), vec![6])];
    for layer in 0..2 {
        for (name, shape) in [
            ("input_layernorm", vec![6]),
            ("self_attn.q_proj", vec![8, 6]),
            ("self_attn.k_proj", vec![4, 6]),
            ("self_attn.v_proj", vec![4, 6]),
            ("self_attn.o_proj", vec![6, 8]),
            ("post_attention_layernorm", vec![6]),
            ("mlp.gate_proj", vec![5, 6]),
            ("mlp.up_proj", vec![5, 6]),
            ("mlp.down_proj", vec![6, 5]),
        ] {
            shapes.push((format!("model.layers.{layer}.{name}"), shape));
        }
    }
    let block = |(i, (name, shape)): (usize, (String, Vec<usize>))| {
        let n: usize = shape.iter().product();
        let words = (0..n).map(|j| 0x3c00 + (i * 37 + j * 5) as u16 % 0x200).collect();
        Block { name: format!("{name}.weight"), shape, words }
    };
    shapes.into_iter().enumerate().map(block).collect()
}

/// Header object and data bytes of a file with these tensors.
pub fn layout(blocks: &[Block]) -> (Value, Vec<u8>) {
    let (mut header, mut data) = (json!({}), Vec::new());
    for b in blocks {
        let start = data.len();
        data.extend(b.words.iter().flat_map(|w| w.to_le_bytes()));
        header[&b.name] = json!({"dtype": "BF16", "shape": b.shape, "data_offsets": [start, data.len()]});
    }
    (header, data)
}

/// The file: length, header padded to 8 bytes, data.
pub fn assemble(header: &Value, data: &[u8]) -> Vec<u8> {
    let mut text = header.to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut out = (text.len() as u64).to_le_bytes().to_vec();
    out.extend(text);
    out.extend(data);
    out
}

/// A folder that is deleted with the test.
pub struct Folder {
    pub dir: tempfile::TempDir,
}

impl Folder {
    /// The tiny model, whole and healthy, without a tokenizer.
    pub fn healthy() -> Self {
        let folder = Self { dir: tempfile::tempdir().expect("a temporary folder") };
        let (header, data) = layout(&blocks());
        folder.json("config.json", &config());
        folder.write("model.safetensors", &assemble(&header, &data));
        folder
    }

    /// The healthy model with some keys of config.json set, or removed by null.
    pub fn with_config(changes: Value) -> Self {
        let folder = Self::healthy();
        folder.json("config.json", &merged(config(), changes));
        folder
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    pub fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.file(name), bytes).expect("written");
    }

    pub fn json(&self, name: &str, value: &Value) {
        self.write(name, value.to_string().as_bytes());
    }

    pub fn remove(&self, name: &str) {
        std::fs::remove_file(self.file(name)).expect("removed");
    }
}

/// `base` with the keys of `changes`; a null removes the key.
pub fn merged(mut base: Value, changes: Value) -> Value {
    let object = base.as_object_mut().expect("an object");
    for (key, value) in changes.as_object().expect("an object") {
        if value.is_null() {
            object.remove(key);
        } else {
            object.insert(key.clone(), value.clone());
        }
    }
    base
}
