//! EAGLE-3 heads (arXiv 2503.01840): one decoder layer that guesses the next tokens of a model from
//! hidden states of three of its layers. Reads the folders of `speculators` (`layers.0.*`), and the
//! ones of EAGLE's own training and its successors (`midlayer.*`).

pub mod config;

use super::draft_head::columns;
use super::files::Files;
use super::identity::full_path;
use super::json::{self, Fields};
use super::known;
use super::model::{Checkpoint, DraftHead, Input, Reads, Tap};
use super::names::{self, TensorSpec};
use super::shards::Shards;
use crate::hub;
use crate::tensor::Tensor;
use ::safetensors::tensor::Dtype;
use anyhow::{Context, Result, bail, ensure};
use config::AUX;
pub use config::{EagleConfig, is_at};
use std::path::Path;

/// Loads the head that `--draft` names for a model of so many layers: a folder, or a hub id whose
/// files are in the cache.
pub fn named(path: &Path, n_layers: usize) -> Result<DraftHead> {
    let (folder, name) = match known::hub_model(path) {
        Some(model) => (hub::cached(&model)?.path, Some(model.id.clone())),
        None => (path.to_owned(), None),
    };
    ensure!(folder.is_dir(), "{} is neither a folder nor a hub id of a draft head", path.display());
    let called = || full_path(&folder).file_name().unwrap_or_default().to_string_lossy().into_owned();
    open(&name.unwrap_or_else(called), &Files::folder(&folder)?, n_layers)
}

fn open(name: &str, files: &Files, n_layers: usize) -> Result<DraftHead> {
    let label = files.label("config.json");
    let Some(map) = json::optional(files, "config.json")? else { bail!("{label} is missing: it is not a draft head") };
    let outer = Fields::new(&label, &map);
    let file = Shards::open(files)?;
    let (config, base) = config::parse(&outer)?;
    let head = Head::new(&config, &file)?;
    let h = config.layer.hidden;
    let mut layer = Checkpoint::empty(name, config.layer.clone());
    layer.take_tensors(head.layer()?);
    Ok(DraftHead {
        name: name.to_owned(),
        base,
        vocab: config.vocab,
        reads: Reads::Layers(head.taps(n_layers)?),
        embedding: Input { norm: head.of_layer("input_layernorm.weight", &[h])?, map: head.qkv(0)? },
        hidden: None,
        norm_before_residual: config.norm_before_residual,
        norm_output: config.norm_output,
        tokens: tokens(&config, &file)?,
        layer: Box::new(layer),
    })
}

/// The files of a head.
struct Head<'a> {
    config: &'a EagleConfig,
    file: &'a Shards,
    /// Prefix of the names of the layer's tensors.
    prefix: &'static str,
}

impl<'a> Head<'a> {
    fn new(config: &'a EagleConfig, file: &'a Shards) -> Result<Self> {
        let has = |prefix: &&str| file.raw(&format!("{prefix}hidden_norm.weight")).is_some();
        let prefix = ["layers.0.", "midlayer."].into_iter().find(has);
        let prefix =
            prefix.with_context(|| format!("{}: tensor layers.0.hidden_norm.weight is missing", file.label()))?;
        for name in ["q", "k", "v"] {
            ensure!(
                file.raw(&format!("{prefix}self_attn.{name}_proj.bias")).is_none(),
                "{}: biases of a head are not supported",
                file.label()
            );
        }
        Ok(Self { config, file, prefix })
    }

    fn get(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let spec = TensorSpec { name: name.to_owned(), shape: shape.to_vec() };
        spec.check(self.file.plain(&spec)?, self.file.label())
    }

    fn of_layer(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        self.get(&format!("{}{name}", self.prefix), shape)
    }

    /// q, k and v from `hidden` columns of the input: columns of the embedding come first, then
    /// columns of the hidden state.
    fn qkv(&self, first: usize) -> Result<Vec<Tensor>> {
        let c = &self.config.layer;
        let (h, q, kv) = (c.hidden, c.n_q_heads * c.head_dim, c.n_kv_heads * c.head_dim);
        let part =
            |(name, rows)| columns(&self.of_layer(&format!("self_attn.{name}_proj.weight"), &[rows, 2 * h])?, first, h);
        [("q", q), ("k", kv), ("v", kv)].into_iter().map(part).collect()
    }

    /// The tensors of a model of one layer, whose input is the hidden state.
    fn layer(&self) -> Result<Vec<Tensor>> {
        let (c, mut qkv) = (&self.config.layer, self.qkv(self.config.layer.hidden)?.into_iter());
        let mut tensors = Vec::new();
        // Behind the embeddings: q, k and v come in this order.
        for spec in names::all(c).skip(1) {
            let tensor = match spec.name.strip_prefix("model.layers.0.") {
                Some("input_layernorm.weight") => self.of_layer("hidden_norm.weight", &spec.shape)?,
                Some(part) if ["q_proj", "k_proj", "v_proj"].iter().any(|name| part.contains(name)) => {
                    qkv.next().context("q, k and v")?
                }
                Some(part) => self.of_layer(part, &spec.shape)?,
                None => self.get(spec.name.trim_start_matches("model."), &spec.shape)?,
            };
            tensors.push(tensor.named(&spec.name));
        }
        let own = TensorSpec { name: "embed_tokens.weight".to_owned(), shape: vec![self.config.vocab, c.hidden] };
        tensors.extend(self.file.plain(&own)?.map(|own| own.named(&names::embedding(c).name)));
        Ok(tensors)
    }

    fn taps(&self, n_layers: usize) -> Result<Vec<Tap>> {
        let (c, h) = (self.config, self.config.layer.hidden);
        let fc = self.get("fc.weight", &[h, AUX * h])?;
        // As speculators and vLLM choose them.
        let layers = c.layers.clone().unwrap_or_else(|| vec![2, n_layers / 2, n_layers.saturating_sub(3)]);
        let norm = |i: usize| c.fc_norm.then(|| self.get(&format!("fc_norm.{i}.weight"), &[h])).transpose();
        let tap = |(i, layer)| Ok(Tap { layer, map: columns(&fc, i * h, h)?, norm: norm(i)? });
        layers.into_iter().enumerate().map(tap).collect()
    }
}

/// The model's token of each one of the head's: `d2t` has the differences.
fn tokens(c: &EagleConfig, file: &Shards) -> Result<Option<Vec<u32>>> {
    let n = c.layer.vocab;
    let Some(raw) = file.raw("d2t") else {
        ensure!(n == c.vocab, "{}: tensor d2t is missing", file.label());
        return Ok(None);
    };
    TensorSpec { name: "d2t".to_owned(), shape: vec![n] }.check_shape(&raw.shape, file.label())?;
    let wide = match raw.dtype {
        Dtype::I64 => true,
        Dtype::I32 => false,
        other => bail!("{}: tensor d2t is {other}; I64 and I32 are supported", file.label()),
    };
    let difference = |i: usize| match wide {
        true => i64::from_le_bytes(std::array::from_fn(|b| raw.bytes()[8 * i + b])),
        false => i64::from(raw.u32_at(i) as i32),
    };
    let token = |i: usize| {
        let token = difference(i).checked_add(i as i64).filter(|t| (0..c.vocab as i64).contains(t));
        token.map(|t| t as u32).with_context(|| format!("{}: d2t of token {i} leaves the vocabulary", file.label()))
    };
    (0..n).map(token).collect::<Result<_>>().map(Some)
}
