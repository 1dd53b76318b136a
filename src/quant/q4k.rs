//! `q4_k` for values: the form of llama.cpp's Q4_K, with codes of our own search. Groups of 32
//! columns have a scale and a minimum of 6 bits each, in units of two f16 for 256 columns; a row
//! whose columns are no multiple of 256 ends with fewer groups.

// Indexed loops, which become vector code in the caller's instruction set.
#![allow(clippy::needless_range_loop)]

use super::feedback::Columns;
use super::file::{FileStrip, QUAD};
use super::group::{GROUP, LANES, nearest, sum};
use half::f16;

/// Columns that share a scale and a minimum.
const COLS: usize = 32;
const GROUPS: usize = QUAD / COLS;
const LAST_CODE: f32 = 15.0;
/// Largest scale and minimum, in units.
const LAST_STEP: f32 = 63.0;
/// The grids that the search of a group starts from: its range, shrunk by these factors.
const SHRINKS: [f32; 9] = [1.0, 0.9, 0.8, 0.95, 0.85, 0.75, 1.05, 0.7, 0.65];
/// Units of scales that are tried, as shares of the least one that holds the largest scale.
const UNITS: [f32; 2] = [1.0, 0.93];

type Values = [f32; COLS];

/// `value = scale * code - minimum`.
#[derive(Clone, Copy, Default)]
struct Line {
    scale: f32,
    minimum: f32,
}

impl Line {
    #[inline(always)]
    fn code(&self, x: f32, inverse: f32) -> f32 {
        nearest(((x + self.minimum) * inverse).clamp(0.0, LAST_CODE))
    }

    /// Weighted squared error of the nearest codes.
    #[inline(always)]
    fn error(&self, x: &Values, weights: &Values) -> f32 {
        let inverse = if self.scale > 0.0 { 1.0 / self.scale } else { 0.0 };
        let mut lanes = [0.0; LANES];
        for (x, w) in x.as_chunks::<LANES>().0.iter().zip(weights.as_chunks::<LANES>().0) {
            for i in 0..LANES {
                let e = x[i] - (self.scale * self.code(x[i], inverse) - self.minimum);
                lanes[i] += w[i] * (e * e);
            }
        }
        sum(lanes)
    }

    /// The line of the least weighted error for the codes that are nearest on this one, with a
    /// minimum of at least 0. `None` if the codes do not determine it.
    #[inline(always)]
    fn fit(&self, x: &Values, weights: &Values, [all, of_x]: [f32; 2]) -> Option<Self> {
        let inverse = 1.0 / self.scale;
        let mut sums = [[0.0; LANES]; 3];
        for (x, w) in x.as_chunks::<LANES>().0.iter().zip(weights.as_chunks::<LANES>().0) {
            for i in 0..LANES {
                let c = self.code(x[i], inverse);
                let wc = w[i] * c;
                sums[0][i] += wc;
                sums[1][i] += wc * c;
                sums[2][i] += wc * x[i];
            }
        }
        let [c, cc, cx] = [sum(sums[0]), sum(sums[1]), sum(sums[2])];
        let determinant = all * cc - c * c;
        let (mut scale, mut minimum) = (0.0, -1.0);
        if determinant > 1e-6 * all * cc {
            scale = (all * cx - c * of_x) / determinant;
            minimum = (scale * c - of_x) / all;
        }
        if minimum < 0.0 {
            (scale, minimum) = (cx / cc, 0.0);
        }
        (scale > 0.0 && scale.is_finite() && minimum.is_finite()).then_some(Self { scale, minimum })
    }
}

/// The line of the least weighted error of a group, before it is rounded: from each starting grid,
/// two fits.
#[inline(always)]
fn line(x: &Values, weights: &Values) -> Line {
    let (mut low, mut high) = (0.0f32, f32::NEG_INFINITY);
    let mut sums = [[0.0; LANES]; 2];
    for (x, w) in x.as_chunks::<LANES>().0.iter().zip(weights.as_chunks::<LANES>().0) {
        for i in 0..LANES {
            low = low.min(x[i]);
            high = high.max(x[i]);
            sums[0][i] += w[i];
            sums[1][i] += w[i] * x[i];
        }
    }
    let moments = [sum(sums[0]), sum(sums[1])];
    let step = (high - low) / LAST_CODE;
    // Equal negative values are a minimum alone.
    let mut best = Line { scale: 0.0, minimum: -low };
    let mut least = best.error(x, weights);
    if !(step > 0.0 && step.is_finite()) {
        return best;
    }
    for shrink in SHRINKS {
        let start = Line { scale: step * shrink, minimum: -low * shrink };
        let fits = start.fit(x, weights, moments).and_then(|line| line.fit(x, weights, moments));
        let Some(line) = fits else { continue };
        let error = line.error(x, weights);
        if error < least {
            (least, best) = (error, line);
        }
    }
    best
}

