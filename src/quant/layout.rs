//! Places of codes and words in a strip; see the table in `quant.rs`.

use super::group::{GROUP, Group, TILE_ROWS};

/// Bytes of a tile in one plane.
pub const STRIP_TILE_BYTES: usize = TILE_ROWS * GROUP / 2;
/// Tiles whose words are next to each other.
const WORD_TILES: usize = 4;

/// Bytes of a strip's words.
pub fn word_bytes(cols: usize) -> usize {
    (cols / GROUP).div_ceil(WORD_TILES) * WORD_TILES * TILE_ROWS * size_of::<u16>()
}

/// Index of a word among a strip's words.
#[inline(always)]
fn word_index(row: usize, tile: usize) -> usize {
    let (g, second) = (row % 8, row / 8);
    ((tile / WORD_TILES * 8 + g) * WORD_TILES + tile % WORD_TILES) * 2 + second
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
fn nibble(w: u32, c: usize) -> u8 {
    (w >> (4 * (c / 2) + 16 * (c % 2))) as u8 & 15
}

/// A packed strip. `new` takes its planes and the bytes of its words.
pub struct Strip<'a> {
    planes: usize,
    tiles: usize,
    bytes: &'a [u8],
}

impl<'a> Strip<'a> {
    pub fn new([planes, word_bytes]: [usize; 2], cols: usize, bytes: &'a [u8]) -> Self {
        let tiles = cols / GROUP;
        assert_eq!(bytes.len(), planes * tiles * STRIP_TILE_BYTES + word_bytes, "bytes of a strip");
        Self { planes, tiles, bytes }
    }

    /// Codes and word of one group.
    pub fn get(&self, row: usize, tile: usize) -> ([u8; GROUP], u16) {
        let at = 2 * word_index(row, tile);
        let words = self.words();
        (self.codes(row, tile), u16::from_le_bytes([words[at], words[at + 1]]))
    }

    pub fn codes(&self, row: usize, tile: usize) -> [u8; GROUP] {
        let mut codes = [0; GROUP];
        for plane in 0..self.planes {
            let tile = &self.bytes[(plane * self.tiles + tile) * STRIP_TILE_BYTES..][..STRIP_TILE_BYTES];
            for (eight, codes) in codes.chunks_exact_mut(8).enumerate() {
                let at = chunk(row, eight / 2) + eight % 2 * 4;
                let w = u32::from_le_bytes([tile[at], tile[at + 1], tile[at + 2], tile[at + 3]]);
                codes.iter_mut().enumerate().for_each(|(c, code)| *code = *code << 4 | nibble(w, c));
            }
        }
        codes
    }

    pub fn words(&self) -> &'a [u8] {
        &self.bytes[self.planes * self.tiles * STRIP_TILE_BYTES..]
    }
}

/// A strip that is being packed, as [`Strip`].
pub struct StripMut<'a> {
    planes: usize,
    tiles: usize,
    bytes: &'a mut [u8],
}

impl<'a> StripMut<'a> {
    /// Clears `bytes`: words of tiles that do not exist are never written.
    pub fn new([planes, word_bytes]: [usize; 2], cols: usize, bytes: &'a mut [u8]) -> Self {
        let tiles = cols / GROUP;
        assert_eq!(bytes.len(), planes * tiles * STRIP_TILE_BYTES + word_bytes, "bytes of a strip");
        bytes.fill(0);
        Self { planes, tiles, bytes }
    }

    #[inline(always)]
    pub fn put(&mut self, row: usize, tile: usize, group: &Group) {
        self.put_codes(row, tile, &group.codes);
        let at = 2 * word_index(row, tile);
        self.words()[at..at + 2].copy_from_slice(&group.word.to_le_bytes());
    }

    #[inline(always)]
    pub fn put_codes(&mut self, row: usize, tile: usize, codes: &[u8; GROUP]) {
        for plane in 0..self.planes {
            let shift = 4 * (self.planes - 1 - plane);
            let to = &mut self.bytes[(plane * self.tiles + tile) * STRIP_TILE_BYTES..][..STRIP_TILE_BYTES];
            for (eight, codes) in codes.chunks_exact(8).enumerate() {
                let at = chunk(row, eight / 2) + eight % 2 * 4;
                to[at..at + 4].copy_from_slice(&pack_u32(|c| codes[c] >> shift & 15).to_le_bytes());
            }
        }
    }

    #[inline(always)]
    pub fn words(&mut self) -> &mut [u8] {
        &mut self.bytes[self.planes * self.tiles * STRIP_TILE_BYTES..]
    }
}
