//! Tiny random checkpoints that the tests write themselves: both families, every form of DMS, and
//! the same weights as f64 for the reference.

use crate::folder::{Block, Folder, assemble, layout};
use dmschat::checkpoint::{AdapterChoice, Checkpoint, ModelRef};
use dmschat::random::{GOLDEN, mix64};
use serde_json::{Value, json};
use std::collections::HashMap;

/// Heads of a gated delta net, their channels, and the tokens of its convolution.
const KEY_HEADS: usize = 2;
const VALUE_HEADS: usize = 4;
const KEY_DIM: usize = 8;
const VALUE_DIM: usize = 12;
const KERNEL: usize = 4;

/// splitmix64: small, and the same everywhere.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix64(self.0)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }

    /// Uniform in -1..1.
    pub fn signed(&mut self) -> f64 {
        self.next() as f64 / (1u64 << 63) as f64 - 1.0
    }
}

/// Where a checkpoint says that it evicts, and by which rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Plain,
    /// `dms_*` keys of config.json; the channel is borrowed from a query head.
    Borrowed,
    /// `dms_*` keys with tensors of their own in the checkpoint.
    Adapter,
    /// `dms_metadata.json`: borrowed, and a decision marks its own token.
    Metadata,
    /// `dmc_*` keys: decisions and weights are borrowed from two query heads, and a slot has at
    /// most `window` tokens.
    Dmc,
    /// The same tensors in a file of their own, whose metadata says whose token is marked.
    Sidecar {
        shift: usize,
    },
    /// A predictor in a file of its own: a linear map or none, and an MLP of some units or none.
    Predictor {
        linear: bool,
        units: usize,
    },
}

#[derive(Clone, Debug)]
pub struct Spec {
    pub qwen: bool,
    /// Whether every other layer is a gated delta net. The reference has none: tests compare such a
    /// model with itself.
    pub hybrid: bool,
    /// Number of newest tokens that two of three layers see, in the form of Gemma 3; 0: all layers
    /// see all. The reference has no such layers: tests compare such a model with itself.
    pub local: usize,
    /// Whether it has a layer for multi-token prediction.
    pub mtp: bool,
    pub tied: bool,
    pub bias: bool,
    pub n_layers: usize,
    pub hidden: usize,
    pub n_q_heads: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
    pub ffn: usize,
    pub vocab: usize,
    pub context: usize,
    pub theta: f64,
    pub eps: f64,
    pub form: Form,
    pub window: usize,
    pub scale: f64,
    pub offset: f64,
    pub per_layer: bool,
    /// Its most probable tokens are the letters a to h and spaces, and never anything else.
    pub speaks: bool,
    /// And the end of a turn.
    pub ends: bool,
}

impl Spec {
    /// 2 layers, 4 query heads on 2 KV heads, of the size at which a test takes no time.
    pub fn new(qwen: bool, form: Form) -> Self {
        let (scale, offset) = match form {
            Form::Adapter | Form::Sidecar { .. } => (10.0, 4.0),
            // A token is marked if its score is below 0.25.
            Form::Predictor { .. } => (-1.0, -0.25),
            _ => (100.0, 5.0),
        };
        Self {
            qwen,
            hybrid: false,
            local: 0,
            mtp: false,
            tied: !qwen,
            bias: false,
            n_layers: 2,
            hidden: 48,
            n_q_heads: 4,
            n_kv_heads: 2,
            head_dim: 32,
            ffn: 64,
            vocab: 264,
            context: 512,
            theta: 1e4,
            eps: 1e-5,
            form,
            window: 11,
            scale,
            offset,
            per_layer: false,
            speaks: false,
            ends: false,
        }
    }

    pub fn borrowed(&self) -> bool {
        matches!(self.form, Form::Borrowed | Form::Metadata)
    }

    pub fn adapter(&self) -> bool {
        matches!(self.form, Form::Adapter | Form::Sidecar { .. })
    }

    pub fn shift(&self) -> usize {
        match self.form {
            Form::Metadata | Form::Predictor { .. } => 0,
            Form::Sidecar { shift } => shift,
            _ => 1,
        }
    }

    /// First tokens that are never marked.
    pub fn sinks(&self) -> usize {
        if let Form::Predictor { .. } = self.form { 4 } else { 0 }
    }

