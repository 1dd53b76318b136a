//! Element types of GGUF files, and how their blocks decode to f32. Pure arithmetic in the order of
//! ggml's `dequantize_row_*`, so that the values are the same bit for bit.

use super::super::e2m1::{E2M1, MOST_E8M0, e8m0};
use crate::quant::file::FileCode;
use half::{bf16, f16};

/// A supported element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    F32,
    F16,
    Bf16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq4Nl,
    Iq4Xs,
    Mxfp4,
}

/// Number in a file, type, name, values and bytes of a block, offsets of its f16 scales, decoding
/// function, and the code that keeps it.
type Row = (u32, Kind, &'static str, usize, usize, &'static [usize], fn(&[u8], &mut [f32]), Option<FileCode>);

const KINDS: [Row; 16] = [
    (0, Kind::F32, "F32", 1, 4, &[], |b, y| y[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]]), None),
    (1, Kind::F16, "F16", 1, 2, &[], |b, y| y[0] = half(b, 0), None),
    (30, Kind::Bf16, "BF16", 1, 2, &[], |b, y| y[0] = bf16::from_le_bytes([b[0], b[1]]).to_f32(), None),
    (2, Kind::Q4_0, "Q4_0", 32, 18, &[0], q4_0, Some(FileCode::Q4_0)),
    (3, Kind::Q4_1, "Q4_1", 32, 20, &[0, 2], q4_1, Some(FileCode::Q4_1)),
    (6, Kind::Q5_0, "Q5_0", 32, 22, &[0], q5_0, Some(FileCode::Q8_0)),
    (7, Kind::Q5_1, "Q5_1", 32, 24, &[0, 2], q5_1, Some(FileCode::Q5_1)),
    (8, Kind::Q8_0, "Q8_0", 32, 34, &[0], q8_0, Some(FileCode::Q8_0)),
    (10, Kind::Q2K, "Q2_K", 256, 84, &[80, 82], q2_k, None),
    (11, Kind::Q3K, "Q3_K", 256, 110, &[108], q3_k, None),
    (12, Kind::Q4K, "Q4_K", 256, 144, &[0, 2], |b, y| with_minima(b, None, y), Some(FileCode::Q4K)),
    (13, Kind::Q5K, "Q5_K", 256, 176, &[0, 2], |b, y| with_minima(b, Some(&b[16..48]), y), Some(FileCode::Q5K)),
    (14, Kind::Q6K, "Q6_K", 256, 210, &[208], q6_k, Some(FileCode::Q6K)),
    (20, Kind::Iq4Nl, "IQ4_NL", 32, 18, &[0], iq4_nl, Some(FileCode::Q8_0)),
    (23, Kind::Iq4Xs, "IQ4_XS", 256, 136, &[0], iq4_xs, None),
    (39, Kind::Mxfp4, "MXFP4", 32, 17, &[], mxfp4, Some(FileCode::Mxfp4)),
];

/// Types of ggml that are not supported, for messages.
const OTHERS: [(u32, &str); 19] = [
    (9, "Q8_1"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (40, "NVFP4"),
    (4, "Q4_2"),
    (5, "Q4_3"),
];

/// The 16 levels of the IQ4 types.
pub const IQ4_LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

impl Kind {
    pub fn from_id(id: u32) -> Option<Self> {
        KINDS.iter().find(|k| k.0 == id).map(|k| k.1)
    }

    fn row(self) -> &'static Row {
        &KINDS[KINDS.iter().position(|k| k.1 == self).unwrap_or(0)]
    }

    /// Its name in ggml.
    pub fn name(self) -> &'static str {
        self.row().2
    }

    /// Values and bytes of a block.
    pub fn block(self) -> (usize, usize) {
        (self.row().3, self.row().4)
    }

    /// The code that keeps its blocks as they are, if there is one. Those of Q5_0 and IQ4_NL are
    /// wider.
    pub fn own_code(self) -> Option<FileCode> {
        self.row().7
    }

    /// Decodes whole blocks: `raw` holds exactly the values of `out`.
    pub fn decode(self, raw: &[u8], out: &mut [f32]) {
        let &(_, _, _, values, bytes, _, decode, _) = self.row();
        for (block, values) in raw.chunks_exact(bytes).zip(out.chunks_exact_mut(values)) {
            decode(block, values);
        }
    }

    /// Whether all scales of whole blocks are finite numbers.
    pub fn has_finite_scales(self, raw: &[u8]) -> bool {
        let &(_, _, _, _, bytes, scales, ..) = self.row();
        let is_power = |block: &[u8]| self != Self::Mxfp4 || block[0] <= MOST_E8M0;
        raw.chunks_exact(bytes).all(|b| is_power(b) && scales.iter().all(|&at| half(b, at).is_finite()))
    }
}

