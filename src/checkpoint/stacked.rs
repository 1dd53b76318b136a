//! Rows of a predictor stacked below q, k and v, so that one matmul computes all of them. They are
//! in the format of q, k and v; a second copy holds the rounding errors of the first.

use super::names::{AttentionSpec, LinearSpec};
use super::{Checkpoint, mapped, pack};
use crate::quant::{Code, TILE_ROWS};
use crate::tensor::{DType, Format, Tensor};
use anyhow::Result;
use half::{bf16, f16};
use std::sync::Arc;

/// The rows of one layer.
pub struct Stacked {
    /// Matrices of the same width, to be stacked in this order.
    pub parts: Vec<Tensor>,
    /// Rows of each copy: the linear map's, the hidden units', and zeros up to whole strips.
    pub stride: usize,
    pub copies: usize,
}

impl Checkpoint {
    /// The rows that a layer's predictor has below q, k and v; `None` if it has no predictor.
    pub fn stacked_decisions(&self, layer: &AttentionSpec) -> Result<Option<Stacked>> {
        let Some(decisions) = layer.decisions.as_ref().filter(|d| d.norm.is_none()) else { return Ok(None) };
        let first = decisions.mlp.as_ref().map(|[first, _]| first);
        let maps = decisions.linear.iter().chain(first).map(|map| self.tensor(&map.weight));
        let maps = maps.collect::<Result<Vec<_>>>()?;
        let above = |linear: &LinearSpec| self.tensor(&linear.weight).map(|tensor| tensor.format);
        let formats = layer.projections().into_iter().map(above).collect::<Result<Vec<_>>>()?;
        self.stacked(&maps, &formats).map(Some)
    }

    fn stacked(&self, maps: &[Tensor], above: &[Format]) -> Result<Stacked> {
        let rows: usize = maps.iter().map(|map| map.shape[0]).sum();
        let (stride, cols) = (rows.next_multiple_of(TILE_ROWS), maps[0].shape[1]);
        let all = |is: &dyn Fn(&Format) -> bool| above.iter().all(is);
        let of = |parts: Vec<Tensor>| Stacked { copies: parts.len(), parts, stride };
        match above[0] {
            Format::Packed(code) => {
                // As all decisions under codes of files.
                let code = if let Code::File(_) = code { Code::Q8 } else { code };
                let nothing = |_| described(code, stride, cols);
                Ok(of(match self.is_description {
                    true => (0..copies(code)).map(nothing).collect::<Result<_>>()?,
                    false => packed(code, &values(maps, stride), stride, cols)?,
                }))
            }
            Format::Plain(dtype) if all(&|f| matches!(f, Format::Plain(d) if *d == dtype)) => {
                if maps.iter().all(|map| map.dtype() == Some(dtype)) {
                    return Ok(as_they_are(maps, stride, cols, dtype));
                }
                Ok(of(plain(dtype, values(maps, stride), stride, cols)))
            }
            // If the types differ, the rows have theirs.
            _ => Ok(as_they_are(maps, stride, cols, maps[0].dtype().unwrap_or(DType::F32))),
        }
    }
}

fn as_they_are(maps: &[Tensor], stride: usize, cols: usize, dtype: DType) -> Stacked {
    let padding = stride - maps.iter().map(|map| map.shape[0]).sum::<usize>();
    let bytes = padding * cols * dtype.size_bytes();
    let zeros = Tensor::new("padding", dtype, vec![padding, cols], Arc::new(vec![0; bytes]), 0..bytes);
    let parts = maps.iter().cloned().chain((padding > 0).then_some(zeros)).collect();
    Stacked { parts, stride, copies: 1 }
}

/// Values of all maps, followed by zeros.
fn values(maps: &[Tensor], stride: usize) -> Vec<f32> {
    let mut values: Vec<f32> = maps.iter().flat_map(Tensor::to_f32).collect();
    values.resize(stride * maps[0].shape[1], 0.0);
    values
}

/// Copies that decisions need: two of 4 bits each are as exact as one of 8.
fn copies(code: Code) -> usize {
    match code {
        Code::Q4 | Code::Q4H => 2,
        _ => 1,
    }
}

