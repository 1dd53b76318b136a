//! A GGUF file as a checkpoint: its metadata as the JSON files that a model folder has, and its
//! tensors under their Hugging Face names. [`header`] checks the file, [`blocks`] decodes it.

mod blocks;
mod config;
mod header;
mod tokenizer;

use super::mapped;
use super::names::TensorSpec;
use crate::tensor::{DType, Rows, SharedBytes, Tensor};
use crate::unicode;
use anyhow::{Context, Result, bail, ensure};
use blocks::Kind;
use header::{Entry, Header};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Names of tensors: in a folder, in a GGUF file. Those of layers follow `model.layers.N.` and
/// `blk.N.`.
const LAYER_NAMES: [(&str, &str); 11] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];
const MODEL_NAMES: [(&str, &str); 3] =
    [("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"), ("lm_head", "output")];

/// An open GGUF file.
pub struct Gguf {
    label: String,
    bytes: SharedBytes,
    header: Header,
    /// Values per head of q and k whose rows are interleaved; `None` if rows are as in a folder.
    interleaved: Option<usize>,
}

impl Gguf {
    /// Whether a file that begins with these bytes is meant to be a GGUF file.
    pub fn begins(raw: &[u8]) -> bool {
        raw.starts_with(header::MAGIC)
    }

    /// Checks the header of a file. `label` names it in error messages.
    pub fn new(label: &str, bytes: SharedBytes) -> Result<Self> {
        let read = || -> Result<_> {
            let raw = (*bytes).as_ref();
            let header = Header::parse(raw)?;
            let interleaved = config::interleaved(&header)?;
            Ok((header, interleaved))
        };
        let (header, interleaved) = read().with_context(|| label.to_owned()).map_err(unicode::one_line_error)?;
        Ok(Self { label: label.to_owned(), bytes, header, interleaved })
    }

    fn raw(&self) -> &[u8] {
        (*self.bytes).as_ref()
    }

    pub fn label(&self) -> &str {
        &self.label
    }

    /// The whole file, and the bytes of it before the tensors' data.
    pub fn bytes(&self) -> (SharedBytes, usize) {
        (self.bytes.clone(), self.header.data_start)
    }

    /// The file of this name that a model folder would have, made from the metadata.
    pub fn text(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let (h, raw) = (&self.header, self.raw());
        let value = match name {
            "config.json" => config::config(h, raw).map(|map| Some(map.into())),
            "generation_config.json" => config::generation(h, raw).map(|map| Some(map.into())),
            "tokenizer_config.json" => tokenizer::texts(h, raw).map(|map| Some(map.into())),
            "tokenizer.json" => tokenizer::tokenizer(h, raw),
            _ => return Ok(None),
        };
        let value: Option<serde_json::Value> =
            value.with_context(|| self.label.clone()).map_err(unicode::one_line_error)?;
        value.map(|v| serde_json::to_vec(&v).with_context(|| self.label.clone())).transpose()
    }

    /// `general.license`, if the file states one.
    pub fn licence(&self) -> Option<String> {
        const MAX_LEN: usize = 60;
        let text = self.header.text("general.license").ok().flatten()?;
        Some(text.chars().take(MAX_LEN).collect())
    }

    /// The tensor of that Hugging Face name. Quantized matrices become [`Rows`].
    pub fn tensor(&self, spec: &TensorSpec) -> Result<Tensor> {
        let name = gguf_name(&spec.name).unwrap_or_else(|| spec.name.clone());
        let Some(entry) = self.header.tensors.get(&name) else {
            bail!("{}: tensor {name} {:?} is missing", self.label, spec.shape);
        };
        let kind = match entry.kind {
            Ok(kind) => kind,
            Err(id) => bail!(
                "{}: tensor {name} is {}, which is not supported ({} are)",
                self.label,
                blocks::type_name(id),
                blocks::supported()
            ),
        };
        spec.check_shape(&entry.shape, &self.label)?;
        let permuted = ["self_attn.q_proj.", "self_attn.k_proj."].iter().any(|part| spec.name.contains(part));
        let order = RowOrder { head_dim: self.interleaved.filter(|_| permuted) };
        self.read(&spec.name, &name, kind, entry, order)
    }

