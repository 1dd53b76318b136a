//! `config.json` of an EAGLE-3 head.

use super::super::bounds;
use super::super::config::ModelConfig;
use super::super::family::Family;
use super::super::files::Files;
use super::super::json::{self, Fields};
use super::super::rope;
use super::super::spec::Spec;
use anyhow::{Result, bail, ensure};
use std::path::Path;

/// Hidden states that a head reads.
pub const AUX: usize = 3;

/// Sizes and rules of a head.
#[derive(Clone, Debug, PartialEq)]
pub struct EagleConfig {
    /// Its layer, as a model of one. `vocab`: tokens that the head can guess.
    pub layer: ModelConfig,
    /// Tokens of the model.
    pub vocab: usize,
    /// Whether the residual stream begins with the normed hidden state.
    pub norm_before_residual: bool,
    /// Whether the normed output is fed back, and not the residual stream.
    pub norm_output: bool,
    /// Layers whose inputs the head reads, in order. The number of layers stands for the output of
    /// the last layer. `None`: the usual ones.
    pub layers: Option<Vec<usize>>,
    /// Whether each hidden state is normed by itself first.
    pub fc_norm: bool,
}

/// Whether `config.json` belongs to a head.
pub fn is_head(files: &Files) -> bool {
    json::optional(files, "config.json").ok().flatten().is_some_and(|map| is_eagle(&Fields::new("", &map)))
}

/// Whether a folder holds a head.
pub fn is_at(folder: &Path) -> bool {
    Files::folder(folder).is_ok_and(|files| is_head(&files))
}

fn is_eagle(config: &Fields) -> bool {
    config.get("speculators_model_type").is_some_and(|kind| kind == "eagle3")
        || config.get("draft_vocab_size").is_some()
}

/// Reads `config.json`, and the model that the head was made for.
pub fn parse(outer: &Fields) -> Result<(EagleConfig, Option<String>)> {
    let place = outer.place();
    let kind = outer.opt_str("speculators_model_type")?;
    if let Some(kind) = kind.filter(|kind| *kind != "eagle3") {
        bail!("{place}: speculators_model_type {kind:?} is not supported (eagle3 is)");
    }
    ensure!(is_eagle(outer), "{place} is not that of an EAGLE-3 head: it has no draft_vocab_size");
    let inner = outer.opt_object("transformer_layer_config")?;
    let c = inner.as_ref().unwrap_or(outer);
    let model_type = c.opt_str("model_type")?.unwrap_or("llama");
    let Some(family) = Family::named(model_type).filter(|family| ["llama", "qwen3"].contains(&family.name)) else {
        bail!("{place}: a head of model_type {model_type:?} is not supported (llama, qwen3)");
    };
    let layers = c.opt_size("num_hidden_layers")?.unwrap_or(1);
    ensure!(layers == 1, "{place}: a head of {layers} layers is not supported, only of 1");
    ensure!(!outer.bool_or("norm_before_fc", false)?, "{place}: norm_before_fc is not supported");
    let act = c.opt_str("hidden_act")?.unwrap_or("silu");
    ensure!(act == "silu", "{place}: hidden_act {act:?} is not supported (silu is)");
    let hidden = c.size_to("hidden_size", bounds::HIDDEN)?;
    if let Some(target) = outer.opt_size("target_hidden_size")? {
        ensure!(target == hidden, "{place}: target_hidden_size {target} is not hidden_size {hidden}");
    }
    let n_q_heads = c.size_to("num_attention_heads", bounds::HEADS)?;
    let n_kv_heads = c.opt_size_to("num_key_value_heads", bounds::HEADS)?.unwrap_or(n_q_heads);
    let head_dim = c.opt_size_to("head_dim", bounds::HEAD_DIM)?.unwrap_or(hidden / n_q_heads);
    ensure!(
        n_kv_heads > 0 && n_q_heads.is_multiple_of(n_kv_heads),
        "{place}: heads {n_q_heads} and {n_kv_heads} do not fit"
    );
    let vocab = c.size_to("vocab_size", bounds::VOCAB)?;
    let context = c.opt_size("max_position_embeddings")?.unwrap_or(2048);
    let config = EagleConfig {
        layer: ModelConfig {
            family,
            n_layers: 1,
            hidden,
            n_q_heads,
            n_kv_heads,
            head_dim,
            ffn: c.size_to("intermediate_size", bounds::FFN)?,
            vocab: outer.opt_size_to("draft_vocab_size", vocab)?.unwrap_or(vocab),
            rms_eps: c.opt_f32("rms_norm_eps")?.unwrap_or(1e-6),
            tied: false,
            spec: Spec { qk_norm: family.qk_norm, ..Spec::default() },
            rope: rope::parse(c, family, context)?,
            context,
            dms: None,
            dmc: None,
            gates: None,
        },
        vocab,
        norm_before_residual: outer.bool_or("norm_before_residual", false)?,
        norm_output: outer.bool_or("norm_output", false)?,
        layers: aux_layers(outer)?,
        fc_norm: outer.bool_or("fc_norm", false)?,
    };
    let verifier = outer.opt_object("speculators_config")?.map(|f| f.opt_object("verifier")).transpose()?.flatten();
    let base = verifier.map(|f| f.opt_str("name_or_path")).transpose()?.flatten();
    Ok((config, base.map(str::to_owned)))
}

/// The layers that a configuration names. Beside the head's sizes it names layers whose inputs are
/// read, as in speculators and vLLM; in `eagle_config` it names layers whose outputs are read, as
/// in SGLang and SpecForge.
fn aux_layers(outer: &Fields) -> Result<Option<Vec<usize>>> {
    const KEY: &str = "eagle_aux_hidden_state_layer_ids";
    let nested = outer.opt_object("eagle_config")?;
    let (fields, later) = match (outer.get(KEY), &nested) {
        (None, Some(nested)) => (nested, 1),
        _ => (outer, 0),
    };
    let Some(value) = fields.get(KEY) else { return Ok(None) };
    let id = |value: &serde_json::Value| value.as_u64().filter(|&id| id < bounds::LAYERS as u64);
    let ids: Option<Vec<u64>> = value.as_array().and_then(|all| all.iter().map(id).collect());
    let ids: Vec<usize> = ids.unwrap_or_default().iter().map(|&id| id as usize + later).collect();
    let ascending = ids.windows(2).all(|pair| pair[0] < pair[1]);
    ensure!(ids.len() == AUX && ascending, "{}: {KEY} is {value}, expected three layers in order", fields.place());
    Ok(Some(ids))
}
