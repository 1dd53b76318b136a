//! How a weight matrix is stored in 8 or 4 bits. One file per code: what a group's 16-bit word
//! means and how its codes are chosen. [`file`] has the codes of GGUF files, whose groups are
//! others. Pure maths. CUDA twin: `kernels/codes.cuh`; the f32 kernels
//! of the CPU: `backend/cpu/simd/packed.rs`.
//!
//! A group is 64 columns of one row. Its values are `scale * (code - zero)`, in f32 with one
//! rounding; the word holds scale and zero point. Sums over a group are f32 in a fixed order and
//! never fused, so every machine chooses the same bytes.
//!
//! A packed matrix is a list of strips of 16 rows, the last padded with zero rows:
//!
//! ```text
//! strip   planes x [cols / 64] tiles of 512 bytes, then words
//! plane   q4 has one; q8 has the high nibbles, then the low ones
//! tile    16 rows x 64 columns: chunks (4 g + t) of 16 bytes, g = 0..8, t = 0..4
//! chunk   columns 16 t .. 16 t + 15 of row g, then of row g + 8
//! u32     8 columns: nibble i is column 2 i, nibble i + 4 is column 2 i + 1
//! words   [cols / 256, rounded up] x [g] x [4 tiles] x { row g, row g + 8 }; words of tiles that do not exist are 0
//! ```

pub mod file;
mod layout;
mod q4;
mod q8;
mod vectorize;

use crate::words::words;
use file::{FileCode, Runs};
use layout::{STRIP_TILE_BYTES, word_bytes};
use q4::Q4;
use q8::Q8;

/// Columns of a row that share a scale.
pub const GROUP: usize = 64;
/// Rows of a strip.
pub const TILE_ROWS: usize = 16;

/// A storage format of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Code {
    /// 8-bit codes and an f16 scale: 8.25 bits per weight.
    Q8,
    /// 4-bit codes, an 11-bit scale and a zero point in half steps: 4.25 bits per weight.
    Q4,
    /// The codes of a GGUF file, in the same tiles with words of their own.
    File(FileCode),
}

/// Codes of one group with their scale and zero point.
struct Group {
    codes: [u8; GROUP],
    word: u16,
}

/// One code.
trait GroupCode {
    fn name(&self) -> &'static str;
    /// Planes of nibbles.
    fn planes(&self) -> usize;
    /// Chooses codes for `x`. `weights` are the importance of each column's squared error.
    fn choose(&self, x: &[f32; GROUP], weights: &[f32; GROUP]) -> Group;
    /// The word nearest to `scale` and `zero`.
    fn word(&self, scale: f32, zero: f32) -> u16;
    /// Scale and zero point of a word.
    fn scale_zero(&self, word: u16) -> (f32, f32);
}

impl Code {
    /// The codes that are chosen for values.
    pub const ALL: [Code; 2] = [Code::Q8, Code::Q4];

    /// Every code that a file of weights may have.
    pub fn stored() -> impl Iterator<Item = Code> {
        Self::ALL.into_iter().chain(FileCode::ALL.map(Code::File))
    }