    fn config(&self) -> Value {
        let mut c = json!({
            "architectures": [if self.qwen { "Qwen3ForCausalLM" } else { "LlamaForCausalLM" }],
            "model_type": self.family(), "num_hidden_layers": self.n_layers, "hidden_size": self.hidden,
            "num_attention_heads": self.n_q_heads, "num_key_value_heads": self.n_kv_heads, "head_dim": self.head_dim,
            "intermediate_size": self.ffn, "vocab_size": self.vocab, "rms_norm_eps": self.eps,
            "max_position_embeddings": self.context, "rope_theta": self.theta, "tie_word_embeddings": self.tied,
            "hidden_act": "silu", "attention_bias": self.bias, "eos_token_id": END,
        });
        if matches!(self.form, Form::Borrowed | Form::Adapter) {
            c["dms_window_size"] = json!(self.window);
            c["dms_alpha_scale"] = json!(self.scale);
            c["dms_initial_alpha_offset"] = json!(self.offset);
            c["dms_alpha_per"] = json!(if self.per_layer { "layer" } else { "head" });
        }
        if self.form == Form::Dmc {
            c["dmc_alpha_scale"] = json!(self.scale);
            c["dmc_alpha_offset"] = json!(self.offset);
            c["dmc_weight_offset"] = json!(0.5);
            c["dmc_max_members"] = json!(self.window);
        }
        if self.form == Form::Adapter {
            c["dms_separate_alpha"] = json!(true);
        }
        if self.local > 0 {
            let kind = |l| if self.is_local(l) { "sliding_attention" } else { "full_attention" };
            c["architectures"] = json!(["Gemma3ForCausalLM"]);
            c["layer_types"] = (0..self.n_layers).map(kind).collect();
            c["sliding_window"] = json!(self.local);
            c["rope_local_base_freq"] = json!(1e3);
            c["query_pre_attn_scalar"] = json!(self.head_dim);
            c["hidden_activation"] = json!("gelu_pytorch_tanh");
        }
        if self.hybrid {
            let kind = |l| if self.has_attention(l) { "full_attention" } else { "linear_attention" };
            c["architectures"] = json!(["Qwen3_5ForCausalLM"]);
            c["layer_types"] = (0..self.n_layers).map(kind).collect();
            c["partial_rotary_factor"] = json!(0.25);
            for (key, n) in [("num_key_heads", KEY_HEADS), ("num_value_heads", VALUE_HEADS), ("key_head_dim", KEY_DIM)]
            {
                c[format!("linear_{key}")] = json!(n);
            }
            c["linear_value_head_dim"] = json!(VALUE_DIM);
            c["linear_conv_kernel_dim"] = json!(KERNEL);
        }
        c
    }

