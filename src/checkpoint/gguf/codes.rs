//! The codes of GGUF's blocks in strips of 16 rows, without loss ([`crate::quant::file`]).

use super::blocks::{IQ4_LEVELS, Kind, five_bits, scale_min, six_bits};
use crate::quant::file::{FileCode, FileStrip};
use crate::quant::{GROUP, TILE_ROWS};

/// Packs up to 16 rows of blocks of a type that has a code.
pub fn pack<'a>(kind: Kind, code: FileCode, rows: impl Iterator<Item = &'a [u8]>, cols: usize, out: &mut [u8]) {
    let mut strip = FileStrip::new(code, cols, out);
    let (values, bytes) = kind.block();
    let mut codes = vec![0; cols];
    for (row, raw) in rows.take(TILE_ROWS).enumerate() {
        let blocks = raw.chunks_exact(bytes).zip(codes.chunks_exact_mut(values));
        for (i, (block, codes)) in blocks.enumerate() {
            let two = |at: usize| [block[at], block[at + 1]];
            match kind {
                Kind::Q4K | Kind::Q5K => {
                    let groups = std::array::from_fn(|j| scale_min(&block[4..16], j));
                    strip.super_block(row, i, [two(0), two(2)], groups);
                    let high = (kind == Kind::Q5K).then(|| &block[16..48]);
                    five_bits(&block[bytes - 128..], high, codes);
                }
                Kind::Q6K => {
                    let scales = std::array::from_fn(|j| block[192 + j]);
                    strip.sixteenths(row, i, two(208), &scales);
                    six_bits(block, codes);
                }
                Kind::Mxfp4 => {
                    strip.power(row, i, block[0]);
                    small(kind, block, codes);
                }
                _ => {
                    let minimum = matches!(kind, Kind::Q4_1 | Kind::Q5_1).then(|| two(2));
                    strip.group(row, i, two(0), minimum);
                    small(kind, block, codes);
                }
            }
        }
        for (tile, codes) in codes.as_chunks::<GROUP>().0.iter().enumerate() {
            strip.codes(row, tile, codes);
        }
    }
}

/// Codes of a block of 32. Those of Q5_0, IQ4_NL and Q8_0 are around 128.
fn small(kind: Kind, block: &[u8], codes: &mut [u8]) {
    let nibble = |qs: &[u8], i: usize| qs[i % 16] >> (i / 16 * 4) & 15;
    let fifth = |high: &[u8], i: usize| (high[i / 8] >> (i % 8) & 1) << 4;
    for (i, code) in codes.iter_mut().enumerate() {
        *code = match kind {
            Kind::Mxfp4 => nibble(&block[1..], i),
            Kind::Iq4Nl => IQ4_LEVELS[usize::from(nibble(&block[2..], i))] as u8 ^ 0x80,
            Kind::Q4_0 => nibble(&block[2..], i),
            Kind::Q4_1 => nibble(&block[4..], i),
            Kind::Q5_0 => (nibble(&block[6..], i) | fifth(&block[2..], i)) + 112,
            Kind::Q5_1 => nibble(&block[8..], i) | fifth(&block[4..], i),
            _ => block[2 + i] ^ 0x80,
        };
    }
}
