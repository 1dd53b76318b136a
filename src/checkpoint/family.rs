//! What model families with the same layers differ in, beyond the values of their configuration: one entry a family.

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
    /// Whether sizes of heads may be missing: `head_dim` then follows from the hidden size, and there are as many key-value
    /// heads as query heads. Elsewhere the defaults of transformers are arbitrary.
    pub plain_heads: bool,
    pub window: WindowIn,
    /// `rope_theta` of configurations that state none, as in transformers.
    pub rope_theta: f64,
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
    /// Whether most layers are gated delta nets, attention's output is gated, and norms store their weights less 1.
    pub hybrid: bool,
    /// Whether layers have experts.
    pub experts: bool,
    /// Whether it is Gemma 3: norms store their weights less 1 and stand behind blocks too, most layers are local, gates are GELU,
    /// embeddings are multiplied by the root of their size, and the factor of the scores is stated.
    pub gemma: bool,
    /// Whether rows of q and k are interleaved in GGUF files: llama.cpp rotates neighbouring channels there, and channels half
    /// a head apart, as Hugging Face does, in later architectures; its converter permutes the rows to match.
    pub interleaved: bool,
}

/// Layers in which a stated `sliding_window` is in use, as in transformers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WindowIn {
    NoLayer,
    /// Those that `layer_types` lists, which have to be all or none here.
    ListedLayers,
    AllLayers,
}

/// What most families have of it: nothing.
const PLAIN: Family = Family {
    name: "",
    qk_norm: false,
    qkv_bias: false,
    mlp_bias: false,
    plain_heads: false,
    window: WindowIn::NoLayer,
    rope_theta: 10_000.0,
    yarn: false,
    fused: false,
    partial_rope: false,
    no_rope: false,
    scaled: false,
    hybrid: false,
    experts: false,
    gemma: false,
    interleaved: false,
};

/// Mistral is `llama` in GGUF files.
const FAMILIES: [Family; 10] = [
    Family { name: "qwen3", qk_norm: true, window: WindowIn::ListedLayers, yarn: true, ..PLAIN },
    Family { name: "llama", mlp_bias: true, plain_heads: true, interleaved: true, ..PLAIN },
    Family { name: "qwen2", qkv_bias: true, plain_heads: true, window: WindowIn::ListedLayers, yarn: true, ..PLAIN },
    Family { name: "mistral", plain_heads: true, window: WindowIn::AllLayers, interleaved: true, ..PLAIN },
    Family { name: "phi3", plain_heads: true, window: WindowIn::AllLayers, fused: true, partial_rope: true, ..PLAIN },
    Family {
        name: "smollm3",
        mlp_bias: true,
        plain_heads: true,
        window: WindowIn::ListedLayers,
        rope_theta: 2_000_000.0,
        no_rope: true,
        interleaved: true,
        ..PLAIN
    },
    Family { name: "qwen3_5_text", qk_norm: true, hybrid: true, partial_rope: true, yarn: true, ..PLAIN },
    Family { name: "qwen3_moe", qk_norm: true, window: WindowIn::ListedLayers, yarn: true, experts: true, ..PLAIN },
    Family { name: "gemma3_text", qk_norm: true, gemma: true, ..PLAIN },
    Family { name: "granite", mlp_bias: true, plain_heads: true, scaled: true, interleaved: true, ..PLAIN },
];

/// Families with another name in GGUF files, and that.
const GGUF_NAMES: [[&str; 2]; 3] = [["qwen3_5_text", "qwen35"], ["qwen3_moe", "qwen3moe"], ["gemma3_text", "gemma3"]];

impl Family {
    pub fn named(name: &str) -> Option<&'static Self> {
        FAMILIES.iter().find(|family| family.name == name)
    }

    /// The family of a value of `general.architecture` in a GGUF file.
    pub fn of_gguf(architecture: &str) -> Option<&'static Self> {
        let ours = GGUF_NAMES.iter().find(|[_, theirs]| *theirs == architecture);
        Self::named(ours.map_or(architecture, |[ours, _]| ours))
    }

    /// As [`Self::names`], of GGUF files.
    pub fn gguf_names() -> String {
        GGUF_NAMES.iter().fold(Self::names(), |names, [ours, theirs]| names.replace(ours, theirs))
    }

    /// The names of all families, for a message.
    pub fn names() -> String {
        FAMILIES.each_ref().map(|family| family.name).join(", ")
    }
}