    fn rules(self) -> &'static dyn GroupCode {
        match self {
            Code::Q8 => &Q8,
            Code::Q4 => &Q4,
            Code::File(code) => panic!("{} is not chosen for values", code.name()),
        }
    }

    /// As tensors of a quantized file are called: `NAME.weight.q4`.
    pub fn name(self) -> &'static str {
        match self {
            Code::File(code) => code.name(),
            code => code.rules().name(),
        }
    }

    /// Planes of nibbles: 2 for q8, 1 for q4.
    pub fn planes(self) -> usize {
        match self {
            Code::File(code) => code.planes(),
            code => code.rules().planes(),
        }
    }

    /// Bits of a code.
    pub fn bits(self) -> usize {
        4 * self.planes()
    }

    /// Whether a matrix of that width can be packed.
    pub fn fits(cols: usize) -> bool {
        cols > 0 && cols.is_multiple_of(GROUP)
    }

    /// Bytes of a strip of 16 rows; `cols` is a multiple of 64.
    pub fn strip_bytes(self, cols: usize) -> usize {
        let words = match self {
            Code::File(code) => code.word_bytes(cols),
            _ => word_bytes(cols),
        };
        self.planes() * (cols / GROUP) * STRIP_TILE_BYTES + words
    }

    /// Bytes of a matrix.
    pub fn bytes(self, rows: usize, cols: usize) -> usize {
        rows.div_ceil(TILE_ROWS) * self.strip_bytes(cols)
    }

    /// Packs 16 rows `[16, cols]` into `out` of [`Self::strip_bytes`]. Rows that do not exist are
    /// zeros. `importance` weights each column's squared error (E[x^2] of its input); without it
    /// all columns count the same. A group with a value that is not finite becomes NaN.
    pub fn pack_strip(self, rows: &[f32], cols: usize, importance: Option<&[f32]>, out: &mut [u8]) {
        assert!(Self::fits(cols) && rows.len() == TILE_ROWS * cols, "a strip of {} values", rows.len());
        assert!(importance.is_none_or(|w| w.len() == cols), "importance of other columns");
        let strip = layout::StripMut::new(self, cols, out);
        match self {
            Code::Q8 => vectorize::vectorized(
                #[inline(always)]
                || pack(&Q8, rows, importance, strip),
            ),
            Code::Q4 => vectorize::vectorized(
                #[inline(always)]
                || pack(&Q4, rows, importance, strip),
            ),
            Code::File(code) => panic!("{} is not chosen for values", code.name()),
        }
    }

    /// Packs codes `[16, cols]` that somebody else chose, with scales and zero points
    /// `[16, cols / 64]`. Scales are rounded to what a word holds. q4 stores zero points 0 to 15.5
    /// in half steps; that of q8 is always 128.
    pub fn pack_codes(self, codes: &[u8], scales: &[f32], zeros: &[f32], cols: usize, out: &mut [u8]) {
        let tiles = cols / GROUP;
        assert!(Self::fits(cols) && codes.len() == TILE_ROWS * cols, "a strip of {} codes", codes.len());
        assert!(scales.len() == TILE_ROWS * tiles && zeros.len() == scales.len(), "scales of a strip");
        let mut strip = layout::StripMut::new(self, cols, out);
        let (groups, _) = codes.as_chunks::<GROUP>();
        for (i, codes) in groups.iter().enumerate() {
            let word = self.rules().word(scales[i], zeros[i]);
            strip.put(i / tiles, i % tiles, &Group { codes: *codes, word });
        }
    }

    /// Decodes row `row` of a packed matrix `[rows, cols]` into `out` of `cols` values.
    pub fn unpack_row(self, bytes: &[u8], rows: usize, cols: usize, row: usize, out: &mut [f32]) {
        assert!(row < rows && out.len() == cols, "row {row} of {rows}");
        self.unpack_groups(bytes, cols, row, 0, out);
    }

    /// Decodes columns of row `row` from group `first` on; `out` holds whole groups.
    pub fn unpack_groups(self, bytes: &[u8], cols: usize, row: usize, first: usize, out: &mut [f32]) {
        let size = self.strip_bytes(cols);
        let strip = layout::Strip::new(self, cols, &bytes[row / TILE_ROWS * size..][..size]);
        let (groups, _) = out.as_chunks_mut::<GROUP>();
        let (row, mut runs) = (row % TILE_ROWS, Runs::ZERO);
        for (i, out) in groups.iter_mut().enumerate() {
            if let Code::File(code) = self {
                let tile = first + i;
                if i == 0 || tile.is_multiple_of(4) {
                    code.decode(strip.words(), tile / 4, row % 8, &mut runs);
                }
                code.values(&strip.codes(row, tile), &runs, row, tile, out);
                continue;
            }
            let (codes, word) = strip.get(row, first + i);
            let (scale, zero) = self.rules().scale_zero(word);
            out.iter_mut().zip(codes).for_each(|(out, c)| *out = scale * (c as f32 - zero));
        }
    }

    /// Scale and zero point that a word encodes.
    pub fn scale_zero(self, word: u16) -> (f32, f32) {
        self.rules().scale_zero(word)
    }
}