/// The name of a type by its number.
pub fn type_name(id: u32) -> String {
    let known = OTHERS.iter().find(|(n, _)| *n == id).map(|(_, name)| (*name).to_owned());
    known.unwrap_or_else(|| Kind::from_id(id).map_or(format!("type {id}"), |k| k.name().to_owned()))
}

/// The names of all supported types.
pub fn supported() -> String {
    KINDS.map(|k| k.2).join(", ")
}

fn half(b: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([b[at], b[at + 1]]).to_f32()
}

/// Low nibbles to the first half of `y`, high nibbles to the second.
fn nibbles(qs: &[u8], y: &mut [f32], value: impl Fn(u8, usize) -> f32) {
    let (low, high) = y.split_at_mut(qs.len());
    for (j, q) in qs.iter().enumerate() {
        low[j] = value(q & 15, j);
        high[j] = value(q >> 4, j + qs.len());
    }
}

fn q4_0(b: &[u8], y: &mut [f32]) {
    let d = half(b, 0);
    nibbles(&b[2..], y, |q, _| f32::from(q as i8 - 8) * d);
}

fn q4_1(b: &[u8], y: &mut [f32]) {
    let (d, m) = (half(b, 0), half(b, 2));
    nibbles(&b[4..], y, |q, _| f32::from(q) * d + m);
}

/// The fifth bit of value `at`.
fn fifth(high: &[u8], at: usize) -> u8 {
    (high[at / 8] >> (at % 8) & 1) << 4
}

fn q5_0(b: &[u8], y: &mut [f32]) {
    let d = half(b, 0);
    nibbles(&b[6..], y, |q, at| f32::from((q | fifth(&b[2..6], at)) as i8 - 16) * d);
}

fn q5_1(b: &[u8], y: &mut [f32]) {
    let (d, m) = (half(b, 0), half(b, 2));
    nibbles(&b[8..], y, |q, at| f32::from(q | fifth(&b[4..8], at)) * d + m);
}

fn q8_0(b: &[u8], y: &mut [f32]) {
    let d = half(b, 0);
    for (y, q) in y.iter_mut().zip(&b[2..]) {
        *y = f32::from(*q as i8) * d;
    }
}

fn q2_k(b: &[u8], y: &mut [f32]) {
    let (scales, qs) = (&b[..16], &b[16..80]);
    let (d, min) = (half(b, 80), half(b, 82));
    // Sixteen runs of 16 values, each with a scale and a minimum of 4 bits.
    for (run, y) in y.chunks_exact_mut(16).enumerate() {
        let (dl, ml) = (d * f32::from(scales[run] & 15), min * f32::from(scales[run] >> 4));
        let (at, shift) = (run / 8 * 32 + run % 2 * 16, run % 8 / 2 * 2);
        for (y, q) in y.iter_mut().zip(&qs[at..]) {
            *y = dl * f32::from(q >> shift & 3) - ml;
        }
    }
}

fn q3_k(b: &[u8], y: &mut [f32]) {
    let (high, qs, packed, d) = (&b[..32], &b[32..96], &b[96..108], half(b, 108));
    for (run, y) in y.chunks_exact_mut(16).enumerate() {
        let low = if run < 8 { packed[run] & 15 } else { packed[run - 8] >> 4 };
        let scale = (low | (packed[8 + run % 4] >> (run / 4 * 2) & 3) << 4) as i8 - 32;
        let dl = d * f32::from(scale);
        let (at, shift, plane) = (run / 8 * 32 + run % 2 * 16, run % 8 / 2 * 2, run / 2);
        let values = qs[at..].iter().zip(&high[run % 2 * 16..]);
        for (y, (q, high)) in y.iter_mut().zip(values) {
            let offset = if high >> plane & 1 == 1 { 0 } else { 4 };
            *y = dl * f32::from((q >> shift & 3) as i8 - offset);
        }
    }
}

