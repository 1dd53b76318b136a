//! How one slot's K or V is stored: encode and decode of one head's row, and its size. Pure
//! maths; orthogonal to the policy.

use half::bf16;

/// Storage format of K and V.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    F32,
    /// Round to nearest even.
    Bf16,
    /// e4m3fn with one f32 scale per row: `s = max|x| / 448` (1 where all are 0), code = x / s to
    /// nearest even, saturating; value = code * s.
    Fp8,
}

/// Largest finite e4m3fn value.
pub const FP8_MAX: f32 = 448.0;

impl Codec {
    pub fn name(self) -> &'static str {
        match self {
            Codec::F32 => "f32",
            Codec::Bf16 => "bf16",
            Codec::Fp8 => "fp8",
        }
    }

    /// Bytes of one encoded row of `head_dim` values, without its scale.
    pub fn row_bytes(self, head_dim: usize) -> usize {
        match self {
            Codec::F32 => 4 * head_dim,
            Codec::Bf16 => 2 * head_dim,
            Codec::Fp8 => head_dim,
        }
    }

    pub fn has_scale(self) -> bool {
        self == Codec::Fp8
    }

    /// Bytes of a slot: encoded K and V, their scales, and one i32 (position and mark).
    pub fn slot_bytes(self, head_dim: usize) -> usize {
        2 * (self.row_bytes(head_dim) + if self.has_scale() { 4 } else { 0 }) + 4
    }

    /// Encodes `x` into `out` (`row_bytes`) and returns the row's scale (1 where it has none).
    pub fn encode(self, x: &[f32], out: &mut [u8]) -> f32 {
        debug_assert_eq!(out.len(), self.row_bytes(x.len()));
        match self {
            Codec::F32 => {
                out.copy_from_slice(bytemuck::cast_slice(x));
                1.0
            }
            Codec::Bf16 => {
                for (o, &v) in out.chunks_exact_mut(2).zip(x) {
                    o.copy_from_slice(&bf16::from_f32(v).to_le_bytes());
                }
                1.0
            }
            Codec::Fp8 => {
                let scale = fp8_scale(x);
                for (o, &v) in out.iter_mut().zip(x) {
                    *o = fp8_encode(v / scale);
                }
                scale
            }
        }
    }

    /// Decodes `bytes` (`row_bytes`) with the row's scale into `out`.
    pub fn decode(self, bytes: &[u8], scale: f32, out: &mut [f32]) {
        debug_assert_eq!(bytes.len(), self.row_bytes(out.len()));
        match self {
            Codec::F32 => {
                for (o, c) in out.iter_mut().zip(bytes.chunks_exact(4)) {
                    *o = f32::from_le_bytes([c[0], c[1], c[2], c[3]]);
                }
            }
            Codec::Bf16 => {
                for (o, c) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                    *o = bf16::from_le_bytes([c[0], c[1]]).to_f32();
                }
            }
            Codec::Fp8 => {
                for (o, &c) in out.iter_mut().zip(bytes) {
                    *o = FP8_VALUES[c as usize] * scale;
                }
            }
        }
    }

    /// What a row becomes by being stored and read, in place.
    pub fn round_trip(self, x: &mut [f32]) {
        match self {
            Codec::F32 => {}
            Codec::Bf16 => x.iter_mut().for_each(|v| *v = bf16::from_f32(*v).to_f32()),
            Codec::Fp8 => {
                let scale = fp8_scale(x);
                x.iter_mut().for_each(|v| *v = FP8_VALUES[fp8_encode(*v / scale) as usize] * scale);
            }
        }
    }
}

/// `max|x| / 448`, or 1 where all values are 0.
pub fn fp8_scale(x: &[f32]) -> f32 {
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

    #[test]
    fn round_trip_is_decode_of_encode() {
        let x: Vec<f32> = (0..64).map(|i| ((i * 37 % 64) as f32 - 31.5) * 0.173).collect();
        for codec in [Codec::F32, Codec::Bf16, Codec::Fp8] {
            let mut bytes = vec![0; codec.row_bytes(64)];
            let scale = codec.encode(&x, &mut bytes);
            let mut decoded = vec![0.0; 64];
            codec.decode(&bytes, scale, &mut decoded);
            let mut tripped = x.clone();
            codec.round_trip(&mut tripped);
            assert_eq!(decoded, tripped);
        }
        let mut zeros = [0f32; 8];
        Codec::Fp8.round_trip(&mut zeros);
        assert_eq!(zeros, [0.0; 8]);
    }
}
