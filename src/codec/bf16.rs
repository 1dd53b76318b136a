//! `bf16`: the upper half of an f32, rounded to nearest even.

use super::row::{Elements, RowFormat};
use half::bf16;

pub struct Bf16;

impl RowFormat for Bf16 {
    fn elements(&self) -> Elements {
        Elements::Bf16
    }

    fn bytes(&self, head_dim: usize) -> usize {
        2 * head_dim
    }

    fn encode(&self, x: &[f32], out: &mut [u8]) -> u32 {
        for (o, &v) in out.chunks_exact_mut(2).zip(x) {
            o.copy_from_slice(&bf16::from_f32(v).to_le_bytes());
        }
        0
    }

    fn decode(&self, bytes: &[u8], _side: u32, out: &mut [f32]) {
        for (o, c) in out.iter_mut().zip(bytes.chunks_exact(2)) {
            *o = bf16::from_le_bytes([c[0], c[1]]).to_f32();
        }
    }

    fn is_finite(&self, bytes: &[u8], _side: u32) -> bool {
        const EXPONENT: u16 = 0x7f80;
        let words = bytes.as_chunks::<2>().0.iter();
        words.fold(true, |all, word| all & (u16::from_le_bytes(*word) & EXPONENT != EXPONENT))
    }

    fn round_trip(&self, x: &mut [f32]) {
        x.iter_mut().for_each(|v| *v = bf16::from_f32(*v).to_f32());
    }
}
