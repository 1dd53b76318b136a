//! EAGLE-3 heads (arXiv 2503.01840): one decoder layer that guesses the next tokens of a model from hidden states of three of its
//! layers. Reads the folders of `speculators` (`layers.0.*`) and those of EAGLE's own training and its successors (`midlayer.*`).

pub mod config;

use super::adapter::known;
use super::config::ModelConfig;
use super::files::Files;
use super::json::{self, Fields};
use super::names::TensorSpec;
use super::shards::Shards;
use super::{convert, hub, mapped};
use crate::quant::Code;
use crate::tensor::{Format, Tensor};
use ::safetensors::tensor::Dtype;
use anyhow::{Context, Result, bail, ensure};
use config::AUX;
pub use config::{EagleConfig, is_at};
use std::path::Path;
use std::sync::Arc;

/// An opened head. A clone shares its tensors.
#[derive(Clone)]
pub struct Eagle {
    /// What users call it.
    pub name: String,
    /// The model that it was made for, if its files say that.
    pub base: Option<String>,
    pub config: EagleConfig,
    pub weights: Arc<EagleWeights>,
}

/// Matrices `[out, in]`; those of concatenated inputs are divided by input.
pub struct EagleWeights {
    /// By hidden state that is read: `[hidden, hidden]`, and its norm if it has one.
    pub fc: Vec<(Tensor, Option<Tensor>)>,
    /// Norms of the token's embedding and of the hidden state.
    pub input_norm: Tensor,
    pub hidden_norm: Tensor,
    /// q, k and v from the embedding, and from the hidden state.
    pub of_embedding: Vec<Tensor>,
    pub of_hidden: Vec<Tensor>,
    pub qk_norm: Option<[Tensor; 2]>,
    pub o: Tensor,
    pub post_norm: Tensor,
    pub gate_up: Vec<Tensor>,
    pub down: Tensor,
    pub norm: Tensor,
    pub lm_head: Tensor,
    /// The head's own embeddings; `None` where they are the model's.
    pub embed: Option<Tensor>,
    /// The model's token of each one of the head's.
    pub tokens: Vec<u32>,
}

impl Eagle {
    /// What `--draft` names: a folder, or a hub id whose files are in the cache.
    pub fn named(path: &Path) -> Result<Self> {
        let (folder, name) = match known::hub_model(path) {
            Some(model) => (hub::cached(&model)?.path, Some(model.id.clone())),
            None => (path.to_owned(), None),
        };
        ensure!(folder.is_dir(), "{} is no folder and no hub id of a draft head", path.display());
        let called = || super::full_path(&folder).file_name().unwrap_or_default().to_string_lossy().into_owned();
        Self::open(&name.unwrap_or_else(called), &Files::folder(&folder)?)
    }

    fn open(name: &str, files: &Files) -> Result<Self> {
        let label = files.label("config.json");
        let Some(map) = json::optional(files, "config.json")? else { bail!("{label} is missing: it is no draft head") };
        let outer = Fields::new(&label, &map);
        let file = Shards::open(files)?;
        let (config, base) = config::parse(&outer)?;
        let weights = Arc::new(EagleWeights::read(&config, &file)?);
        Ok(Self { name: name.to_owned(), base, config, weights })
    }

    /// Fails unless it can guess tokens of this model. The error names the first difference.
    pub fn fits(&self, model: &str, c: &ModelConfig) -> Result<()> {
        for (what, theirs, ours) in
            [("hidden size", self.config.hidden, c.hidden), ("vocabulary", self.config.vocab, c.vocab)]
        {
            ensure!(
                theirs == ours,
                "{} is a draft head for another model than {model}: its {what} is {theirs}, and the model's is {ours}",
                self.name
            );
        }
        let layers = self.config.layers(c.n_layers);
        let last = layers.last().copied().unwrap_or(0);
        ensure!(
            last <= c.n_layers,
            "{} is a draft head for another model than {model}: it reads layers {layers:?} of {}",
            self.name,
            c.n_layers
        );
        ensure!(
            c.spec.residual_scale == 1.0,
            "{model} scales its residual stream, and draft heads for that are not known"
        );
        Ok(())
    }

