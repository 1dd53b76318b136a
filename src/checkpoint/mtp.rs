//! The layer for multi-token prediction (MTP) of Qwen3.5 as a draft head: `mtp.*` in a folder, the
//! block after the last layer in a GGUF file. Its input is `fc` of the embedding and of the model's
//! output, each with its own norm.

use super::config::ModelConfig;
use super::draft_head::columns;
use super::model::{Checkpoint, DraftHead, Input, Reads};
use super::names::{self, TensorSpec};
use super::source::Source;
use super::spec::{LayerKind, Spec};
use anyhow::Result;

/// The head among the tensors of a model; `None` if there is none.
pub fn read(source: &Source, c: &ModelConfig) -> Result<Option<DraftHead>> {
    let h = c.hidden;
    let part = |name: &str, shape: &[usize]| TensorSpec { name: format!("model.{name}.weight"), shape: shape.to_vec() };
    let fc = part("fc", &[h, 2 * h]);
    let kind = (0..c.n_layers).map(|layer| c.layer(layer)).find(LayerKind::attends);
    let Some(kind) = kind.filter(|_| source.has_mtp(&fc.name)) else { return Ok(None) };
    let spec = Spec { layers: vec![kind], delta_net: None, ..c.spec.clone() };
    let config = ModelConfig { n_layers: 1, spec, dms: None, dmc: None, gates: None, ..c.clone() };
    let get = |spec: &TensorSpec| source.mtp(&config, spec);
    let own = names::all(&config).filter(|spec| spec.name.starts_with("model.layers."));
    let tensors = own.chain([names::final_norm(&config)]).map(|spec| get(&spec)).collect::<Result<_>>()?;
    let fc = get(&fc)?;
    let input = |name: &str, first: usize| {
        Ok::<_, anyhow::Error>(Input { norm: get(&part(name, &[h]))?, map: vec![columns(&fc, first, h)?] })
    };
    let (embedding, hidden) = (input("pre_fc_norm_embedding", 0)?, input("pre_fc_norm_hidden", h)?);
    let mut layer = Checkpoint::empty(names::MTP, config.clone());
    layer.take_tensors(tensors);
    Ok(Some(DraftHead {
        name: names::MTP.to_owned(),
        base: None,
        layer: Box::new(layer),
        vocab: c.vocab,
        reads: Reads::Output,
        embedding,
        hidden: Some(hidden),
        norm_before_residual: false,
        norm_output: true,
        tokens: None,
    }))
}
