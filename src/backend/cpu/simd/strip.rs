//! A packed strip as kernels see it: where its codes, scales and zero points are, and the
//! activations in the order of its tiles.

// Indices of fixed arrays, which the compiler unrolls and keeps in registers.
#![allow(clippy::needless_range_loop)]

use super::dots::prefetch_l2;
use crate::quant::{Code, GROUP, TILE_ROWS};

/// Bytes of a tile in one plane.
pub(super) const TILE_BYTES: usize = TILE_ROWS * GROUP / 2;
/// Steps of a tile in f32, one for each nibble of a u32.
pub(super) const STEPS: usize = 8;
/// Words of four tiles: one for each row of a tile, or one for each half of it.
pub(super) const WORDS: usize = 4 * TILE_ROWS;
pub(super) const MOST_WORDS: usize = 2 * WORDS;
/// Prefetch distance, into L2: 22 GB/s on one core where 8 KB ahead into L1 reach 13. A strip's
/// words are prefetched by as much, so that strips leave no gaps.
const AHEAD_BYTES: usize = 16 << 10;

/// 16 values of f32, or 64 bytes.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
pub(super) struct Line(pub [u32; 16]);

/// Activations in the order of the tiles.
#[derive(Default)]
pub(super) struct Ordered {
    /// `[n][tiles][lines]`
    pub lines: Vec<Line>,
    /// Sums of each group of columns, in the order of their words:
    /// `[n][tiles / 4, rounded up][4 tiles][2]`, twice. 0 for tiles that do not exist.
    pub sums: Vec<Line>,
    /// Sums of each half of a group, in the order of its words:
    /// `[n][tiles / 4, rounded up][4 tiles][2 rows][2 halves]`.
    pub halves: Vec<Line>,
    /// Sums of 16 columns each, twice: `[n][tiles / 4, rounded up][4 tiles][4][2]`.
    pub runs: Vec<Line>,
    /// Scales of the groups, in the order of `sums`, where activations are integers.
    pub scales: Vec<Line>,
    /// Rows.
    pub n: usize,
    pub cols: usize,
}

impl Ordered {
    /// Makes room for `n` rows with the given number of lines per tile.
    pub fn resize(&mut self, n: usize, cols: usize, lines: usize) {
        (self.n, self.cols) = (n, cols);
        self.lines.resize(n * cols / GROUP * lines, Line([0; 16]));
        for (words, lines) in [(&mut self.sums, 1), (&mut self.halves, 1), (&mut self.scales, 1), (&mut self.runs, 2)] {
            words.clear();
            words.resize(lines * n * cols.div_ceil(4 * GROUP), Line([0; 16]));
        }
    }
}

/// The two low bits of 16 codes as nibbles, in the order of the upper four.
#[inline(always)]
pub(super) fn as_nibbles(two: u32) -> [u32; 2] {
    [0, 4].map(|eight| two >> eight & 0x0303_0303 | (two >> (eight + 2) & 0x0303_0303) << 4)
}

/// Stores a value of a tile for the rows g and g + 8, twice: as their words lie.
pub(super) fn put(words: &mut [f32], tile: usize, value: f32) {
    let at = tile / 4 * 16 + tile % 4 * 2;
    for at in [at, at + 1, at + 8, at + 9] {
        words[at] = value;
    }
}

/// Stores the sums of a tile's halves for the rows g and g + 8.
pub(super) fn put_halves(halves: &mut [f32], tile: usize, [first, second]: [f32; 2]) {
    halves[4 * tile..][..4].copy_from_slice(&[first, second, first, second]);
}

/// Stores the sums of a tile's runs of 16 columns.
pub(super) fn put_runs(runs: &mut [f32], tile: usize, sums: [f32; 4]) {
    for (i, sum) in sums.into_iter().enumerate() {
        runs[8 * tile + 2 * i..][..2].fill(sum);
    }
}

/// The sum of a row's zero points times sums of activations, over four tiles.
#[inline(always)]
pub(super) fn zero_of<const HALVES: bool>(z: &[f32], second: usize) -> f32 {
    let tile = |t: usize| if HALVES { z[4 * t + 2 * second] + z[4 * t + 2 * second + 1] } else { z[2 * t + second] };
    (tile(0) + tile(1)) + (tile(2) + tile(3))
}

/// Rounds to bf16, to nearest even.
#[inline(always)]
pub(super) fn round(x: f32) -> f32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & 0xffff_0000;
    if x.is_nan() { x } else { f32::from_bits(rounded) }
}

