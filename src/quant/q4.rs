//! `q4`: codes 0 to 15, a scale of 11 bits and a zero point in half steps.
//!
//! Word: bits 15 to 5 are bits 14 to 4 of the scale as f16 (5 bits of exponent, 6 of mantissa);
//! bits 4 to 0 are twice the zero point. A zero point of 7.5 is a symmetric grid with all 16
//! levels, an integer is the usual grid with a zero.

// Indexed loops, which become vector code in the caller's instruction set.
#![allow(clippy::needless_range_loop)]

use super::feedback::Columns;
use super::grid::{self, moments};
use super::group::{Form, GROUP, Group, GroupCode, nearest, range};
use super::layout::StripMut;
use super::vectorize::vectorized_by_eight;
use half::f16;

pub struct Q4;

type Grid = grid::Grid<4>;

/// Largest scale of a word.
const MAX_SCALE: f32 = 65_024.0;
/// Scales below are multiples of `SUBNORMAL_STEP`.
const MIN_NORMAL: f32 = 6.103_515_6e-5;
const SUBNORMAL_STEP: f32 = 9.536_743e-7;
/// The grids that the search starts from: the range of the group, shrunk by these factors. Values
/// outside a shrunk grid are clamped, all others get finer steps.
const SHRINKS: [f32; 9] = [1.0, 0.72, 0.766, 0.811, 0.857, 0.903, 0.949, 0.994, 1.04];

impl GroupCode for Q4 {
    fn name(&self) -> &'static str {
        "q4"
    }

    fn form(&self) -> Form {
        Form { low_bits: 0, words: 1 }
    }

    fn uses_importance(&self) -> bool {
        true
    }

    /// From each starting grid: rounds, fits scale and zero point to the codes by weighted least
    /// squares, rounds both to what a word holds, and rounds the codes again. Returns the grid of
    /// the least weighted error, the first of equals.
    #[inline(always)]
    fn choose(&self, x: &[f32; GROUP], weights: &[f32; GROUP]) -> Group {
        let (low, high) = range(x);
        let (step, zero) = ((high - low) / Grid::LAST_CODE, -low / (high - low) * Grid::LAST_CODE);
        if !(step > 0.0 && step.is_finite()) {
            return Group { codes: [0; GROUP], words: [0; 2] };
        }
        let moments = moments(x, weights);
        // One loop per step, in which the processor works on several grids at once.
        let mut codes = [[0.0; 3]; SHRINKS.len()];
        for i in 0..SHRINKS.len() {
            codes[i] = Grid::new(SHRINKS[i] * step, zero).sums(x, weights);
        }
        let mut fits = [(0.0, 0.0); SHRINKS.len()];
        for i in 0..SHRINKS.len() {
            fits[i] = fit(moments, codes[i], zero);
        }
        let (mut least, mut best) = (f32::INFINITY, (0.0, 0.0));
        for (scale, zero) in fits {
            let error = Grid::new(scale, zero).error(x, weights);
            if scale > 0.0 && error < least {
                (least, best) = (error, (scale, zero));
            }
        }
        let (scale, zero) = best;
        if scale == 0.0 {
            return Group { codes: [0; GROUP], words: [0; 2] };
        }
        let grid = Grid::new(scale, zero);
        let mut codes = [0; GROUP];
        for i in 0..GROUP {
            codes[i] = grid.code(x[i]) as u8;
        }
        Group { codes, words: [self.word(scale, zero); 2] }
    }

    fn word(&self, scale: f32, zero: f32) -> u16 {
        let scale = if scale.is_nan() { f16::NAN } else { f16::from_f32(round_scale(scale)) };
        (scale.to_bits() & 0x7ff0) << 1 | nearest((2.0 * zero).clamp(0.0, 31.0)) as u16
    }

    fn scale_zero(&self, word: u16) -> (f32, f32) {
        (f16::from_bits(word >> 1 & 0x7ff0).to_f32(), 0.5 * (word & 31) as f32)
    }
}

/// A strip whose codes are chosen column by column.
pub struct Q4Strip<'a>(pub StripMut<'a>);

impl Columns for Q4Strip<'_> {
    const BLOCK: usize = GROUP;
    /// Word of a group, and its grid.
    type Grid = (u16, Grid);

    #[inline(always)]
    fn grid(&self, x: &[f32], weights: &[f32]) -> Self::Grid {
        let (x, weights) = (x.as_chunks::<GROUP>().0, weights.as_chunks::<GROUP>().0);
        let word = vectorized_by_eight(
            #[inline(always)]
            || Q4.choose(&x[0], &weights[0]).words[0],
        );
        let (scale, zero) = Q4.scale_zero(word);
        (word, Grid::new(scale, zero))
    }

    #[inline(always)]
    fn code(&self, (_, grid): &Self::Grid, _: usize, x: f32) -> (u8, f32) {
        let code = grid.code(x);
        (code as u8, grid.value(code))
    }

    #[inline(always)]
    fn put(&mut self, row: usize, block: usize, (word, _): &Self::Grid, codes: &[[u8; GROUP]]) {
        self.0.put(row, block, &Group { codes: codes[0], words: [*word; 2] });
    }
}

/// The nearest scale that a word holds: 6 bits of mantissa and the exponents of f16.
#[inline(always)]
fn round_scale(scale: f32) -> f32 {
    if scale < MIN_NORMAL {
        return nearest(scale / SUBNORMAL_STEP) * SUBNORMAL_STEP;
    }
    // Ties to even at bit 17 of the f32's mantissa.
    let bits = scale.min(MAX_SCALE).to_bits();
    f32::from_bits((bits + 0xffff + (bits >> 17 & 1)) & !0x1_ffff)
}

/// Scale and zero point, as a word holds them, of the least weighted error for codes with these
/// sums. Codes that are all equal do not determine the zero point, which then is `zero`.
#[inline(always)]
fn fit([w, x]: [f32; 2], [c, cc, cx]: [f32; 3], zero: f32) -> (f32, f32) {
    let scale = (w * cx - c * x) / (w * cc - c * c);
    let free = if scale > 0.0 && scale.is_finite() { (c - x / scale) / w } else { zero };
    let zero = 0.5 * nearest((2.0 * free).clamp(0.0, 31.0));
    // The best scale for the zero point that is stored.
    let scale = (cx - zero * x) / (cc - 2.0 * zero * c + zero * zero * w);
    (round_scale(scale.max(0.0)), zero)
}