    /// Whether it was made for a model of another name.
    pub fn is_anothers(&self, model: &str) -> bool {
        let short = |name: &str| name.rsplit('/').next().unwrap_or(name).to_lowercase();
        self.base.as_ref().is_some_and(|base| short(base) != short(model))
    }

    /// Packs its matrices with 8 bits, for a model whose weights are packed, and leaves its embeddings away if they are the
    /// model's.
    pub fn adapt(&mut self, packed: bool, embeddings: Option<&Tensor>) -> Result<()> {
        let w = &self.weights;
        let pack = |t: &Tensor| if packed { packed_8(t) } else { Ok(t.clone()) };
        let all = |parts: &[Tensor]| parts.iter().map(pack).collect::<Result<Vec<_>>>();
        let embed =
            w.embed.as_ref().filter(|own| !embeddings.is_some_and(|e| is_same(own, e))).map(pack).transpose()?;
        self.weights = Arc::new(EagleWeights {
            // Their input is the residual stream, which is not quantized.
            fc: w.fc.clone(),
            input_norm: w.input_norm.clone(),
            hidden_norm: w.hidden_norm.clone(),
            of_embedding: all(&w.of_embedding)?,
            of_hidden: all(&w.of_hidden)?,
            qk_norm: w.qk_norm.clone(),
            o: pack(&w.o)?,
            post_norm: w.post_norm.clone(),
            gate_up: all(&w.gate_up)?,
            down: pack(&w.down)?,
            norm: w.norm.clone(),
            lm_head: pack(&w.lm_head)?,
            embed,
            tokens: w.tokens.clone(),
        });
        Ok(())
    }

    /// Bytes of its weights.
    pub fn bytes(&self) -> u64 {
        let w = &self.weights;
        let one = [&w.input_norm, &w.hidden_norm, &w.o, &w.post_norm, &w.down, &w.norm, &w.lm_head];
        let fc = w.fc.iter().flat_map(|(t, norm)| [t].into_iter().chain(norm));
        let many = w.of_embedding.iter().chain(&w.of_hidden).chain(&w.gate_up).chain(&w.embed);
        let norms = w.qk_norm.iter().flatten();
        one.into_iter().chain(fc).chain(many).chain(norms).map(|t| t.stored_bytes() as u64).sum()
    }
}

impl EagleWeights {
    fn read(c: &EagleConfig, file: &Shards) -> Result<Self> {
        let layer =
            ["layers.0.", "midlayer."].into_iter().find(|p| file.raw(&format!("{p}hidden_norm.weight")).is_some());
        let layer =
            layer.with_context(|| format!("{}: tensor layers.0.hidden_norm.weight is missing", file.label()))?;
        let get = |name: &str, shape: &[usize]| {
            let spec = TensorSpec { name: name.to_owned(), shape: shape.to_vec() };
            spec.check(file.plain(&spec)?, file.label())
        };
        let of_layer = |name: &str, shape: &[usize]| get(&format!("{layer}{name}.weight"), shape);
        let (h, q, kv) = (c.hidden, c.n_q_heads * c.head_dim, c.n_kv_heads * c.head_dim);
        let fc = get("fc.weight", &[h, AUX * h])?;
        let fc_norm = |i: usize| c.fc_norm.then(|| get(&format!("fc_norm.{i}.weight"), &[h])).transpose();
        let (mut of_embedding, mut of_hidden) = (Vec::new(), Vec::new());
        for (name, rows) in [("q", q), ("k", kv), ("v", kv)] {
            ensure!(
                file.raw(&format!("{layer}self_attn.{name}_proj.bias")).is_none(),
                "{}: biases of a head are not supported",
                file.label()
            );
            let whole = of_layer(&format!("self_attn.{name}_proj"), &[rows, 2 * h])?;
            of_embedding.push(columns(&whole, 0, h)?);
            of_hidden.push(columns(&whole, h, h)?);
        }
        let qk_norm = match c.qk_norm {
            true => Some([of_layer("self_attn.q_norm", &[c.head_dim])?, of_layer("self_attn.k_norm", &[c.head_dim])?]),
            false => None,
        };
        let embed = TensorSpec { name: "embed_tokens.weight".to_owned(), shape: vec![c.vocab, h] };
        Ok(Self {
            fc: (0..AUX).map(|i| Ok((columns(&fc, i * h, h)?, fc_norm(i)?))).collect::<Result<_>>()?,
            input_norm: of_layer("input_layernorm", &[h])?,
            hidden_norm: of_layer("hidden_norm", &[h])?,
            of_embedding,
            of_hidden,
            qk_norm,
            o: of_layer("self_attn.o_proj", &[h, q])?,
            post_norm: of_layer("post_attention_layernorm", &[h])?,
            gate_up: vec![of_layer("mlp.gate_proj", &[c.ffn, h])?, of_layer("mlp.up_proj", &[c.ffn, h])?],
            down: of_layer("mlp.down_proj", &[h, c.ffn])?,
            norm: get("norm.weight", &[h])?,
            lm_head: get("lm_head.weight", &[c.draft_vocab, h])?,
            embed: file.plain(&embed)?,
            tokens: tokens(c, file)?,
        })
    }
}

