//! `fp8`: e4m3fn codes with one f32 scale a row.

use super::row::{Elements, RowFormat};

/// `scale = max|x| / 448` (1 where all values are 0); code = x / scale to nearest even, saturating;
/// value = code * scale.
pub struct Fp8;

/// Largest finite e4m3fn value.
pub const FP8_MAX: f32 = 448.0;

impl RowFormat for Fp8 {
    fn elements(&self) -> Elements {
        Elements::Fp8
    }

    fn byte_codes(&self) -> [u32; 3] {
        [16, 4, 0x07f0_07f0]
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
        let scale = fp8_scale(x);
        out.iter_mut().zip(x).for_each(|(o, &v)| *o = fp8_encode(v / scale));
        scale.to_bits()
    }

    fn decode(&self, bytes: &[u8], side: u32, out: &mut [f32]) {
        out.iter_mut().zip(bytes).for_each(|(o, &c)| *o = FP8_VALUES[c as usize] * f32::from_bits(side));
    }

    fn is_finite(&self, bytes: &[u8], side: u32) -> bool {
        (f32::from_bits(side) * FP8_MAX).is_finite() && bytes.iter().fold(true, |all, code| all & (code & 0x7f != 0x7f))
    }

    fn round_trip(&self, x: &mut [f32]) {
        let scale = fp8_scale(x);
        x.iter_mut().for_each(|v| *v = FP8_VALUES[fp8_encode(*v / scale) as usize] * scale);
    }
}

/// `max|x| / 448`, or 1 where all values are 0.
fn fp8_scale(x: &[f32]) -> f32 {
    let max = x.iter().fold(0f32, |m, v| m.max(v.abs()));
    if max == 0.0 { 1.0 } else { max / FP8_MAX }
}

/// e4m3fn code of `x`: sign, 4 exponent bits (bias 7), 3 mantissa bits; no infinities; 0x7f is NaN.
/// Rounds to nearest even and saturates at +-448.
pub fn fp8_encode(x: f32) -> u8 {
    let sign = if x.is_sign_negative() { 0x80 } else { 0 };
    let a = x.abs();
    if a.is_nan() {
        return sign | 0x7f;
    }
    if a >= FP8_MAX {
        return sign | 0x7e;
    }
    // Below 2^-6 codes are subnormal, in steps of 2^-9; 8 steps make the first normal, code 0x08.
    if a < 0.015_625 {
        return sign | (a * 512.0).round_ties_even() as u8;
    }
    let bits = a.to_bits();
    let rounded = bits + 0x7_ffff + ((bits >> 20) & 1);
    let code = (rounded >> 20) - (120 << 3);
    sign | (code.min(0x7e) as u8)
}

/// Value of every e4m3fn code.
pub static FP8_VALUES: [f32; 256] = fp8_values();

const fn fp8_values() -> [f32; 256] {
    let mut table = [0f32; 256];
    let mut code = 0;
    while code < 256 {
        let exponent = (code >> 3) & 15;
        let mantissa = (code & 7) as f32;
        let magnitude = if exponent == 0 {
            mantissa / 512.0
        } else if code & 0x7f == 0x7f {
            f32::NAN
        } else {
            // 2^(exponent - 7), exactly, by its bit pattern.
            f32::from_bits((exponent as u32 + 120) << 23) * (1.0 + mantissa / 8.0)
        };
        table[code] = if code & 0x80 != 0 { -magnitude } else { magnitude };
        code += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    /// Nearest code by exhaustive search, ties to the even code.
    fn nearest(x: f32) -> u8 {
        (0..=0x7eu8)
            .min_by(|&a, &b| {
                let (da, db) = ((FP8_VALUES[a as usize] - x.abs()).abs(), (FP8_VALUES[b as usize] - x.abs()).abs());
                da.total_cmp(&db).then((a & 1).cmp(&(b & 1)))
            })
            .unwrap()
            | if x.is_sign_negative() { 0x80 } else { 0 }
    }

    #[test]
    fn fp8_rounds_to_the_nearest_code_and_ties_to_even() {
        for i in -5000..5000 {
            let x = i as f32 * 0.0931;
            assert_eq!(fp8_encode(x), nearest(x), "{x}");
            let small = i as f32 * 1e-5;
            assert_eq!(fp8_encode(small), nearest(small), "{small}");
        }
        for code in 0..=0x7eu8 {
            assert_eq!(fp8_encode(FP8_VALUES[code as usize]), code);
            let between = (FP8_VALUES[code as usize] + FP8_VALUES[(code as usize + 1).min(0x7e)]) / 2.0;
            assert_eq!(fp8_encode(between), nearest(between));
        }
        assert_eq!(FP8_VALUES[fp8_encode(1e9) as usize], 448.0);
        assert_eq!(FP8_VALUES[fp8_encode(-1e9) as usize], -448.0);
    }
}