#[inline(always)]
fn pack(rules: &impl GroupCode, rows: &[f32], importance: Option<&[f32]>, mut strip: layout::StripMut<'_>) {
    let (groups, _) = rows.as_chunks::<GROUP>();
    let importance = importance.map(|w| w.as_chunks::<GROUP>().0);
    let tiles = groups.len() / TILE_ROWS;
    for (i, x) in groups.iter().enumerate() {
        let weights = importance.map_or(&[1.0; GROUP], |w| &w[i % tiles]);
        let group = if x.iter().all(|v| v.is_finite()) {
            rules.choose(x, weights)
        } else {
            Group { codes: [0; GROUP], word: rules.word(f32::NAN, 0.0) }
        };
        strip.put(i / tiles, i % tiles, &group);
    }
}

/// How the weights of a model are stored in memory: `--weights`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Weights {
    /// The most exact with which the context is expected to fit.
    Auto,
    /// As in the checkpoint; formats of other programs become bf16.
    #[default]
    Bf16,
    /// Matrices as [`Code::Q8`].
    Int8,
    /// Matrices as [`Code::Q4`], embedding and head as [`Code::Q8`].
    Int4,
    /// As in a GGUF file: the codes of its matrices ([`file`]).
    Own,
}

words! { Weights, "a format of weights", { Auto = "auto", Bf16 = "bf16", Int8 = "int8", Int4 = "int4", Own = "own" } }

impl Weights {
    /// Whether matrices are packed.
    pub const fn is_packed(self) -> bool {
        matches!(self, Weights::Int8 | Weights::Int4 | Weights::Own)
    }

    /// Code that is chosen for the projections of the layers; `None` where none is.
    pub const fn code(self) -> Option<Code> {
        match self {
            Weights::Auto | Weights::Bf16 | Weights::Own => None,
            Weights::Int8 => Some(Code::Q8),
            Weights::Int4 => Some(Code::Q4),
        }
    }

    /// Code that is chosen for the embedding and the output head.
    pub const fn embedding_code(self) -> Option<Code> {
        match self {
            Weights::Auto | Weights::Bf16 | Weights::Own => None,
            Weights::Int8 | Weights::Int4 => Some(Code::Q8),
        }
    }
}

/// The nearest integer, ties to even, of a value below 2^22. Unlike `f32::round_ties_even` it is
/// two additions on every machine, so that loops over it become vector code.
#[inline(always)]
fn nearest(x: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0;
    (x + SHIFT) - SHIFT
}

/// Lanes in which a group's sums are accumulated: lane i takes columns i, i + 16, i + 32 and i +
/// 48, in this order. Then the lanes are added by halves. The order is part of the format.
const LANES: usize = 16;

#[inline(always)]
fn sum(mut lanes: [f32; LANES]) -> f32 {
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
    }
    lanes[0]
}

/// The least and the largest value of a group and of 0.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
fn range(x: &[f32; GROUP]) -> (f32, f32) {
    let (mut low, mut high) = ([0f32; LANES], [0f32; LANES]);
    for x in x.as_chunks::<LANES>().0 {
        for i in 0..LANES {
            low[i] = if x[i] < low[i] { x[i] } else { low[i] };
            high[i] = if x[i] > high[i] { x[i] } else { high[i] };
        }
    }
    (low.iter().fold(0.0, |m, &v| m.min(v)), high.iter().fold(0.0, |m, &v| m.max(v)))
}

#[cfg(test)]
mod tests;