    fn family(&self) -> &'static str {
        match self.qwen {
            _ if self.hybrid => "qwen3_5_text",
            _ if self.local > 0 => "gemma3_text",
            true => "qwen3",
            false => "llama",
        }
    }

    /// Whether a layer sees [`Spec::local`] tokens alone.
    pub fn is_local(&self, layer: usize) -> bool {
        self.local > 0 && layer % 3 != 1
    }

    pub fn has_attention(&self, layer: usize) -> bool {
        !self.hybrid || layer % 2 == 1
    }

    fn delta_net(hidden: usize, mut push: impl FnMut(&str, &[usize])) {
        let (width, channels) = (VALUE_HEADS * VALUE_DIM, 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM);
        push("linear_attn.in_proj_qkv.weight", &[channels, hidden]);
        push("linear_attn.in_proj_z.weight", &[width, hidden]);
        push("linear_attn.in_proj_b.weight", &[VALUE_HEADS, hidden]);
        push("linear_attn.in_proj_a.weight", &[VALUE_HEADS, hidden]);
        push("linear_attn.conv1d.weight", &[channels, 1, KERNEL]);
        push("linear_attn.A_log", &[VALUE_HEADS]);
        push("linear_attn.dt_bias", &[VALUE_HEADS]);
        push("linear_attn.norm.weight", &[VALUE_DIM]);
        push("linear_attn.out_proj.weight", &[hidden, width]);
    }

    /// Its tensors as files have them.
    pub fn shapes(&self) -> Vec<(String, Vec<usize>)> {
        let (q, kv) = (self.n_q_heads * self.head_dim, self.n_kv_heads * self.head_dim);
        let mut out = vec![("model.embed_tokens.weight".into(), vec![self.vocab, self.hidden])];
        let layers = (0..self.n_layers).map(|l| (l, format!("model.layers.{l}")));
        // That layer has attention, as the model's second one.
        for (l, layer) in layers.chain(self.mtp.then(|| (1, "mtp.layers.0".to_owned()))) {
            let mut push = |name: &str, shape: &[usize]| out.push((format!("{layer}.{name}"), shape.to_vec()));
            push("input_layernorm.weight", &[self.hidden]);
            push("post_attention_layernorm.weight", &[self.hidden]);
            if self.local > 0 {
                push("pre_feedforward_layernorm.weight", &[self.hidden]);
                push("post_feedforward_layernorm.weight", &[self.hidden]);
            }
            let q_rows = if self.hybrid { 2 * q } else { q };
            let parts =
                [("q", q_rows, self.hidden), ("k", kv, self.hidden), ("v", kv, self.hidden), ("o", self.hidden, q)];
            for (name, rows, cols) in parts.into_iter().filter(|_| self.has_attention(l)) {
                push(&format!("self_attn.{name}_proj.weight"), &[rows, cols]);
                if self.bias {
                    push(&format!("self_attn.{name}_proj.bias"), &[rows]);
                }
            }
            if self.qwen && self.has_attention(l) {
                push("self_attn.q_norm.weight", &[self.head_dim]);
                push("self_attn.k_norm.weight", &[self.head_dim]);
            }
            push("mlp.gate_proj.weight", &[self.ffn, self.hidden]);
            push("mlp.up_proj.weight", &[self.ffn, self.hidden]);
            push("mlp.down_proj.weight", &[self.hidden, self.ffn]);
            if !self.has_attention(l) {
                Self::delta_net(self.hidden, push);
            } else if self.adapter() {
                push("self_attn.dms_proj_alpha.weight", &[self.n_kv_heads, self.hidden]);
                push("self_attn.dms_proj_alpha_norm.weight", &[self.hidden]);
                if self.bias {
                    push("self_attn.dms_proj_alpha.bias", &[self.n_kv_heads]);
                }
            }
        }
        if let Form::Predictor { linear, units } = self.form {
            for l in 0..(0..self.n_layers).filter(|&l| self.has_attention(l)).count() {
                let mut push = |name: &str, out_of: usize, from: usize| {
                    out.push((format!("layers.{l}.{name}weight"), vec![out_of, from]));
                    out.push((format!("layers.{l}.{name}bias"), vec![out_of]));
                };
                if linear {
                    push("", self.n_kv_heads, self.hidden);
                }
                if units > 0 {
                    push("0.", units, self.hidden);
                    push("2.", self.n_kv_heads, units);
                }
            }
        }
        out.push(("model.norm.weight".into(), vec![self.hidden]));
        if self.mtp {
            out.push(("mtp.fc.weight".into(), vec![self.hidden, 2 * self.hidden]));
            let norms = ["norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"];
            out.extend(norms.map(|norm| (format!("mtp.{norm}.weight"), vec![self.hidden])));
        }
        if !self.tied {
            out.push(("lm_head.weight".into(), vec![self.vocab, self.hidden]));
        }
        out
    }
}

/// A checkpoint on disk, and its weights.
pub struct Tiny {
    pub spec: Spec,
    pub folder: Folder,
    /// By name, row-major, exactly the values in the file.
    pub weights: HashMap<String, Vec<f64>>,
}

impl Tiny {
    pub fn new(spec: Spec, seed: u64) -> Self {
        Self::edited(spec, seed, |_| {})
    }

    /// Like [`Tiny::new`], with tensors changed before they are written.
    pub fn edited(spec: Spec, seed: u64, edit: impl Fn(&mut Block)) -> Self {
        let mut rng = Rng(seed);
        let mut blocks = Vec::new();
        for (name, shape) in spec.shapes() {
            let len = shape.iter().product();
            let words = (0..len).map(|_| bf16_word(weight(&mut rng, &name, &shape))).collect();
            let mut block = Block { name, shape, words };
            if spec.speaks && block.name == "lm_head.weight" {
                for (id, row) in block.words.chunks_mut(spec.hidden).enumerate() {
                    let said = matches!(id, 0x20 | 0x61..=0x68) || (spec.ends && id == END);
                    if !said {
                        row.fill(0);
                    }
                }
            }
            edit(&mut block);
            blocks.push(block);
        }
        Self::of_blocks(spec, blocks)
    }

