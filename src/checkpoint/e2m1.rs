//! Values of 4-bit floats (E2M1) and of power-of-two scales (E8M0).

/// Value of each code: a sign, two bits of exponent and one of mantissa.
pub const E2M1: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Value of an E8M0 scale, `2^(scale - 127)`. MXFP4 multiplies [`E2M1`] by it.
pub fn e8m0(scale: u8) -> f32 {
    if scale == 0 { f32::MIN_POSITIVE / 2.0 } else { f32::from_bits(u32::from(scale) << 23) }
}

/// The largest scale with which the value of every code is finite in f32.
pub const MOST_E8M0: u8 = 252;
