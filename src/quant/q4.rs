//! `q4`: codes 0 to 15, a scale of 11 bits and a zero point in half steps.
//!
//! Word: bits 15 to 5 are bits 14 to 4 of the scale as f16 (5 bits of exponent, 6 of mantissa); bits 4 to 0 are twice the
//! zero point. A zero point of 7.5 is a symmetric grid with all 16 levels, an integer is the usual grid with a zero.

use super::{GROUP, Group, GroupCode, nearest, sum};
use half::f16;

pub struct Q4;

const LAST_CODE: f32 = 15.0;
/// Largest scale of a word.
const MAX_SCALE: f32 = 65_024.0;
/// Scales below are multiples of `SUBNORMAL_STEP`.
const MIN_NORMAL: f32 = 6.103_515_6e-5;
const SUBNORMAL_STEP: f32 = 9.536_743e-7;
/// The grids that the search starts from: the range of the group, shrunk by these factors. Values outside a shrunk grid
/// are clamped, all others get finer steps.
const SHRINKS: [f32; 9] = [1.0, 0.72, 0.766, 0.811, 0.857, 0.903, 0.949, 0.994, 1.04];

impl GroupCode for Q4 {
    fn name(&self) -> &'static str {
        "q4"
    }

    fn planes(&self) -> usize {
        1
    }

    /// From each starting grid: rounds, fits scale and zero point to the codes by weighted least squares, rounds both to
    /// what a word holds, and rounds the codes again. Returns the grid of the least weighted error, the first of equals.
    fn choose(&self, x: &[f32; GROUP], weights: &[f32; GROUP]) -> Group {
        let (low, high) = x.iter().fold((0f32, 0f32), |(low, high), &v| (low.min(v), high.max(v)));
        let sums = Sums::of(x, weights);
        let mut best = (f32::INFINITY, 0);
        for shrink in SHRINKS {
            let step = shrink * ((high - low) / LAST_CODE);
            if step <= 0.0 || !step.is_finite() {
                continue;
            }
            let zero = -low / (high - low) * LAST_CODE;
            let codes = codes(x, step, zero);
            let (scale, zero) = sums.fit(x, weights, &codes, zero);
            let word = self.word(scale, zero);
            let error = self.error(x, weights, word);
            if error < best.0 {
                best = (error, word);
            }
        }
        let (scale, zero) = self.scale_zero(best.1);
        if scale == 0.0 {
            return Group { codes: [0; GROUP], word: 0 };
        }
        Group { codes: codes(x, scale, zero).map(|c| c as u8), word: best.1 }
    }

    fn word(&self, scale: f32, zero: f32) -> u16 {
        let twice = nearest((2.0 * zero).clamp(0.0, 31.0)) as u16;
        let bits = if scale.is_nan() { f16::NAN.to_bits() } else { scale_bits(scale.min(MAX_SCALE)) };
        (bits & 0x7ff0) << 1 | twice
    }

    fn scale_zero(&self, word: u16) -> (f32, f32) {
        (f16::from_bits(word >> 1 & 0x7ff0).to_f32(), 0.5 * (word & 31) as f32)
    }
}

impl Q4 {
    /// Weighted squared error of the nearest codes.
    fn error(&self, x: &[f32; GROUP], weights: &[f32; GROUP], word: u16) -> f32 {
        let (scale, zero) = self.scale_zero(word);
        if scale == 0.0 {
            return f32::INFINITY;
        }
        let codes = codes(x, scale, zero);
        sum(&std::array::from_fn(|i| {
            let e = x[i] - scale * (codes[i] - zero);
            weights[i] * (e * e)
        }))
    }
}

/// f16 bits of the scale, rounded to nearest with 6 bits of mantissa.
fn scale_bits(scale: f32) -> u16 {
    let rounded = if scale < MIN_NORMAL {
        nearest(scale / SUBNORMAL_STEP) * SUBNORMAL_STEP
    } else {
        // Ties to even at bit 17 of the f32's mantissa.
        let bits = scale.to_bits();
        f32::from_bits((bits + 0xffff + (bits >> 17 & 1)) & !0x1_ffff)
    };
    f16::from_f32(rounded).to_bits()
}

/// The nearest codes of a grid.
#[inline(always)]
fn codes(x: &[f32; GROUP], scale: f32, zero: f32) -> [f32; GROUP] {
    let inverse = 1.0 / scale;
    std::array::from_fn(|i| nearest((x[i] * inverse + zero).clamp(0.0, LAST_CODE)))
}

/// Weighted sums over a group that do not depend on the codes.
struct Sums {
    w: f32,
    wx: f32,
}

impl Sums {
    fn of(x: &[f32; GROUP], weights: &[f32; GROUP]) -> Self {
        Self { w: sum(weights), wx: sum(&std::array::from_fn(|i| weights[i] * x[i])) }
    }

    /// Scale and zero point of the least weighted error of `codes`. Codes that are all equal do not determine the zero
    /// point, which is then `zero`.
    fn fit(&self, x: &[f32; GROUP], weights: &[f32; GROUP], codes: &[f32; GROUP], zero: f32) -> (f32, f32) {
        let wc: [f32; GROUP] = std::array::from_fn(|i| weights[i] * codes[i]);
        let c = sum(&wc);
        let cc = sum(&std::array::from_fn(|i| wc[i] * codes[i]));
        let cx = sum(&std::array::from_fn(|i| wc[i] * x[i]));
        let determinant = self.w * cc - c * c;
        let scale = (self.w * cx - c * self.wx) / determinant;
        let free = if scale > 0.0 && scale.is_finite() { (c - self.wx / scale) / self.w } else { zero };
        let zero = 0.5 * nearest((2.0 * free).clamp(0.0, 31.0));
        // The best scale for the zero point that is stored.
        let scale = (cx - zero * self.wx) / (cc - 2.0 * zero * c + zero * zero * self.w);
        (scale.max(0.0), zero)
    }
}
