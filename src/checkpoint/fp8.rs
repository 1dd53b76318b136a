//! Matrices of F8_E4M3 in safetensors, with scales in `weight_scale_inv` (blocks, as in
//! Qwen3-8B-FP8) or `weight_scale` (rows or the whole matrix, as in compressed-tensors). A value is
//! `code * scale`.

use super::names::TensorSpec;
use super::safetensors::RawTensor;
use super::shards::Shards;
use crate::tensor::{Rows, Tensor};
use ::safetensors::tensor::Dtype;
use anyhow::{Context, Result, bail, ensure};
use std::sync::Arc;

/// Rows and columns of a block where the configuration states none, as in transformers.
const USUAL: usize = 128;

struct Fp8 {
    codes: RawTensor,
    cols: usize,
    scales: RawTensor,
    /// Rows and columns that share a scale, and scales per row of blocks.
    block: [usize; 2],
    scale_cols: usize,
}

/// The matrix `spec`, `stem` with a suffix; `None` if the files have no F8_E4M3 matrix of that
/// name.
pub fn tensor(shards: &Shards, spec: &TensorSpec, stem: &str, block: Option<[usize; 2]>) -> Result<Option<Tensor>> {
    let name = &spec.name;
    let Some(codes) = shards.raw(name).filter(|t| t.dtype == Dtype::F8_E4M3) else { return Ok(None) };
    spec.check_shape(&codes.shape, shards.label())?;
    let scales = ["weight_scale_inv", "weight_scale"].iter().find_map(|s| shards.raw(&format!("{stem}.{s}")));
    let scales = scales.with_context(|| format!("{}: tensor {stem}.weight_scale is missing", shards.label()))?;
    let place = || format!("{}: tensor {name}", shards.label());
    let fp8 = Fp8::new(codes, scales, block).with_context(place)?;
    let shape = [fp8.codes.shape[0], fp8.cols];
    Ok(Some(Tensor::from_rows(name, shape, Arc::new(fp8))))
}

impl Fp8 {
    fn new(codes: RawTensor, scales: RawTensor, block: Option<[usize; 2]>) -> Result<Self> {
        let &[rows, cols] = &codes.shape[..] else { bail!("shape {:?} is not a matrix", codes.shape) };
        ensure!(scales.is_float(), "scales are {}, expected F16, BF16 or F32", scales.dtype);
        let (block, scale_cols) = match (block, &scales.shape[..]) {
            (Some([r, c]), shape) if shape == [rows.div_ceil(r), cols.div_ceil(c)] => ([r, c], cols.div_ceil(c)),
            (None, shape) if shape == [rows, 1] || shape == [rows] => ([1, cols.max(1)], 1),
            (None, [] | [1] | [1, 1]) => ([rows.max(1), cols.max(1)], 1),
            (None, shape) if shape == [rows.div_ceil(USUAL), cols.div_ceil(USUAL)] => {
                ([USUAL; 2], cols.div_ceil(USUAL))
            }
            (block, shape) => {
                bail!("scales of shape {shape:?} do not fit {rows} rows, {cols} columns and blocks {block:?}")
            }
        };
        Ok(Self { codes, cols, scales, block, scale_cols })
    }
}

impl Rows for Fp8 {
    fn name(&self) -> &str {
        "FP8"
    }

    fn bits(&self) -> f32 {
        8.0
    }

    fn decode(&self, row: usize, out: &mut [f32]) {
        let [block_rows, block_cols] = self.block;
        let codes = &self.codes.bytes()[row * self.cols..][..self.cols];
        let blocks = codes.chunks(block_cols).zip(out.chunks_mut(block_cols));
        for (at, (codes, out)) in blocks.enumerate() {
            let scale = self.scales.f32_at(row / block_rows * self.scale_cols + at);
            out.iter_mut().zip(codes).for_each(|(out, code)| *out = E4M3[usize::from(*code)] * scale);
        }
    }

    fn is_finite(&self, row: usize) -> bool {
        let first = row / self.block[0] * self.scale_cols;
        let codes = &self.codes.bytes()[row * self.cols..][..self.cols];
        (first..first + self.scale_cols).all(|at| self.scales.f32_at(at).is_finite())
            && codes.iter().all(|code| code & 0x7f != 0x7f)
    }
}

/// The value of each code of F8_E4M3 ("fn": no infinities).
pub(super) static E4M3: [f32; 256] = {
    let mut out = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        let (exponent, mantissa) = ((code as u32 >> 3) & 15, code as u32 & 7);
        let size = if code & 0x7f == 0x7f {
            f32::NAN
        } else if exponent == 0 {
            // Multiples of 2^-9.
            mantissa as f32 / 512.0
        } else {
            f32::from_bits((exponent + 120) << 23 | mantissa << 20)
        };
        out[code] = if code >= 128 { -size } else { size };
        code += 1;
    }
    out
};
