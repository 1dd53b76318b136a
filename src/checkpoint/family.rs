//! Differences between model families with the same layers, beyond the values of their
//! configuration: one entry per family.

use serde_json::{Value, json};

/// A value of `model_type`, and of `general.architecture` in a GGUF file.
#[derive(Debug, PartialEq)]
pub struct Family {
    pub name: &'static str,
    /// Whether q and k are RMS-normalized per head before RoPE.
    pub qk_norm: bool,
    /// Whether q, k and v have biases whatever `attention_bias` says, and o has none.
    pub qkv_bias: bool,
    /// Whether there may be `mlp_bias`.
    pub mlp_bias: bool,
    pub window: WindowIn,
    /// Whether its model cards document YaRN beyond the context that was trained on.
    pub yarn: bool,
    /// Whether q, k and v are one tensor, and gate and up.
    pub fused: bool,
    /// Whether `partial_rotary_factor` may leave channels unrotated.
    pub partial_rope: bool,
    /// Whether there are layers without RoPE: `no_rope_layers`, or every fourth.
    pub no_rope: bool,
    /// Whether embeddings, residuals, scores and logits may have factors.
    pub scaled: bool,
    /// Whether most layers are gated delta nets, attention's output is gated, and norms store their
    /// weights minus 1.
    pub hybrid: bool,
    /// Whether layers have experts.
    pub experts: bool,
    /// Whether every token also passes a shared expert.
    pub shared_expert: bool,
    /// Whether it is Gemma 3: norms store their weights minus 1 and also follow blocks, most layers
    /// are local, gates are GELU, embeddings are multiplied by the root of their size, and the
    /// factor of the scores is stated.
    pub gemma: bool,
    /// Whether it is Gemma 4, whose configuration is described in [`gemma4`](super::gemma4).
    pub gemma4: bool,
    /// Whether it is gpt-oss: attention has sinks, every other layer is local, experts have biases
    /// and clamped activations, and folders store them as [`oss`](super::oss) describes.
    pub oss: bool,
    /// Whether queries grow with their positions: `llama_4_scaling_beta` among the parameters of
    /// RoPE.
    pub growth: bool,
    /// Whether rows of q and k are interleaved in GGUF files. llama.cpp rotates neighbouring
    /// channels of such models, and channels half a head apart, as Hugging Face does, of later
    /// architectures; its converter permutes the rows to match.
    pub interleaved: bool,
}

/// Layers in which a stated `sliding_window` is in use, as in transformers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WindowIn {
    NoLayer,
    /// Layers that `layer_types` lists, which must be all or none here; else the class's rules if
    /// `use_sliding_window` is set.
    ListedLayers,
    /// All if `use_sliding_window`.
    AllIfUsed,
    AllLayers,
}

/// Value of most families: none of it.
const PLAIN: Family = Family {
    name: "",
    qk_norm: false,
    qkv_bias: false,
    mlp_bias: false,
    window: WindowIn::NoLayer,
    yarn: false,
    fused: false,
    partial_rope: false,
    no_rope: false,
    scaled: false,
    hybrid: false,
    experts: false,
    shared_expert: false,
    gemma: false,
    gemma4: false,
    oss: false,
    growth: false,
    interleaved: false,
};

/// Mistral is `llama` in GGUF files, or `mistral3`.
const FAMILIES: [Family; 15] = [
    Family { name: "qwen3", qk_norm: true, window: WindowIn::ListedLayers, yarn: true, ..PLAIN },
    Family { name: "llama", mlp_bias: true, interleaved: true, ..PLAIN },
    Family { name: "qwen2", qkv_bias: true, window: WindowIn::ListedLayers, yarn: true, ..PLAIN },
    Family { name: "mistral", window: WindowIn::AllLayers, interleaved: true, ..PLAIN },
    Family { name: "ministral3", window: WindowIn::AllLayers, growth: true, interleaved: true, ..PLAIN },
    Family { name: "phi3", window: WindowIn::AllLayers, fused: true, partial_rope: true, ..PLAIN },
    Family {
        name: "smollm3",
        mlp_bias: true,
        window: WindowIn::ListedLayers,
        no_rope: true,
        interleaved: true,
        ..PLAIN
    },
    Family { name: "qwen3_5_text", qk_norm: true, hybrid: true, partial_rope: true, yarn: true, ..PLAIN },
    Family { name: "qwen3_moe", qk_norm: true, window: WindowIn::AllIfUsed, yarn: true, experts: true, ..PLAIN },
    Family {
        name: "qwen3_5_moe_text",
        qk_norm: true,
        hybrid: true,
        experts: true,
        shared_expert: true,
        partial_rope: true,
        yarn: true,
        ..PLAIN
    },
    Family { name: "gemma3_text", qk_norm: true, gemma: true, ..PLAIN },
    Family { name: "gemma4_text", qk_norm: true, gemma4: true, ..PLAIN },
    Family { name: "gemma4_unified_text", qk_norm: true, gemma4: true, ..PLAIN },
    Family { name: "gpt_oss", experts: true, oss: true, ..PLAIN },
    Family { name: "granite", mlp_bias: true, scaled: true, interleaved: true, ..PLAIN },
];