    fn read(&self, name: &str, theirs: &str, kind: Kind, entry: &Entry, order: RowOrder) -> Result<Tensor> {
        let Entry { shape, range, .. } = entry;
        let dtype = match kind {
            Kind::F32 => Some(DType::F32),
            Kind::F16 => Some(DType::F16),
            Kind::Bf16 => Some(DType::Bf16),
            _ => None,
        };
        if let Some(head_dim) = order.head_dim {
            let n = shape.first().copied().unwrap_or(0);
            ensure!(
                n.is_multiple_of(head_dim),
                "{}: tensor {theirs} has {n} rows, no whole heads of {head_dim}",
                self.label
            );
        }
        match (dtype, &shape[..]) {
            (Some(dtype), _) => self.plain(name, dtype, shape, range, order),
            (None, &[_, cols]) => {
                let rows = Blocks { kind, bytes: self.bytes.clone(), range: range.clone(), cols, order };
                Ok(Tensor::from_rows(name, [shape[0], cols], Arc::new(rows)))
            }
            (None, _) => {
                bail!("{}: tensor {theirs} is a {} of shape {shape:?}, expected a matrix", self.label, kind.name())
            }
        }
    }

    /// Shares the file's bytes, or copies them if rows change places or the bytes are not aligned.
    fn plain(
        &self,
        name: &str,
        dtype: DType,
        shape: &[usize],
        range: &Range<usize>,
        order: RowOrder,
    ) -> Result<Tensor> {
        let raw = &self.raw()[range.clone()];
        let aligned = raw.as_ptr().align_offset(dtype.size_bytes()) == 0;
        if order.head_dim.is_none() && aligned {
            return Ok(Tensor::new(name, dtype, shape.to_vec(), self.bytes.clone(), range.clone()));
        }
        let row = (raw.len() / shape.first().copied().unwrap_or(1).max(1)).max(1);
        let copy = mapped::buffer(raw.len(), |to| {
            for (at, to) in to.chunks_exact_mut(row).enumerate() {
                to.copy_from_slice(&raw[order.source(at) * row..][..row]);
            }
        })?;
        Ok(Tensor::new(name, dtype, shape.to_vec(), copy, 0..raw.len()))
    }
}

/// The F32 tensors of a file by the names that they have there.
pub fn floats(raw: &[u8]) -> Result<BTreeMap<String, Vec<f32>>> {
    let header = Header::parse(raw)?;
    let floats = header.tensors.into_iter().filter(|(_, t)| t.kind == Ok(Kind::F32));
    let values = |t: &Entry| raw[t.range.clone()].as_chunks::<4>().0.iter().map(|v| f32::from_le_bytes(*v)).collect();
    Ok(floats.map(|(name, t)| (name, values(&t))).collect())
}

/// The name in a GGUF file of a tensor of a model folder.
pub fn gguf_name(name: &str) -> Option<String> {
    let (stem, kind) = name.rsplit_once('.')?;
    let (layer, names, stem) = match stem.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.')) {
        Some((layer, part)) => (format!("blk.{layer}."), &LAYER_NAMES[..], part),
        None => (String::new(), &MODEL_NAMES[..], stem),
    };
    let (_, theirs) = names.iter().find(|(ours, _)| *ours == stem)?;
    Some(format!("{layer}{theirs}.{kind}"))
}

/// Where a row of a matrix is in the file.
#[derive(Clone, Copy)]
struct RowOrder {
    /// Rows of a head if they are interleaved: channel i of its first half is row 2i, that of its
    /// second half row 2i + 1.
    head_dim: Option<usize>,
}

impl RowOrder {
    fn source(self, row: usize) -> usize {
        let Some(dim) = self.head_dim else { return row };
        let (head, channel) = (row / dim * dim, row % dim);
        head + 2 * (channel % (dim / 2)) + channel / (dim / 2)
    }
}

/// A quantized matrix.
struct Blocks {
    kind: Kind,
    bytes: SharedBytes,
    range: Range<usize>,
    cols: usize,
    order: RowOrder,
}

impl Rows for Blocks {
    fn name(&self) -> &str {
        self.kind.name()
    }

    fn bits(&self) -> f32 {
        let (values, bytes) = self.kind.block();
        8.0 * bytes as f32 / values as f32
    }

    fn decode(&self, row: usize, out: &mut [f32]) {
        self.kind.decode(self.row(row), out);
    }

    fn is_finite(&self, row: usize) -> bool {
        self.kind.has_finite_scales(self.row(row))
    }
}

impl Blocks {
    fn row(&self, row: usize) -> &[u8] {
        let (values, bytes) = self.kind.block();
        let len = self.cols / values * bytes;
        let raw = &(*self.bytes).as_ref()[self.range.clone()];
        &raw[self.order.source(row) * len..][..len]
    }
}

#[cfg(test)]
mod tests;
