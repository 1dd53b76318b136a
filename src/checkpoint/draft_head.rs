//! A draft head: one decoder layer that guesses the next tokens of a model from the model's hidden
//! states and the tokens after them. [`eagle`](super::eagle) and [`mtp`](super::mtp) read the two
//! kinds, which differ in their input and in the vocabulary of their output.

use super::config::ModelConfig;
pub use super::model::{DraftHead, Input, Reads, Tap};
use super::{mapped, names, pack};
use crate::hub::model_names::same;
use crate::quant::Code;
use crate::tensor::{DType, Format, Tensor};
use anyhow::{Result, ensure};

impl DraftHead {
    /// Fails unless it can guess tokens of this model. The error names the first difference.
    pub fn fits(&self, model: &str, c: &ModelConfig) -> Result<()> {
        for (what, theirs, ours) in
            [("hidden size", self.layer.config.hidden, c.hidden), ("vocabulary", self.vocab, c.vocab)]
        {
            ensure!(
                theirs == ours,
                "{} is a draft head for a different model than {model}: its {what} is {theirs}, and the model's is {ours}",
                self.name
            );
        }
        if let Reads::Layers(taps) = &self.reads {
            let layers: Vec<usize> = taps.iter().map(|tap| tap.layer).collect();
            ensure!(
                layers.iter().all(|&layer| layer <= c.n_layers),
                "{} is a draft head for a different model than {model}: it reads layers {layers:?} of {}",
                self.name,
                c.n_layers
            );
        }
        ensure!(
            c.spec.residual_scale == 1.0,
            "{model} scales its residual stream, and draft heads for that are not known"
        );
        Ok(())
    }

    /// Whether it was made for a model of another name.
    pub fn is_anothers(&self, model: &str) -> bool {
        self.base.as_ref().is_some_and(|base| !same(base, model))
    }

    /// Packs the head's matrices with 8 bits, for a model with packed weights, and omits embeddings
    /// that equal the model's. Maps of the residual stream stay plain, because it is not quantized.
    pub fn adapt(&mut self, packed: bool, embeddings: Option<&Tensor>) -> Result<()> {
        let mut tensors = std::mem::take(&mut self.layer.tensors);
        let own = names::embedding(&self.layer.config).name;
        if tensors.get(&own).zip(embeddings).is_some_and(|(own, theirs)| is_same(own, theirs)) {
            tensors.remove(&own);
        }
        let inputs = self.hidden.iter_mut().chain([&mut self.embedding]).flat_map(|input| &mut input.map);
        for tensor in tensors.values_mut().chain(inputs).filter(|t| t.shape.len() == 2) {
            *tensor = in_memory(tensor, packed)?;
        }
        self.layer.take_tensors(tensors.into_values().collect());
        Ok(())
    }

    /// Bytes of its weights.
    pub fn bytes(&self) -> u64 {
        let bytes = |t: &Tensor| t.stored_bytes() as u64;
        let inputs =
            self.hidden.iter().chain([&self.embedding]).flat_map(|input| input.map.iter().chain([&input.norm]));
        let taps = if let Reads::Layers(taps) = &self.reads { &taps[..] } else { &[] };
        let taps = taps.iter().flat_map(|tap| [&tap.map].into_iter().chain(&tap.norm));
        self.layer.weight_bytes + inputs.chain(taps).map(bytes).sum::<u64>()
    }
}

/// A matrix with 8 bits, or in elements where it is not to be packed or its columns do not fit.
fn in_memory(t: &Tensor, packed: bool) -> Result<Tensor> {
    let [rows, cols] = [t.shape[0], t.shape[1]];
    match t.format {
        Format::Packed(_) => Ok(t.clone()),
        _ if packed && Code::fits(cols) => {
            let len = Code::Q8.bytes(rows, cols);
            let bytes = mapped::buffer(len, |out| pack::pack(t, Code::Q8, None, 0, 0, out))?;
            Ok(Tensor::packed(&t.name, Code::Q8, [rows, cols], bytes, 0..len))
        }
        _ => pack::plain(t.clone(), 0),
    }
}

/// `n` columns of a matrix from `first` on.
pub(super) fn columns(t: &Tensor, first: usize, n: usize) -> Result<Tensor> {
    let t = pack::plain(t.clone(), 0)?;
    let (rows, cols) = (t.shape[0], t.shape[1]);
    let dtype = t.dtype().unwrap_or(DType::F32);
    let size = dtype.size_bytes();
    let bytes = mapped::buffer(rows * n * size, |out| {
        for (out, row) in out.chunks_exact_mut(n * size).zip(t.bytes().chunks_exact(cols * size)) {
            out.copy_from_slice(&row[first * size..][..n * size]);
        }
    })?;
    Ok(Tensor::new(&format!("{} {first}", t.name), dtype, vec![rows, n], bytes, 0..rows * n * size))
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
