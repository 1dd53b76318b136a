//! Places of codes and words in a strip; see the table in `quant.rs`.

use super::group::{EIGHT, Form, GROUP, Group, TILE_ROWS};

/// Bytes of a tile in the plane of nibbles.
pub const STRIP_TILE_BYTES: usize = TILE_ROWS * GROUP / 2;
/// Tiles whose words are next to each other.
const WORD_TILES: usize = 4;

impl Form {
    /// Bytes of a tile in the plane of the low bits.
    pub const fn low_tile_bytes(self) -> usize {
        TILE_ROWS * GROUP * self.low_bits / 8
    }

    /// Bytes of a tile in both planes.
    pub const fn tile_bytes(self) -> usize {
        STRIP_TILE_BYTES + self.low_tile_bytes()
    }

    /// Bytes of a strip's words, for codes of our own.
    pub const fn word_bytes(self, cols: usize) -> usize {
        (cols / GROUP).div_ceil(WORD_TILES) * WORD_TILES * TILE_ROWS * self.words * size_of::<u16>()
    }

    /// Index of a row's first word among a strip's words.
    #[inline(always)]
    pub fn word_index(self, row: usize, tile: usize) -> usize {
        let (g, second) = (row % 8, row / 8);
        (((tile / WORD_TILES * 8 + g) * WORD_TILES + tile % WORD_TILES) * 2 + second) * self.words
    }
}

/// Offset in a tile of the 8 bytes of columns `16 t ..` of `row`.
#[inline(always)]
fn chunk(row: usize, t: usize) -> usize {
    let (g, second) = (row % 8, row / 8);
    (4 * g + t) * 16 + second * 8
}

/// Packs eight nibbles: nibble i is column 2 i, nibble i + 4 is column 2 i + 1.
#[inline(always)]
fn pack_u32(nibbles: impl Fn(usize) -> u8) -> u32 {
    (0..4).fold(0, |w, i| w | (nibbles(2 * i) as u32) << (4 * i) | (nibbles(2 * i + 1) as u32) << (4 * i + 16))
}

/// Nibble of column `c` of eight.
#[inline(always)]
fn nibble(w: u32, c: usize) -> u8 {
    (w >> (4 * (c / 2) + 16 * (c % 2))) as u8 & 15
}

/// The lowest of the two bits of column `c` of 16 in a u32 of the plane of two low bits: a byte
/// holds columns 2 apart, as the bytes of nibbles do.
#[inline(always)]
fn pair_bit(c: usize) -> usize {
    let (eight, pair, second) = (c / EIGHT, c % EIGHT / 2, c % 2);
    8 * (pair / 2 + 2 * second) + 2 * (2 * eight + pair % 2)
}

/// A packed strip. `new` takes its form and the bytes of its words.
pub struct Strip<'a> {
    form: Form,
    tiles: usize,
    bytes: &'a [u8],
}

impl<'a> Strip<'a> {
    pub fn new(form: Form, word_bytes: usize, cols: usize, bytes: &'a [u8]) -> Self {
        let tiles = cols / GROUP;
        assert_eq!(bytes.len(), tiles * form.tile_bytes() + word_bytes, "bytes of a strip");
        Self { form, tiles, bytes }
    }

    /// Codes of one group, and the word of each half.
    pub fn get(&self, row: usize, tile: usize) -> Group {
        let at = self.form.word_index(row, tile);
        let word = |i: usize| u16::from_le_bytes([self.words()[2 * i], self.words()[2 * i + 1]]);
        Group { codes: self.codes(row, tile), words: [word(at), word(at + self.form.words - 1)] }
    }

    pub fn codes(&self, row: usize, tile: usize) -> [u8; GROUP] {
        let mut codes = [0; GROUP];
        let mut add_nibbles = |tile: &[u8]| {
            for (eight, codes) in codes.chunks_exact_mut(EIGHT).enumerate() {
                let at = chunk(row, eight / 2) + eight % 2 * 4;
                let w = u32::from_le_bytes([tile[at], tile[at + 1], tile[at + 2], tile[at + 3]]);
                codes.iter_mut().enumerate().for_each(|(c, code)| *code = *code << 4 | nibble(w, c));
            }
        };
        add_nibbles(&self.bytes[tile * STRIP_TILE_BYTES..][..STRIP_TILE_BYTES]);
        let size = self.form.low_tile_bytes();
        let low = &self.bytes[self.tiles * STRIP_TILE_BYTES + tile * size..][..size];
        match self.form.low_bits {
            0 => {}
            4 => add_nibbles(low),
            _ => {
                for (t, codes) in codes.chunks_exact_mut(16).enumerate() {
                    let at = chunk(row, t) / 2;
                    let w = u32::from_le_bytes([low[at], low[at + 1], low[at + 2], low[at + 3]]);
                    codes
                        .iter_mut()
                        .enumerate()
                        .for_each(|(c, code)| *code = *code << 2 | (w >> pair_bit(c)) as u8 & 3);
                }
            }
        }
        codes
    }

    pub fn words(&self) -> &'a [u8] {
        &self.bytes[self.tiles * self.form.tile_bytes()..]
    }
}

/// A strip that is being packed, as [`Strip`].
pub struct StripMut<'a> {
    form: Form,
    tiles: usize,
    bytes: &'a mut [u8],
}

impl<'a> StripMut<'a> {
    /// Clears `bytes`: words of tiles that do not exist are never written.
    pub fn new(form: Form, word_bytes: usize, cols: usize, bytes: &'a mut [u8]) -> Self {
        let tiles = cols / GROUP;
        assert_eq!(bytes.len(), tiles * form.tile_bytes() + word_bytes, "bytes of a strip");
        bytes.fill(0);
        Self { form, tiles, bytes }
    }

    #[inline(always)]
    pub fn put(&mut self, row: usize, tile: usize, group: &Group) {
        self.put_codes(row, tile, &group.codes);
        let at = 2 * self.form.word_index(row, tile);
        for (i, word) in group.words[..self.form.words].iter().enumerate() {
            self.words()[at + 2 * i..][..2].copy_from_slice(&word.to_le_bytes());
        }
    }

    #[inline(always)]
    pub fn put_codes(&mut self, row: usize, tile: usize, codes: &[u8; GROUP]) {
        let low_bits = self.form.low_bits;
        let put_nibbles = |to: &mut [u8], shift: usize| {
            for (eight, codes) in codes.chunks_exact(EIGHT).enumerate() {
                let at = chunk(row, eight / 2) + eight % 2 * 4;
                to[at..at + 4].copy_from_slice(&pack_u32(|c| codes[c] >> shift & 15).to_le_bytes());
            }
        };
        put_nibbles(&mut self.bytes[tile * STRIP_TILE_BYTES..][..STRIP_TILE_BYTES], low_bits);
        let size = self.form.low_tile_bytes();
        let low = &mut self.bytes[self.tiles * STRIP_TILE_BYTES + tile * size..][..size];
        match low_bits {
            0 => {}
            4 => put_nibbles(low, 0),
            _ => {
                for (t, codes) in codes.chunks_exact(16).enumerate() {
                    let at = chunk(row, t) / 2;
                    let w = codes.iter().enumerate().fold(0, |w, (c, code)| w | u32::from(code & 3) << pair_bit(c));
                    low[at..at + 4].copy_from_slice(&w.to_le_bytes());
                }
            }
        }
    }

    #[inline(always)]
    pub fn words(&mut self) -> &mut [u8] {
        &mut self.bytes[self.tiles * self.form.tile_bytes()..]
    }
}
