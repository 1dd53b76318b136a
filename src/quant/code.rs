//! The codes of packed matrices, and how strips of them are packed and read.

use super::feedback::{self, Factor};
use super::file::{FileCode, Runs};
use super::group::{EIGHT, Form, GROUP, Group, GroupCode, TILE_ROWS};
use super::halves::{Halves, HalvesStrip};
use super::layout::{Strip, StripMut};
use super::q4::{Q4, Q4Strip};
use super::q8::Q8;
use super::vectorize;

/// A storage format of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Code {
    /// 8-bit codes and an f16 scale: 8.25 bits per weight.
    Q8,
    /// 4-bit codes, an 11-bit scale and a zero point in half steps: 4.25 bits per weight.
    Q4,
    /// 4-bit codes with scale and zero point for each half of a group: 4.5 bits per weight.
    Q4H,
    /// The same with 6-bit codes: 6.5 bits per weight.
    Q6H,
    /// The codes of a GGUF file, in the same tiles with words of their own.
    File(FileCode),
}

impl Code {
    /// The codes that are chosen for values.
    pub const ALL: [Code; 4] = [Code::Q8, Code::Q4, Code::Q4H, Code::Q6H];

    /// Every code that a file of weights may have.
    pub fn stored() -> impl Iterator<Item = Code> {
        Self::ALL.into_iter().chain(FileCode::all().map(Code::File))
    }

