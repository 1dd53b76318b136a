//! Codes of GGUF files, kept as they are: the same nibbles and scales in strips of 16 rows. A code
//! of up to 8 bits has two planes; each group of 32 or 16 columns has a scale, and some a minimum:
//! `value = scale * code - minimum`, or `scale * (code - zero)`.
//!
//! Words belong to 256 columns (a quad of tiles) of the rows g and g + 8 of a strip; a strip's
//! words are `[quads][g]`, padded to 128 bytes. Groups of 32 are in the order
//! `[8 groups]{g, g + 8}`.
//!
//! ```text
//! Halves      16 f16 scales                                           32 bytes
//! Pairs       16 f16 scales, 16 f16 minima                            64 bytes
//! Super       f16 factors of scales {g, g + 8}, of minima; 16 bytes   32 bytes
//!             scale | low 2 bits of minimum << 6; nibbles of the minima's upper bits, i and i + 8 in a byte
//! Sixteenths  f16 factors {g, g + 8}; 32 i8 scales of 16 columns      36 bytes
//! Powers      16 E8M0 scales, powers of two                           16 bytes
//! ```
//!
//! MXFP4 is also a format of safetensors. Its nibbles are E2M1 and stand for [`E2M1_LEVELS`].

use super::group::{Form, GROUP, TILE_ROWS};
use super::layout::StripMut;
use crate::random::Random;

/// Columns that share words.
pub const QUAD: usize = 256;
/// Pairs of rows of a strip.
const PAIRS: usize = 8;
/// Runs of 16 columns of two rows in a quad.
pub const RUNS: usize = 32;
const WORD_ALIGN: usize = 128;

/// Twice the values of E2M1, plus 12: what code 0 to 15 of MXFP4 counts as in
/// `scale * (code - zero)`. Products need no sign so.
pub const E2M1_LEVELS: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

/// A code of GGUF files, by llama.cpp's name. Q5_0 and IQ4_NL are stored as Q8_0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FileCode {
    Q4_0,
    Q4_1,
    Q4K,
    Q5_1,
    Q5K,
    Q6K,
    Q8_0,
    Mxfp4,
}

/// How words hold scales and minima.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Words {
    Halves,
    Pairs,
    Super,
    Sixteenths,
    Powers,
}

/// Scales and minima of 16 columns each: `[16 runs]{row g, row g + 8}`.
#[derive(Clone, Copy)]
pub struct Runs {
    pub scales: [f32; RUNS],
    pub minima: [f32; RUNS],
}

impl Runs {
    pub const ZERO: Self = Self { scales: [0.0; RUNS], minima: [0.0; RUNS] };
}

