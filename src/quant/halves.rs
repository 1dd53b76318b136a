//! `q4h` and `q6h`: codes of 4 and 6 bits, where each half of a group has a scale of 9 bits and a
//! zero point of 7.
//!
//! Word: bits 15 to 7 are bits 14 to 6 of the scale as f16 (5 bits of exponent, 4 of mantissa);
//! bits 6 to 0 are the zero point in units of 1 / 8 (4 bits) or 1 / 2 (6 bits), so it is at most
//! just below the number of levels. `value = scale * (code - zero)`.
//!
//! Against one word for 64 columns with a zero point in half steps, most of what is gained is the
//! zero point's: one that is off by up to a quarter step adds a quarter to the error of rounding.

// Indexed loops, which become vector code in the caller's instruction set.
#![allow(clippy::needless_range_loop)]

use super::feedback::Columns;
use super::group::{EIGHT, Form, GROUP, Group, GroupCode, LANES, nearest, sum};
use super::layout::StripMut;
use half::f16;

/// Codes of `BITS` bits.
pub struct Halves<const BITS: usize>;

const HALF: usize = GROUP / 2;
type Values = [f32; HALF];

/// The grids that the search starts from: the range of the values, shrunk around its middle by
/// these factors. Finer codes need fewer.
const SHRINKS: [f32; 6] = [1.02, 0.95, 0.88, 0.8, 0.72, 0.65];
const FEW_SHRINKS: usize = 2;
/// Fits from each of them.
const FITS: usize = 3;

/// Bits of the scale's f16 that a word holds; the distance of two scales, as those bits; the
/// largest one.
const SCALE_BITS: u16 = 0x7fc0;
const SCALE_STEP: u16 = 0x40;
const MAX_SCALE: u16 = 0x7bc0;
const MAX_ZERO: f32 = 127.0;

impl<const BITS: usize> Halves<BITS> {
    const LAST_CODE: f32 = ((1 << BITS) - 1) as f32;
    /// Units of the zero point in a step.
    const UNITS: f32 = (128 >> BITS) as f32;

    #[inline(always)]
    fn code(grid: Grid, x: f32) -> f32 {
        nearest((x * grid.inverse + grid.zero).clamp(0.0, Self::LAST_CODE))
    }

    /// Weighted squared error of the nearest codes.
    #[inline(always)]
    fn error(grid: Grid, x: &Values, weights: &Values) -> f32 {
        let mut lanes = [0.0; LANES];
        for (x, w) in x.as_chunks::<LANES>().0.iter().zip(weights.as_chunks::<LANES>().0) {
            for i in 0..LANES {
                let e = x[i] - grid.scale * (Self::code(grid, x[i]) - grid.zero);
                lanes[i] += w[i] * (e * e);
            }
        }
        sum(lanes)
    }

    /// Sums of w c, w c c and w c x, where c are the nearest codes.
    #[inline(always)]
    fn sums(grid: Grid, x: &Values, weights: &Values) -> [f32; 3] {
        let mut sums = [[0.0; LANES]; 3];
        for (x, w) in x.as_chunks::<LANES>().0.iter().zip(weights.as_chunks::<LANES>().0) {
            for i in 0..LANES {
                let c = Self::code(grid, x[i]);
                let wc = w[i] * c;
                sums[0][i] += wc;
                sums[1][i] += wc * c;
                sums[2][i] += wc * x[i];
            }
        }
        sums.map(sum)
    }

    /// The word of the least weighted error. From each starting grid, scale and zero point are
    /// fitted to the nearest codes by least squares, some times. Of the best fit, the three nearest
    /// scales of words are tried, each with the three nearest zero points to its own fit. On groups
    /// of a normal density the error is 1.05 times that of the best word.
    #[inline(always)]
    fn choose_word(&self, x: &Values, weights: &Values) -> u16 {
        let (mut low, mut high) = ([0f32; LANES], [0f32; LANES]);
        let mut sums = [[0.0; LANES]; 2];
        for (x, w) in x.as_chunks::<LANES>().0.iter().zip(weights.as_chunks::<LANES>().0) {
            for i in 0..LANES {
                low[i] = if x[i] < low[i] { x[i] } else { low[i] };
                high[i] = if x[i] > high[i] { x[i] } else { high[i] };
                sums[0][i] += w[i];
                sums[1][i] += w[i] * x[i];
            }
        }
        let (low, high) = (low.iter().fold(0f32, |m, &v| m.min(v)), high.iter().fold(0f32, |m, &v| m.max(v)));
        let [all, of_x] = sums.map(sum);
        let step = (high - low) / Self::LAST_CODE;
        if !(step > 0.0 && step.is_finite()) {
            return 0;
        }
        let most_zero = MAX_ZERO / Self::UNITS;
        let (mut least, mut best) = (f32::INFINITY, Grid::new(step, -low / step));
        let shrinks = if BITS > 4 { FEW_SHRINKS } else { SHRINKS.len() };
        for shrink in &SHRINKS[..shrinks] {
            let scale = step * shrink;
            let zero = 0.5 * (Self::LAST_CODE - (low + high) / scale);
            let mut grid = Grid::new(scale, zero.clamp(0.0, most_zero));
            for _ in 0..FITS {
                let [c, cc, cx] = Self::sums(grid, x, weights);
                let determinant = all * cc - c * c;
                let scale = (all * cx - c * of_x) / determinant;
                let zero = (c - of_x / scale) / all;
                if determinant > 1e-6 * all * cc && scale > 0.0 && scale.is_finite() && zero.is_finite() {
                    let zero = zero.clamp(0.0, most_zero);
                    // The best scale for a zero point that had to be clamped.
                    let scale = (cx - zero * of_x) / (cc - 2.0 * zero * c + zero * zero * all);
                    if scale > 0.0 && scale.is_finite() {
                        grid = Grid::new(scale, zero);
                    }
                }
            }
            let error = Self::error(grid, x, weights);
            if error < least {
                (least, best) = (error, grid);
            }
        }
        let near = scale_bits(best.scale);
        let (mut least, mut word) = (f32::INFINITY, 0);
        for bits in [near, near.saturating_sub(SCALE_STEP), near + SCALE_STEP] {
            if !(SCALE_STEP..=MAX_SCALE).contains(&bits) {
                continue;
            }
            let grid = Grid::new(f16::from_bits(bits).to_f32(), best.zero);
            let [c, ..] = Self::sums(grid, x, weights);
            let zero = nearest((c - of_x / grid.scale) / all * Self::UNITS);
            for step in [0.0, -1.0, 1.0] {
                let units = (zero + step).clamp(0.0, MAX_ZERO);
                let error = Self::error(Grid::new(grid.scale, units / Self::UNITS), x, weights);
                if error < least {
                    (least, word) = (error, bits << 1 | units as u16);
                }
            }
        }
        word
    }

