//! `q8`: codes 1 to 255 around a zero point of 128, and the scale as f16.

use super::group::{Form, GROUP, Group, GroupCode, nearest, range};
use half::f16;

pub struct Q8;

const ZERO: f32 = 128.0;
const MAX_MAGNITUDE: f32 = 127.0;

impl GroupCode for Q8 {
    fn name(&self) -> &'static str {
        "q8"
    }

    fn form(&self) -> Form {
        Form { low_bits: 4, words: 1 }
    }

    /// The scale maps the largest magnitude to 127. With so many levels, a search for a better
    /// scale gains nothing.
    #[inline(always)]
    fn choose(&self, x: &[f32; GROUP], _: &[f32; GROUP]) -> Group {
        let (low, high) = range(x);
        let largest = high.max(-low);
        let word = self.word(largest / MAX_MAGNITUDE, ZERO);
        let scale = self.scale_zero(word).0;
        // Zeros, and groups whose scale is rounded to 0.
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        let code = |v: f32| (nearest((v * inverse).clamp(-MAX_MAGNITUDE, MAX_MAGNITUDE)) + ZERO) as u8;
        Group { codes: x.map(code), words: [word; 2] }
    }

    fn word(&self, scale: f32, _: f32) -> u16 {
        if scale.is_nan() { f16::NAN.to_bits() } else { f16::from_f32(scale.min(f16::MAX.to_f32())).to_bits() }
    }

    fn scale_zero(&self, word: u16) -> (f32, f32) {
        (f16::from_bits(word).to_f32(), ZERO)
    }
}