/// One code: its name, its largest code, how its words hold scales, and the code of 0 if there are
/// no minima.
struct Row(FileCode, &'static str, u8, Words, Option<f32>);

/// In the order of [`FileCode`].
const CODES: [Row; 8] = [
    Row(FileCode::Q4_0, "q4_0", 15, Words::Halves, Some(8.0)),
    Row(FileCode::Q4_1, "q4_1", 15, Words::Pairs, None),
    Row(FileCode::Q4K, "q4_k", 15, Words::Super, None),
    Row(FileCode::Q5_1, "q5_1", 31, Words::Pairs, None),
    Row(FileCode::Q5K, "q5_k", 31, Words::Super, None),
    Row(FileCode::Q6K, "q6_k", 63, Words::Sixteenths, Some(32.0)),
    Row(FileCode::Q8_0, "q8_0", 255, Words::Halves, Some(128.0)),
    Row(FileCode::Mxfp4, "mxfp4", 15, Words::Powers, Some(12.0)),
];

impl FileCode {
    pub fn all() -> impl Iterator<Item = Self> {
        CODES.iter().map(|row| row.0)
    }

    #[inline(always)]
    fn row(self) -> &'static Row {
        &CODES[self as usize]
    }

    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// The largest code.
    fn most(self) -> u8 {
        self.row().2
    }

    pub fn form(self) -> Form {
        Form { low_bits: if self.most() < 16 { 0 } else { 4 }, words: 1 }
    }

    #[inline(always)]
    pub fn words(self) -> Words {
        self.row().3
    }

    /// The numbers that codes stand for, if not for themselves.
    #[inline(always)]
    pub fn levels(self) -> Option<&'static [u8; 16]> {
        (self.words() == Words::Powers).then_some(&E2M1_LEVELS)
    }

    /// The code of 0, where there are no minima.
    #[inline(always)]
    pub fn zero(self) -> Option<f32> {
        self.row().4
    }

    /// Bytes of the words of two rows in a quad.
    #[inline(always)]
    pub fn pair_bytes(self) -> usize {
        match self.words() {
            Words::Halves | Words::Super => 32,
            Words::Pairs => 64,
            Words::Sixteenths => 36,
            Words::Powers => 16,
        }
    }

    /// Bytes of a strip's words.
    pub fn word_bytes(self, cols: usize) -> usize {
        (cols.div_ceil(QUAD) * PAIRS * self.pair_bytes()).next_multiple_of(WORD_ALIGN)
    }

    /// Decodes the words of rows g and g + 8 in a quad.
    #[inline(always)]
    pub fn decode(self, words: &[u8], quad: usize, g: usize, out: &mut Runs) {
        let at = (quad * PAIRS + g) * self.pair_bytes();
        let words = &words[at..at + self.pair_bytes()];
        match self.words() {
            Words::Halves => spread(&halves(&words[..32]), &mut out.scales),
            Words::Pairs => {
                spread(&halves(&words[..32]), &mut out.scales);
                spread(&halves(&words[32..64]).map(|m| -m), &mut out.minima);
            }
            Words::Super => decode_super(words, out),
            Words::Sixteenths => {
                let d = [half(words, 0), half(words, 2)];
                for i in 0..RUNS {
                    out.scales[i] = d[i % 2] * f32::from(words[4 + i] as i8);
                }
            }
            Words::Powers => spread(&std::array::from_fn(|i| half_power(words[i])), &mut out.scales),
        }
        if let Some(zero) = self.zero() {
            for i in 0..RUNS {
                out.minima[i] = out.scales[i] * zero;
            }
        }
    }

    /// Decodes 64 codes of a row; `runs` belong to its quad.
    pub fn values(self, codes: &[u8; GROUP], runs: &Runs, row: usize, tile: usize, out: &mut [f32; GROUP]) {
        for (i, (out, &code)) in out.iter_mut().zip(codes).enumerate() {
            let run = (tile % 4 * 4 + i / 16) * 2 + row / PAIRS;
            let code = self.levels().map_or(code, |levels| levels[usize::from(code)]);
            let (scale, code) = (runs.scales[run], f32::from(code));
            *out = match self.zero() {
                Some(zero) => scale * (code - zero),
                None => scale * code - runs.minima[run],
            };
        }
    }
}

#[inline(always)]
fn decode_super(words: &[u8], out: &mut Runs) {
    let (d, min) = ([half(words, 0), half(words, 2)], [half(words, 4), half(words, 6)]);
    let (mut scales, mut minima) = ([0.0; 16], [0.0; 16]);
    for i in 0..16 {
        let (low, high) = (words[8 + i], words[24 + i % 8] >> (i / 8 * 4) & 15);
        scales[i] = d[i % 2] * f32::from(low & 63);
        minima[i] = min[i % 2] * f32::from(low >> 6 | high << 2);
    }
    spread(&scales, &mut out.scales);
    spread(&minima, &mut out.minima);
}

/// From groups of 32 columns to runs of 16.
#[inline(always)]
fn spread(groups: &[f32; 16], runs: &mut [f32; RUNS]) {
    for i in 0..RUNS {
        runs[i] = groups[i / 4 * 2 + i % 2];
    }
}

#[inline(always)]
fn halves(raw: &[u8]) -> [f32; 16] {
    std::array::from_fn(|i| half(raw, 2 * i))
}

/// A finite f16: its bits moved into an f32 whose exponent is 112 too low, then scaled. One that is
/// not finite is NaN.
#[inline(always)]
fn half(raw: &[u8], at: usize) -> f32 {
    let bits = u32::from(u16::from_le_bytes([raw[at], raw[at + 1]]));
    let value = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
    let value = if bits & 0x7c00 == 0x7c00 { f32::NAN } else { value };
    f32::from_bits(value.to_bits() | (bits & 0x8000) << 16)
}

/// Half the value of an E8M0 scale, `2^(scale - 128)`. 255 is infinite.
#[inline(always)]
fn half_power(scale: u8) -> f32 {
    0.5 * f32::from_bits((u32::from(scale) << 23).max(1 << 22))
}

/// A strip that is being packed.
pub struct FileStrip<'a> {
    code: FileCode,
    strip: StripMut<'a>,
}

impl<'a> FileStrip<'a> {
    /// Clears `bytes`.
    pub fn new(code: FileCode, cols: usize, bytes: &'a mut [u8]) -> Self {
        Self { code, strip: StripMut::new(code.form(), code.word_bytes(cols), cols, bytes) }
    }