    /// The grid of a word. One of zeros has a scale of 0, and any code.
    #[inline(always)]
    fn grid_of(&self, word: u16) -> Grid {
        let (scale, zero) = self.scale_zero(word);
        if scale > 0.0 { Grid::new(scale, zero) } else { Grid { scale, inverse: 0.0, zero } }
    }
}

/// The bits of the nearest scale that a word holds.
#[inline(always)]
fn scale_bits(scale: f32) -> u16 {
    let bits = f16::from_f32(scale.min(f16::MAX.to_f32())).to_bits();
    ((bits + SCALE_STEP / 2) & SCALE_BITS).min(MAX_SCALE)
}

#[derive(Clone, Copy)]
pub struct Grid {
    scale: f32,
    inverse: f32,
    zero: f32,
}

impl Grid {
    #[inline(always)]
    fn new(scale: f32, zero: f32) -> Self {
        Self { scale, inverse: 1.0 / scale, zero }
    }
}

/// The half that a column of a group is in.
#[inline(always)]
fn half_of(col: usize) -> usize {
    col / EIGHT % 2
}

/// The values of both halves.
#[inline(always)]
fn halves(x: &[f32; GROUP]) -> [Values; 2] {
    let mut out = [[0.0; HALF]; 2];
    for (i, eight) in x.as_chunks::<EIGHT>().0.iter().enumerate() {
        out[i % 2][i / 2 * EIGHT..][..EIGHT].copy_from_slice(eight);
    }
    out
}

impl<const BITS: usize> GroupCode for Halves<BITS> {
    fn name(&self) -> &'static str {
        if BITS == 4 { "q4h" } else { "q6h" }
    }

    fn form(&self) -> Form {
        Form { low_bits: BITS - 4, words: 2 }
    }

    /// Six bits are exact enough without.
    fn uses_importance(&self) -> bool {
        BITS == 4
    }

    #[inline(always)]
    fn choose(&self, x: &[f32; GROUP], weights: &[f32; GROUP]) -> Group {
        let (x_of, weights_of) = (halves(x), halves(weights));
        let words = [0, 1].map(|half| self.choose_word(&x_of[half], &weights_of[half]));
        let grids = words.map(|word| self.grid_of(word));
        let mut codes = [0; GROUP];
        for col in 0..GROUP {
            codes[col] = Self::code(grids[half_of(col)], x[col]) as u8;
        }
        Group { codes, words }
    }

    fn word(&self, scale: f32, zero: f32) -> u16 {
        let scale = if scale.is_nan() { f16::NAN.to_bits() & SCALE_BITS } else { scale_bits(scale) };
        scale << 1 | nearest((zero * Self::UNITS).clamp(0.0, MAX_ZERO)) as u16
    }

    fn scale_zero(&self, word: u16) -> (f32, f32) {
        (f16::from_bits(word >> 1 & SCALE_BITS).to_f32(), (word & 127) as f32 / Self::UNITS)
    }
}

/// A strip whose codes are chosen column by column.
pub struct HalvesStrip<'a, const BITS: usize>(pub StripMut<'a>);

impl<const BITS: usize> Columns for HalvesStrip<'_, BITS> {
    const BLOCK: usize = GROUP;
    /// Words of both halves, and their grids.
    type Grid = ([u16; 2], [Grid; 2]);

    #[inline(always)]
    fn grid(&self, x: &[f32], weights: &[f32]) -> Self::Grid {
        let (x, weights) = (x.as_chunks::<GROUP>().0, weights.as_chunks::<GROUP>().0);
        let (x, weights) = (halves(&x[0]), halves(&weights[0]));
        let words = [0, 1].map(|half| Halves::<BITS>.choose_word(&x[half], &weights[half]));
        (words, words.map(|word| Halves::<BITS>.grid_of(word)))
    }

    #[inline(always)]
    fn code(&self, (_, grids): &Self::Grid, col: usize, x: f32) -> (u8, f32) {
        let grid = grids[half_of(col)];
        let code = Halves::<BITS>::code(grid, x);
        (code as u8, grid.scale * (code - grid.zero))
    }

    #[inline(always)]
    fn put(&mut self, row: usize, block: usize, (words, _): &Self::Grid, codes: &[[u8; GROUP]]) {
        self.0.put(row, block, &Group { codes: codes[0], words: *words });
    }
}
