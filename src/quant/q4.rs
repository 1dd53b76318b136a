//! `q4`: codes 0 to 15, a scale of 11 bits and a zero point in half steps.
//!
//! Word: bits 15 to 5 are bits 14 to 4 of the scale as f16 (5 bits of exponent, 6 of mantissa);
//! bits 4 to 0 are twice the zero point. A zero point of 7.5 is a symmetric grid with all 16
//! levels, an integer is the usual grid with a zero.

// Indexed loops, which become vector code in the caller's instruction set.
#![allow(clippy::needless_range_loop)]

use super::feedback::Columns;
use super::group::{Form, GROUP, Group, GroupCode, LANES, nearest, range, sum};
use super::layout::StripMut;
use half::f16;

pub struct Q4;

const LAST_CODE: f32 = 15.0;
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
        let (step, zero) = ((high - low) / LAST_CODE, -low / (high - low) * LAST_CODE);
        if !(step > 0.0 && step.is_finite()) {
            return Group { codes: [0; GROUP], words: [0; 2] };
        }
        let moments = Moments::of(x, weights);
        // One loop per step, in which the processor works on several grids at once.
        let mut codes = [[0.0; 3]; SHRINKS.len()];
        for i in 0..SHRINKS.len() {
            codes[i] = Moments::of_codes(x, weights, &Grid::new(SHRINKS[i] * step, zero));
        }
        let mut fits = [(0.0, 0.0); SHRINKS.len()];
        for i in 0..SHRINKS.len() {
            fits[i] = moments.fit(&codes[i], zero);
        }
        let (mut least, mut best) = (f32::INFINITY, (0.0, 0.0));
        for (scale, zero) in fits {
            let error = error(x, weights, scale, zero);
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

/// Grid of a group, and its word.
pub struct WordGrid {
    word: u16,
    scale: f32,
    grid: Grid,
}

impl Columns for Q4Strip<'_> {
    const BLOCK: usize = GROUP;
    type Grid = WordGrid;

    #[inline(always)]
    fn grid(&self, x: &[f32], weights: &[f32]) -> WordGrid {
        let (x, weights) = (x.as_chunks::<GROUP>().0, weights.as_chunks::<GROUP>().0);
        let word = Q4.choose(&x[0], &weights[0]).words[0];
        let (scale, zero) = Q4.scale_zero(word);
        WordGrid { word, scale, grid: Grid::new(scale, zero) }
    }

    #[inline(always)]
    fn code(&self, grid: &WordGrid, _: usize, x: f32) -> (u8, f32) {
        // A group of zeros has a scale of 0, and any code.
        let code = if grid.scale > 0.0 { grid.grid.code(x) } else { 0.0 };
        (code as u8, grid.scale * (code - grid.grid.zero))
    }

    #[inline(always)]
    fn put(&mut self, row: usize, block: usize, grid: &WordGrid, codes: &[[u8; GROUP]]) {
        self.0.put(row, block, &Group { codes: codes[0], words: [grid.word; 2] });
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

/// A grid of 16 levels.
struct Grid {
    inverse: f32,
    zero: f32,
}

impl Grid {
    #[inline(always)]
    fn new(scale: f32, zero: f32) -> Self {
        Self { inverse: 1.0 / scale, zero }
    }

    /// The nearest code.
    #[inline(always)]
    fn code(&self, x: f32) -> f32 {
        nearest((x * self.inverse + self.zero).clamp(0.0, LAST_CODE))
    }
}

/// Weighted squared error of the nearest codes.
#[inline(always)]
fn error(x: &[f32; GROUP], weights: &[f32; GROUP], scale: f32, zero: f32) -> f32 {
    let grid = Grid::new(scale, zero);
    let mut lanes = [0.0; LANES];
    for (x, w) in x.as_chunks::<LANES>().0.iter().zip(weights.as_chunks::<LANES>().0) {
        for i in 0..LANES {
            let e = x[i] - scale * (grid.code(x[i]) - zero);
            lanes[i] += w[i] * (e * e);
        }
    }
    sum(lanes)
}

/// Weighted sums over a group: of 1 and of x.
struct Moments {
    w: f32,
    x: f32,
}

impl Moments {
    #[inline(always)]
    fn of(x: &[f32; GROUP], weights: &[f32; GROUP]) -> Self {
        let mut sums = [[0.0; LANES]; 2];
        for (x, w) in x.as_chunks::<LANES>().0.iter().zip(weights.as_chunks::<LANES>().0) {
            for i in 0..LANES {
                sums[0][i] += w[i];
                sums[1][i] += w[i] * x[i];
            }
        }
        Self { w: sum(sums[0]), x: sum(sums[1]) }
    }

    /// Sums of w c, w c c and w c x, where c are the codes on `grid`.
    #[inline(always)]
    fn of_codes(x: &[f32; GROUP], weights: &[f32; GROUP], grid: &Grid) -> [f32; 3] {
        let mut sums = [[0.0; LANES]; 3];
        for (x, w) in x.as_chunks::<LANES>().0.iter().zip(weights.as_chunks::<LANES>().0) {
            for i in 0..LANES {
                let c = grid.code(x[i]);
                let wc = w[i] * c;
                sums[0][i] += wc;
                sums[1][i] += wc * c;
                sums[2][i] += wc * x[i];
            }
        }
        [sum(sums[0]), sum(sums[1]), sum(sums[2])]
    }

    /// Scale and zero point, as a word holds them, of the least weighted error for codes with these
    /// sums. Codes that are all equal do not determine the zero point, which then is `zero`.
    #[inline(always)]
    fn fit(&self, &[c, cc, cx]: &[f32; 3], zero: f32) -> (f32, f32) {
        let scale = (self.w * cx - c * self.x) / (self.w * cc - c * c);
        let free = if scale > 0.0 && scale.is_finite() { (c - self.x / scale) / self.w } else { zero };
        let zero = 0.5 * nearest((2.0 * free).clamp(0.0, 31.0));
        // The best scale for the zero point that is stored.
        let scale = (cx - zero * self.x) / (cc - 2.0 * zero * c + zero * zero * self.w);
        (round_scale(scale.max(0.0)), zero)
    }
}