/// Scales and minima of 256 columns of a row, or of the last ones.
pub struct Grids {
    /// f16 units of scales and of minima.
    units: [[u8; 2]; 2],
    steps: [(u8, u8); GROUPS],
    lines: [Line; GROUPS],
}

impl Grids {
    /// The grids of the least weighted error.
    #[inline(always)]
    fn choose(x: &[f32], weights: &[f32]) -> Self {
        let (x, weights) = (x.as_chunks::<COLS>().0, weights.as_chunks::<COLS>().0);
        let mut wanted = [Line::default(); GROUPS];
        for i in 0..x.len() {
            wanted[i] = line(&x[i], &weights[i]);
        }
        let most = |of: fn(&Line) -> f32| wanted.iter().map(of).fold(0.0, f32::max);
        let unit = |most: f32| f16::from_f32((most / LAST_STEP).min(f16::MAX.to_f32()));
        let of_minima = unit(most(|line| line.minimum));
        let (mut least, mut best) = (f32::INFINITY, Self::empty());
        for share in UNITS {
            let of_scales = unit(most(|line| line.scale) * share);
            let mut grids = Self { units: [of_scales.to_le_bytes(), of_minima.to_le_bytes()], ..Self::empty() };
            let mut error = 0.0;
            for i in 0..x.len() {
                error += grids.round(i, wanted[i], [of_scales.to_f32(), of_minima.to_f32()], &x[i], &weights[i]);
            }
            if error < least {
                (least, best) = (error, grids);
            }
        }
        best
    }

    fn empty() -> Self {
        Self { units: [[0; 2]; 2], steps: [(0, 0); GROUPS], lines: [Line::default(); GROUPS] }
    }

    /// Rounds the line of a group to units: of the nearest steps and their neighbours, those of the
    /// least error, which is returned.
    #[inline(always)]
    fn round(&mut self, group: usize, wanted: Line, units: [f32; 2], x: &Values, weights: &Values) -> f32 {
        let steps = |value: f32, unit: f32| if unit > 0.0 { nearest((value / unit).min(LAST_STEP)) } else { 0.0 };
        let near = [steps(wanted.scale, units[0]), steps(wanted.minimum, units[1])];
        let mut least = f32::INFINITY;
        for of_scale in [0.0, -1.0, 1.0] {
            for of_minimum in [0.0, -1.0, 1.0] {
                let steps = [near[0] + of_scale, near[1] + of_minimum];
                if steps.iter().any(|s| !(0.0..=LAST_STEP).contains(s)) {
                    continue;
                }
                let line = Line { scale: units[0] * steps[0], minimum: units[1] * steps[1] };
                let error = line.error(x, weights);
                if error < least {
                    least = error;
                    self.lines[group] = line;
                    self.steps[group] = (steps[0] as u8, steps[1] as u8);
                }
            }
        }
        least
    }
}

/// A strip that is being packed.
pub struct Q4KStrip<'a>(pub FileStrip<'a>);

impl Columns for Q4KStrip<'_> {
    const BLOCK: usize = QUAD;
    type Grid = Grids;

    /// Values that are not finite become NaN, with all that share their units.
    #[inline(always)]
    fn grid(&self, x: &[f32], weights: &[f32]) -> Grids {
        if x.iter().all(|v| v.is_finite()) {
            return Grids::choose(x, weights);
        }
        let nan = Line { scale: f32::NAN, minimum: f32::NAN };
        Grids { units: [f16::NAN.to_le_bytes(); 2], steps: [(1, 1); GROUPS], lines: [nan; GROUPS] }
    }

    #[inline(always)]
    fn code(&self, grid: &Grids, col: usize, x: f32) -> (u8, f32) {
        let line = &grid.lines[col / COLS];
        let code = if line.scale > 0.0 { line.code(x, 1.0 / line.scale) } else { 0.0 };
        (code as u8, line.scale * code - line.minimum)
    }

    #[inline(always)]
    fn put(&mut self, row: usize, block: usize, grid: &Grids, codes: &[[u8; GROUP]]) {
        self.0.super_block(row, block, grid.units, grid.steps);
        for (i, codes) in codes.iter().enumerate() {
            self.0.codes(row, block * (QUAD / GROUP) + i, codes);
        }
    }
}