fn packed(code: Code, values: &[f32], stride: usize, cols: usize) -> Result<Vec<Tensor>> {
    let mut rest = Tensor::from_f32("decisions", vec![stride, cols], values);
    let mut out = Vec::new();
    for _ in 0..copies(code) {
        let len = code.bytes(stride, cols);
        let bytes = mapped::buffer(len, |to| pack::pack(&rest, code, None, 0, 0, to))?;
        let copy = Tensor::packed("decisions", code, [stride, cols], bytes, 0..len);
        let left: Vec<f32> = rest.to_f32().iter().zip(copy.to_f32()).map(|(a, b)| a - b).collect();
        rest = Tensor::from_f32("decisions", vec![stride, cols], &left);
        out.push(copy);
    }
    Ok(out)
}

fn described(code: Code, stride: usize, cols: usize) -> Result<Tensor> {
    let len = code.bytes(stride, cols);
    Ok(Tensor::packed("decisions", code, [stride, cols], mapped::reserved(len)?, 0..len))
}

/// One copy, or two where rounding to `dtype` leaves something over.
fn plain(dtype: DType, values: Vec<f32>, stride: usize, cols: usize) -> Vec<Tensor> {
    let round = |v: f32| match dtype {
        DType::F32 => v,
        DType::F16 => f16::from_f32(v).to_f32(),
        DType::Bf16 => bf16::from_f32(v).to_f32(),
    };
    let left: Vec<f32> = values.iter().map(|&v| v - round(v)).collect();
    let exact = left.iter().all(|&v| v == 0.0);
    let copy = |values: Vec<f32>| {
        let bytes: Vec<u8> = match dtype {
            DType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            DType::F16 => values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect(),
            DType::Bf16 => values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect(),
        };
        let len = bytes.len();
        Tensor::new("decisions", dtype, vec![stride, cols], Arc::new(bytes), 0..len)
    };
    std::iter::once(values).chain((!exact).then_some(left)).map(copy).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values that the copies of a layer's rows add up to.
    fn summed(stacked: &Stacked, cols: usize) -> Vec<f32> {
        let values: Vec<f32> = stacked.parts.iter().flat_map(Tensor::to_f32).collect();
        assert_eq!(values.len(), stacked.copies * stacked.stride * cols);
        let copies = || values.chunks(stacked.stride * cols);
        (0..stacked.stride * cols).map(|i| copies().map(|copy| copy[i]).sum()).collect()
    }

    #[test]
    fn rows_are_as_exact_in_any_format_as_decisions_need() {
        let (cols, mut x) = (128, 1u32);
        let mut next = || {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            x as f32 / u32::MAX as f32 - 0.5
        };
        let mut map = |rows: usize| {
            let values: Vec<f32> = (0..rows * cols).map(|_| next()).collect();
            Tensor::from_f32("map", vec![rows, cols], &values)
        };
        let maps = [map(3), map(20)];
        let wanted = values(&maps, 32);
        let of = |format: Format, is_description: bool| {
            let mut checkpoint = Checkpoint::random("demo").unwrap();
            checkpoint.is_description = is_description;
            checkpoint.stacked(&maps, &[format.clone(), format.clone(), format]).unwrap()
        };
        for (format, copies, most) in [
            (Format::Plain(DType::F32), 1, 0.0),
            (Format::Plain(DType::Bf16), 2, 1e-5),
            (Format::Plain(DType::F16), 2, 1e-6),
            (Format::Packed(Code::Q8), 1, 5e-3),
            (Format::Packed(Code::Q4), 2, 5e-3),
            (Format::Packed(Code::Q4H), 2, 5e-3),
        ] {
            let stacked = of(format.clone(), false);
            assert_eq!((stacked.copies, stacked.stride), (copies, 32), "{}", format.name());
            let worst = summed(&stacked, cols).iter().zip(&wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst <= most, "{}: {worst}", format.name());
            let described = of(format.clone(), true);
            let sizes = |s: &Stacked| s.parts.iter().map(Tensor::stored_bytes).collect::<Vec<_>>();
            assert_eq!(sizes(&described), sizes(&stacked), "{}", format.name());
        }
    }
}