/// The model's token of each one of the head's: `d2t` has the differences.
fn tokens(c: &EagleConfig, file: &Shards) -> Result<Vec<u32>> {
    let Some(raw) = file.raw("d2t") else {
        ensure!(c.draft_vocab == c.vocab, "{}: tensor d2t is missing", file.label());
        return Ok((0..c.vocab as u32).collect());
    };
    TensorSpec { name: "d2t".to_owned(), shape: vec![c.draft_vocab] }.check_shape(&raw.shape, file.label())?;
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
    (0..c.draft_vocab).map(token).collect()
}

/// `n` columns of a matrix from `first` on.
fn columns(t: &Tensor, first: usize, n: usize) -> Result<Tensor> {
    let Format::Plain(dtype) = t.format else { bail!("tensor {} cannot be divided", t.name) };
    let (rows, cols, size) = (t.shape[0], t.shape[1], dtype.size_bytes());
    let bytes = mapped::buffer(rows * n * size, |out| {
        for (out, row) in out.chunks_exact_mut(n * size).zip(t.bytes().chunks_exact(cols * size)) {
            out.copy_from_slice(&row[first * size..][..n * size]);
        }
    })?;
    Ok(Tensor::new(&format!("{} {first}", t.name), dtype, vec![rows, n], bytes, 0..rows * n * size))
}

/// A matrix with 8 bits; as it is where its columns do not fit.
fn packed_8(t: &Tensor) -> Result<Tensor> {
    let [rows, cols] = [t.shape[0], t.shape[1]];
    if !Code::fits(cols) || matches!(t.format, Format::Packed(_)) {
        return Ok(t.clone());
    }
    let len = Code::Q8.bytes(rows, cols);
    let bytes = mapped::buffer(len, |out| convert::pack(t, Code::Q8, None, 0, 0, out))?;
    Ok(Tensor::packed(&t.name, Code::Q8, [rows, cols], bytes, 0..len))
}

/// Whether two embedding tables are the same but for rounding, from some of their rows.
fn is_same(a: &Tensor, b: &Tensor) -> bool {
    const ROWS: usize = 64;
    let rows = a.shape[0];
    let (mut x, mut y) = (vec![0.0; a.shape[1]], vec![0.0; a.shape[1]]);
    (0..rows).step_by((rows / ROWS).max(1)).all(|row| {
        a.decode_row(row, &mut x);
        b.decode_row(row, &mut y);
        let norm: f32 = x.iter().map(|v| v * v).sum();
        let apart: f32 = x.iter().zip(&y).map(|(a, b)| (a - b) * (a - b)).sum();
        apart <= 0.02 * norm
    })
}