/// Scale and minimum of 6 bits of run `j` of 8, in the 12 bytes of Q4_K and Q5_K.
pub fn scale_min(q: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (q[j] & 63, q[j + 4] & 63)
    } else {
        (q[j + 4] & 15 | q[j - 4] >> 6 << 4, q[j + 4] >> 4 | q[j] >> 6 << 4)
    }
}

/// The codes of 256 values: nibbles, and a plane of fifth bits if there is one.
pub fn five_bits(qs: &[u8], high: Option<&[u8]>, codes: &mut [u8]) {
    for (run, codes) in codes.chunks_exact_mut(32).enumerate() {
        for (i, code) in codes.iter_mut().enumerate() {
            let fifth = high.map_or(0, |high| high[i] >> run & 1);
            *code = (qs[run / 2 * 32 + i] >> (run % 2 * 4) & 15) | fifth << 4;
        }
    }
}

/// Q4_K, or Q5_K with a plane of fifth bits.
fn with_minima(b: &[u8], high: Option<&[u8]>, y: &mut [f32]) {
    let (d, min, mut codes) = (half(b, 0), half(b, 2), [0; 256]);
    five_bits(&b[b.len() - 128..], high, &mut codes);
    for (run, (y, codes)) in y.chunks_exact_mut(32).zip(codes.chunks_exact(32)).enumerate() {
        let (scale, m) = scale_min(&b[4..16], run);
        let (d1, m1) = (d * f32::from(scale), min * f32::from(m));
        y.iter_mut().zip(codes).for_each(|(y, q)| *y = d1 * f32::from(*q) - m1);
    }
}

/// The codes of the 256 values of a block of Q6_K, around 32.
pub fn six_bits(b: &[u8], codes: &mut [u8]) {
    let (low, high) = (&b[..128], &b[128..192]);
    for (run, codes) in codes.chunks_exact_mut(16).enumerate() {
        // Runs 0..8 are the first 128 values: four quarters of 32 that share 32 bytes of high bits.
        let (half, quarter, at) = (run / 8, run % 8 / 2, run % 2 * 16);
        let low = &low[half * 64 + quarter % 2 * 32 + at..];
        for (code, (low, high)) in codes.iter_mut().zip(low.iter().zip(&high[half * 32 + at..])) {
            *code = low >> (quarter / 2 * 4) & 15 | (high >> (quarter * 2) & 3) << 4;
        }
    }
}

fn q6_k(b: &[u8], y: &mut [f32]) {
    let (scales, d, mut codes) = (&b[192..208], half(b, 208), [0; 256]);
    six_bits(b, &mut codes);
    for (run, (y, codes)) in y.chunks_exact_mut(16).zip(codes.chunks_exact(16)).enumerate() {
        let scale = d * f32::from(scales[run] as i8);
        y.iter_mut().zip(codes).for_each(|(y, q)| *y = scale * f32::from(*q as i8 - 32));
    }
}

fn iq4_nl(b: &[u8], y: &mut [f32]) {
    let d = half(b, 0);
    nibbles(&b[2..], y, |q, _| d * f32::from(IQ4_LEVELS[usize::from(q)]));
}

fn mxfp4(b: &[u8], y: &mut [f32]) {
    let scale = e8m0(b[0]);
    nibbles(&b[1..], y, |q, _| E2M1[usize::from(q)] * scale);
}

fn iq4_xs(b: &[u8], y: &mut [f32]) {
    let (d, high, low) = (half(b, 0), u16::from_le_bytes([b[2], b[3]]), &b[4..8]);
    let runs = b[8..].chunks_exact(16).zip(y.chunks_exact_mut(32));
    for (run, (qs, y)) in runs.enumerate() {
        let scale = low[run / 2] >> (run % 2 * 4) & 15 | ((high >> (2 * run) & 3) as u8) << 4;
        let dl = d * f32::from(scale as i8 - 32);
        nibbles(qs, y, |q, _| dl * f32::from(IQ4_LEVELS[usize::from(q)]));
    }
}
