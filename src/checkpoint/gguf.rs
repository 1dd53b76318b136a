//! A GGUF file as a checkpoint: its metadata as the JSON files that a model folder has, and its
//! tensors under their Hugging Face names. [`header`] checks the file, [`blocks`] decodes it.

mod blocks;
mod codes;
mod config;
mod gemma4;
mod header;
mod keys;
mod sentencepiece;
mod tokenizer;

use super::mapped;

use super::names::{self, TensorSpec};
use crate::hub::gguf_files;
use crate::hub::model_names::{MAX_NAME, Names};
use crate::quant::{Code, TILE_ROWS};
use crate::tensor::{DType, Rows, SharedBytes, Tensor};
use crate::unicode;
use anyhow::{Context, Result, bail, ensure};
use blocks::Kind;
pub use header::HEADER_BYTES;
use header::{Entry, Header};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
pub use tokenizer::PROMPT_BOS;

/// Names of tensors: in a folder, in a GGUF file. Those of layers follow `model.layers.N.` and
/// `blk.N.`.
const LAYER_NAMES: [(&str, &str); 49] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.qkv_proj", "attn_qkv"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
    ("pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
    ("post_feedforward_layernorm_1", "post_ffw_norm_1"),
    ("post_feedforward_layernorm_2", "post_ffw_norm_2"),
    ("per_layer_input_gate", "inp_gate"),
    ("per_layer_projection", "proj"),
    ("post_per_layer_input_norm", "post_norm"),
    ("layer_scalar", "layer_output_scale"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.gate_up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.gate", "ffn_gate_inp"),
    ("mlp.router", "ffn_gate_inp"),
    ("router.proj", "ffn_gate_inp"),
    ("router", "ffn_gate_inp"),
    ("router.per_expert_scale", "ffn_down_exps"),
    ("self_attn.sinks", "attn_sinks"),
    ("mlp.experts.gate_up_proj", "ffn_gate_up_exps"),
    ("mlp.experts.gate_proj", "ffn_gate_exps"),
    ("mlp.experts.up_proj", "ffn_up_exps"),
    ("mlp.experts.down_proj", "ffn_down_exps"),
    ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
    ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
    ("linear_attn.in_proj_qkv", "attn_qkv"),
    ("linear_attn.in_proj_z", "attn_gate"),
    ("linear_attn.in_proj_b", "ssm_beta"),
    ("linear_attn.in_proj_a", "ssm_alpha"),
    ("linear_attn.conv1d", "ssm_conv1d"),
    ("linear_attn.A_log", "ssm_a"),
    ("linear_attn.dt_bias", "ssm_dt"),
    ("linear_attn.norm", "ssm_norm"),
    ("linear_attn.out_proj", "ssm_out"),
    ("nextn.fc", "nextn.eh_proj"),
    ("nextn.pre_fc_norm_embedding", "nextn.enorm"),
    ("nextn.pre_fc_norm_hidden", "nextn.hnorm"),
    ("nextn.norm", "nextn.shared_head_norm"),
];
/// Another name of the norm after attention's block, which is the MLP's, or attention's own.
const POST_NORM: &str = "post_attention_norm";
const MODEL_NAMES: [(&str, &str); 6] = [
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
    ("model.embed_tokens_per_layer", "per_layer_token_embd"),
    ("model.per_layer_model_projection", "per_layer_model_proj"),
    ("model.per_layer_projection_norm", "per_layer_proj_norm"),
];

/// A GGUF file, or one of the parts of a model.
pub struct Part {
    /// Names it in error messages.
    pub label: String,
    /// The whole file, or its beginning where only the configuration is wanted.
    pub bytes: SharedBytes,
    pub file_bytes: usize,
}

impl Part {
    pub fn whole(label: &str, bytes: SharedBytes) -> Self {
        Self { label: label.to_owned(), file_bytes: (*bytes).as_ref().len(), bytes }
    }

    fn header(&self) -> Result<Header> {
        let header = Header::parse((*self.bytes).as_ref(), self.file_bytes);
        header.with_context(|| self.label.clone()).map_err(unicode::one_line_error)
    }

    /// Whether its bytes hold the header.
    pub fn has_header(&self) -> bool {
        self.header().is_ok()
    }
}

/// A model in GGUF files.
pub struct Gguf {
    parts: Vec<Part>,
    /// Metadata of the first part, and the tensors of all.
    header: Header,
    /// Bytes before the data of each part.
    data_starts: Vec<usize>,
    /// Values per head of q and k whose rows are interleaved; `None` if rows are as in a folder.
    interleaved: Option<usize>,
}

impl Gguf {
    /// Opens the file, or all parts of which it is the first.
    pub fn open(path: &Path) -> Result<Self> {
        let label = path.display().to_string();
        let mut parts = vec![Part::whole(&label, mapped::map_file(path)?)];
        if let Some((stem, number, of)) = gguf_files::part(&label) {
            ensure!(
                number == 1,
                "{label} is part {number} of {of}; give the first, {}",
                gguf_files::part_name(stem, 1, of)
            );
            ensure!(
                of <= gguf_files::MOST_PARTS,
                "{label} is the first of {of} parts, expected at most {}",
                gguf_files::MOST_PARTS
            );
            for number in 2..=of {
                let name = gguf_files::part_name(stem, number, of);
                ensure!(Path::new(&name).exists(), "{label} is the first of {of} parts, and {name} is missing");
                parts.push(Part::whole(&name, mapped::map_file(Path::new(&name))?));
            }
        }
        Self::new(parts)
    }

    /// Checks the headers of all parts of a model.
    pub fn new(parts: Vec<Part>) -> Result<Self> {
        let mut headers = parts.iter().map(Part::header).collect::<Result<Vec<_>>>()?;
        let data_starts = headers.iter().map(|header| header.data_start).collect();
        let rest = headers.split_off(1);
        let mut header = headers.pop().context("no GGUF file")?;
        let check = || -> Result<_> {
            let stated = header.opt_size("split.count")?.unwrap_or(1).max(1);
            ensure!(
                stated == parts.len(),
                "it is one of {stated} parts of a model; give the first by its name that ends in {}",
                gguf_files::part_name("", 1, stated)
            );
            for (part, other) in (1..).zip(rest) {
                let is = |key: &str, wanted: usize| other.opt_size(key).map(|n| n.is_none_or(|n| n == wanted));
                ensure!(
                    is("split.no", part)? && is("split.count", stated)?,
                    "{} is not part {} of {stated} by its metadata",
                    parts[part].label,
                    part + 1
                );
                for (name, entry) in other.tensors {
                    let twice = header.tensors.insert(name.clone(), Entry { part, ..entry });
                    ensure!(twice.is_none(), "tensor {name} is in two parts");
                }
            }
            config::interleaved(&header)
        };
        let interleaved = check().with_context(|| parts[0].label.clone()).map_err(unicode::one_line_error)?;
        Ok(Self { parts, header, data_starts, interleaved })
    }

    /// The first part, which has the metadata.
    fn raw(&self) -> &[u8] {
        (*self.parts[0].bytes).as_ref()
    }

    /// The bytes of a tensor; `None` if they are beyond the beginning of the file that is there.
    fn data(&self, entry: &Entry) -> Option<&[u8]> {
        (*self.parts[entry.part].bytes).as_ref().get(entry.range.clone())
    }

    pub fn label(&self) -> &str {
        &self.parts[0].label
    }

    /// Each file: its label, its bytes, and how many of them are before the tensors' data.
    pub fn files(&self) -> impl Iterator<Item = (&str, SharedBytes, usize)> {
        self.parts.iter().zip(&self.data_starts).map(|(part, start)| (part.label.as_str(), part.bytes.clone(), *start))
    }

    /// The file of this name that a model folder would have, made from the metadata.
    pub fn text(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let (h, raw) = (&self.header, self.raw());
        let data = |name: &str| h.tensors.get(name).and_then(|entry| self.data(entry));
        let value = match name {
            "config.json" => config::architecture(h)
                .and_then(|(family, _)| match family.gemma4 {
                    true => gemma4::config(h, raw, &data),
                    false => config::config(h, raw, &data),
                })
                .map(|map| Some(map.into())),
            "generation_config.json" => config::generation(h, raw).map(|map| Some(map.into())),
            "tokenizer_config.json" => tokenizer::texts(h, raw).map(|map| Some(map.into())),
            "tokenizer.json" => tokenizer::tokenizer(h, raw),
            _ => return Ok(None),
        };
        let value: Option<serde_json::Value> =
            value.with_context(|| self.label().to_owned()).map_err(unicode::one_line_error)?;
        value.map(|v| serde_json::to_vec(&v).with_context(|| self.label().to_owned())).transpose()
    }

    /// `general.license`, if the file states one.
    pub fn licence(&self) -> Option<String> {
        const MAX_LEN: usize = 60;
        let text = self.header.text("general.license").ok().flatten()?;
        Some(text.chars().take(MAX_LEN).collect())
    }

    /// The importance matrix with which the file was quantized, if it says so: its name, its text
    /// and how much of it.
    pub fn imatrix(&self) -> Option<String> {
        const MAX_LEN: usize = 120;
        let text = |key: &str| self.header.text(&format!("quantize.imatrix.{key}")).ok().flatten();
        let mut out = text("file")?.chars().take(MAX_LEN).collect::<String>();
        if let Some(dataset) = text("dataset") {
            out += &format!(", from {}", dataset.chars().take(MAX_LEN).collect::<String>());
        }
        if let Ok(Some(chunks)) = self.header.opt_size("quantize.imatrix.chunks_count") {
            out += &format!(", {chunks} chunks");
        }
        Some(out)
    }

    /// Contents of the files besides the language model, with the number of their tensors.
    pub fn unused(&self) -> Vec<(&'static str, usize)> {
        let Ok([layers, _]) = config::layers(&self.header) else { return Vec::new() };
        let beyond = |name: &&String| config::layer_of(name).is_some_and(|layer| layer >= layers);
        let n = self.header.tensors.keys().filter(beyond).count();
        if n > 0 { vec![(names::MTP, n)] } else { Vec::new() }
    }

    /// The block for multi-token prediction, if there is one.
    pub fn next_layer(&self) -> Option<usize> {
        config::layers(&self.header).ok().and_then(|[layers, blocks]| (blocks > layers).then_some(layers))
    }

    /// The model's own name and the names of the models that it was made of, as the file states
    /// them.
    pub fn names(&self) -> Names {
        let text = |key: &str| self.header.text(key).ok().flatten().filter(|text| text.len() <= MAX_NAME);
        let of = |keys: &[&str]| keys.iter().filter_map(|key| text(key)).map(str::to_owned).collect();
        let bases = ["general.base_model.0.name", "general.base_model.0.repo_url", "general.base_model.1.name"];
        Names { own: of(&["general.name"]), bases: of(&bases) }
    }

    /// Whether there is a tensor of that Hugging Face name.
    pub fn has(&self, name: &str) -> bool {
        gguf_name(name).is_some_and(|name| self.header.tensors.contains_key(&name))
    }

    /// The tensor of that Hugging Face name. Quantized matrices become [`Rows`].
    pub fn tensor(&self, spec: &TensorSpec) -> Result<Tensor> {
        if let [channels, 1, kernel] = spec.shape[..] {
            let mut tensor = self.tensor(&TensorSpec { name: spec.name.clone(), shape: vec![channels, kernel] })?;
            tensor.shape.clone_from(&spec.shape);
            return Ok(tensor);
        }
        let entry = gguf_name(&spec.name).and_then(|name| self.header.tensors.get(&name));
        if let ([1, cols], Some(Entry { shape, .. })) = (&spec.shape[..], entry)
            && shape.len() == 1
        {
            // A matrix of one row may be stored as a vector.
            let mut tensor = self.tensor(&TensorSpec { name: spec.name.clone(), shape: vec![*cols] })?;
            tensor.shape.clone_from(&spec.shape);
            return Ok(tensor);
        }
        let tensor = self.stored(spec)?;
        if !spec.name.ends_with(".A_log") {
            return Ok(tensor);
        }
        // Files have -exp(A_log).
        let values: Vec<f32> = tensor.to_f32().iter().map(|&a| f64::from(-a).ln() as f32).collect();
        ensure!(
            values.iter().all(|a| a.is_finite()),
            "{}: tensor of {} has a value of 0 or more",
            self.label(),
            spec.name
        );
        Ok(Tensor::from_f32(&spec.name, spec.shape.clone(), &values))
    }

    /// The tensor of that Hugging Face name as it is in the file.
    fn stored(&self, spec: &TensorSpec) -> Result<Tensor> {
        let mut name = gguf_name(&spec.name).unwrap_or_else(|| spec.name.clone());
        let other = name.replace(".ffn_norm.", &format!(".{POST_NORM}."));
        if spec.name.contains("post_attention_") && self.header.tensors.contains_key(&other) {
            name = other;
        }
        let Some(entry) = self.header.tensors.get(&name) else {
            bail!("{}: tensor {name} {:?} is missing", self.label(), spec.shape);
        };
        let kind = match entry.kind {
            Ok(kind) => kind,
            Err(id) => bail!(
                "{}: tensor {name} is {}, which is not supported ({} are)",
                self.label(),
                blocks::type_name(id),
                blocks::supported()
            ),
        };
        spec.check_shape(&entry.shape, self.label())?;
        let permuted = ["self_attn.q_proj.", "self_attn.k_proj."].iter().any(|part| spec.name.contains(part));
        let order = RowOrder { head_dim: self.interleaved.filter(|_| permuted) };
        self.read(&spec.name, &name, kind, entry, order)
    }

    fn read(&self, name: &str, theirs: &str, kind: Kind, entry: &Entry, order: RowOrder) -> Result<Tensor> {
        let Entry { shape, range, part, .. } = entry;
        let bytes = &self.parts[*part].bytes;
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
                self.label()
            );
        }
        match (dtype, &shape[..]) {
            (Some(dtype), _) => self.plain(name, dtype, shape, (bytes, range), order),
            (None, &[.., _, cols]) => {
                let rows = Blocks { kind, bytes: bytes.clone(), range: range.clone(), cols, order };
                let mut tensor = Tensor::from_rows(name, [shape[0], cols], Arc::new(rows));
                tensor.shape.clone_from(shape);
                Ok(tensor)
            }
            (None, _) => {
                bail!("{}: tensor {theirs} is a {} of shape {shape:?}, expected a matrix", self.label(), kind.name())
            }
        }
    }

    /// Shares the file's bytes, or copies them if rows change places or the bytes are not aligned.
    fn plain(
        &self,
        name: &str,
        dtype: DType,
        shape: &[usize],
        (bytes, range): (&SharedBytes, &Range<usize>),
        order: RowOrder,
    ) -> Result<Tensor> {
        let raw = &(**bytes).as_ref()[range.clone()];
        let aligned = raw.as_ptr().align_offset(dtype.size_bytes()) == 0;
        if order.head_dim.is_none() && aligned {
            return Ok(Tensor::new(name, dtype, shape.to_vec(), bytes.clone(), range.clone()));
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

/// The F32 tensors of a file by the names that they have there: little-endian values.
pub fn floats(raw: &[u8]) -> Result<BTreeMap<String, &[[u8; 4]]>> {
    let header = Header::parse(raw, raw.len())?;
    let floats = header.tensors.into_iter().filter(|(_, t)| t.kind == Ok(Kind::F32));
    Ok(floats.map(|(name, t)| (name, raw[t.range].as_chunks().0)).collect())
}

/// The name in a GGUF file of a tensor of a model folder.
pub fn gguf_name(name: &str) -> Option<String> {
    let (stem, kind) = match name.rsplit_once('.')? {
        (_, "A_log") => (name, ""),
        (_, "dt_bias") => (name, ".bias"),
        (_, "sinks" | "layer_scalar" | "gate_up_proj") => (name, ".weight"),
        (_, "per_expert_scale") => (name, ".scale"),
        (stem, kind) => (stem, &name[name.len() - kind.len() - 1..]),
    };
    let (layer, names, stem) = match stem.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.')) {
        Some((layer, part)) => (format!("blk.{layer}."), &LAYER_NAMES[..], part),
        None => (String::new(), &MODEL_NAMES[..], stem),
    };
    let (_, theirs) = names.iter().find(|(ours, _)| *ours == stem)?;
    Some(format!("{layer}{theirs}{kind}"))
}

/// Where a row of a matrix is in the file.
#[derive(Clone, Copy)]
struct RowOrder {
    /// Rows of a head if they are interleaved: channel i of its first half is row 2i, channel i of
    /// its second half row 2i + 1.
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

    fn own_code(&self) -> Option<Code> {
        self.kind.own_code().map(Code::File)
    }

    fn exact_strip(&self, code: Code, strip: usize, out: &mut [u8]) -> bool {
        let Code::File(file) = code else { return false };
        if self.own_code() != Some(code) || !Code::fits(self.cols) {
            return false;
        }
        let (_, bytes) = self.kind.block();
        let rows = self.range.len() / (self.cols / self.kind.block().0 * bytes);
        let rows = (strip * TILE_ROWS..rows).map(|row| self.row(row));
        codes::pack(self.kind, file, rows, self.cols, out);
        true
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