    /// Codes of columns `64 tile ..`.
    pub fn codes(&mut self, row: usize, tile: usize, codes: &[u8; GROUP]) {
        self.strip.put_codes(row, tile, codes);
    }

    /// The words of a row's pair, and which of the two rows it is.
    fn words(&mut self, row: usize, quad: usize) -> (&mut [u8], usize) {
        let at = (quad * PAIRS + row % PAIRS) * self.code.pair_bytes();
        (&mut self.strip.words()[at..], row / PAIRS)
    }

    /// f16 scale, and minimum if there is one, of a group of 32 columns.
    pub fn group(&mut self, row: usize, group: usize, scale: [u8; 2], minimum: Option<[u8; 2]>) {
        let (words, second) = self.words(row, group / 8);
        let at = 2 * (group % 8 * 2 + second);
        words[at..at + 2].copy_from_slice(&scale);
        if let Some(minimum) = minimum {
            words[32 + at..34 + at].copy_from_slice(&minimum);
        }
    }

    /// E8M0 scale of a group of 32 columns.
    pub fn power(&mut self, row: usize, group: usize, scale: u8) {
        let (words, second) = self.words(row, group / 8);
        words[2 * (group % 8) + second] = scale;
    }

    /// Factors of scales and minima, and both of 6 bits of the 8 groups of a quad.
    pub fn super_block(&mut self, row: usize, quad: usize, factors: [[u8; 2]; 2], groups: [(u8, u8); 8]) {
        let (words, second) = self.words(row, quad);
        words[2 * second..2 * second + 2].copy_from_slice(&factors[0]);
        words[4 + 2 * second..6 + 2 * second].copy_from_slice(&factors[1]);
        for (j, (scale, minimum)) in groups.into_iter().enumerate() {
            let i = 2 * j + second;
            words[8 + i] = scale | minimum << 6;
            words[24 + i % 8] |= minimum >> 2 << (i / 8 * 4);
        }
    }

    /// Factor and scales of the 16 runs of a quad.
    pub fn sixteenths(&mut self, row: usize, quad: usize, factor: [u8; 2], scales: &[u8; 16]) {
        let (words, second) = self.words(row, quad);
        words[2 * second..2 * second + 2].copy_from_slice(&factor);
        for (i, scale) in scales.iter().enumerate() {
            words[4 + 2 * i + second] = *scale;
        }
    }
}

/// Fills a strip with random codes whose values have about that standard deviation, for benchmarks
/// and checks.
pub fn random_strip(code: FileCode, cols: usize, deviation: f32, seed: u32, out: &mut [u8]) {
    let mut random = Random(u64::from(seed));
    let mut next = || random.byte();
    let most = code.most();
    // Codes are uniform, scales between a half and one and a half of `step`.
    let (step, middle) = (deviation * 12f32.sqrt() / f32::from(most), 0.5 * f32::from(most));
    let half = |value: f32| half::f16::from_f32(value).to_le_bytes();
    let mut strip = FileStrip::new(code, cols, out);
    for row in 0..TILE_ROWS {
        for tile in 0..cols / GROUP {
            strip.codes(row, tile, &std::array::from_fn(|_| next() & most));
        }
        match code.words() {
            Words::Halves | Words::Pairs => {
                for group in 0..cols / 32 {
                    let scale = step * (0.5 + f32::from(next()) / 255.0);
                    let minimum = (code.words() == Words::Pairs).then(|| half(-middle * scale));
                    strip.group(row, group, half(scale), minimum);
                }
            }
            Words::Super => {
                for quad in 0..cols.div_ceil(QUAD) {
                    let groups = std::array::from_fn(|_| (16 + next() % 32, next() % 4)).map(|(s, more)| (s, s + more));
                    strip.super_block(row, quad, [half(step / 32.0), half(middle * step / 32.0)], groups);
                }
            }
            Words::Sixteenths => {
                for quad in 0..cols.div_ceil(QUAD) {
                    let scale = |n: u8| if n & 1 == 0 { 32 + n / 4 } else { (32 + n / 4).wrapping_neg() };
                    strip.sixteenths(row, quad, half(step / 64.0), &std::array::from_fn(|_| scale(next())));
                }
            }
            Words::Powers => {
                // Codes have a deviation of 2.9.
                let power = 127 + (deviation / 4.0).log2().floor() as i32;
                (0..cols / 32).for_each(|group| strip.power(row, group, power as u8 + next() % 2));
            }
        }
    }
}
