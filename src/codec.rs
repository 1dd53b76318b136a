//! How K and V of a slot are stored. One file per format of rows: its bytes, encode and decode. A
//! codec is a row of [`CODECS`]; every other place asks it. Pure maths, orthogonal to the policy.
//! CUDA twins: `kernels/codec_*.cuh`.

mod bf16;
mod coder;
pub mod csr;
mod f32;
mod fp8;
mod int8;
mod k8v4;
mod row;

pub use coder::{Coder, DataFile, Heads, Place, Rotation};
pub use fp8::{FP8_MAX, FP8_VALUES, fp8_encode};
pub use int8::int8_value;
pub use k8v4::{rotate, unpack_codes, unrotate};
pub use row::Elements;

use crate::words::words;
use coder::Open;
use row::RowFormat;
use std::sync::Arc;

/// Storage format of K and V, as `--kv` names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Codec {
    #[default]
    F32,
    Bf16,
    Fp8,
    Int8,
    K8V4,
    Csr4,
    Csr8,
    Csr16,
}

words! { Codec, "a KV format", { F32 = "f32", Bf16 = "bf16", Fp8 = "fp8", Int8 = "int8", K8V4 = "k8v4", Csr4 = "csr:4", Csr8 = "csr:8", Csr16 = "csr:16" } }

/// The smaller codecs that `--kv auto` falls back to, in this order, if the context would not fit.
pub const FALLBACKS: [Codec; 3] = [Codec::Bf16, Codec::Int8, Codec::K8V4];

/// Instances of the kernels by what they read. Formats of one byte to a value share one:
/// [`Codec::byte_codes`] tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rows {
    Bf16,
    Bytes,
    K8V4,
}

impl Rows {
    pub const ALL: [Self; 3] = [Self::Bf16, Self::Bytes, Self::K8V4];

    /// Name in kernels.
    pub fn name(self) -> &'static str {
        ["bf16", "bytes", "k8v4"][self as usize]
    }
}

/// The codecs that GPUs store.
pub const ON_GPUS: [Codec; 4] = [Codec::Bf16, Codec::Fp8, Codec::Int8, Codec::K8V4];

/// One codec: the formats of K and of V; the kernel instance that reads them, or `None` if GPUs
/// have none; and how its coder is made, if it needs data of the model.
struct Row(Codec, &'static dyn RowFormat, &'static dyn RowFormat, Option<Rows>, Option<Open>);

/// In the order of [`Codec`].
static CODECS: [Row; 8] = [
    Row(Codec::F32, &f32::F32, &f32::F32, None, None),
    Row(Codec::Bf16, &bf16::Bf16, &bf16::Bf16, Some(Rows::Bf16), None),
    Row(Codec::Fp8, &fp8::Fp8, &fp8::Fp8, Some(Rows::Bytes), None),
    Row(Codec::Int8, &int8::Int8, &int8::Int8, Some(Rows::Bytes), None),
    Row(Codec::K8V4, &int8::Int8, &k8v4::Int4, Some(Rows::K8V4), None),
    Row(Codec::Csr4, &csr::Codes(4), &csr::Codes(4), None, Some(csr::open)),
    Row(Codec::Csr8, &csr::Codes(8), &csr::Codes(8), None, Some(csr::open)),
    Row(Codec::Csr16, &csr::Codes(16), &csr::Codes(16), None, Some(csr::open)),
];

const _: () = {
    let mut i = 0;
    while i < CODECS.len() {
        assert!(CODECS[i].0 as usize == i, "the rows are in the order of the codecs");
        i += 1;
    }
};

/// Bytes of one slot of one head. K and V may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotLayout {
    pub k_bytes: usize,
    pub v_bytes: usize,
    /// Side data of K, and as much of V: 4, or 0 where the codec has none.
    pub side_bytes: usize,
}

