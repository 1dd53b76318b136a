//! Experts in folders of gpt-oss: all experts of a layer in one tensor, rows of gate and up
//! interleaved. Matrices are stored transposed, or as rows of MXFP4: 4-bit codes (E2M1), two per
//! byte, the even column in the low bits, and one scale (E8M0) per 32 columns.
//!
//! | | matrices | MXFP4, U8 | biases |
//! | --- | --- | --- | --- |
//! | gate and up | `gate_up_proj` `[experts, hidden, 2 width]` | `gate_up_proj_blocks` `[experts, 2 width, hidden / 32, 16]`, `_scales` `[experts, 2 width, hidden / 32]` | `gate_up_proj_bias` |
//! | down | `down_proj` `[experts, width, hidden]` | `down_proj_blocks`, `_scales` | `down_proj_bias` |

use super::config::ModelConfig;
use super::e2m1::{E2M1, MOST_E8M0, e8m0};
use super::names::TensorSpec;
use super::safetensors::RawTensor;
use super::shards::Shards;
use crate::quant::file::{FileCode, FileStrip};
use crate::quant::{self, Code, TILE_ROWS};
use crate::tensor::{Rows, Tensor};
use ::safetensors::tensor::Dtype;
use anyhow::{Context, Result, ensure};
use std::sync::Arc;

/// Columns that share a scale, and bytes of their codes.
const GROUP: usize = 32;
const GROUP_BYTES: usize = GROUP / 2;
/// The code that keeps them.
const CODE: Code = Code::File(FileCode::Mxfp4);

/// Position of an expert's rows in the tensor of all experts.
#[derive(Clone, Copy)]
struct Place {
    expert: usize,
    /// Its first row among those of the expert, and the distance between its rows.
    first: usize,
    stride: usize,
}

/// Returns a matrix or bias of an expert; `None` for other tensors.
pub fn tensor(shards: &Shards, config: &ModelConfig, spec: &TensorSpec) -> Result<Option<Tensor>> {
    let place = spec.name.split_once(".mlp.experts.").zip(config.spec.experts.as_ref());
    let Some(((layer, rest), experts)) = place else { return Ok(None) };
    let Some((expert, part)) = rest.split_once('.') else { return Ok(None) };
    let expert = expert.parse().with_context(|| format!("{} is no tensor of an expert", spec.name))?;
    let (whole, kind, first, stride) = match part.split_once('.') {
        Some(("gate_proj", kind)) => ("gate_up_proj", kind, 0, 2),
        Some(("up_proj", kind)) => ("gate_up_proj", kind, 1, 2),
        Some(("down_proj", kind)) => ("down_proj", kind, 0, 1),
        _ => return Ok(None),
    };
    let (name, place) = (format!("{layer}.mlp.experts.{whole}"), Place { expert, first, stride });
    let all = spec.shape[0] * stride;
    let whole = |suffix: &str, shape: &[usize]| TensorSpec { name: format!("{name}{suffix}"), shape: shape.to_vec() };
    let (&[_, cols], "weight") = (&spec.shape[..], kind) else {
        let Some(biases) = shards.plain(&whole("_bias", &[experts.count, all]))? else { return Ok(None) };
        let values = biases.to_f32();
        let values: Vec<f32> = values[expert * all..][..all].iter().skip(first).step_by(stride).copied().collect();
        return Ok(Some(Tensor::from_f32(&spec.name, spec.shape.clone(), &values)));
    };
    let shape = [spec.shape[0], cols];
    if let Some(codes) = shards.raw(&format!("{name}_blocks")) {
        let groups = cols.div_ceil(GROUP);
        let scales = whole("_scales", &[experts.count, all, groups]);
        let found =
            shards.raw(&scales.name).with_context(|| format!("{}: {} is missing", shards.label(), scales.name))?;
        ensure!(cols.is_multiple_of(GROUP), "{}: {name} has {cols} columns, no multiple of {GROUP}", shards.label());
        whole("_blocks", &[experts.count, all, groups, GROUP_BYTES]).check_shape(&codes.shape, shards.label())?;
        scales.check_shape(&found.shape, shards.label())?;
        for (tensor, of) in [(&codes, "codes"), (&found, "scales")] {
            ensure!(tensor.dtype == Dtype::U8, "{}: the {of} of {name} are {}, not U8", shards.label(), tensor.dtype);
        }
        let rows = Mxfp4 { codes, scales: found, place, all, cols };
        return Ok(Some(Tensor::from_rows(&spec.name, shape, Arc::new(rows))));
    }
    let stored = shards.plain(&whole("", &[experts.count, cols, all]))?;
    let rows = |stored| Arc::new(Transposed { stored, place, all, cols });
    Ok(stored.map(|stored| Tensor::from_rows(&spec.name, shape, rows(stored))))
}

