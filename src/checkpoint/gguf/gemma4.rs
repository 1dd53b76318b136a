//! The metadata of a GGUF file of Gemma 4 as its `config.json`: sizes that differ between layers
//! are lists there, the share of rotated channels is that of the factors of RoPE that are 1, and
//! layers without a matrix of values take their keys' one.

use super::super::bounds;
use super::config::{Data, architecture, factors, head_dim, layers};
use super::header::{Header, Value as Meta};
use super::keys;
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};

/// Share of rotated channels in global layers of all published models, for a file of which only the
/// beginning is there.
const SHARE: f64 = 0.25;
/// Factors of channels that are not rotated are at least this.
const UNROTATED: f32 = 1e20;

/// Builds the model's `config.json`. Its parser checks the sizes.
pub fn config<'a>(h: &Header, raw: &[u8], data: Data<'_, 'a>) -> Result<Map<String, Value>> {
    let (family, arch) = architecture(h)?;
    let key = |name: &str| format!("{arch}.{name}");
    keys::check(h, family, arch, head_dim(h, arch)?)?;
    let need = |name: &str| h.opt_size(&key(name))?.with_context(|| format!("{} is missing", key(name)));
    let [n, _] = layers(h)?;
    ensure!(n <= bounds::LAYERS, "{} is {n}, expected at most {}", key("block_count"), bounds::LAYERS);
    let embedding = h.tensors.get("token_embd.weight").context("tensor token_embd.weight is missing")?;
    let [vocab, _] = embedding.shape[..] else { bail!("tensor token_embd.weight is not a matrix") };
    let pattern = key("attention.sliding_window_pattern");
    let is_local = match h.metadata.get(&pattern) {
        Some(Meta::Array(listed)) => listed.flags(raw).with_context(|| format!("{pattern} is not a list of layers"))?,
        _ => bail!("{pattern} is missing, or not a list of layers"),
    };
    ensure!(is_local.len() == n, "{pattern} is not a list of {n} layers");
    let sizes = |name| by_layer(h, raw, &key(name), n);
    let head = |suffix: &str| -> Result<usize> {
        let [keys, values] = ["key", "value"].map(|of| need(&format!("attention.{of}_length{suffix}")));
        let (keys, values) = (keys?, values?);
        ensure!(
            keys == values,
            "{} is {keys}, but that of values {values}",
            key(&format!("attention.key_length{suffix}"))
        );
        let rotated = h.opt_size(&key(&format!("rope.dimension_count{suffix}")))?.unwrap_or(keys);
        ensure!(
            rotated == keys,
            "{} {rotated} is not supported (the head size {keys} is)",
            key(&format!("rope.dimension_count{suffix}"))
        );
        Ok(keys)
    };
    let (global_dim, local_dim) = (head("")?, head("_swa")?);
    let kv_heads = match sizes("attention.head_count_kv")? {
        Some(listed) => listed,
        None => vec![need("attention.head_count")?; n],
    };
    let first = |local: bool| (0..n).find(|&layer| is_local[layer] == local);
    let usual = first(true).or(first(false)).map_or(1, |layer| kv_heads[layer]);
    if let Some(layer) = (0..n).find(|&layer| is_local[layer] && kv_heads[layer] != usual) {
        bail!("{} has other heads in layer {layer} than in others of its kind", key("attention.head_count_kv"));
    }
    let heads = |layer: &usize| json!({"head_dim": global_dim, "num_key_value_heads": kv_heads[*layer]});
    let global: Map<String, Value> =
        (0..n).filter(|&layer| !is_local[layer]).map(|layer| (layer.to_string(), heads(&layer))).collect();
    let shared = h.opt_size(&key("attention.shared_kv_layers"))?.unwrap_or(0);
    let own = n.saturating_sub(shared);
    let ffn = sizes("feed_forward_length")?.with_context(|| format!("{} is missing", key("feed_forward_length")))?;
    let narrow = ffn.first().copied().unwrap_or(0);
    let is_wide = ffn.last().is_some_and(|last| shared > 0 && Some(*last) == narrow.checked_mul(2));
    let wanted = |layer: usize| if is_wide && layer >= own { 2 * narrow } else { narrow };
    ensure!(
        (0..n).all(|layer| ffn[layer] == wanted(layer)),
        "{} has sizes that are not those of Gemma 4: one, and twice that in the last {shared} layers",
        key("feed_forward_length")
    );
    let has_values = |layer: usize| h.tensors.contains_key(&format!("blk.{layer}.attn_v.weight"));
    let keys_are_values = (0..own).find(|&layer| !is_local[layer]).is_some_and(|layer| !has_values(layer));
    let share = match factors(h, "rope_freqs.weight", global_dim, data)? {
        None => SHARE,
        Some(factors) => {
            let rotated = factors.iter().take_while(|factor| **factor == 1.0).count();
            let sound = rotated > 0 && factors[rotated..].iter().all(|factor| *factor >= UNROTATED);
            ensure!(sound, "the factors in rope_freqs.weight are not those of Gemma 4");
            2.0 * rotated as f64 / global_dim as f64
        }
    };
    let number = |name: &str| h.number(&key(name));
    let experts = h.opt_size(&key("expert_count"))?.filter(|count| *count > 0);
    let kinds = is_local.iter().map(|local| if *local { "sliding_attention" } else { "full_attention" });
    let out = json!({
        "model_type": "gemma4_text",
        "num_hidden_layers": n,
        "hidden_size": need("embedding_length")?,
        "intermediate_size": narrow,
        "num_attention_heads": need("attention.head_count")?,
        "num_key_value_heads": usual,
        "head_dim": local_dim,
        "per_layer_config": global,
        "attention_k_eq_v": keys_are_values,
        "num_kv_shared_layers": shared,
        "use_double_wide_mlp": is_wide,
        "vocab_size": vocab,
        "vocab_size_per_layer_input": vocab,
        "hidden_size_per_layer_input": h.opt_size(&key("embedding_length_per_layer_input"))?.unwrap_or(0),
        "enable_moe_block": experts.is_some(),
        "num_experts": experts,
        "top_k_experts": h.opt_size(&key("expert_used_count"))?,
        "moe_intermediate_size": h.opt_size(&key("expert_feed_forward_length"))?,
        "max_position_embeddings": need("context_length")?,
        "rms_norm_eps": number("attention.layer_norm_rms_epsilon")?,
        "sliding_window": need("attention.sliding_window")?,
        "layer_types": kinds.collect::<Vec<_>>(),
        "final_logit_softcapping": number("final_logit_softcapping")?.filter(|cap| *cap != 0.0),
        "tie_word_embeddings": !h.tensors.contains_key("output.weight"),
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional", "partial_rotary_factor": share,
                "rope_theta": number("rope.freq_base")?.unwrap_or(1e6),
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": number("rope.freq_base_swa")?.unwrap_or(1e4)},
        },
    });
    match out {
        Value::Object(map) => Ok(map),
        _ => bail!("no configuration"),
    }
}

/// A size of each of `n` layers: one for all, or a list.
fn by_layer(h: &Header, raw: &[u8], key: &str, n: usize) -> Result<Option<Vec<usize>>> {
    let Some(Meta::Array(listed)) = h.metadata.get(key) else { return Ok(h.opt_size(key)?.map(|size| vec![size; n])) };
    ensure!(listed.len == n, "{key} is not a list of {n} sizes");
    let sizes = listed.integers(raw).with_context(|| key.to_owned())?;
    let sizes =
        sizes.into_iter().map(|size| usize::try_from(size).ok().filter(|size| *size > 0)).collect::<Option<_>>();
    sizes.map(Some).with_context(|| format!("{key} has a size that is not above 0"))
}
