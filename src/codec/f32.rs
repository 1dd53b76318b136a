//! `f32`: values as they are.

use super::row::{Elements, RowFormat};

pub struct F32;

impl RowFormat for F32 {
    fn elements(&self) -> Elements {
        Elements::F32
    }

    fn bytes(&self, head_dim: usize) -> usize {
        4 * head_dim
    }

    fn encode(&self, x: &[f32], out: &mut [u8]) -> u32 {
        out.copy_from_slice(bytemuck::cast_slice(x));
        0
    }

    fn decode(&self, bytes: &[u8], _side: u32, out: &mut [f32]) {
        for (o, c) in out.iter_mut().zip(bytes.chunks_exact(4)) {
            *o = f32::from_le_bytes([c[0], c[1], c[2], c[3]]);
        }
    }

    fn is_finite(&self, bytes: &[u8], _side: u32) -> bool {
        const EXPONENT: u32 = 0x7f80_0000;
        // Without a branch for each value, so that the loop is vectorized.
        let words = bytes.as_chunks::<4>().0.iter();
        words.fold(true, |all, word| all & (u32::from_le_bytes(*word) & EXPONENT != EXPONENT))
    }

    fn round_trip(&self, _x: &mut [f32]) {}
}