/// Families with another name in GGUF files, and that.
const GGUF_NAMES: [[&str; 2]; 8] = [
    ["qwen3_5_text", "qwen35"],
    ["qwen3_5_moe_text", "qwen35moe"],
    ["qwen3_moe", "qwen3moe"],
    ["gemma3_text", "gemma3"],
    ["gemma4_text", "gemma4"],
    ["gemma4_unified_text", "gemma4"],
    ["gpt_oss", "gpt-oss"],
    ["ministral3", "mistral3"],
];

impl Family {
    /// Defaults of transformers' classes (4.57 and 5.24) for keys that a `config.json` omits. Sizes
    /// that every file states are not among them, except for families that are part of a larger
    /// model, whose files omit those too.
    pub fn class_defaults(&self) -> Value {
        let own = match self.name {
            "llama" | "granite" => json!({"max_position_embeddings": 2048}),
            "mistral" => json!({"max_position_embeddings": 131_072, "num_key_value_heads": 8, "sliding_window": 4096}),
            "ministral3" => json!({
                "vocab_size": 131_072, "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 34,
                "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
                "max_position_embeddings": 262_144, "rms_norm_eps": 1e-5, "rope_parameters": {
                    "rope_type": "yarn", "rope_theta": 1_000_000.0, "factor": 16.0,
                    "original_max_position_embeddings": 16_384, "beta_fast": 32.0, "beta_slow": 1.0,
                    "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
                },
            }),
            "phi3" => json!({"max_position_embeddings": 4096, "rms_norm_eps": 1e-5}),
            "smollm3" => json!({
                "max_position_embeddings": 32_768, "num_key_value_heads": 4, "tie_word_embeddings": true,
            }),
            "qwen2" => json!({
                "max_position_embeddings": 32_768, "num_key_value_heads": 32, "sliding_window": 4096,
                "max_window_layers": 28,
            }),
            "qwen3" => json!({
                "max_position_embeddings": 32_768, "num_key_value_heads": 32, "sliding_window": 4096,
                "max_window_layers": 28, "head_dim": 128,
            }),
            "qwen3_moe" => json!({
                "max_position_embeddings": 32_768, "num_key_value_heads": 4, "sliding_window": 4096,
            }),
            "qwen3_5_text" => json!({
                "vocab_size": 248_320, "hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 32,
                "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256,
                "max_position_embeddings": 32_768, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
                "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
            }),
            "qwen3_5_moe_text" => json!({
                "vocab_size": 248_320, "hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 16,
                "num_key_value_heads": 2, "head_dim": 256, "max_position_embeddings": 32_768,
                "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
                "linear_num_key_heads": 16, "linear_num_value_heads": 32, "moe_intermediate_size": 512,
                "shared_expert_intermediate_size": 512, "num_experts_per_tok": 8, "num_experts": 256,
                "norm_topk_prob": true,
            }),
            "gpt_oss" => json!({
                "vocab_size": 201_088, "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 36,
                "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128,
                "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "attention_bias": true,
                "num_local_experts": 128, "num_experts_per_tok": 4, "norm_topk_prob": true,
            }),
            "gemma3_text" => json!({
                "vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
                "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
                "max_position_embeddings": 131_072, "rms_norm_eps": 1e-6, "tie_word_embeddings": true,
                "query_pre_attn_scalar": 256, "sliding_window": 4096,
            }),
            "gemma4_text" => json!({
                "vocab_size": 262_144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30,
                "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "global_head_dim": 512,
                "max_position_embeddings": 131_072, "rms_norm_eps": 1e-6, "tie_word_embeddings": true,
                "sliding_window": 512, "vocab_size_per_layer_input": 262_144, "hidden_size_per_layer_input": 256,
            }),
            "gemma4_unified_text" => json!({
                "vocab_size": 262_144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30,
                "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "global_head_dim": 512,
                "max_position_embeddings": 262_144, "rms_norm_eps": 1e-6, "tie_word_embeddings": true,
                "sliding_window": 1024,
            }),
            _ => json!({}),
        };
        let Value::Object(mut all) = own else { return own };
        for (key, value) in [("rms_norm_eps", json!(1e-6)), ("tie_word_embeddings", json!(false))] {
            all.entry(key).or_insert(value);
        }
        all.into()
    }

    /// `rope_theta` of configurations that state none, as in transformers.
    pub fn rope_theta(&self) -> f64 {
        match self {
            Self { no_rope: true, .. } => 2_000_000.0,
            Self { oss: true, .. } => 150_000.0,
            _ => 10_000.0,
        }
    }

    /// Whether some layers may be local.
    pub fn has_local(&self) -> bool {
        self.gemma || self.gemma4 || self.oss
    }

    pub fn named(name: &str) -> Option<&'static Self> {
        FAMILIES.iter().find(|family| family.name == name)
    }

    /// The family of a value of `general.architecture` in a GGUF file.
    pub fn of_gguf(architecture: &str) -> Option<&'static Self> {
        let ours = GGUF_NAMES.iter().find(|[_, theirs]| *theirs == architecture);
        Self::named(ours.map_or(architecture, |[ours, _]| ours))
    }

    /// Like [`Self::names`], for GGUF files.
    pub fn gguf_names() -> String {
        let theirs =
            |ours: &'static str| GGUF_NAMES.iter().find(|[name, _]| *name == ours).map_or(ours, |name| name[1]);
        let mut names: Vec<&str> = FAMILIES.iter().map(|family| theirs(family.name)).collect();
        names.dedup();
        names.join(", ")
    }

    /// The names of all families, for a message.
    pub fn names() -> String {
        FAMILIES.each_ref().map(|family| family.name).join(", ")
    }
}
