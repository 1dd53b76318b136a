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
use super::grid::{Grid, moments};
use super::group::{EIGHT, Form, GROUP, Group, GroupCode, nearest, range};
use super::layout::StripMut;
use super::vectorize::vectorized_by_eight;
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
    /// Units of the zero point in a step.
    const UNITS: f32 = (128 >> BITS) as f32;

    /// The word of the least weighted error. From each starting grid, scale and zero point are
    /// fitted to the nearest codes by least squares, some times. Of the best fit, the three nearest
    /// scales of words are tried, each with the three nearest zero points to its own fit. On groups
    /// of a normal density the error is 1.05 times that of the best word.
    #[inline(always)]
    fn choose_word(&self, x: &Values, weights: &Values) -> u16 {
        let ((low, high), [all, of_x]) = (range(x), moments(x, weights));
        let step = (high - low) / Grid::<BITS>::LAST_CODE;
        if !(step > 0.0 && step.is_finite()) {
            return 0;
        }
        let most_zero = MAX_ZERO / Self::UNITS;
        let (mut least, mut best) = (f32::INFINITY, Grid::<BITS>::new(step, -low / step));
        let shrinks = if BITS > 4 { FEW_SHRINKS } else { SHRINKS.len() };
        for shrink in &SHRINKS[..shrinks] {
            let scale = step * shrink;
            let zero = 0.5 * (Grid::<BITS>::LAST_CODE - (low + high) / scale);
            let mut grid = Grid::<BITS>::new(scale, zero.clamp(0.0, most_zero));
            for _ in 0..FITS {
                let [c, cc, cx] = grid.sums(x, weights);
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
            let error = grid.error(x, weights);
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
            let grid = Grid::<BITS>::new(f16::from_bits(bits).to_f32(), best.zero);
            let [c, ..] = grid.sums(x, weights);
            let zero = nearest((c - of_x / grid.scale) / all * Self::UNITS);
            for step in [0.0, -1.0, 1.0] {
                let units = (zero + step).clamp(0.0, MAX_ZERO);
                let error = Grid::<BITS>::new(grid.scale, units / Self::UNITS).error(x, weights);
                if error < least {
                    (least, word) = (error, bits << 1 | units as u16);
                }
            }
        }
        word
    }

    /// The words of both halves, and their grids.
    #[inline(always)]
    fn choose_words(&self, x: &[f32; GROUP], weights: &[f32; GROUP]) -> ([u16; 2], [Grid<BITS>; 2]) {
        let (x, weights) = (halves(x), halves(weights));
        // Not a closure, which would not be compiled for the caller's instructions.
        let words = [self.choose_word(&x[0], &weights[0]), self.choose_word(&x[1], &weights[1])];
        let grid = |word| {
            let (scale, zero) = self.scale_zero(word);
            Grid::new(scale, zero)
        };
        (words, words.map(grid))
    }
}

/// The bits of the nearest scale that a word holds.
#[inline(always)]
fn scale_bits(scale: f32) -> u16 {
    let bits = f16::from_f32(scale.min(f16::MAX.to_f32())).to_bits();
    ((bits + SCALE_STEP / 2) & SCALE_BITS).min(MAX_SCALE)
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
        let (words, grids) = self.choose_words(x, weights);
        let mut codes = [0; GROUP];
        for col in 0..GROUP {
            codes[col] = grids[half_of(col)].code(x[col]) as u8;
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
    type Grid = ([u16; 2], [Grid<BITS>; 2]);

    #[inline(always)]
    fn grid(&self, x: &[f32], weights: &[f32]) -> Self::Grid {
        let (x, weights) = (x.as_chunks::<GROUP>().0, weights.as_chunks::<GROUP>().0);
        vectorized_by_eight(
            #[inline(always)]
            || Halves::<BITS>.choose_words(&x[0], &weights[0]),
        )
    }

    #[inline(always)]
    fn code(&self, (_, grids): &Self::Grid, col: usize, x: f32) -> (u8, f32) {
        let grid = &grids[half_of(col)];
        let code = grid.code(x);
        (code as u8, grid.value(code))
    }

    #[inline(always)]
    fn put(&mut self, row: usize, block: usize, (words, _): &Self::Grid, codes: &[[u8; GROUP]]) {
        self.0.put(row, block, &Group { codes: codes[0], words: *words });
    }
}
