//! The configuration of Gemma 4: heads by layer, layers that share the K and V of earlier ones,
//! inputs of each layer, wide blocks, a cap of the logits.

use super::bounds;
use super::json::Fields;
use super::listed::{full_layers, local_window};
use super::rope;
use super::spec::{Activation, Experts, LayerInputs, Local, Mlp, Spec};
use crate::policy::KvHeads;
use anyhow::{Result, bail, ensure};
use serde_json::Value;

/// Kind of the layers that are not local.
const GLOBAL: &str = "full_attention";

/// Refuses what is not computed, before sizes are read.
pub fn refuse(config: &Fields) -> Result<()> {
    let place = config.place();
    ensure!(
        config.get("use_bidirectional_attention").is_none_or(|kind| kind == "vision"),
        "{place}: use_bidirectional_attention is set for text, which is not supported"
    );
    let activation = config.opt_str("hidden_activation")?.unwrap_or("gelu_pytorch_tanh");
    ensure!(
        activation == "gelu_pytorch_tanh",
        "{place}: hidden_activation {activation:?} is not supported (gelu_pytorch_tanh is)"
    );
    Ok(())
}

/// Parses the computation of the layers.
pub fn spec(config: &Fields, spec: &mut Spec, local_heads: KvHeads) -> Result<()> {
    let place = config.place();
    (spec.norms_behind, spec.v_norm, spec.layer_scale) = (true, true, true);
    spec.activation = Activation::GeluTanh;
    spec.embedding_scale = (config.size_to("hidden_size", bounds::HIDDEN)? as f32).sqrt();
    spec.score_scale = Some(1.0);
    spec.logit_cap = config.opt_positive("final_logit_softcapping")?.map(|cap| cap as f32);
    ensure!(
        spec.logit_cap.is_none_or(|cap| (1e-3..=1e6).contains(&cap)),
        "{place}: final_logit_softcapping is out of range (1e-3 to 1e6)"
    );
    spec.layer_inputs = layer_inputs(config)?;
    let mut is_global =
        full_layers(config, Spec::MOST_WITH_WINDOWS, |kind| kind == GLOBAL, ("sliding_window_pattern", 6))?;
    // As in transformers, the last layer sees all tokens whatever is stated.
    is_global.last_mut().into_iter().for_each(|last| *last = true);
    spec.set_local(&is_global, || {
        Ok(Local { window: local_window(config)?, theta: Some(rope::local_theta(config)?) })
    })?;
    spec.keys_are_values = config.bool_or("attention_k_eq_v", false)?;
    let global = global_heads(config, &is_global, spec.keys_are_values, local_heads)?;
    spec.global_heads = Some(global).filter(|heads| *heads != local_heads && is_global.contains(&false));
    ensure!(
        is_global.contains(&false) || global == local_heads,
        "{place}: all layers are full_attention, and have other heads than head_dim and num_key_value_heads say"
    );
    share(config, spec)?;
    if config.bool_or("enable_moe_block", false)? {
        spec.experts = Some(experts(config)?);
        spec.layers.iter_mut().for_each(|layer| layer.mlp = Mlp::DenseAndExperts);
    }
    Ok(())
}

/// Sizes of the experts beside dense blocks.
fn experts(config: &Fields) -> Result<Experts> {
    let [count, per_token] = ["num_experts", "top_k_experts"].map(|key| config.size_to(key, bounds::EXPERTS));
    let (count, per_token, place) = (count?, per_token?, config.place());
    ensure!(per_token <= count, "{place}: a token has {per_token} of {count} experts");
    let width = config.size_to("moe_intermediate_size", bounds::FFN)?;
    Ok(Experts { count, per_token, width, normalized: true, shared: false, bias: false, clamped: false })
}

