//! `k8v4`: K as `int8`; V rotated, then as 4-bit codes with a scale and an offset a row.
//!
//! Attention forgives rounded values far more than rounded keys, so V gets half of K's bits. The
//! rotation (fixed signs, then a Hadamard transform) spreads outliers of a channel over all of
//! them, which halves the error of 4-bit codes. It is orthonormal: attention sums rotated values,
//! and only its output is rotated back.

use super::row::{Elements, RowFormat};
use half::f16;
use std::f32::consts::FRAC_1_SQRT_2;

/// Rows of V. `offset` = the least value as f16; `scale` = `max(range / 15, |offset| / 512, 2^-18)`
/// as f16; code = `(x - offset) / scale` to nearest even, 0 to 15; value = `code * scale + offset`.
/// The two lower bounds of the scale keep what f16 rounds off the offset below half a step, so that
/// encoding decoded values gives the same codes. Side data: scale in the lower half, offset in the
/// upper. A row whose offset or scale is not finite in f16 becomes NaN.
pub struct Int4;

const MAX_CODE: f32 = 15.0;
/// Least scale, by the precision of small f16.
const MIN_SCALE: f32 = 1.0 / (1 << 18) as f32;
/// Largest ratio of offset and scale.
const MAX_OFFSET: f32 = 512.0;
/// Scale and offset of rows that cannot be stored.
const NAN_SIDE: u32 = 0x7e00_7e00;

impl RowFormat for Int4 {
    fn elements(&self) -> Elements {
        // A byte each, they are int8 codes without a sign.
        Elements::Int8
    }

    fn shares_bytes(&self) -> bool {
        true
    }

    fn rotates(&self) -> bool {
        true
    }

    fn has_offset(&self) -> bool {
        true
    }

    fn bytes(&self, head_dim: usize) -> usize {
        // GPUs copy rows by 8 bytes.
        head_dim.div_ceil(2).next_multiple_of(8)
    }

    fn has_side(&self) -> bool {
        true
    }

    fn affine(&self, side: u32) -> [f32; 2] {
        [side, side >> 16].map(|bits| f16::from_bits(bits as u16).to_f32())
    }

    fn encode(&self, x: &[f32], out: &mut [u8]) -> u32 {
        let side = side(x);
        let [scale, offset] = self.affine(side);
        out.fill(0);
        for (i, &x) in x.iter().enumerate() {
            let (byte, shift) = place(i);
            out[byte] |= code(x, scale, offset) << shift;
        }
        side
    }

    fn decode(&self, bytes: &[u8], side: u32, out: &mut [f32]) {
        let [scale, offset] = self.affine(side);
        for (i, out) in out.iter_mut().enumerate() {
            let (byte, shift) = place(i);
            *out = value(bytes[byte] >> shift & 15, scale, offset);
        }
    }

    fn is_finite(&self, _bytes: &[u8], side: u32) -> bool {
        self.affine(side).iter().all(|x| x.is_finite())
    }

    fn round_trip(&self, x: &mut [f32]) {
        let [scale, offset] = self.affine(side(x));
        x.iter_mut().for_each(|x| *x = value(code(*x, scale, offset), scale, offset));
    }
}

/// Byte and shift of channel `i`'s code. Eight channels share a little-endian u32: the code of an
/// even channel 2i is at bits 4i.., the code of channel 2i + 1 is 16 bits above, so that
/// `(word >> 4i) & 0x000f000f` is a pair of neighbours.
fn place(i: usize) -> (usize, usize) {
    let (word, pair, odd) = (i / 8, i % 8 / 2, i % 2);
    (4 * word + 2 * odd + pair / 2, 4 * (pair % 2))
}

fn side(x: &[f32]) -> u32 {
    let min = x.iter().fold(f32::INFINITY, |m, &v| m.min(v));
    let max = x.iter().fold(f32::NEG_INFINITY, |m, &v| m.max(v));
    // An offset of 0 has no sign: whether -0 is less than 0 is for each machine to say.
    let offset = Some(f16::from_f32(min)).filter(|o| *o != f16::ZERO).unwrap_or(f16::ZERO);
    let least = (offset.to_f32().abs() / MAX_OFFSET).max(MIN_SCALE);
    let scale = f16::from_f32(((max - offset.to_f32()) / MAX_CODE).max(least));
    if x.iter().any(|v| v.is_nan()) || !offset.is_finite() || !scale.is_finite() {
        return NAN_SIDE;
    }
    (offset.to_bits() as u32) << 16 | scale.to_bits() as u32
}

fn code(x: f32, scale: f32, offset: f32) -> u8 {
    // `as` turns NaN into 0: the side data says that the row has no values.
    ((x - offset) / scale).round_ties_even().clamp(0.0, MAX_CODE) as u8
}

fn value(code: u8, scale: f32, offset: f32) -> f32 {
    code as f32 * scale + offset
}

