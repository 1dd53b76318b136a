//! Keys of a GGUF file that change what a model computes. Each is read, has no effect here, or is
//! refused by its name, so that none is silently ignored.

use super::super::family::{Family, WindowIn};
use super::header::{Header, Value as Meta, shown};
use anyhow::{Result, bail};

/// Values for which a key has no effect, besides values that switch something off: 0, false and an
/// empty list.
type Neutral = &'static [f64];

/// Keys after `ARCH.` that [`super::config`] reads for every family.
const READ: [&str; 23] = [
    "rope.dimension_count",
    "rope.dimension_count_swa",
    "rope.freq_base",
    "rope.global.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.beta_fast",
    "rope.scaling.beta_slow",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.key_length_swa",
    "attention.value_length_swa",
    "attention.layer_norm_rms_epsilon",
    "expert_weights_norm",
    "norm_top_k_prob",
];

/// Keys after `ARCH.` of the base of RoPE in layers with a window; of two the last one counts.
pub const WINDOW_BASES: [&str; 2] = ["rope.local.freq_base", "rope.freq_base_swa"];

/// Keys after `ARCH.` without effect on a text chat, whatever their value. In text the sections of
/// a position are equal, and without local layers nothing reads a second base.
const HARMLESS: [&str; 8] = [
    "rope.dimension_sections",
    "rope.mrope_section",
    WINDOW_BASES[0],
    WINDOW_BASES[1],
    "rope.scaling.finetuned",
    "attention.layer_norm_epsilon",
    "attention.sliding_window_pattern",
    "attention.causal",
];

/// Keys after `ARCH.` that are supported only with these values.
const NEUTRAL: [(&str, Neutral); 25] = [
    ("attention.clamp_kqv", &[]),
    ("attention.max_alibi_bias", &[]),
    ("rope.scaling.yarn_log_multiplier", &[]),
    ("rope.scaling.alpha", &[1.0]),
    // With transformers' YaRN it is 1; a negative value means that it is not set.
    ("rope.scaling.yarn_ext_factor", &[1.0, -1.0]),
    ("rope.scaling.extrapolation_factor", &[1.0, -1.0]),
    ("attention.output_scale", &[1.0]),
    ("attention.value_scale", &[1.0]),
    ("attn_logit_softcapping", &[]),
    ("final_logit_softcapping", &[]),
    ("router_logit_softcapping", &[]),
    ("use_parallel_residual", &[]),
    ("swin_norm", &[]),
    ("rescale_every_n_layers", &[]),
    ("token_shift_count", &[]),
    ("swiglu_clamp_exp", &[]),
    ("swiglu_clamp_shexp", &[]),
    ("expert_shared_count", &[]),
    ("expert_shared_feed_forward_length", &[]),
    ("expert_weights_scale", &[1.0]),
    // Softmax.
    ("expert_gating_func", &[1.0]),
    ("expert_group_count", &[1.0]),
    ("expert_group_used_count", &[1.0]),
    ("moe_latent_size", &[]),
    ("embedding_length_per_layer_input", &[]),
];

/// Keys that families with [`Family::growth`] read. A length that differs from that of YaRN is
/// refused.
const GROWTH: [&str; 2] = ["attention.temperature_scale", "rope.scaling.yarn_log_multiplier"];

/// Keys that Gemma 4 reads.
const GEMMA4: [&str; 3] = ["attention.shared_kv_layers", "embedding_length_per_layer_input", "final_logit_softcapping"];

/// Factors that families with [`Family::scaled`] read.
const SCALES: [&str; 3] = ["logit_scale", "residual_scale", "embedding_scale"];

/// Keys after `tokenizer.ggml.` that [`super::tokenizer`] and [`super::config`] read.
const TOKENIZER: [&str; 15] = [
    "model",
    "pre",
    "tokens",
    "token_type",
    "scores",
    "merges",
    "add_bos_token",
    "add_space_prefix",
    "bos_token_id",
    "eos_token_id",
    "eot_token_id",
    "eom_token_id",
    "eos_token_ids",
    "eot_token_ids",
    "eom_token_ids",
];

/// Keys after `tokenizer.ggml.` without effect on a chat: a prompt has no token after its text, and
/// only tokenizers of other kinds remove white space.
const TOKENIZER_HARMLESS: [&str; 2] = ["token_type_count", "remove_extra_whitespaces"];

/// Layers of Gemma 3 1B, for which ollama once wrote a softcap that the model does not have.
const GEMMA_1B_LAYERS: usize = 26;

