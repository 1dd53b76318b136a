//! Interface of a row format: one implementation in each of the files beside this one.

/// Unit that loops over a row load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elements {
    F32,
    Bf16,
    Fp8,
    /// Sign and magnitude.
    Int8,
}

/// A format of rows of `head_dim` values, for K or for V.
pub trait RowFormat: Sync {
    /// Meaning of its bytes, or of the output of [`unpack_codes`](super::unpack_codes) if several
    /// codes share a byte.
    fn elements(&self) -> Elements;
    /// Whether a row is unpacked before loops read it: several codes share a byte, or a
    /// [`Coder`](super::Coder) decodes them.
    fn shares_bytes(&self) -> bool {
        false
    }
    /// Codes of a row, where their number is part of the format.
    fn terms(&self) -> usize {
        0
    }
    /// Whether rows are stored after [`rotate`](super::rotate).
    fn rotates(&self) -> bool {
        false
    }
    /// Whether values have an offset beside their scale.
    fn has_offset(&self) -> bool {
        false
    }
    /// How a GPU makes a bf16 of a code of one byte: factor, shift and bits of `ByteRows` in
    /// `kernels/codec_bytes.cuh`.
    fn byte_codes(&self) -> [u32; 3] {
        [0; 3]
    }
    fn bytes(&self, head_dim: usize) -> usize;
    /// Whether a row has 4 bytes of side data.
    fn has_side(&self) -> bool {
        false
    }
    /// Scale and offset by the side data: a value is `code * scale + offset`.
    fn affine(&self, _side: u32) -> [f32; 2] {
        [1.0, 0.0]
    }
    /// Encodes `x` into `out` and returns the row's side data (0 where the format has none).
    fn encode(&self, x: &[f32], out: &mut [u8]) -> u32;
    /// Decodes `bytes` with the row's side data into `out`.
    fn decode(&self, bytes: &[u8], side: u32, out: &mut [f32]);
    /// Whether `decode` gives finite numbers.
    fn is_finite(&self, bytes: &[u8], side: u32) -> bool;
    /// Replaces `x` by `decode(encode(x))`. Once more, it changes nothing.
    fn round_trip(&self, x: &mut [f32]);
}