    fn of_blocks(spec: Spec, blocks: Vec<Block>) -> Self {
        let folder = Folder { dir: tempfile::tempdir().expect("a temporary folder") };
        let value = |&word: &u16| f32::from_bits((word as u32) << 16) as f64;
        let weights = blocks.iter().map(|b| (b.name.clone(), b.words.iter().map(value).collect())).collect();
        let predictor = matches!(spec.form, Form::Predictor { .. });
        let sidecar = predictor || matches!(spec.form, Form::Sidecar { .. });
        let is_apart = |b: &Block| sidecar && (b.name.contains("dms_proj") || b.name.starts_with("layers."));
        let (apart, inside): (Vec<Block>, Vec<Block>) = blocks.into_iter().partition(is_apart);
        let (header, data) = layout(&inside);
        folder.write("model.safetensors", &assemble(&header, &data));
        folder.json("config.json", &spec.config());
        if sidecar {
            let (mut header, data) = layout(&apart);
            header["__metadata__"] = json!({
                "format": "dmschat-adapter-1", "base": folder.path().file_name().unwrap().to_str(), "model_type": spec.family(),
                "num_hidden_layers": spec.n_layers.to_string(), "hidden_size": spec.hidden.to_string(),
                "num_key_value_heads": spec.n_kv_heads.to_string(), "vocab_size": spec.vocab.to_string(),
                "window": spec.window.to_string(), "shift": spec.shift().to_string(),
                "alpha_scale": spec.scale.to_string(), "alpha_offset": spec.offset.to_string(),
                "alpha_per": if spec.per_layer { "layer" } else { "head" }, "license": "Apache-2.0",
            });
            if predictor {
                header["__metadata__"]["format"] = json!("dmschat-adapter-2");
                header["__metadata__"]["threshold"] = json!((-spec.offset).to_string());
                header["__metadata__"]["sinks"] = json!(spec.sinks().to_string());
                header["__metadata__"]["card"] = json!("{}");
            }
            folder.write("adapter.safetensors", &assemble(&header, &data));
        }
        if spec.form == Form::Metadata {
            let metadata = json!({"window_size": spec.window, "alpha_scale": spec.scale, "alpha_offset": spec.offset});
            folder.json("dms_metadata.json", &metadata);
        }
        folder.write("tokenizer.json", tokenizer_json(spec.vocab).as_bytes());
        Self { spec, folder, weights }
    }

    pub fn checkpoint(&self) -> Checkpoint {
        self.opener()().unwrap_or_else(|e| panic!("{e:#}"))
    }

    /// Opens the checkpoint, on any thread.
    pub fn opener(&self) -> impl FnOnce() -> anyhow::Result<Checkpoint> + Send + use<> {
        let adapter = match self.spec.form {
            Form::Sidecar { .. } | Form::Predictor { .. } => {
                AdapterChoice::File(self.folder.file("adapter.safetensors"))
            }
            _ => AdapterChoice::Auto,
        };
        let folder = ModelRef::Folder(self.folder.path().to_owned());
        move || Checkpoint::open(&folder, &adapter)
    }
}

/// Norms about 1, biases small, matrices of variance 1 / inputs; embeddings of variance 1.
fn weight(rng: &mut Rng, name: &str, shape: &[usize]) -> f64 {
    let x = rng.signed();
    match name {
        _ if name.ends_with(".bias") => 0.3 * x,
        // States that remember for some ten tokens.
        _ if name.ends_with("A_log") => 0.5 * x - 1.0,
        _ if name.ends_with("dt_bias") => x - 1.0,
        _ if shape.len() == 1 => 1.0 + 0.4 * x,
        "model.embed_tokens.weight" => 1.7 * x,
        "lm_head.weight" => 5.0 * x / (shape[1] as f64).sqrt(),
        _ => 1.7 * x / (shape[1] as f64).sqrt(),
    }
}

/// The bf16 below: the file is what both sides read, so no rounding is needed.
pub fn bf16_word(x: f64) -> u16 {
    ((x as f32).to_bits() >> 16) as u16
}

/// A byte-level tokenizer: ids below 256 are bytes, then four pairs of letters that it joins, then
/// four control tokens. The models that speak say letters one by one, so that to encode what they
/// said would give other tokens.
pub fn tokenizer_json(vocab: usize) -> String {
    assert!(vocab >= 264);
    let mut next = 0x100;
    let mut bytes = serde_json::Map::new();
    for byte in 0..=255u8 {
        let plain = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        let code = if plain { byte as u32 } else { next };
        next += u32::from(!plain);
        bytes.insert(char::from_u32(code).expect("a character").to_string(), json!(byte));
    }
    let pairs = [("h", "h"), ("e", "f"), ("f", "e"), ("a", "g")];
    for (i, (a, b)) in pairs.iter().enumerate() {
        bytes.insert(format!("{a}{b}"), json!(256 + i));
    }
    let added = |(i, content): (usize, &&str)| {
        json!({"id": FIRST_CONTROL + i, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    };
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": CONTROL.iter().enumerate().map(added).collect::<Vec<_>>(),
        "pre_tokenizer": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": bytes, "merges": pairs}
    })
    .to_string()
}

/// The id that ends a turn.
pub const END: usize = FIRST_CONTROL + 1;

pub const FIRST_CONTROL: usize = 260;

/// Added tokens, in the order of their ids.
pub const CONTROL: [&str; 4] = ["<|im_start|>", "<|im_end|>", "<think>", "</think>"];
