//! Values of codes of 4 bits (E2M1), and of scales that are powers of two (E8M0).

/// Value of each code: a sign, two bits of exponent and one of mantissa.
pub const E2M1: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Value of a scale in E8M0, `2^(scale - 127)`: in MXFP4 the factor of [`E2M1`].
pub fn e8m0(scale: u8) -> f32 {
    if scale == 0 { f32::MIN_POSITIVE / 2.0 } else { f32::from_bits(u32::from(scale) << 23) }
}

/// The largest scale with which every code is a finite number.
pub const MOST_E8M0: u8 = 252;
