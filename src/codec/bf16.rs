//! `bf16`: the upper half of an f32, rounded to nearest even.

use super::{RowCodec, SlotLayout};
use half::bf16;

pub struct Bf16;

impl RowCodec for Bf16 {
    fn name(&self) -> &'static str {
        "bf16"
    }

    fn slot(&self, head_dim: usize) -> SlotLayout {
        SlotLayout { k_bytes: 2 * head_dim, v_bytes: 2 * head_dim, side_bytes: 0 }
    }

    fn encode(&self, x: &[f32], out: &mut [u8]) -> f32 {
        for (o, &v) in out.chunks_exact_mut(2).zip(x) {
            o.copy_from_slice(&bf16::from_f32(v).to_le_bytes());
        }
        1.0
    }

    fn decode(&self, bytes: &[u8], _scale: f32, out: &mut [f32]) {
        for (o, c) in out.iter_mut().zip(bytes.chunks_exact(2)) {
            *o = bf16::from_le_bytes([c[0], c[1]]).to_f32();
        }
    }

    fn round_trip(&self, x: &mut [f32]) {
        x.iter_mut().for_each(|v| *v = bf16::from_f32(*v).to_f32());
    }
}