struct Mxfp4 {
    codes: RawTensor,
    scales: RawTensor,
    place: Place,
    /// Rows of an expert in the tensor.
    all: usize,
    cols: usize,
}

impl Mxfp4 {
    fn codes(&self, row: usize) -> &[u8] {
        let bytes = self.cols / 2;
        &self.codes.bytes()[self.place.row(row, self.all) * bytes..][..bytes]
    }

    fn scales(&self, row: usize) -> &[u8] {
        let groups = self.cols / GROUP;
        &self.scales.bytes()[self.place.row(row, self.all) * groups..][..groups]
    }
}

impl Place {
    /// Index of a row of the expert's matrix in the tensor of all experts.
    fn row(self, row: usize, all: usize) -> usize {
        self.expert * all + self.first + row * self.stride
    }
}

impl Rows for Mxfp4 {
    fn name(&self) -> &str {
        "MXFP4"
    }

    fn bits(&self) -> f32 {
        4.0 + 8.0 / GROUP as f32
    }

    fn decode(&self, row: usize, out: &mut [f32]) {
        let groups = self.codes(row).chunks_exact(GROUP_BYTES).zip(out.chunks_exact_mut(GROUP)).zip(self.scales(row));
        for ((codes, out), &scale) in groups {
            let scale = e8m0(scale);
            for (out, code) in out.chunks_exact_mut(2).zip(codes) {
                out[0] = E2M1[usize::from(code & 15)] * scale;
                out[1] = E2M1[usize::from(code >> 4)] * scale;
            }
        }
    }

    fn is_finite(&self, row: usize) -> bool {
        self.scales(row).iter().all(|&scale| scale <= MOST_E8M0)
    }

    fn own_code(&self) -> Option<Code> {
        Code::fits(self.cols).then_some(CODE)
    }

    fn exact_strip(&self, code: Code, strip: usize, out: &mut [u8]) -> bool {
        if self.own_code() != Some(code) {
            return false;
        }
        let mut packed = FileStrip::new(FileCode::Mxfp4, self.cols, out);
        let rows = self.all / self.place.stride;
        for (to, row) in (strip * TILE_ROWS..rows).take(TILE_ROWS).enumerate() {
            for (tile, bytes) in self.codes(row).as_chunks::<{ quant::GROUP / 2 }>().0.iter().enumerate() {
                packed.codes(to, tile, &std::array::from_fn(|col| bytes[col / 2] >> (col % 2 * 4) & 15));
            }
            self.scales(row).iter().enumerate().for_each(|(group, scale)| packed.power(to, group, *scale));
        }
        true
    }
}

/// A matrix that is stored transposed.
struct Transposed {
    /// `[experts, cols, all]`
    stored: Tensor,
    place: Place,
    all: usize,
    cols: usize,
}

impl Rows for Transposed {
    fn name(&self) -> &str {
        self.stored.format.name()
    }

    fn bits(&self) -> f32 {
        8.0 * self.stored.dtype().map_or(4, |dtype| dtype.size_bytes()) as f32
    }

    fn decode(&self, row: usize, out: &mut [f32]) {
        let Place { expert, first, stride } = self.place;
        for (col, out) in out.iter_mut().enumerate() {
            let at = (expert * self.cols + col) * self.all + first + row * stride;
            // Rows of one value each.
            self.stored.decode_row(at, std::slice::from_mut(out));
        }
    }
}
