//! How K and V of a slot are stored. One file per codec: the bytes of a slot, encode and decode of one head's row. Pure
//! maths, orthogonal to the policy. CUDA twins: `kernels/codec_*.cuh`.

mod bf16;
mod f32;
mod fp8;
mod int8;

pub use fp8::{FP8_MAX, FP8_VALUES, fp8_encode};
pub use int8::int8_value;

/// Storage format of K and V.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codec {
    F32,
    Bf16,
    Fp8,
    Int8,
}

/// Bytes of one slot of one head. K and V may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotLayout {
    pub k_bytes: usize,
    pub v_bytes: usize,
    /// Side data of K, and as much of V: 4 for one f32 scale a row, else 0.
    pub side_bytes: usize,
}

/// A codec of rows of `head_dim` values.
trait RowCodec {
    /// As `--kv` names it.
    fn name(&self) -> &'static str;
    fn slot(&self, head_dim: usize) -> SlotLayout;
    /// Encodes `x` into `out` and returns the row's scale (1 where the codec has none).
    fn encode(&self, x: &[f32], out: &mut [u8]) -> f32;
    /// Decodes `bytes` with the row's scale into `out`.
    fn decode(&self, bytes: &[u8], scale: f32, out: &mut [f32]);
    /// Replaces `x` by `decode(encode(x))`.
    fn round_trip(&self, x: &mut [f32]);
}

impl Codec {
    pub const ALL: [Codec; 4] = [Codec::F32, Codec::Bf16, Codec::Fp8, Codec::Int8];

    fn rows(self) -> &'static dyn RowCodec {
        match self {
            Codec::F32 => &f32::F32,
            Codec::Bf16 => &bf16::Bf16,
            Codec::Fp8 => &fp8::Fp8,
            Codec::Int8 => &int8::Int8,
        }
    }

    pub fn name(self) -> &'static str {
        self.rows().name()
    }

    pub fn slot(self, head_dim: usize) -> SlotLayout {
        self.rows().slot(head_dim)
    }

    /// Bytes of a slot: encoded K and V, their side data, and one i32 (position and mark).
    pub fn slot_bytes(self, head_dim: usize) -> usize {
        let slot = self.slot(head_dim);
        slot.k_bytes + slot.v_bytes + 2 * slot.side_bytes + size_of::<i32>()
    }

    /// Encodes one row into `out` (`k_bytes` or `v_bytes` of the slot) and returns its scale (1 where the codec has none).
    pub fn encode(self, x: &[f32], out: &mut [u8]) -> f32 {
        self.rows().encode(x, out)
    }

    pub fn decode(self, bytes: &[u8], scale: f32, out: &mut [f32]) {
        self.rows().decode(bytes, scale, out);
    }

    /// Replaces `x` by what storing and reading makes of it.
    pub fn round_trip(self, x: &mut [f32]) {
        self.rows().round_trip(x);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_is_decode_of_encode_and_errs_by_half_a_step_at_most() {
        let x: Vec<f32> = (0..64).map(|i| ((i * 37 % 64) as f32 - 31.5) * 0.173).collect();
        // Largest error of a value, relative to the row's largest.
        for (codec, bound) in
            [(Codec::F32, 0.0), (Codec::Bf16, 1.0 / 256.0), (Codec::Fp8, 1.0 / 28.0), (Codec::Int8, 0.5 / 127.0)]
        {
            let mut bytes = vec![0; codec.slot(64).k_bytes];
            let scale = codec.encode(&x, &mut bytes);
            let mut decoded = vec![0.0; 64];
            codec.decode(&bytes, scale, &mut decoded);
            let mut tripped = x.clone();
            codec.round_trip(&mut tripped);
            assert_eq!(decoded, tripped);
            let largest = x.iter().fold(0f32, |m, v| m.max(v.abs()));
            let worst = x.iter().zip(&decoded).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
            assert!(worst <= bound * largest * 1.001, "{}: {worst}", codec.name());
            let mut zeros = [0f32; 8];
            codec.round_trip(&mut zeros);
            assert_eq!(zeros, [0.0; 8]);
        }
    }
}