/// Fails for a key that is neither read nor without effect.
pub fn check(h: &Header, family: &Family, arch: &str, head_dim: usize) -> Result<()> {
    for (key, value) in &h.metadata {
        if let Some(name) = key.strip_prefix("tokenizer.ggml.") {
            // Tokens of images and sounds, of which a conversation has none.
            if !(family.gemma4 && name == "suppress_tokens") {
                tokenizer(key, name, value)?;
            }
        } else if let Some(name) = key.strip_prefix(arch).and_then(|rest| rest.strip_prefix('.')) {
            model(h, family, (arch, head_dim), (key, name), value)?;
        }
    }
    Ok(())
}

fn model(
    h: &Header,
    family: &Family,
    (arch, head_dim): (&str, usize),
    (key, name): (&str, &str),
    value: &Meta,
) -> Result<()> {
    let window = family.has_local() || family.window == WindowIn::AllLayers;
    let read = READ.contains(&name)
        || GROWTH.contains(&name) && family.growth
        || GEMMA4.contains(&name) && family.gemma4
        || name == "attention.sliding_window" && window
        || name.starts_with("expert_shared_") && family.shared_expert
        || name == "attention.scale" && (family.gemma || family.scaled)
        || family.scaled && SCALES.contains(&name);
    if name == "attention.causal" && number(value) == Some(0.0) {
        bail!("{key} is false, which is not supported: every token would see those behind it");
    }
    if read || HARMLESS.contains(&name) || number(value) == Some(0.0) {
        return Ok(());
    }
    let size = |name: &str| h.opt_size(&format!("{arch}.{name}")).ok().flatten();
    let neutral = NEUTRAL.iter().find(|(known, _)| *known == name).map(|(_, neutral)| *neutral);
    let is = |at: f64| number(value).is_some_and(|n| (n - at).abs() <= 1e-4 * at.abs());
    let (known, fine) = match name {
        "attention.sliding_window" => {
            (true, size("context_length").zip(size(name)).is_some_and(|(context, window)| window >= context))
        }
        "attention.temperature_length" => (true, size(name) == size("rope.scaling.original_context_length")),
        "attention.scale" => (true, is((head_dim as f64).powf(-0.5))),
        "hidden_activation" => {
            let usual = if family.gemma { ["gelu_pytorch_tanh", "gelu"] } else { ["silu", "swish"] };
            (true, matches!(value, Meta::Text(text) if usual.contains(&text.as_str())))
        }
        "embedding_scale" if family.gemma => (true, size("embedding_length").is_some_and(|n| is((n as f64).sqrt()))),
        "final_logit_softcapping" if family.gemma && size("block_count") == Some(GEMMA_1B_LAYERS) => (true, true),
        _ if SCALES.contains(&name) => (true, is(1.0)),
        _ => match neutral {
            Some(neutral) => (true, neutral.iter().any(|&at| is(at))),
            // Other keys, such as sizes of a vision tower, are of no part that is run.
            None => (false, !name.starts_with("rope.") && !name.starts_with("attention.")),
        },
    };
    match (known, fine) {
        (_, true) => Ok(()),
        (true, false) => bail!("{key} is {}, which is not supported", shown(value)),
        (false, false) => bail!("{key} is not known, and may change what the model computes"),
    }
}

fn tokenizer(key: &str, name: &str, value: &Meta) -> Result<()> {
    // Ids of other special tokens do not matter in a chat, nor whether texts of other kinds of
    // models have them.
    let special = name.ends_with("_token_id")
        || name.ends_with("_token_ids")
        || name.strip_prefix("add_").is_some_and(|rest| rest.ends_with("_token"));
    let known = special || TOKENIZER.contains(&name) || TOKENIZER_HARMLESS.contains(&name);
    if known || number(value) == Some(0.0) {
        return Ok(());
    }
    match name {
        "precompiled_charsmap" | "normalizer.lowercase" | "normalizer.strip_accents" | "suppress_tokens" => {
            bail!("{key} is {}, which is not supported", shown(value))
        }
        _ => bail!("{key} is not known, and may change how texts become tokens"),
    }
}

/// A value as a number: of a flag 0 or 1, of an empty list 0.
fn number(value: &Meta) -> Option<f64> {
    match value {
        Meta::Unsigned(n) => Some(*n as f64),
        Meta::Signed(n) => Some(*n as f64),
        Meta::Float(n) => Some(*n),
        Meta::Bool(b) => Some(f64::from(u8::from(*b))),
        Meta::Array(array) => (array.len == 0).then_some(0.0),
        Meta::Text(text) => text.is_empty().then_some(0.0),
    }
}