/// Unpacks a row's codes, a byte each.
pub fn unpack_codes(bytes: &[u8], out: &mut [u8]) {
    for (out, word) in out.chunks_mut(8).zip(bytes.chunks_exact(4)) {
        let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        for (i, out) in out.iter_mut().enumerate() {
            *out = (word >> (4 * (i / 2) + 16 * (i % 2))) as u8 & 15;
        }
    }
}

/// Channels that the signs repeat after, and the largest Hadamard transform.
const PERIOD: usize = 128;

/// Signs of the rotation: channel i's is bit i % 32 of word i / 32. The first digits of pi.
const SIGNS: [u32; PERIOD / 32] = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];

fn flip(x: &mut [f32]) {
    for (i, x) in x.iter_mut().enumerate() {
        let sign = SIGNS[i % PERIOD / 32] >> (i % 32) << 31;
        *x = f32::from_bits(x.to_bits() ^ sign);
    }
}

/// The orthonormal Hadamard transform of every block of a row: blocks are as long as the largest
/// power of 2 that divides the row, 128 at most. It is its own inverse.
fn hadamard(x: &mut [f32]) {
    let log = x.len().trailing_zeros().min(PERIOD.trailing_zeros());
    let by = f32::powi(0.5, log as i32 / 2) * if log % 2 == 1 { FRAC_1_SQRT_2 } else { 1.0 };
    for block in x.chunks_exact_mut(1 << log) {
        for stride in (0..log).map(|i| 1 << i) {
            for pair in block.chunks_exact_mut(2 * stride) {
                let (low, high) = pair.split_at_mut(stride);
                for (a, b) in low.iter_mut().zip(high) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
        }
    }
    x.iter_mut().for_each(|x| *x *= by);
}

/// Rotates a row of V for storing.
pub fn rotate(x: &mut [f32]) {
    flip(x);
    hadamard(x);
}

/// Undoes [`rotate`].
pub fn unrotate(x: &mut [f32]) {
    hadamard(x);
    flip(x);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(len: usize, seed: u64) -> Vec<f32> {
        let mut x = seed;
        let mut next = || {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (x >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..len).map(|_| next()).collect()
    }

    #[test]
    fn unrotate_undoes_rotate_and_lengths_are_kept() {
        for len in [8, 40, 64, 72, 96, 128, 256] {
            let x = row(len, len as u64);
            let mut y = x.clone();
            rotate(&mut y);
            let squares = |x: &[f32]| x.iter().map(|v| v * v).sum::<f32>();
            assert!((squares(&x) / squares(&y) - 1.0).abs() < 1e-5, "{len}");
            // A channel alone is spread evenly over its block.
            let mut one = vec![0.0; len];
            one[len - 1] = 1.0;
            rotate(&mut one);
            let block = (1usize << len.trailing_zeros()).min(PERIOD);
            let even = 1.0 / (block as f32).sqrt();
            assert!(one[len - block..].iter().all(|v| (v.abs() - even).abs() < 1e-6), "{len}");
            unrotate(&mut y);
            assert!(x.iter().zip(&y).all(|(a, b)| (a - b).abs() < 1e-6), "{len}");
        }
    }

    /// The CPU stores what it decoded, a GPU what it encoded first.
    #[test]
    fn encoding_decoded_values_changes_nothing() {
        for seed in 0..2000 {
            let mut x = row(64, seed);
            // All magnitudes, and rows far from 0.
            let (by, plus) =
                (2f32.powi((seed % 37) as i32 - 25), row(1, seed + 7)[0] * 2f32.powi((seed % 41) as i32 - 27));
            x.iter_mut().for_each(|x| *x = *x * by + plus);
            let (mut first, mut second) = (vec![0; 32], vec![0; 32]);
            let side = Int4.encode(&x, &mut first);
            let mut decoded = vec![0.0; 64];
            Int4.decode(&first, side, &mut decoded);
            assert_eq!((Int4.encode(&decoded, &mut second), &second), (side, &first), "{seed}");
            let [scale, offset] = Int4.affine(side);
            let most = 0.5 * scale + offset.abs() * f32::EPSILON * 8192.0;
            assert!(x.iter().zip(&decoded).all(|(a, b)| (a - b).abs() <= most), "{seed}");
            let mut codes = vec![9; 64];
            unpack_codes(&first, &mut codes);
            assert!(codes.iter().zip(&decoded).all(|(&c, &v)| value(c, scale, offset) == v));
        }
    }

    #[test]
    fn what_cannot_be_stored_becomes_nan() {
        for bad in [f32::NAN, f32::INFINITY, -7e4] {
            let mut x = row(16, 1);
            x[3] = bad;
            Int4.round_trip(&mut x);
            assert!(x.iter().all(|v| v.is_nan()), "{bad}: {x:?}");
        }
    }
}
