//! Matrices of integer codes in safetensors: GPTQ, AWQ and `pack-quantized` of compressed-tensors.
//! A value is `scale * (code - zero)`, with a scale and a zero point for each row and group of
//! columns.
//!
//! | | codes, i32 words | zero points | scales | 8 codes of a word |
//! | --- | --- | --- | --- | --- |
//! | GPTQ | `qweight [cols / 8, rows]` | `qzeros [groups, rows / 8]`, less 1 in v1 | `scales [groups, rows]` | in order, lowest bits first |
//! | AWQ | `qweight [cols, rows / 8]` | `qzeros [groups, rows / 8]` | `scales [groups, rows]` | rows 0 2 4 6 1 3 5 7 |
//! | compressed-tensors | `weight_packed [rows, cols / 8]` | `weight_zero_point [rows / 8, groups]`, or the middle | `weight_scale [rows, groups]` | in order |

use super::names::TensorSpec;
use super::safetensors::RawTensor;
use super::shards::Shards;
use crate::quant::{Code, GROUP, TILE_ROWS};
use crate::tensor::{Rows, Tensor};
use ::safetensors::tensor::Dtype;
use anyhow::{Context, Result, ensure};
use std::sync::Arc;

/// Where codes, zero points and scales are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// `zero_offset` is added to stored zero points: 1 in `gptq`, 0 in `gptq_v2`.
    Gptq {
        zero_offset: u32,
    },
    Awq,
    Compressed,
}

/// Columns that share a scale, as the configuration has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grouping {
    Unstated,
    /// All of a row.
    Row,
    Columns(usize),
}

/// The name of a format whose columns were quantized in the order of their importance.
pub const ACT_ORDER: &str = "GPTQ in act-order";

/// The place of each of 8 rows in a word of AWQ, in codes.
const AWQ_PLACES: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

impl Layout {
    fn name(self) -> &'static str {
        match self {
            Self::Gptq { .. } => "GPTQ",
            Self::Awq => "AWQ",
            Self::Compressed => "pack-quantized",
        }
    }

    /// Names of codes, zero points, scales and group index.
    fn names(self) -> [&'static str; 4] {
        match self {
            Self::Gptq { .. } | Self::Awq => ["qweight", "qzeros", "scales", "g_idx"],
            Self::Compressed => ["weight_packed", "weight_zero_point", "weight_scale", "weight_g_idx"],
        }
    }
}

/// A packed matrix.
struct Packed {
    layout: Layout,
    bits: usize,
    rows: usize,
    cols: usize,
    groups: usize,
    codes: RawTensor,
    /// `None`: the middle of the codes.
    zeros: Option<RawTensor>,
    scales: RawTensor,
    group_of: GroupOf,
}

/// The group of each column.
enum GroupOf {
    /// Runs of equal numbers of columns.
    Runs(usize),
    /// By column: columns were quantized in the order of their importance (act-order).
    Index(Vec<u32>),
}

/// The matrix `spec`, `stem` with a suffix; `None` if the files have no codes of that name.
pub fn tensor(
    shards: &Shards,
    spec: &TensorSpec,
    stem: &str,
    format: (Layout, usize, Grouping),
) -> Result<Option<Tensor>> {
    let layout = format.0;
    let [codes, zeros, scales, index] = layout.names().map(|name| format!("{stem}.{name}"));
    let Some(codes_found) = shards.raw(&codes) else { return Ok(None) };
    let need = |name: &str| shards.raw(name).with_context(|| format!("{}: tensor {name} is missing", shards.label()));
    let zeros = if layout == Layout::Compressed { shards.raw(&zeros) } else { Some(need(&zeros)?) };
    let packed = Packed::new(spec, format, codes_found, zeros, need(&scales)?, shards.raw(&index));
    let packed = packed.with_context(|| format!("{}: tensor {codes}", shards.label()))?;
    let shape = [packed.rows, packed.cols];
    Ok(Some(Tensor::from_rows(&spec.name, shape, Arc::new(packed))))
}

