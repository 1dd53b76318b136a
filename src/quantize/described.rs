//! Describes a checkpoint as it will be in memory, before it is converted: the shapes and formats
//! of its tensors, without their bytes.

use super::convert;
use crate::checkpoint::pack::is_expert;
use crate::checkpoint::{Checkpoint, mapped};
use crate::quant::{self, Code, Weights};
use crate::tensor::{DType, Format, Rows, Tensor};
use anyhow::{Result, bail};
use std::collections::{BTreeMap, BTreeSet};

impl Checkpoint {
    /// Whether the weights can be stored in `weights`. The built-in model and quantized checkpoints
    /// have one format.
    pub fn can_be(&self, weights: Weights) -> bool {
        match (self.builtin, self.weights.is_packed()) {
            (true, _) => weights.is_plain(),
            (_, true) => weights == self.weights,
            _ => weights.is_plain() || !convert::codes_of(self, weights).is_empty(),
        }
    }

    /// The smallest format that adds no error worth mentioning to another program's format, and
    /// anything else the most exact: 4-bit codes in groups that q4 does not have would lose as much
    /// again in it.
    pub fn natural_weights(&self) -> Weights {
        let bits = |t: &Tensor| match &t.format {
            Format::Rows(rows) if is_kept(t, &**rows) => rows.bits(),
            Format::Rows(rows) => rows.bits().max(8.0),
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
        quant::natural(median.map_or(1600, |(bits, _)| bits))
    }

    /// The format that keeps the codes of the files, if that is possible for most weights.
    pub fn own_format(&self) -> Option<Weights> {
        self.has_own_codes().then_some(Weights::Own)
    }

    fn has_own_codes(&self) -> bool {
        let kept = convert::own_codes(self);
        let own = |t: &&Tensor| matches!(kept.get(&t.name), Some(Code::File(_)));
        let count = |n: usize, t: &Tensor| n + t.len();
        !self.weights.is_packed()
            && 2 * self.tensors.values().filter(own).fold(0, count) > self.tensors.values().fold(0, count)
    }

    /// A code that some packed matrix should not have where all experts have one of `codes`, and
    /// other matrices none that is of experts.
    pub fn misplaced_code(&self, codes: &[Code]) -> Option<Code> {
        let code = |t: &Tensor| if let Format::Packed(code) = t.format { Some(code) } else { None };
        let (experts, others): (Vec<_>, Vec<_>) = self.tensors.values().partition(|t| is_expert(&t.name));
        let experts: BTreeSet<Code> = experts.into_iter().filter_map(code).collect();
        let dense = others.into_iter().filter_map(code).find(|code| code.is_of_experts());
        dense.or(experts.iter().find(|code| !codes.contains(code)).or(experts.iter().nth(1)).copied())
    }

    /// The checkpoint that a conversion to `weights` would make, for plans: its packed matrices
    /// have no bytes to read.
    pub fn described(&self, weights: Weights) -> Result<Checkpoint> {
        let codes = if self.can_be(weights) { convert::codes_of(self, weights) } else { BTreeMap::new() };
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
        out.draft_head.clone_from(&self.draft_head);
        out.take_tensors(tensors);
        out.n_params = self.n_params;
        out.is_description = true;
        out.weights = if codes.is_empty() { self.weights } else { weights };
        Ok(out)
    }
}

/// Whether q4 keeps the codes of this matrix.
fn is_kept(t: &Tensor, rows: &dyn Rows) -> bool {
    let cols = t.shape.last().copied().unwrap_or(0);
    Code::fits(cols) && rows.exact_strip(Code::Q4, 0, &mut vec![0; Code::Q4.strip_bytes(cols)])
}

fn is_packed(t: &Tensor, code: Code) -> bool {
    matches!(t.format, Format::Packed(c) if c == code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// 4-bit codes of another program, which q4 keeps or not.
    struct Codes {
        exact: bool,
    }

    impl Rows for Codes {
        fn name(&self) -> &str {
            "CODES"
        }
        fn bits(&self) -> f32 {
            4.5
        }
        fn decode(&self, _: usize, out: &mut [f32]) {
            out.fill(0.0);
        }
        fn exact_strip(&self, _: Code, _: usize, _: &mut [u8]) -> bool {
            self.exact
        }
    }

    #[test]
    fn four_bit_codes_stay_four_bits_only_if_they_are_kept() {
        let config = crate::checkpoint::ModelConfig { n_layers: 1, ..Checkpoint::shape("smollm2-135m").unwrap() };
        for (exact, natural) in [(true, Weights::Int4Fast), (false, Weights::Int8)] {
            let mut c = Checkpoint::random_of("codes", config.clone()).unwrap();
            assert_eq!(c.natural_weights(), Weights::Bf16);
            for t in c.tensors.values_mut().filter(|t| t.shape.len() == 2) {
                *t = Tensor::from_rows(&t.name, [t.shape[0], t.shape[1]], Arc::new(Codes { exact }));
            }
            assert_eq!(c.natural_weights(), natural);
        }
    }
}
