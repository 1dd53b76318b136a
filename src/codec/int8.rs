//! `int8`: 8-bit integers in sign and magnitude with one f32 scale a row.
//!
//! Sign and magnitude, not two's complement: a code moved to the upper byte of a bf16 and its
//! magnitude to the lower seven bits is a subnormal bf16 of value `m * 2^-133`, which tensor cores
//! multiply exactly. A GPU decodes a pair of codes with as many instructions as a pair of fp8
//! codes.

use super::row::{Elements, RowFormat};

/// `scale = max|x| / 127` (1 where all values are 0, NaN where one is NaN); code = sign bit and
/// `|x| / scale` to nearest even; value = +-magnitude * scale.
pub struct Int8;

const MAX_MAGNITUDE: f32 = 127.0;

impl RowFormat for Int8 {
    fn elements(&self) -> Elements {
        Elements::Int8
    }

    fn byte_codes(&self) -> [u32; 3] {
        [1, 8, 0x007f_007f]
    }

    fn bytes(&self, head_dim: usize) -> usize {
        head_dim
    }

    fn has_side(&self) -> bool {
        true
    }

    fn affine(&self, side: u32) -> [f32; 2] {
        [f32::from_bits(side), 0.0]
    }

    fn encode(&self, x: &[f32], out: &mut [u8]) -> u32 {
        let scale = scale(x);
        out.iter_mut().zip(x).for_each(|(o, &v)| *o = code(v, scale));
        scale.to_bits()
    }

    fn decode(&self, bytes: &[u8], side: u32, out: &mut [f32]) {
        out.iter_mut().zip(bytes).for_each(|(o, &c)| *o = int8_value(c) * f32::from_bits(side));
    }

    fn is_finite(&self, _bytes: &[u8], side: u32) -> bool {
        (f32::from_bits(side) * MAX_MAGNITUDE).is_finite()
    }

    fn round_trip(&self, x: &mut [f32]) {
        let scale = scale(x);
        x.iter_mut().for_each(|v| *v = int8_value(code(*v, scale)) * scale);
    }
}

fn scale(x: &[f32]) -> f32 {
    if x.iter().any(|v| v.is_nan()) {
        return f32::NAN;
    }
    let max = x.iter().fold(0f32, |m, v| m.max(v.abs()));
    if max == 0.0 { 1.0 } else { max / MAX_MAGNITUDE }
}

fn code(x: f32, scale: f32) -> u8 {
    // A row with NaN or infinities has no meaningful codes, and its scale says so. `min` turns a
    // NaN into the largest magnitude.
    let magnitude = (x.abs() / scale).round_ties_even().min(MAX_MAGNITUDE) as u8;
    if x.is_sign_negative() { 0x80 | magnitude } else { magnitude }
}

/// Value of a code before its row's scale.
pub fn int8_value(code: u8) -> f32 {
    let magnitude = (code & 0x7f) as f32;
    if code & 0x80 != 0 { -magnitude } else { magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_the_nearest_steps_and_the_largest_value_is_kept() {
        let x = [-127.0, 126.5, 125.5, 0.5, -1.5, 0.49, 0.0, 3.0];
        let mut codes = [0; 8];
        assert_eq!(Int8.encode(&x, &mut codes), 1f32.to_bits());
        let mut values = [0.0; 8];
        Int8.decode(&codes, 1f32.to_bits(), &mut values);
        assert_eq!(values, [-127.0, 126.0, 126.0, 0.0, -2.0, 0.0, 0.0, 3.0]);
        // Subnormal rows, whose scale underflows to a coarse value, stay within 127 steps.
        let mut tiny = [1e-44f32, -1e-45, 0.0];
        Int8.round_trip(&mut tiny);
        assert!(tiny.iter().all(|v| v.is_finite()), "{tiny:?}");
        let mut bad = [1.0, f32::NAN];
        Int8.round_trip(&mut bad);
        assert!(bad.iter().all(|v| v.is_nan()), "{bad:?}");
    }
}