/// Sets which layers read K and V of earlier ones, and which blocks are wide.
fn share(config: &Fields, spec: &mut Spec) -> Result<()> {
    let (place, n) = (config.place(), spec.layers.len());
    let shared = config.opt_size("num_kv_shared_layers")?.unwrap_or(0);
    ensure!(shared < n, "{place}: num_kv_shared_layers is {shared}, expected fewer than the {n} layers");
    let (own, readers) = spec.layers.split_at_mut(n - shared);
    let wide = config.bool_or("use_double_wide_mlp", false)?;
    for reader in readers {
        let is_lent = own.iter().any(|layer| layer.decides() == reader.decides());
        ensure!(is_lent, "{place}: none of the first {} layers has K and V for all of the last {shared}", own.len());
        (reader.shares, reader.wide) = (true, wide);
    }
    Ok(())
}

/// Sizes of the inputs of layers, if there are some.
fn layer_inputs(config: &Fields) -> Result<Option<LayerInputs>> {
    let width = config.opt_size_to("hidden_size_per_layer_input", bounds::LAYER_INPUT)?.unwrap_or(0);
    if width == 0 {
        return Ok(None);
    }
    let [vocab, all] = ["vocab_size_per_layer_input", "vocab_size"].map(|key| config.size_to(key, bounds::VOCAB));
    let (vocab, all, place) = (vocab?, all?, config.place());
    ensure!(vocab >= all, "{place}: vocab_size_per_layer_input is {vocab}, less than the {all} tokens");
    Ok(Some(LayerInputs { width, vocab }))
}

/// Heads of the layers that are not local: stated for all of them, or for each as transformers
/// writes it.
fn global_heads(config: &Fields, is_global: &[bool], keys_are_values: bool, local: KvHeads) -> Result<KvHeads> {
    let place = config.place();
    let Some(by_layer) = config.opt_object("per_layer_config")? else {
        let dim = config.opt_size("global_head_dim")?.unwrap_or(local.dim);
        let stated = config.opt_size("num_global_key_value_heads")?.filter(|_| keys_are_values);
        return checked(config, KvHeads { count: stated.unwrap_or(local.count), dim });
    };
    let mut heads = None;
    for (layer, is_global) in is_global.iter().enumerate() {
        let own = by_layer.opt_object(&layer.to_string())?;
        let size = |key, usual| {
            Ok::<_, anyhow::Error>(own.as_ref().map(|own| own.opt_size(key)).transpose()?.flatten().unwrap_or(usual))
        };
        let own = KvHeads { count: size("num_key_value_heads", local.count)?, dim: size("head_dim", local.dim)? };
        let wanted = if *is_global { *heads.get_or_insert(own) } else { local };
        ensure!(own == wanted, "{place}: per_layer_config has other heads in layer {layer} than in others of its kind");
    }
    for key in by_layer.keys() {
        let known = key.parse::<usize>().is_ok_and(|layer| layer < is_global.len());
        let settings = by_layer.get(key).and_then(Value::as_object);
        let other =
            settings.and_then(|own| own.keys().find(|key| !matches!(&***key, "head_dim" | "num_key_value_heads")));
        match other {
            Some(other) => bail!("{place}: per_layer_config sets {other} in layer {key}, which is not supported"),
            None => ensure!(known, "{place}: per_layer_config has a layer {key}, which the model has not"),
        }
    }
    checked(config, heads.unwrap_or(local))
}

/// Heads that can be rotated and that query heads share evenly.
fn checked(config: &Fields, heads: KvHeads) -> Result<KvHeads> {
    let (KvHeads { count, dim }, place) = (heads, config.place());
    let n_q_heads = config.size_to("num_attention_heads", bounds::HEADS)?;
    ensure!(
        count > 0 && n_q_heads.is_multiple_of(count),
        "{place}: {n_q_heads} attention heads do not share {count} key-value heads of global layers evenly"
    );
    let fits = (1..=bounds::HEAD_DIM).contains(&dim) && dim.is_multiple_of(2);
    ensure!(
        fits,
        "{place}: heads of global layers have {dim} channels, expected an even number up to {}",
        bounds::HEAD_DIM
    );
    Ok(heads)
}