impl Packed {
    /// Checks that the parts have the shapes of this matrix.
    fn new(
        spec: &TensorSpec,
        (layout, bits, grouping): (Layout, usize, Grouping),
        codes: RawTensor,
        zeros: Option<RawTensor>,
        scales: RawTensor,
        index: Option<RawTensor>,
    ) -> Result<Self> {
        let per_word = 32 / bits;
        let words = [Some(&codes), zeros.as_ref(), index.as_ref()];
        let integers = words.into_iter().flatten().all(|t| matches!(t.dtype, Dtype::I32 | Dtype::U32));
        ensure!(integers && scales.is_float(), "codes are not I32 or scales not F16, BF16 or F32");
        let (&[a, b], &[c, d]) = (&codes.shape[..], &scales.shape[..]) else {
            anyhow::bail!("shapes {:?} and {:?} of codes and scales are not matrices", codes.shape, scales.shape);
        };
        let times = |n: usize| n.checked_mul(per_word).context("shape overflows");
        let (rows, cols, groups, scale_rows) = match layout {
            Layout::Gptq { .. } => (b, times(a)?, c, d),
            Layout::Awq => (times(b)?, a, c, d),
            Layout::Compressed => (a, times(b)?, d, c),
        };
        ensure!(rows > 0 && cols > 0 && groups > 0, "the matrix is empty");
        ensure!(scale_rows == rows, "scales have shape {:?} for {rows} rows", scales.shape);
        if let Some(zeros) = &zeros {
            let packed = rows.div_ceil(per_word);
            let wanted = if layout == Layout::Compressed { [packed, groups] } else { [groups, packed] };
            ensure!(zeros.shape == wanted, "zero points have shape {:?}, expected {wanted:?}", zeros.shape);
        }
        ensure!(spec.shape == [rows, cols], "its matrix has shape {:?}, expected {:?}", [rows, cols], spec.shape);
        let group_of = GroupOf::new(index, cols, groups, grouping)?;
        Ok(Self { layout, bits, rows, cols, groups, codes, zeros, scales, group_of })
    }

    fn field(&self, word: u32, place: usize) -> u32 {
        word >> (place * self.bits) & ((1 << self.bits) - 1)
    }

    /// The codes of a row.
    fn codes(&self, row: usize, out: &mut [u8]) {
        let (words, n) = (self.codes.bytes().as_chunks::<4>().0, 32 / self.bits);
        let word = |at: usize| u32::from_le_bytes(words[at]);
        // The words of the row: the first, and the distance to the next.
        let (first, stride) = match self.layout {
            Layout::Gptq { .. } => (row, self.rows),
            Layout::Compressed => (row * (self.cols / n), 1),
            Layout::Awq => {
                let (first, stride) = (row / n, self.rows / n);
                let code = |col: usize| self.field(word(first + col * stride), AWQ_PLACES[row % n]);
                return out.iter_mut().enumerate().for_each(|(col, out)| *out = code(col) as u8);
            }
        };
        for (i, out) in out.chunks_exact_mut(n).enumerate() {
            let word = word(first + i * stride);
            out.iter_mut().enumerate().for_each(|(place, out)| *out = self.field(word, place) as u8);
        }
    }

    fn zero(&self, row: usize, group: usize) -> u32 {
        let n = 32 / self.bits;
        let Some(zeros) = &self.zeros else { return 1 << (self.bits - 1) };
        let packed = self.rows.div_ceil(n);
        match self.layout {
            Layout::Gptq { zero_offset } => self.field(zeros.u32_at(group * packed + row / n), row % n) + zero_offset,
            Layout::Awq => self.field(zeros.u32_at(group * packed + row / n), AWQ_PLACES[row % n]),
            Layout::Compressed => self.field(zeros.u32_at(row / n * self.groups + group), row % n),
        }
    }

    fn scale(&self, row: usize, group: usize) -> f32 {
        match self.layout {
            Layout::Gptq { .. } | Layout::Awq => self.scales.f32_at(group * self.rows + row),
            Layout::Compressed => self.scales.f32_at(row * self.groups + group),
        }
    }
}

