//! Matrices of NVFP4 in safetensors: codes of 4 bits (E2M1), two to a byte, the even column in the
//! low bits; a scale in F8_E4M3 for 16 columns of a row; and one F32 for the whole matrix.
//!
//! | | codes, U8 `[rows, cols / 2]` | scales `[rows, cols / 16]` | of the matrix | factor of a group |
//! | --- | --- | --- | --- | --- |
//! | modelopt | `weight` | `weight_scale` | `weight_scale_2` | `scale * scale_2` |
//! | compressed-tensors | `weight_packed` | `weight_scale` | `weight_global_scale` | `scale / global_scale` |

use super::e2m1::E2M1;
use super::fp8::E4M3;
use super::names::TensorSpec;
use super::safetensors::RawTensor;
use super::shards::Shards;
use crate::tensor::{Rows, Tensor};
use ::safetensors::tensor::Dtype;
use anyhow::{Context, Result, ensure};
use std::sync::Arc;

/// Columns that share a scale.
pub const GROUP: usize = 16;

/// Program that wrote the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    Modelopt,
    Compressed,
}

impl Writer {
    /// Names of the codes and of the matrix's own scale.
    fn names(self) -> [&'static str; 2] {
        match self {
            Self::Modelopt => ["weight", "weight_scale_2"],
            Self::Compressed => ["weight_packed", "weight_global_scale"],
        }
    }

    /// Factor of a group by its scale and that of the matrix.
    fn factor(self, scale: f32, whole: f32) -> f32 {
        match self {
            Self::Modelopt => scale * whole,
            Self::Compressed => scale / whole,
        }
    }
}

struct Fp4 {
    writer: Writer,
    codes: RawTensor,
    scales: RawTensor,
    /// Scale of the matrix.
    whole: f32,
    cols: usize,
}

/// The matrix `spec`, `stem` with a suffix; `None` if the files have no codes of that name.
pub fn tensor(shards: &Shards, spec: &TensorSpec, stem: &str, writer: Writer) -> Result<Option<Tensor>> {
    let [codes, whole] = writer.names().map(|name| format!("{stem}.{name}"));
    let Some(codes_found) = shards.raw(&codes).filter(|t| t.dtype == Dtype::U8) else { return Ok(None) };
    let need = |name: &str| shards.raw(name).with_context(|| format!("{}: tensor {name} is missing", shards.label()));
    let (scales, whole) = (need(&format!("{stem}.weight_scale"))?, need(&whole)?);
    let fp4 = Fp4::new(spec, writer, codes_found, scales, &whole);
    let fp4 = fp4.with_context(|| format!("{}: tensor {codes}", shards.label()))?;
    let shape = [fp4.codes.shape[0], fp4.cols];
    Ok(Some(Tensor::from_rows(&spec.name, shape, Arc::new(fp4))))
}

impl Fp4 {
    fn new(spec: &TensorSpec, writer: Writer, codes: RawTensor, scales: RawTensor, whole: &RawTensor) -> Result<Self> {
        let &[rows, bytes] = &codes.shape[..] else { anyhow::bail!("shape {:?} is not a matrix", codes.shape) };
        let cols = bytes.checked_mul(2).context("shape overflows")?;
        ensure!(spec.shape == [rows, cols], "its matrix has shape {:?}, expected {:?}", [rows, cols], spec.shape);
        ensure!(scales.dtype == Dtype::F8_E4M3, "scales are {}, expected F8_E4M3", scales.dtype);
        let wanted = [rows, cols.div_ceil(GROUP)];
        ensure!(scales.shape == wanted, "scales have shape {:?}, expected {wanted:?}", scales.shape);
        let one = whole.shape.iter().product::<usize>() == 1 && whole.is_float();
        ensure!(one, "the scale of the matrix is {} of shape {:?}, expected one F32", whole.dtype, whole.shape);
        Ok(Self { writer, whole: whole.f32_at(0), codes, scales, cols })
    }

    /// Factors of the groups of a row.
    fn factors(&self, row: usize) -> impl Iterator<Item = f32> {
        let groups = self.cols.div_ceil(GROUP);
        let scales = &self.scales.bytes()[row * groups..][..groups];
        scales.iter().map(|code| self.writer.factor(E4M3[usize::from(*code)], self.whole))
    }
}

impl Rows for Fp4 {
    fn name(&self) -> &str {
        "NVFP4"
    }

    fn bits(&self) -> f32 {
        4.0 + 8.0 / GROUP as f32
    }

    fn decode(&self, row: usize, out: &mut [f32]) {
        let codes = &self.codes.bytes()[row * self.cols / 2..][..self.cols / 2];
        let groups = codes.chunks(GROUP / 2).zip(out.chunks_mut(GROUP)).zip(self.factors(row));
        for ((codes, out), factor) in groups {
            for (out, code) in out.chunks_exact_mut(2).zip(codes) {
                out[0] = E2M1[usize::from(code & 15)] * factor;
                out[1] = E2M1[usize::from(code >> 4)] * factor;
            }
        }
    }

    fn is_finite(&self, row: usize) -> bool {
        self.factors(row).all(f32::is_finite)
    }
}