    fn rules(self) -> &'static dyn GroupCode {
        match self {
            Code::Q8 => &Q8,
            Code::Q4 => &Q4,
            Code::Q4H => &Halves::<4>,
            Code::Q6H => &Halves::<6>,
            Code::File(code) => panic!("{} is not chosen for values", code.name()),
        }
    }

    /// Suffix of tensors in a quantized file: `NAME.weight.q4`.
    pub fn name(self) -> &'static str {
        match self {
            Code::File(code) => code.name(),
            code => code.rules().name(),
        }
    }

    /// How codes and words are stored. The words of codes of files are another matter.
    pub fn form(self) -> Form {
        match self {
            Code::File(code) => code.form(),
            code => code.rules().form(),
        }
    }

    /// Bits of a code.
    pub fn bits(self) -> usize {
        self.form().bits()
    }

    /// Whether the importance of columns chooses its codes: 6 bits are exact enough without.
    pub fn uses_importance(self) -> bool {
        !matches!(self, Code::File(_)) && self.rules().uses_importance()
    }

    /// Whether GPTQ can choose its codes: of 8 bits they are exact enough without.
    pub fn is_corrected(self) -> bool {
        matches!(self, Code::Q4 | Code::Q4H | Code::Q6H)
    }

    /// Whether experts alone are kept in it: no known file has other matrices so.
    pub fn is_of_experts(self) -> bool {
        matches!(self, Code::File(code) if code.levels().is_some())
    }

    /// Whether a matrix of that width can be packed.
    pub fn fits(cols: usize) -> bool {
        cols > 0 && cols.is_multiple_of(GROUP)
    }

    /// Bytes of a strip of 16 rows; `cols` is a multiple of 64.
    pub fn strip_bytes(self, cols: usize) -> usize {
        cols / GROUP * self.form().tile_bytes() + self.word_bytes(cols)
    }

    /// Bytes of a strip's words.
    fn word_bytes(self, cols: usize) -> usize {
        match self {
            Code::File(code) => code.word_bytes(cols),
            _ => self.form().word_bytes(cols),
        }
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
        let strip = StripMut::new(self.form(), self.word_bytes(cols), cols, out);
        match self {
            Code::Q8 => vectorize::vectorized_by_eight(
                #[inline(always)]
                || pack(&Q8, rows, importance, strip),
            ),
            Code::Q4 => vectorize::vectorized_by_eight(
                #[inline(always)]
                || pack(&Q4, rows, importance, strip),
            ),
            Code::Q4H => vectorize::vectorized_by_eight(
                #[inline(always)]
                || pack(&Halves::<4>, rows, importance, strip),
            ),
            Code::Q6H => vectorize::vectorized_by_eight(
                #[inline(always)]
                || pack(&Halves::<6>, rows, importance, strip),
            ),
            Code::File(code) => panic!("{} is not chosen for values", code.name()),
        }
    }

    /// [`Self::pack_strip`] by GPTQ ([`feedback`]), for codes that it can choose. The values are
    /// finite.
    pub fn pack_corrected(self, rows: &[f32], factor: &Factor, out: &mut [u8]) {
        let cols = factor.cols();
        assert!(Self::fits(cols) && rows.len() == TILE_ROWS * cols, "a strip of {} values", rows.len());
        let strip = StripMut::new(self.form(), self.word_bytes(cols), cols, out);
        match self {
            Code::Q4 => vectorize::vectorized(
                #[inline(always)]
                || feedback::choose(&mut Q4Strip(strip), rows, factor),
            ),
            Code::Q4H => vectorize::vectorized(
                #[inline(always)]
                || feedback::choose(&mut HalvesStrip::<4>(strip), rows, factor),
            ),
            Code::Q6H => vectorize::vectorized(
                #[inline(always)]
                || feedback::choose(&mut HalvesStrip::<6>(strip), rows, factor),
            ),
            code => panic!("GPTQ does not choose {}", code.name()),
        }
    }

    /// Packs given codes `[16, cols]` with scales and zero points `[16, cols / 64]`, the same for
    /// both halves of a group. Scales are rounded to the precision of a word. q4 stores zero points
    /// 0 to 15.5 in half steps; q8's is always 128.
    pub fn pack_codes(self, codes: &[u8], scales: &[f32], zeros: &[f32], cols: usize, out: &mut [u8]) {
        let tiles = cols / GROUP;
        assert!(Self::fits(cols) && codes.len() == TILE_ROWS * cols, "a strip of {} codes", codes.len());
        assert!(scales.len() == TILE_ROWS * tiles && zeros.len() == scales.len(), "scales of a strip");
        let mut strip = StripMut::new(self.form(), self.word_bytes(cols), cols, out);
        let (groups, _) = codes.as_chunks::<GROUP>();
        for (i, codes) in groups.iter().enumerate() {
            let word = self.rules().word(scales[i], zeros[i]);
            strip.put(i / tiles, i % tiles, &Group { codes: *codes, words: [word; 2] });
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
        let strip = Strip::new(self.form(), self.word_bytes(cols), cols, &bytes[row / TILE_ROWS * size..][..size]);
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
            let group = strip.get(row, first + i);
            let grids = group.words.map(|word| self.rules().scale_zero(word));
            for (col, (out, code)) in out.iter_mut().zip(group.codes).enumerate() {
                let (scale, zero) = grids[col / EIGHT % 2];
                *out = scale * (f32::from(code) - zero);
            }
        }
    }

    /// Scale and zero point that a word encodes.
    pub fn scale_zero(self, word: u16) -> (f32, f32) {
        self.rules().scale_zero(word)
    }
}

#[inline(always)]
fn pack(rules: &impl GroupCode, rows: &[f32], importance: Option<&[f32]>, mut strip: StripMut<'_>) {
    let (groups, _) = rows.as_chunks::<GROUP>();
    let importance = importance.map(|w| w.as_chunks::<GROUP>().0);
    let tiles = groups.len() / TILE_ROWS;
    for (i, x) in groups.iter().enumerate() {
        let weights = importance.map_or(&[1.0; GROUP], |w| &w[i % tiles]);
        let group = if x.iter().all(|v| v.is_finite()) {
            rules.choose(x, weights)
        } else {
            Group { codes: [0; GROUP], words: [rules.word(f32::NAN, 0.0); 2] }
        };
        strip.put(i / tiles, i % tiles, &group);
    }
}