impl Codec {
    fn k(self) -> &'static dyn RowFormat {
        CODECS[self as usize].1
    }

    fn v(self) -> &'static dyn RowFormat {
        CODECS[self as usize].2
    }

    /// The instance of the kernels; `None` where GPUs cannot store the codec.
    pub fn rows(self) -> Option<Rows> {
        CODECS[self as usize].3
    }

    /// Whether rows are coded with data of the model, which a file has.
    pub fn needs_data(self) -> bool {
        CODECS[self as usize].4.is_some()
    }

    /// Makes the codec's coder from its data; `None` for codecs that need none. An error says what
    /// is wrong with the file.
    pub fn coder(self, data: Option<&DataFile>, heads: &Heads) -> Result<Option<Arc<dyn Coder>>, String> {
        let Some(open) = CODECS[self as usize].4 else { return Ok(None) };
        let data = data.ok_or_else(|| format!("--kv {self} needs a dictionary of the model, and none was read"))?;
        open(self.k().terms(), &data.bytes, heads).map(Some).map_err(|why| format!("{}: {why}", data.name))
    }

    /// The codec of the caches of other models beside one with this codec, such as draft heads: the
    /// data belong to one model.
    pub fn of_others(self) -> Self {
        if self.needs_data() { Self::F32 } else { self }
    }

    /// Whether reading gives the values that were stored.
    pub fn is_exact(self) -> bool {
        self.elements() == Elements::F32 && !self.needs_data()
    }

    /// Type that loops load from rows of K and of V, after they are unpacked by [`Self::read_k`]
    /// where [`Self::packs_keys`], and by [`unpack_codes`] or [`Self::read_v`] where
    /// [`Self::packs_values`].
    pub fn elements(self) -> Elements {
        self.k().elements()
    }

    /// Whether rows of K are decoded before loops read them.
    pub fn packs_keys(self) -> bool {
        self.k().shares_bytes()
    }

    /// Whether codes of V share bytes, which [`unpack_codes`] takes apart for loops.
    pub fn packs_values(self) -> bool {
        self.v().shares_bytes()
    }

    /// How a GPU makes bf16 of codes of one byte, of K at least: factor, shift and bits.
    pub fn byte_codes(self) -> [u32; 3] {
        self.k().byte_codes()
    }

    pub fn slot(self, head_dim: usize) -> SlotLayout {
        let (k, v) = (self.k(), self.v());
        let side_bytes = if k.has_side() || v.has_side() { size_of::<u32>() } else { 0 };
        SlotLayout { k_bytes: k.bytes(head_dim), v_bytes: v.bytes(head_dim), side_bytes }
    }

    /// Bytes of a slot: encoded K and V, their side data, and one i32 (position and mark).
    pub fn slot_bytes(self, head_dim: usize) -> usize {
        let slot = self.slot(head_dim);
        slot.k_bytes + slot.v_bytes + 2 * slot.side_bytes + size_of::<i32>()
    }

    /// Whether rows of V are stored, and summed by attention, after [`rotate`]: each row of
    /// attention's output then goes through [`unrotate`], which is exact because the sum is linear.
    pub fn rotates_values(self) -> bool {
        self.v().rotates()
    }

    /// Whether values of V have an offset beside their scale.
    pub fn has_offsets(self) -> bool {
        self.v().has_offset()
    }

    /// Encodes one row of K into `out` (`k_bytes` of the slot) and returns its side data (0 where
    /// the codec has none).
    pub fn encode_k(self, x: &[f32], out: &mut [u8]) -> u32 {
        self.k().encode(x, out)
    }

    /// The same of V: a row after [`Self::rotates_values`]'s rotation.
    pub fn encode_v(self, x: &[f32], out: &mut [u8]) -> u32 {
        self.v().encode(x, out)
    }

    pub fn decode_k(self, bytes: &[u8], side: u32, out: &mut [f32]) {
        self.k().decode(bytes, side, out);
    }

    pub fn decode_v(self, bytes: &[u8], side: u32, out: &mut [f32]) {
        self.v().decode(bytes, side, out);
    }

    /// Decodes a stored row of K with the codec's coder, if it has one.
    pub fn read_k(self, coder: Option<&dyn Coder>, place: Place, bytes: &[u8], side: u32, out: &mut [f32]) {
        match coder {
            Some(coder) => coder.read_k(place, bytes, out),
            None => self.decode_k(bytes, side, out),
        }
    }

    /// Decodes a stored row of V with the codec's coder, if it has one.
    pub fn read_v(self, coder: Option<&dyn Coder>, place: Place, bytes: &[u8], side: u32, out: &mut [f32]) {
        match coder {
            Some(coder) => coder.read_v(place, bytes, out),
            None => self.decode_v(bytes, side, out),
        }
    }

    /// Whether a stored row of K and one of V are of finite numbers.
    pub fn are_finite(self, rows: [&[u8]; 2], sides: [u32; 2]) -> bool {
        self.k().is_finite(rows[0], sides[0]) && self.v().is_finite(rows[1], sides[1])
    }

    /// Scale and offset of a row of K by its side data.
    pub fn affine_k(self, side: u32) -> [f32; 2] {
        self.k().affine(side)
    }

    /// Scale and offset of a row of V by its side data.
    pub fn affine_v(self, side: u32) -> [f32; 2] {
        self.v().affine(side)
    }

    /// Replaces a row of K by what storing and reading makes of it: of a codec with a coder, the
    /// codes of [`Coder::code_k`].
    pub fn round_trip_k(self, x: &mut [f32]) {
        self.k().round_trip(x);
    }

    /// Replaces a row of V by what storing and reading makes of it, rotated where the codec
    /// rotates.
    pub fn round_trip_v(self, x: &mut [f32]) {
        if self.rotates_values() {
            rotate(x);
        }
        self.v().round_trip(x);
    }
}

