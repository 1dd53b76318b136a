//! A grid of evenly spaced levels, `scale * (code - zero)`: the nearest codes of some columns, and
//! the weighted sums by which a better grid is found. Sums have a fixed order, which is part of the
//! formats.

// Indexed loops, which become vector code in the caller's instruction set.
#![allow(clippy::needless_range_loop)]

use super::group::{LANES, nearest, sum};

/// A grid of `2^BITS` levels.
#[derive(Clone, Copy)]
pub struct Grid<const BITS: usize> {
    pub scale: f32,
    pub zero: f32,
    /// 0 for a scale that is not above 0, on whose grid any code will do.
    inverse: f32,
}

impl<const BITS: usize> Grid<BITS> {
    pub const LAST_CODE: f32 = ((1 << BITS) - 1) as f32;

    #[inline(always)]
    pub fn new(scale: f32, zero: f32) -> Self {
        Self { scale, zero, inverse: if scale > 0.0 { 1.0 / scale } else { 0.0 } }
    }

    /// The nearest code.
    #[inline(always)]
    pub fn code(&self, x: f32) -> f32 {
        nearest((x * self.inverse + self.zero).clamp(0.0, Self::LAST_CODE))
    }

    #[inline(always)]
    pub fn value(&self, code: f32) -> f32 {
        self.scale * (code - self.zero)
    }

    /// Weighted squared error of the nearest codes.
    #[inline(always)]
    pub fn error<const N: usize>(&self, x: &[f32; N], weights: &[f32; N]) -> f32 {
        let mut lanes = [0.0; LANES];
        for (x, w) in x.as_chunks::<LANES>().0.iter().zip(weights.as_chunks::<LANES>().0) {
            for i in 0..LANES {
                let e = x[i] - self.value(self.code(x[i]));
                lanes[i] += w[i] * (e * e);
            }
        }
        sum(lanes)
    }

    /// Weighted sums of c, c c and c x, where c are the nearest codes.
    #[inline(always)]
    pub fn sums<const N: usize>(&self, x: &[f32; N], weights: &[f32; N]) -> [f32; 3] {
        let mut sums = [[0.0; LANES]; 3];
        for (x, w) in x.as_chunks::<LANES>().0.iter().zip(weights.as_chunks::<LANES>().0) {
            for i in 0..LANES {
                let c = self.code(x[i]);
                let wc = w[i] * c;
                sums[0][i] += wc;
                sums[1][i] += wc * c;
                sums[2][i] += wc * x[i];
            }
        }
        sums.map(sum)
    }
}

/// Weighted sums of 1 and of x.
#[inline(always)]
pub fn moments<const N: usize>(x: &[f32; N], weights: &[f32; N]) -> [f32; 2] {
    let mut sums = [[0.0; LANES]; 2];
    for (x, w) in x.as_chunks::<LANES>().0.iter().zip(weights.as_chunks::<LANES>().0) {
        for i in 0..LANES {
            sums[0][i] += w[i];
            sums[1][i] += w[i] * x[i];
        }
    }
    sums.map(sum)
}