impl GroupOf {
    fn new(index: Option<RawTensor>, cols: usize, groups: usize, grouping: Grouping) -> Result<Self> {
        let size = match grouping {
            Grouping::Columns(size) => size,
            Grouping::Row => cols,
            Grouping::Unstated => cols.div_ceil(groups),
        };
        ensure!(
            cols.div_ceil(size) == groups,
            "there are scales of {groups} groups, and {cols} columns in groups of {size}"
        );
        let Some(index) = index else { return Ok(Self::Runs(size)) };
        ensure!(index.shape == [cols], "the group index has shape {:?}, expected [{cols}]", index.shape);
        let of: Vec<u32> = (0..cols).map(|col| index.u32_at(col)).collect();
        // compressed-tensors writes -1 if there is no order.
        if of.iter().all(|&g| g == u32::MAX) || of.iter().enumerate().all(|(col, &g)| g as usize == col / size) {
            return Ok(Self::Runs(size));
        }
        ensure!(
            of.iter().all(|&g| (g as usize) < groups),
            "the group index names a group beyond the {groups} there are"
        );
        Ok(Self::Index(of))
    }
}

impl Rows for Packed {
    fn name(&self) -> &str {
        match self.group_of {
            GroupOf::Runs(_) => self.layout.name(),
            GroupOf::Index(_) => ACT_ORDER,
        }
    }

    fn bits(&self) -> f32 {
        let zeros = if self.zeros.is_some() { self.bits } else { 0 };
        let group = 8 * self.scales.dtype.bitsize() / 8 + zeros;
        self.bits as f32 + (group * self.groups) as f32 / self.cols as f32
    }

    fn decode(&self, row: usize, out: &mut [f32]) {
        let mut codes = vec![0; self.cols];
        self.codes(row, &mut codes);
        let group = |g| (self.scale(row, g), self.zero(row, g) as f32);
        let groups: Vec<(f32, f32)> = (0..self.groups).map(group).collect();
        let value = |(scale, zero): (f32, f32), code: u8| scale * (f32::from(code) - zero);
        match &self.group_of {
            GroupOf::Runs(size) => {
                let runs = out.chunks_mut(*size).zip(codes.chunks(*size)).zip(groups);
                runs.for_each(|((out, codes), group)| {
                    out.iter_mut().zip(codes).for_each(|(out, code)| *out = value(group, *code));
                });
            }
            GroupOf::Index(of) => {
                let columns = out.iter_mut().zip(codes).zip(of);
                columns.for_each(|((out, code), group)| *out = value(groups[*group as usize], code));
            }
        }
    }

    fn is_finite(&self, row: usize) -> bool {
        (0..self.groups).all(|group| self.scale(row, group).is_finite())
    }

    /// q4 holds the codes of groups of a multiple of 64 columns with zero points up to 15; the
    /// scale loses its last bits.
    fn exact_strip(&self, code: Code, strip: usize, out: &mut [u8]) -> bool {
        let GroupOf::Runs(size) = self.group_of else { return false };
        if code != Code::Q4 || self.bits != 4 || !size.is_multiple_of(GROUP) || !Code::fits(self.cols) {
            return false;
        }
        let tiles = self.cols / GROUP;
        let mut codes = vec![0; TILE_ROWS * self.cols];
        let (mut scales, mut zeros) = (vec![0.0; TILE_ROWS * tiles], vec![0.0; TILE_ROWS * tiles]);
        for (i, row) in (strip * TILE_ROWS..self.rows).take(TILE_ROWS).enumerate() {
            for tile in 0..tiles {
                let group = tile * GROUP / size;
                let (scale, zero) = (self.scale(row, group), self.zero(row, group));
                if !(scale.is_finite() && scale >= 0.0 && zero < 16) {
                    return false;
                }
                (scales[i * tiles + tile], zeros[i * tiles + tile]) = (scale, zero as f32);
            }
            self.codes(row, &mut codes[i * self.cols..(i + 1) * self.cols]);
        }
        code.pack_codes(&codes, &scales, &zeros, self.cols, out);
        true
    }
}
