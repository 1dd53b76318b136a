//! A softmax-weighted sum that takes its terms block by block, and merges with others.

use super::super::simd::dots::{Rows, weighted_sum};
use super::super::simd::{Level, maths, matmul};
use super::super::team::Tile;

/// Largest score so far, sum of `e^(score - largest)` and the sum of values weighted by them, for
/// each of `rows` query rows. Nothing yet: negative infinity, 0 and zeros, which weigh 0.
pub(super) struct Softmax<'a> {
    max: &'a mut [f32],
    sum: &'a mut [f32],
    /// `[rows, d]`
    acc: &'a mut [f32],
    d: usize,
}

impl<'a> Softmax<'a> {
    /// Floats that the state of `rows` rows takes.
    pub fn len(rows: usize, d: usize) -> usize {
        rows * (d + 2)
    }

    pub fn start(memory: &'a mut [f32], rows: usize, d: usize) -> Self {
        let (max, rest) = memory.split_at_mut(rows);
        let (sum, rest) = rest.split_at_mut(rows);
        let acc = &mut rest[..rows * d];
        max.fill(f32::NEG_INFINITY);
        sum.fill(0.0);
        acc.fill(0.0);
        Self { max, sum, acc, d }
    }

    pub fn rows(&self) -> usize {
        self.max.len()
    }

    /// Turns scores `[rows, n]` into weights relative to the new maxima, to which it brings the sums.
    pub fn weigh(&mut self, level: Level, scores: &mut [f32]) {
        let n = scores.len() / self.rows();
        for (r, scores) in scores.chunks_exact_mut(n).enumerate() {
            let max = maths::max(level, scores).max(self.max[r]);
            if max == f32::NEG_INFINITY {
                // No key of the block is visible to this row, nor was one before.
                scores.fill(0.0);
                continue;
            }
            if max > self.max[r] && self.sum[r] != 0.0 {
                let shrink = (self.max[r] - max).exp();
                self.sum[r] *= shrink;
                maths::scale(level, &mut self.acc[r * self.d..(r + 1) * self.d], shrink);
            }
            self.max[r] = max;
            self.sum[r] += maths::exp_minus(level, scores, max);
        }
    }

    /// Adds `weight x value` for weights `[rows, n]` that [`Self::weigh`] has made and values `[n, d]`.
    pub fn add(&mut self, weights: &[f32], values: &[f32], n: usize) {
        let (rows, d) = (self.rows(), self.d);
        matmul::a_b(&mut Tile::new(self.acc, rows, d), weights, n, values, d, n, true);
    }

    /// The same with values as they are stored, for weights in rows of `stride`.
    pub fn add_stored(&mut self, level: Level, weights: &[f32], stride: usize, values: Rows<'_>) {
        let (rows, d) = (self.rows(), self.d);
        weighted_sum(level, values, weights, stride, &mut Tile::new(self.acc, rows, d));
    }
}

/// `out` = row `row` of the softmaxes in `states`, each `width` floats and of `rows` rows, as one.
pub(super) fn merge(level: Level, out: &mut [f32], states: &[f32], width: usize, rows: usize, row: usize) {
    let d = out.len();
    let states = states.chunks_exact(width);
    let max = states.clone().fold(f32::NEG_INFINITY, |m, s| m.max(s[row]));
    let mut sum = 0.0;
    out.fill(0.0);
    for state in states {
        // A part in which nothing was visible: e^(-inf - max) would do too, but not if max is NaN.
        if state[rows + row] == 0.0 {
            continue;
        }
        let weight = (state[row] - max).exp();
        sum += state[rows + row] * weight;
        maths::add_scaled(level, out, &state[2 * rows + row * d..][..d], weight);
    }
    maths::scale(level, out, 1.0 / sum);
}
