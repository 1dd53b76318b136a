//! A writer of GGUF files that shares nothing with the reader under test.

use std::collections::BTreeMap;

/// A metadata value.
#[derive(Clone, Debug)]
pub enum Meta {
    U32(u32),
    #[allow(dead_code, reason = "the fuzz targets write none")]
    I32(i32),
    F32(f32),
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
}

/// A tensor: dimensions, fastest first; ggml's number of its element type; its bytes.
#[derive(Clone, Debug)]
pub struct Data {
    pub dims: Vec<u64>,
    pub kind: u32,
    pub bytes: Vec<u8>,
}

pub const F32: u32 = 0;
pub const Q8_0: u32 = 8;
pub const BF16: u32 = 30;

/// A file to be written.
#[derive(Clone, Debug, Default)]
pub struct GgufFile {
    pub meta: BTreeMap<String, Meta>,
    pub tensors: BTreeMap<String, Data>,
}

impl Meta {
    pub fn text(text: &str) -> Self {
        Self::Text(text.to_owned())
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let mut put = |kind: u32, bytes: &[u8]| {
            out.extend(kind.to_le_bytes());
            out.extend(bytes);
        };
        match self {
            Self::U32(n) => put(4, &n.to_le_bytes()),
            Self::I32(n) => put(5, &n.to_le_bytes()),
            Self::F32(x) => put(6, &x.to_le_bytes()),
            Self::Bool(b) => put(7, &[u8::from(*b)]),
            Self::Text(text) => put(8, &string(text)),
            Self::Texts(all) => put(9, &[array(8, all.len()), all.iter().flat_map(|t| string(t)).collect()].concat()),
            Self::F32s(all) => {
                put(9, &[array(6, all.len()), all.iter().flat_map(|x| x.to_le_bytes()).collect()].concat())
            }
            Self::I32s(all) => {
                put(9, &[array(5, all.len()), all.iter().flat_map(|n| n.to_le_bytes()).collect()].concat())
            }
        }
    }
}

fn array(kind: u32, len: usize) -> Vec<u8> {
    [kind.to_le_bytes().to_vec(), (len as u64).to_le_bytes().to_vec()].concat()
}

fn string(text: &str) -> Vec<u8> {
    [(text.len() as u64).to_le_bytes().to_vec(), text.as_bytes().to_vec()].concat()
}

impl GgufFile {
    pub fn set(&mut self, key: &str, value: Meta) -> &mut Self {
        self.meta.insert(key.to_owned(), value);
        self
    }

    /// A matrix or a vector of these f32 values, as F32, BF16 (exact values only) or Q8_0.
    pub fn tensor(&mut self, name: &str, dims: &[usize], kind: u32, values: &[f32]) -> &mut Self {
        let bytes = match kind {
            F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            BF16 => values.iter().flat_map(|v| ((v.to_bits() >> 16) as u16).to_le_bytes()).collect(),
            _ => values.chunks(32).flat_map(q8_0).collect(),
        };
        let dims = dims.iter().map(|&d| d as u64).collect();
        self.tensors.insert(name.to_owned(), Data { dims, kind, bytes });
        self
    }

    /// The beginning of the file up to its data, and the data.
    pub fn parts(&self) -> (Vec<u8>, Vec<u8>) {
        let mut head = [b"GGUF".to_vec(), 3u32.to_le_bytes().to_vec()].concat();
        head.extend((self.tensors.len() as u64).to_le_bytes());
        head.extend((self.meta.len() as u64).to_le_bytes());
        for (key, value) in &self.meta {
            head.extend(string(key));
            value.encode(&mut head);
        }
        let mut data = Vec::new();
        for (name, tensor) in &self.tensors {
            head.extend(string(name));
            head.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().for_each(|d| head.extend(d.to_le_bytes()));
            head.extend(tensor.kind.to_le_bytes());
            head.extend((data.len() as u64).to_le_bytes());
            data.extend(&tensor.bytes);
            data.resize(data.len().next_multiple_of(32), 0);
        }
        head.resize(head.len().next_multiple_of(32), 0);
        (head, data)
    }

