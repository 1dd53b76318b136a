//! Online softmax: a softmax-weighted sum over blocks of keys that merges with others.

use super::super::simd::dots::{Rows, weighted_sum};
use super::super::simd::{Isa, maths, matmul};
use super::super::thread_pool::Tile;

/// State of `rows` query rows. Empty: negative infinity, 0 and zeros, which contributes nothing to a merge.
pub(super) struct OnlineSoftmax<'a> {
    /// Largest score so far.
    max: &'a mut [f32],
    /// Sum of `exp(score - max)`.
    sum: &'a mut [f32],
    /// Sum of `exp(score - max) * value`, `[rows, d]`.
    acc: &'a mut [f32],
    d: usize,
}

impl<'a> OnlineSoftmax<'a> {
    /// Floats of the state of `rows` rows.
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

    /// Replaces scores `[rows, n]` by their weights `exp(score - max)` and rescales the sums to the new maxima.
    pub fn rescale(&mut self, isa: Isa, scores: &mut [f32]) {
        let n = scores.len() / self.rows();
        for (r, scores) in scores.chunks_exact_mut(n).enumerate() {
            let max = maths::max(isa, scores).max(self.max[r]);
            if max == f32::NEG_INFINITY {
                // No key of this block or an earlier one is visible to this row.
                scores.fill(0.0);
                continue;
            }
            if max > self.max[r] && self.sum[r] != 0.0 {
                let shrink = maths::exp(self.max[r] - max);
                self.sum[r] *= shrink;
                maths::scale(isa, &mut self.acc[r * self.d..(r + 1) * self.d], shrink);
            }
            self.max[r] = max;
            self.sum[r] += maths::exp_minus(isa, scores, max);
        }
    }

    /// Sum of the weights of each row so far.
    pub fn sums(&self) -> &[f32] {
        self.sum
    }

    /// Adds `weight x value` for weights `[rows, n]` that of [`Self::rescale`] and values `[n, d]`.
    pub fn add(&mut self, isa: Isa, weights: &[f32], values: &[f32], n: usize) {
        let (rows, d) = (self.rows(), self.d);
        matmul::a_b(isa, &mut Tile::new(self.acc, rows, d), weights, n, values, d, n, true);
    }

    /// Adds `x` to every channel's sum of a row.
    pub fn add_to_all(&mut self, row: usize, x: f32) {
        self.acc[row * self.d..(row + 1) * self.d].iter_mut().for_each(|sum| *sum += x);
    }

    /// The same with values as they are stored, for weights in rows of `stride`.
    pub fn add_stored(&mut self, isa: Isa, weights: &[f32], stride: usize, values: Rows<'_>) {
        let (rows, d) = (self.rows(), self.d);
        weighted_sum(isa, values, weights, stride, &mut Tile::new(self.acc, rows, d));
    }
}

/// Writes to `out` the normalised row `row` of the merged softmaxes in `states`, each `width` floats and `rows` rows.
pub(super) fn merge(isa: Isa, out: &mut [f32], states: &[f32], width: usize, rows: usize, row: usize) {
    let d = out.len();
    let states = states.chunks_exact(width);
    let max = states.clone().fold(f32::NEG_INFINITY, |m, s| m.max(s[row]));
    let mut sum = 0.0;
    out.fill(0.0);
    for state in states {
        // A split in which nothing was visible: exp(-inf - max) would be 0 too, but not if max is NaN.
        if state[rows + row] == 0.0 {
            continue;
        }
        let weight = maths::exp(state[row] - max);
        sum += state[rows + row] * weight;
        maths::add_scaled(isa, out, &state[2 * rows + row * d..][..d], weight);
    }
    maths::scale(isa, out, 1.0 / sum);
}