/// One strip and the activations.
pub(super) struct Strip<'a> {
    pub code: Code,
    pub strip: &'a [u8],
    pub tiles: usize,
    /// Scratch for scales.
    pub scales: &'a mut Vec<f32>,
    pub x: &'a Ordered,
}

impl Strip<'_> {
    pub fn words(&self) -> &[u8] {
        &self.strip[self.tiles * self.code.form().tile_bytes()..]
    }

    /// The 64 bytes of rows g and g + 8 of a tile in the plane of nibbles.
    #[inline(always)]
    pub fn codes(&self, tile: usize, g: usize) -> *const u8 {
        self.strip.as_ptr().wrapping_add(tile * TILE_BYTES + g * 64)
    }

    /// Their low bits: 64 bytes of codes of 8 bits, 32 of codes of 6.
    #[inline(always)]
    pub fn low_codes(&self, tile: usize, g: usize) -> *const u8 {
        let size = self.code.form().low_tile_bytes();
        self.strip.as_ptr().wrapping_add(self.tiles * TILE_BYTES + tile * size + g * (size / 8))
    }

    /// The planes of codes of 4 or 8 bits.
    #[inline(always)]
    pub fn planes(&self, tile: usize, g: usize) -> impl Iterator<Item = *const u8> {
        let planes = if self.code.bits() > 4 { 2 } else { 1 };
        [self.codes(tile, g), self.low_codes(tile, g)].into_iter().take(planes)
    }

    /// The low bits of codes of 6 bits as nibbles, in the order of the upper four.
    #[inline(always)]
    pub fn low_nibbles(&self, tile: usize, g: usize) -> Line {
        let mut out = Line([0; 16]);
        let at = self.low_codes(tile, g) as usize - self.strip.as_ptr() as usize;
        for (i, two) in self.strip[at..at + 32].as_chunks::<4>().0.iter().enumerate() {
            out.0[2 * i..2 * i + 2].copy_from_slice(&as_nibbles(u32::from_le_bytes(*two)));
        }
        out
    }

    /// Prefetches codes that are needed later than those at `codes`.
    #[inline(always)]
    pub fn prefetch(&self, codes: *const u8) {
        prefetch_l2(codes.wrapping_add(AHEAD_BYTES));
    }

    /// Prefetches the words of a later strip: they follow its tiles, which no other prefetch
    /// covers.
    #[inline(always)]
    pub fn prefetch_words(&self) {
        let words = self.words();
        (0..words.len()).step_by(64).for_each(|at| self.prefetch(words.as_ptr().wrapping_add(at)));
    }

    /// Scales in the order of the words. A loop of its own, which becomes vector code.
    #[inline(always)]
    pub fn decode_scales(&mut self) {
        self.prefetch_words();
        let words = &self.strip[self.tiles * self.code.form().tile_bytes()..];
        let (shift, mask) = match self.code {
            Code::Q4 => (1, 0x7ff0),
            Code::Q4H | Code::Q6H => (1, 0x7fc0),
            _ => (0, 0x7fff),
        };
        for (scale, word) in self.scales.iter_mut().zip(words.as_chunks::<2>().0) {
            *scale = f16(u16::from_le_bytes(*word) >> shift & mask);
        }
    }

    /// `scale * zero` of `N` words from `first` on.
    #[inline(always)]
    pub fn offsets<const N: usize>(&self, first: usize) -> [f32; N] {
        let (words, scales) = (&self.words()[2 * first..][..2 * N], &self.scales[first..first + N]);
        let mut out = [0.0; N];
        for i in 0..N {
            let word = u16::from_le_bytes([words[2 * i], words[2 * i + 1]]);
            let zero = match self.code {
                Code::Q4 => 0.5 * (word & 31) as f32,
                Code::Q4H => 0.125 * (word & 127) as f32,
                Code::Q6H => 0.5 * (word & 127) as f32,
                _ => 128.0,
            };
            out[i] = scales[i] * zero;
        }
        out
    }
}

/// A positive f16: its bits moved into an f32 whose exponent is 112 too low, then scaled, which is
/// right for subnormals too.
#[inline(always)]
fn f16(bits: u16) -> f32 {
    let value = f32::from_bits((bits as u32) << 13) * f32::from_bits((127 + 112) << 23);
    if bits >= 0x7c00 { f32::NAN } else { value }
}