    pub fn bytes(&self) -> Vec<u8> {
        let (head, data) = self.parts();
        [head, data].concat()
    }

    /// A one-layer llama with a vocabulary of bytes: 64 wide, 2 query heads on 1 KV head of 32
    /// channels. Matrices are Q8_0.
    pub fn tiny() -> Self {
        let mut file = Self::default();
        for (key, n) in [
            ("block_count", 1),
            ("embedding_length", 64),
            ("feed_forward_length", 96),
            ("context_length", 256),
            ("attention.head_count", 2),
            ("attention.head_count_kv", 1),
            ("rope.dimension_count", 32),
        ] {
            file.set(&format!("llama.{key}"), Meta::U32(n));
        }
        file.set("general.architecture", Meta::text("llama"));
        file.set("llama.attention.layer_norm_rms_epsilon", Meta::F32(1e-5));
        file.set("llama.rope.freq_base", Meta::F32(1e4));
        file.vocabulary();
        let mut matrix = |name: &str, rows: usize, cols: usize| {
            let values: Vec<f32> = (0..rows * cols).map(|i| ((i * 37 + rows) % 255) as f32 / 2048.0 - 0.0625).collect();
            file.tensor(name, &[cols, rows], Q8_0, &values);
        };
        matrix("token_embd.weight", 264, 64);
        for (name, rows, cols) in [
            ("attn_q", 64, 64),
            ("attn_k", 32, 64),
            ("attn_v", 32, 64),
            ("attn_output", 64, 64),
            ("ffn_gate", 96, 64),
            ("ffn_up", 96, 64),
            ("ffn_down", 64, 96),
        ] {
            matrix(&format!("blk.0.{name}.weight"), rows, cols);
        }
        for name in ["blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"] {
            file.tensor(&format!("{name}.weight"), &[64], F32, &[1.0; 64]);
        }
        file
    }

    /// 256 byte tokens in the order of GPT-2's byte characters, a merge, and ChatML's control
    /// tokens.
    fn vocabulary(&mut self) {
        let printable = |b: u32| matches!(b, 33..=126 | 161..=172 | 174..=255);
        let mut tokens: Vec<String> =
            (0..256).filter(|b| printable(*b)).filter_map(char::from_u32).map(String::from).collect();
        let rest = (0..256 - tokens.len() as u32).filter_map(|i| char::from_u32(256 + i)).map(String::from);
        tokens.extend(rest.collect::<Vec<_>>());
        tokens.push("he".to_owned());
        tokens.extend(["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"].map(str::to_owned));
        tokens.extend(["[PAD262]", "[PAD263]"].map(str::to_owned));
        let types = (0..264).map(|id| match id {
            257..=259 => 3,
            260 | 261 => 4,
            262.. => 5,
            _ => 1,
        });
        self.set("tokenizer.ggml.token_type", Meta::I32s(types.collect()));
        self.set("tokenizer.ggml.scores", Meta::F32s(vec![0.0; 264]));
        self.set("tokenizer.ggml.tokens", Meta::Texts(tokens));
        self.set("tokenizer.ggml.merges", Meta::Texts(vec!["h e".to_owned()]));
        self.set("tokenizer.ggml.model", Meta::text("gpt2"));
        self.set("tokenizer.ggml.pre", Meta::text("qwen2"));
        self.set("tokenizer.ggml.bos_token_id", Meta::U32(257));
        self.set("tokenizer.ggml.eos_token_id", Meta::U32(259));
        self.set("tokenizer.ggml.add_bos_token", Meta::Bool(false));
        let template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
            {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
        self.set("tokenizer.chat_template", Meta::text(template));
    }
}

/// A block of 32 values: an f16 scale and signed bytes.
fn q8_0(values: &[f32]) -> Vec<u8> {
    let most = values.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    let scale = half::f16::from_f32(most / 127.0);
    let codes = values.iter().map(|v| (v / scale.to_f32().max(f32::MIN_POSITIVE)).round() as i8 as u8);
    scale.to_le_bytes().into_iter().chain(codes).collect()
}