/// A coder with random data, for tests over all codecs; `None` for codecs that need none.
#[cfg(test)]
pub(crate) fn random_coder(codec: Codec, rotations: &[Rotation], head_dim: usize) -> Option<Arc<dyn Coder>> {
    let heads = Heads { head_dim, rotations: rotations.to_vec() };
    let bytes = csr::Dictionary::random(head_dim, rotations.len(), 40, 7).to_bytes().unwrap();
    let data = DataFile { name: "random".to_owned(), bytes: bytes.into() };
    codec.coder(Some(&data), &heads).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_is_decode_of_encode_and_errs_by_half_a_step_at_most() {
        let x: Vec<f32> = (0..64).map(|i| ((i * 37 % 64) as f32 - 31.5) * 0.173).collect();
        let int8 = 0.5 / 127.0;
        // Largest error of a value of K and of V, relative to the row's largest.
        for (codec, bounds) in [
            (Codec::F32, [0.0; 2]),
            (Codec::Bf16, [1.0 / 256.0; 2]),
            (Codec::Fp8, [1.0 / 28.0; 2]),
            (Codec::Int8, [int8; 2]),
            (Codec::K8V4, [int8, 2.0 * 0.502 / 15.0]),
        ] {
            let slot = codec.slot(64);
            for ((format, bytes), bound) in
                [codec.k(), codec.v()].into_iter().zip([slot.k_bytes, slot.v_bytes]).zip(bounds)
            {
                let mut bytes = vec![0; bytes];
                let side = format.encode(&x, &mut bytes);
                let mut decoded = vec![0.0; 64];
                format.decode(&bytes, side, &mut decoded);
                assert!(format.is_finite(&bytes, side), "{}", codec.name());
                for bad in [f32::NAN, f32::INFINITY] {
                    let (mut bad_bytes, row) = (bytes.clone(), [&[bad], &x[1..]].concat());
                    let side = format.encode(&row, &mut bad_bytes);
                    assert!(!format.is_finite(&bad_bytes, side), "{}: {bad}", codec.name());
                }
                let mut tripped = x.clone();
                format.round_trip(&mut tripped);
                assert_eq!(decoded, tripped);
                let largest = x.iter().fold(0f32, |m, v| m.max(v.abs()));
                let worst = x.iter().zip(&decoded).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
                assert!(worst <= bound * largest * 1.001, "{}: {worst}", codec.name());
                let mut zeros = [0f32; 8];
                format.round_trip(&mut zeros);
                assert_eq!(zeros, [0.0; 8]);
            }
        }
    }

    #[test]
    fn loops_read_k_and_v_by_one_kind_of_load() {
        assert!(Rows::ALL.into_iter().enumerate().all(|(i, rows)| rows as usize == i));
        assert!(Codec::ALL.iter().all(|codec| codec.k().elements() == codec.v().elements()));
        assert!(Codec::ALL.into_iter().filter(|codec| codec.rows().is_some()).eq(ON_GPUS));
        assert!(Codec::ALL.into_iter().filter(|codec| codec.is_exact()).eq([Codec::F32]));
    }

    #[test]
    fn k8v4_takes_two_fifths_of_bf16() {
        assert_eq!([128, 64].map(|d| Codec::K8V4.slot_bytes(d)), [204, 108]);
        assert_eq!([128, 64].map(|d| Codec::Bf16.slot_bytes(d)), [516, 260]);
    }
}
