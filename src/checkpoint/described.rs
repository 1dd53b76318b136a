//! What a checkpoint will be in memory before it is converted: the shapes and formats of its tensors, without their bytes.

use super::{Checkpoint, convert, mapped};
use crate::quant::{Code, Weights};
use crate::tensor::{DType, Format, Tensor};
use anyhow::{Result, bail};
use std::collections::BTreeMap;

/// The formats that `--weights auto` chooses from, the most exact first.
pub const EXACT_FIRST: [Weights; 3] = [Weights::Bf16, Weights::Int8, Weights::Int4];

impl Checkpoint {
    /// Whether the weights can be stored in `weights`. The built-in model and quantized checkpoints have one format.
    pub fn can_be(&self, weights: Weights) -> bool {
        match (self.builtin, self.weights.code()) {
            (true, _) => weights == Weights::Bf16,
            (_, Some(_)) => weights == self.weights,
            _ => weights == Weights::Bf16 || !convert::codes(&self.config, weights).is_empty(),
        }
    }

    /// The smallest format that keeps the codes of another program's format, and anything else the most exact.
    pub fn natural_weights(&self) -> Weights {
        let bits = |t: &Tensor| match &t.format {
            Format::Rows(rows) => rows.bits(),
            format => 8.0 * format.bytes(&t.shape) as f32 / t.len().max(1) as f32,
        };
        // Norms and the embedding have more bits than the rest.
        let (mut by_bits, mut total) = (BTreeMap::new(), 0);
        for t in self.tensors.values() {
            *by_bits.entry((bits(t) * 100.0) as u32).or_insert(0) += t.len();
            total += t.len();
        }
        let mut below = 0;
        let median = by_bits.into_iter().find(|(_, n)| {
            below += n;
            2 * below >= total
        });
        match median.map_or(1600, |(bits, _)| bits) {
            0..=500 => Weights::Int4,
            501..=900 => Weights::Int8,
            _ => Weights::Bf16,
        }
    }

    /// The checkpoint that a conversion to `weights` would make, for plans: its packed matrices have no bytes to read.
    pub fn described(&self, weights: Weights) -> Result<Checkpoint> {
        let codes = if self.can_be(weights) { convert::codes(&self.config, weights) } else { BTreeMap::new() };
        let format = |t: &Tensor| match (codes.get(&t.name), &t.format) {
            (Some(&code), Format::Plain(_) | Format::Rows(_)) => Format::Packed(code),
            (None, Format::Rows(_)) => Format::Plain(DType::Bf16),
            (_, format) => format.clone(),
        };
        let largest = self.tensors.values().map(|t| format(t).bytes(&t.shape)).max().unwrap_or(0);
        let nothing = mapped::reserved(largest)?;
        let describe = |t: &Tensor| {
            let range = 0..format(t).bytes(&t.shape);
            Ok(match (format(t), &t.shape[..]) {
                (Format::Packed(code), &[rows, cols]) if t.dtype().is_some() || !is_packed(t, code) => {
                    Tensor::packed(&t.name, code, [rows, cols], nothing.clone(), range)
                }
                (Format::Plain(dtype), _) if t.dtype().is_none() => {
                    Tensor::new(&t.name, dtype, t.shape.clone(), nothing.clone(), range)
                }
                (Format::Rows(_), _) => bail!("tensor {} stays in a format that no device reads", t.name),
                _ => t.clone(),
            })
        };
        let tensors = self.tensors.values().map(describe).collect::<Result<_>>()?;
        let mut out = Checkpoint::empty(&self.name, self.config.clone());
        (out.builtin, out.adapter) = (self.builtin, self.adapter.clone());
        out.take_tensors(tensors);
        out.n_params = self.n_params;
        out.weights = if codes.is_empty() { self.weights } else { weights };
        Ok(out)
    }
}

fn is_packed(t: &Tensor, code: Code) -> bool {
    matches!(t.format, Format::Packed(c) if c == code)
}
