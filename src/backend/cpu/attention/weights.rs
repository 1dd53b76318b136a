//! From scores to weights: the softmax of rows of scores, and the scales and offsets of stored
//! values.
//!
//! A matrix of scores `[rows, keys]` has two columns more: [`FACTOR`] and [`OFFSET`] from the
//! right.

use super::super::simd::{Isa, maths};
use super::super::thread_pool::Tile;
use crate::codec::Codec;

/// Columns after the scores.
pub(super) const EXTRA: usize = 2;
/// Column of 1 / (sum of the weights), counted from the right.
const FACTOR: usize = 2;
/// Column of the sum of weight x offset over the keys.
const OFFSET: usize = 1;

/// Scales and offsets of a group's values: for stored slots by slot, then for the step's own rows.
#[derive(Default)]
pub(in crate::backend::cpu) struct Sides {
    scales: Vec<f32>,
    offsets: Vec<f32>,
}

impl Sides {
    pub fn clear(&mut self) {
        self.scales.clear();
        self.offsets.clear();
    }

    pub fn push(&mut self, codec: Codec, v_side: u32) {
        let [scale, offset] = codec.affine_v(v_side);
        self.scales.push(scale);
        self.offsets.push(offset);
    }
}

/// Replaces the scores of `n` keys in each row by their weights `exp(score - largest)`. Every row
/// sees a key. `sinks`: one more score for each head of a token, which joins the sum; empty: none.
pub(super) fn softmax(isa: Isa, scores: &mut Tile<'_>, n: usize, sinks: &[f32]) {
    for r in 0..scores.rows() {
        let row = scores.row_mut(r);
        let mut max = maths::max(isa, &row[..n]);
        let sink = (!sinks.is_empty()).then(|| sinks[r % sinks.len()]);
        max = sink.map_or(max, |sink| max.max(sink));
        let mut sum = maths::exp_minus(isa, &mut row[..n], max);
        sum += sink.map_or(0.0, |sink| f64::from(sink - max).exp());
        let width = row.len();
        row[width - FACTOR] = (1.0 / sum) as f32;
        row[width - OFFSET] = 0.0;
    }
}

/// Adds up the normalised weights of each key over the rows.
pub(super) fn totals(weights: &mut Tile<'_>, out: &mut [f32]) {
    out.fill(0.0);
    for r in 0..weights.rows() {
        let row = weights.row_mut(r);
        let factor = row[row.len() - FACTOR];
        out.iter_mut().zip(row).for_each(|(total, weight)| *total += *weight * factor);
    }
}

/// Multiplies the weights by the scales of the values and adds up the offsets, in the order of the
/// keys' positions.
pub(super) fn scale(
    isa: Isa,
    codec: Codec,
    scores: &mut Tile<'_>,
    sides: &Sides,
    in_order: impl Iterator<Item = usize> + Clone,
) {
    let n = sides.scales.len();
    for r in 0..scores.rows() {
        let row = scores.row_mut(r);
        if codec.has_offsets() {
            let width = row.len();
            let sum = in_order.clone().fold(0f64, |sum, key| sum + f64::from(row[key]) * f64::from(sides.offsets[key]));
            row[width - OFFSET] = sum as f32;
        }
        maths::mul(isa, &mut row[..n], &sides.scales);
    }
}

/// Sets the first sums of values of each row. `width`: columns of the scores.
pub(super) fn start(out: &mut Tile<'_>, scores: &[f32], width: usize) {
    for r in 0..out.rows().min(scores.len() / width) {
        out.row_mut(r).fill(scores[(r + 1) * width - OFFSET]);
    }
}

/// Divides the sums of values of each row by the sum of its weights.
pub(super) fn normalize(isa: Isa, out: &mut Tile<'_>, scores: &[f32], width: usize) {
    for r in 0..out.rows().min(scores.len() / width) {
        maths::scale(isa, out.row_mut(r), scores[(r + 1) * width - FACTOR]);
    }
}
