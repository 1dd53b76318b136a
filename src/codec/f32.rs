//! `f32`: values as they are.

use super::{RowCodec, SlotLayout};

pub struct F32;

impl RowCodec for F32 {
    fn name(&self) -> &'static str {
        "f32"
    }

    fn slot(&self, head_dim: usize) -> SlotLayout {
        SlotLayout { k_bytes: 4 * head_dim, v_bytes: 4 * head_dim, side_bytes: 0 }
    }

    fn encode(&self, x: &[f32], out: &mut [u8]) -> f32 {
        out.copy_from_slice(bytemuck::cast_slice(x));
        1.0
    }

    fn decode(&self, bytes: &[u8], _scale: f32, out: &mut [f32]) {
        for (o, c) in out.iter_mut().zip(bytes.chunks_exact(4)) {
            *o = f32::from_le_bytes([c[0], c[1], c[2], c[3]]);
        }
    }

    fn round_trip(&self, _x: &mut [f32]) {}
}
