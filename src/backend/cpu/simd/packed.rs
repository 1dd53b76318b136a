//! Dot products with packed weights, straight from their tiles.
//!
//! 64 bytes of a tile are 16 u32, four for each of its 16-column chunks: two of row g, two of row g + 8. A step takes the
//! same bits of all 16 u32; activations are stored once per GEMM in that order. The sums of a group stay apart by row until
//! its scale is applied, `scale * (sum of code * x - zero * sum of x)`.
//!
//! [`Method::F32`] converts codes to f32. [`Method::Bf16`] makes pairs of bf16 of them, `16 + nibble`, for the dot products
//! of AVX-512; both are exact in the weights, and activations are rounded to bf16 for either.

// Indices of fixed arrays, which the compiler unrolls and keeps in registers.
#![allow(clippy::needless_range_loop)]

use super::super::thread_pool::Tile;
use super::dots::prefetch;
#[cfg(target_arch = "x86_64")]
use super::vector::{Avx2, Avx512};
use super::vector::{Exact, Portable, Vector};
use super::{Isa, Set, by_isa};
use crate::quant::{Code, GROUP, TILE_ROWS};
use std::ops::Range;

/// Bytes of a tile in one plane.
const TILE_BYTES: usize = TILE_ROWS * GROUP / 2;
/// Words of four tiles.
const WORDS: usize = 4 * TILE_ROWS;
/// Prefetch distance for codes, or one strip if that is less than `SHORT_STRIP_BYTES`.
const AHEAD_BYTES: usize = 8 << 10;
const SHORT_STRIP_BYTES: usize = 16 << 10;

/// Rows of a packed matrix.
#[derive(Clone)]
pub(in super::super) struct Strips<'a> {
    code: Code,
    /// The whole matrix.
    bytes: &'a [u8],
    cols: usize,
    rows: Range<usize>,
}

impl<'a> Strips<'a> {
    pub fn new(code: Code, bytes: &'a [u8], cols: usize, rows: Range<usize>) -> Self {
        assert!(Code::fits(cols) && bytes.len() >= code.bytes(rows.end, cols), "a packed matrix of {cols} columns");
        Self { code, bytes, cols, rows }
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Decodes columns `cols`, which are whole groups, of all rows: `[rows, cols.len()]`.
    pub fn unpack(&self, isa: Isa, cols: Range<usize>, out: &mut [f32]) {
        let (code, bytes, width, rows) = (self.code, self.bytes, self.cols, self.rows.clone());
        by_isa!(isa, unpack_body::<>(code: Code, bytes: &[u8], width: usize, rows: Range<usize>, cols: Range<usize>, out: &mut [f32]))
    }
}

/// Plain loops, in the caller's instruction set.
#[inline(always)]
unsafe fn unpack_body<V: Vector>(
    code: Code,
    bytes: &[u8],
    width: usize,
    rows: Range<usize>,
    cols: Range<usize>,
    out: &mut [f32],
) {
    let (tiles, size) = (width / GROUP, code.strip_bytes(width));
    for (row, out) in rows.zip(out.chunks_exact_mut(cols.len())) {
        let strip = &bytes[row / TILE_ROWS * size..][..size];
        let (g, second) = (row % 8, row % TILE_ROWS / 8);
        for (tile, out) in (cols.start / GROUP..).zip(out.as_chunks_mut::<GROUP>().0) {
            out.fill(0.0);
            for plane in 0..code.planes() {
                let chunks = &strip[(plane * tiles + tile) * TILE_BYTES + g * 64..][..64];
                for (chunk, out) in chunks.as_chunks::<16>().0.iter().zip(out.as_chunks_mut::<16>().0) {
                    let eights = chunk[second * 8..second * 8 + 8].as_chunks::<4>().0;
                    for (eight, out) in eights.iter().zip(out.as_chunks_mut::<8>().0) {
                        let w = u32::from_le_bytes(*eight);
                        for c in 0..8 {
                            let nibble = w >> (4 * (c / 2) + 16 * (c % 2)) & 15;
                            out[c] = 16.0 * out[c] + nibble as f32;
                        }
                    }
                }
            }
            let word = code.planes() * tiles * TILE_BYTES + 2 * (((tile / 4 * 8 + g) * 4 + tile % 4) * 2 + second);
            let (scale, zero) = code.scale_zero(u16::from_le_bytes([strip[word], strip[word + 1]]));
            out.iter_mut().for_each(|v| *v = scale * (*v - zero));
        }
    }
}

/// How products are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Method {
    F32,
    /// Made only where AVX-512 BF16 was detected.
    Bf16,
}

impl Method {
    /// The fastest of an instruction set.
    pub fn best(isa: Isa) -> Self {
        #[cfg(target_arch = "x86_64")]
        if isa.0 == Set::Avx512 && is_x86_feature_detected!("avx512bf16") {
            return Method::Bf16;
        }
        let _ = isa;
        Method::F32
    }

    /// 64-byte lines of activations per tile.
    fn lines(self) -> usize {
        match self {
            Method::F32 => F32Steps::STEPS,
            Method::Bf16 => 4,
        }
    }

    /// What is added to every nibble.
    fn offset(self) -> f32 {
        match self {
            Method::F32 => 0.0,
            Method::Bf16 => 16.0,
        }
    }
}

/// 16 values of f32, or 16 pairs of bf16.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u32; 16]);

/// Activations in the order of the tiles.
#[derive(Default)]
pub(in super::super) struct Input {
    /// `[n][tiles][lines]`
    lines: Vec<Line>,
    /// Sums of each group of columns, as their words lie: `[n][tiles / 4, rounded up][4 tiles][2]`, twice. 0 where there is no
    /// tile.
    sums: Vec<Line>,
    n: usize,
    cols: usize,
    method: Option<Method>,
}

impl Input {
    /// Rounds `x` `[n, cols]` to bf16 and stores it in tile order.
    pub fn set(&mut self, method: Method, x: &[f32], n: usize, cols: usize) {
        assert!(Code::fits(cols) && x.len() >= n * cols, "activations of packed dot products");
        let (tiles, quads) = (cols / GROUP, cols.div_ceil(4 * GROUP));
        (self.n, self.cols, self.method) = (n, cols, Some(method));
        self.lines.resize(n * tiles * method.lines(), Line([0; 16]));
        self.sums.clear();
        self.sums.resize(n * quads, Line([0; 16]));
        for row in 0..n {
            let lines = &mut self.lines[row * tiles * method.lines()..];
            let sums: &mut [f32] = bytemuck::cast_slice_mut(&mut self.sums[row * quads..][..quads]);
            let (groups, _) = x[row * cols..(row + 1) * cols].as_chunks::<GROUP>();
            for (tile, (x, lines)) in groups.iter().zip(lines.chunks_exact_mut(method.lines())).enumerate() {
                let sum = match method {
                    Method::F32 => order_f32(x, lines),
                    Method::Bf16 => order_bf16(x, lines),
                };
                let at = tile / 4 * 16 + tile % 4 * 2;
                for at in [at, at + 1, at + 8, at + 9] {
                    sums[at] = sum;
                }
            }
        }
    }
}

/// Rounds to bf16, to nearest even.
#[inline(always)]
fn round(x: f32) -> f32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & 0xffff_0000;
    if x.is_nan() { x } else { f32::from_bits(rounded) }
}

/// Rounds values to bf16, as [`Input::set`] does.
pub(in super::super) fn round_all(x: &mut [f32]) {
    x.iter_mut().for_each(|x| *x = round(*x));
}

/// Line k holds the columns of nibble k: lane 4 t + u is column 16 t + 8 (u mod 2) + 2 k, or 2 (k - 4) + 1. Returns the sum.
fn order_f32(x: &[f32; GROUP], lines: &mut [Line]) -> f32 {
    let mut rounded = *x;
    round_all(&mut rounded);
    for (k, line) in lines.iter_mut().enumerate() {
        let column = if k < 4 { 2 * k } else { 2 * (k - 4) + 1 };
        for t in 0..4 {
            let [a, b] = [0, 8].map(|eight| rounded[16 * t + eight + column].to_bits());
            line.0[4 * t..4 * t + 4].copy_from_slice(&[a, b, a, b]);
        }
    }
    rounded.iter().sum()
}

/// Line i holds the pairs of columns of nibbles i and i + 4: lane 4 t + u is columns 16 t + 8 (u mod 2) + 2 i and the next.
/// Returns the sum.
fn order_bf16(x: &[f32; GROUP], lines: &mut [Line]) -> f32 {
    let mut rounded = *x;
    round_all(&mut rounded);
    let mut pairs = [0u32; GROUP / 2];
    for (pair, x) in pairs.iter_mut().zip(rounded.as_chunks::<2>().0) {
        *pair = x[0].to_bits() >> 16 | x[1].to_bits() & 0xffff_0000;
    }
    for (i, line) in lines.iter_mut().enumerate() {
        for t in 0..4 {
            let (a, b) = (pairs[8 * t + i], pairs[8 * t + 4 + i]);
            line.0[4 * t..4 * t + 4].copy_from_slice(&[a, b, a, b]);
        }
    }
    rounded.iter().sum()
}

/// `out[i, r] = x[i] . rows[r]` for the rows of `x`. `scratch` is a thread's own.
pub(in super::super) fn tile_dots(
    isa: Isa,
    strips: &Strips<'_>,
    x: &Input,
    out: &mut Tile<'_>,
    scratch: &mut Vec<f32>,
) {
    let &Strips { code, bytes, cols, .. } = strips;
    assert!(out.cols() == strips.len() && (x.n, x.cols) == (out.rows(), cols), "shapes of packed dot products");
    assert!(strips.rows.start.is_multiple_of(TILE_ROWS), "packed dot products of whole strips");
    let method = x.method.expect("activations in tile order");
    scratch.resize(cols.div_ceil(4 * GROUP) * WORDS, 0.0);
    let size = code.strip_bytes(cols);
    let first = strips.rows.start / TILE_ROWS;
    for (strip, row) in (first..).zip((0..strips.len()).step_by(TILE_ROWS)) {
        let rows = TILE_ROWS.min(strips.len() - row);
        let job = Strip {
            code,
            strip: &bytes[strip * size..][..size],
            tiles: cols / GROUP,
            offset: method.offset(),
            scales: scratch,
            x,
        };
        let mut tile = out.narrow(row..row + rows);
        match method {
            Method::F32 => f32_strip(isa, job, &mut tile),
            Method::Bf16 => bf16_strip(job, &mut tile),
        }
    }
}

/// One strip and the activations.
struct Strip<'a> {
    code: Code,
    strip: &'a [u8],
    tiles: usize,
    /// What the method adds to every nibble.
    offset: f32,
    /// Scales in the order of the words.
    scales: &'a mut Vec<f32>,
    x: &'a Input,
}

fn f32_strip(isa: Isa, job: Strip<'_>, out: &mut Tile<'_>) {
    by_isa!(isa, f32_body::<>(job: Strip<'_>, out: &mut Tile<'_>))
}

#[inline(always)]
unsafe fn f32_body<V: Vector>(job: Strip<'_>, out: &mut Tile<'_>) {
    // SAFETY: the instruction set of V is enabled.
    unsafe { job.run::<V, F32Steps>(out) }
}

#[cfg(target_arch = "x86_64")]
fn bf16_strip(job: Strip<'_>, out: &mut Tile<'_>) {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
    unsafe fn avx512(job: Strip<'_>, out: &mut Tile<'_>) {
        // SAFETY: the instruction set is enabled.
        unsafe { job.run::<Avx512, Bf16Steps>(out) }
    }
    // SAFETY: the method exists only where its instructions were detected.
    unsafe { avx512(job, out) }
}

#[cfg(not(target_arch = "x86_64"))]
fn bf16_strip(_: Strip<'_>, _: &mut Tile<'_>) {
    unreachable!("the method exists on x86-64 only")
}

/// The products of one line of activations.
trait Steps<V: Vector> {
    /// Lines per tile.
    const STEPS: usize;
    /// `part + products` of lanes `lane ..` of 16 u32 at `codes` and of a line of activations.
    unsafe fn step(step: usize, codes: *const u8, line: *const u8, lane: usize, part: V) -> V;
}

struct F32Steps;

impl F32Steps {
    const STEPS: usize = 8;
}

impl<V: Vector> Steps<V> for F32Steps {
    const STEPS: usize = F32Steps::STEPS;

    #[inline(always)]
    unsafe fn step(step: usize, codes: *const u8, line: *const u8, lane: usize, part: V) -> V {
        // SAFETY: `codes` and `line` have 64 bytes behind them.
        unsafe {
            let x = V::load(line.add(4 * lane).cast());
            V::load_nibbles(codes.add(4 * lane), 4 * step as u32).mul_add(x, part)
        }
    }
}

#[cfg(target_arch = "x86_64")]
struct Bf16Steps;

#[cfg(target_arch = "x86_64")]
impl Steps<Avx512> for Bf16Steps {
    const STEPS: usize = 4;

    #[inline(always)]
    unsafe fn step(step: usize, codes: *const u8, line: *const u8, _: usize, part: Avx512) -> Avx512 {
        use std::arch::x86_64::*;
        // SAFETY: `codes` and `line` have 64 bytes behind them.
        unsafe {
            let words = _mm512_loadu_si512(codes.cast());
            // The nibble becomes the upper four bits of the mantissa of 16.
            let shifted = match step {
                0 => _mm512_slli_epi32::<3>(words),
                1 => _mm512_srli_epi32::<1>(words),
                2 => _mm512_srli_epi32::<5>(words),
                _ => _mm512_srli_epi32::<9>(words),
            };
            // (shifted & mask) | exponent
            let (mask, exponent) = (_mm512_set1_epi32(0x0078_0078), _mm512_set1_epi32(0x4180_4180));
            let pairs = _mm512_ternarylogic_epi32::<0xea>(shifted, mask, exponent);
            let x = _mm512_loadu_si512(line.cast());
            // The same bits as vectors of bf16.
            let [pairs, x] = [pairs, x].map(|v| std::mem::transmute::<__m512i, __m512bh>(v));
            Avx512(_mm512_dpbf16_ps(part.0, pairs, x))
        }
    }
}

impl Strip<'_> {
    /// The dot products of all rows of activations. The order of a row's sums does not depend on the others.
    #[inline(always)]
    unsafe fn run<V: Vector, S: Steps<V>>(mut self, out: &mut Tile<'_>) {
        let (n, mut i) = (out.rows(), 0);
        self.decode_scales();
        while i < n {
            // SAFETY: the caller's contract. Sums of up to 16 rows of weights and activations fit in registers.
            unsafe {
                match (n - i, V::LANES) {
                    (1, _) => self.block::<V, S, 1, 8>(i, out),
                    (2 | 3, 16) => self.block::<V, S, 2, 8>(i, out),
                    (2 | 3, _) => self.block::<V, S, 2, 4>(i, out),
                    (_, 16) => self.block::<V, S, 4, 4>(i, out),
                    _ => self.block::<V, S, 4, 2>(i, out),
                }
            }
            i += [1, 2, 2, 4][(n - i).min(4) - 1];
        }
    }

    fn words(&self) -> &[u8] {
        &self.strip[self.code.planes() * self.tiles * TILE_BYTES..]
    }

    /// Scales in the order of the words. A loop of its own, which becomes vector code.
    #[inline(always)]
    fn decode_scales(&mut self) {
        let words = &self.strip[self.code.planes() * self.tiles * TILE_BYTES..];
        let mask = if self.code == Code::Q4 { 0x7ff0 } else { 0x7fff };
        let shift = u16::from(self.code == Code::Q4);
        // The words of the next strip: they lie behind its tiles, where no stream of loads leads.
        (0..words.len()).step_by(64).for_each(|at| prefetch(words.as_ptr().wrapping_add(self.strip.len() + at)));
        for (scale, word) in self.scales.iter_mut().zip(words.as_chunks::<2>().0) {
            *scale = f16(u16::from_le_bytes(*word) >> shift & mask);
        }
    }

    /// `scale * (zero + offset)` of the words from `first` on.
    #[inline(always)]
    fn offsets(&self, first: usize) -> [f32; WORDS] {
        let (words, scales) = (&self.words()[2 * first..][..2 * WORDS], &self.scales[first..first + WORDS]);
        let mut out = [0.0; WORDS];
        for i in 0..WORDS {
            let word = u16::from_le_bytes([words[2 * i], words[2 * i + 1]]);
            let zero = match self.code {
                Code::Q4 => 0.5 * (word & 31) as f32 + self.offset,
                Code::Q8 => 128.0 + 17.0 * self.offset,
            };
            out[i] = scales[i] * zero;
        }
        out
    }

    /// Products of `B` rows of activations from `first` on, for `G` pairs of rows of weights at a time.
    #[inline(always)]
    unsafe fn block<V: Vector, S: Steps<V>, const B: usize, const G: usize>(&self, first: usize, out: &mut Tile<'_>) {
        let (tiles, quads) = (self.tiles, self.tiles.div_ceil(4));
        let x: [*const u8; B] = std::array::from_fn(|b| self.x.lines[(first + b) * tiles * S::STEPS..].as_ptr().cast());
        // SAFETY: the strip has `tiles` tiles and words for `quads` of four, activations a line for every step of a tile and
        // one of sums for every quad; `first + B` is at most the rows of activations.
        unsafe {
            let sums: [*const f32; B] = std::array::from_fn(|b| self.x.sums[(first + b) * quads..].as_ptr().cast());
            let mut zeros = [[V::splat(0.0); 8]; B];
            for quad in 0..quads {
                let offsets = self.offsets(quad * WORDS);
                for b in 0..B {
                    let sums = V::load(sums[b].add(quad * 16));
                    for j in 0..WORDS / V::LANES {
                        zeros[b][j] = V::load(offsets.as_ptr().add(j * V::LANES)).mul_add(sums, zeros[b][j]);
                    }
                }
            }
            // Lanes of row g and of row g + 8 take turns.
            let mut zero = [[0f32; WORDS]; B];
            for b in 0..B {
                for j in 0..WORDS / V::LANES {
                    zeros[b][j].store(zero[b].as_mut_ptr().add(j * V::LANES));
                }
            }
            for g in (0..8).step_by(G) {
                let acc = self.products::<V, S, B, G>(&x, g);
                for b in 0..B {
                    for i in 0..G {
                        // The last 8 are zeros where vectors have 8 lanes.
                        let mut lanes = [0f32; 16];
                        acc[b][i].store(lanes.as_mut_ptr());
                        for half in [8, 4] {
                            for l in 0..half {
                                lanes[l] += lanes[l + half];
                            }
                        }
                        for second in 0..2 {
                            let row = g + i + 8 * second;
                            let z = (g + i) * 8 + second;
                            let z = (zero[b][z] + zero[b][z + 2]) + (zero[b][z + 4] + zero[b][z + 6]);
                            if row < out.cols() {
                                out.row_mut(first + b)[row] = lanes[2 * second] + lanes[2 * second + 1] - z;
                            }
                        }
                    }
                }
            }
        }
    }

    /// Scaled sums of `code * x` of pairs of rows `g ..`, in lanes by row.
    #[inline(always)]
    unsafe fn products<V: Vector, S: Steps<V>, const B: usize, const G: usize>(
        &self,
        x: &[*const u8; B],
        g: usize,
    ) -> [[V; G]; B] {
        let (tiles, planes) = (self.tiles, self.code.planes());
        let ahead = if self.strip.len() < SHORT_STRIP_BYTES { self.strip.len() } else { AHEAD_BYTES };
        // SAFETY: the caller's contract.
        unsafe {
            let mut acc = [[V::splat(0.0); G]; B];
            for tile in 0..tiles {
                let scales = self.scales.as_ptr().add(((tile / 4 * 8 + g) * 4 + tile % 4) * 2);
                let line = tile * S::STEPS * 64;
                for i in 0..G {
                    let mut part = [V::splat(0.0); B];
                    for plane in 0..planes {
                        let codes = self.strip.as_ptr().add((plane * tiles + tile) * TILE_BYTES + (g + i) * 64);
                        prefetch(codes.wrapping_add(ahead));
                        if plane > 0 {
                            for b in 0..B {
                                part[b] = part[b].mul_add(V::splat(16.0), V::splat(0.0));
                            }
                        }
                        for lane in (0..16).step_by(V::LANES) {
                            for step in 0..S::STEPS {
                                for b in 0..B {
                                    part[b] = S::step(step, codes, x[b].add(line + step * 64), lane, part[b]);
                                }
                            }
                        }
                    }
                    let scale = V::load_pairs(scales.add(i * 8));
                    for b in 0..B {
                        acc[b][i] = scale.mul_add(part[b], acc[b][i]);
                    }
                }
            }
            acc
        }
    }
}

/// A positive f16: its bits moved into an f32 whose exponent is 112 too low, then scaled, which is right for subnormals too.
#[inline(always)]
fn f16(bits: u16) -> f32 {
    let value = f32::from_bits((bits as u32) << 13) * f32::from_bits((127 + 112) << 23);
    if bits >= 0x7c00 { f32::NAN } else { value }
}

#[cfg(test)]
mod tests {
    use super::super::maths::tests::random;
    use super::*;

    /// A packed matrix of random codes, scales and zero points, and its values.
    fn packed(code: Code, rows: usize, cols: usize) -> (Vec<u8>, Vec<f32>) {
        let mut values = random(rows.next_multiple_of(TILE_ROWS) * cols, rows as u64);
        values[rows * cols..].fill(0.0);
        let mut bytes = vec![0; code.bytes(rows, cols)];
        let strips = bytes.chunks_exact_mut(code.strip_bytes(cols)).zip(values.chunks_exact(TILE_ROWS * cols));
        strips.for_each(|(out, values)| code.pack_strip(values, cols, None, out));
        let mut out = vec![0.0; rows * cols];
        out.chunks_exact_mut(cols).enumerate().for_each(|(row, out)| code.unpack_row(&bytes, rows, cols, row, out));
        (bytes, out)
    }

    fn methods() -> Vec<(Isa, Method)> {
        let best = Isa::available().into_iter().map(|isa| (isa, Method::best(isa))).filter(|(_, m)| *m != Method::F32);
        Isa::available().into_iter().map(|isa| (isa, Method::F32)).chain(best).collect()
    }

    #[test]
    fn tile_dots_match_an_f64_loop_with_every_method() {
        for code in Code::ALL {
            for (rows, cols) in [(16, 64), (37, 192), (48, 576), (16, 1536)] {
                let (bytes, w) = packed(code, rows, cols);
                for n in [1, 2, 3, 4, 7] {
                    let mut x = random(n * cols, 5);
                    round_all(&mut x);
                    for (isa, method) in methods() {
                        let (mut input, mut scratch) = (Input::default(), Vec::new());
                        input.set(method, &x, n, cols);
                        let mut out = vec![f32::NAN; n * (rows + 2)];
                        let strips = Strips::new(code, &bytes, cols, 0..rows);
                        let mut tile = Tile::new(&mut out, n, rows + 2);
                        tile_dots(isa, &strips, &input, &mut tile.narrow(1..rows + 1), &mut scratch);
                        for (i, r) in (0..n).flat_map(|i| (0..rows).map(move |r| (i, r))) {
                            let want: f64 = (0..cols).map(|c| x[i * cols + c] as f64 * w[r * cols + c] as f64).sum();
                            let size: f64 = (0..cols).map(|c| (x[i * cols + c] * w[r * cols + c]).abs() as f64).sum();
                            let got = out[i * (rows + 2) + r + 1] as f64;
                            let case = format!("{} {method:?} {code:?} {rows}x{cols}x{n}", isa.name());
                            assert!((got - want).abs() < 2e-6 * size, "{case}: {got} {want}");
                        }
                        let beside = |i: usize| out[i * (rows + 2)].is_nan() && out[(i + 1) * (rows + 2) - 1].is_nan();
                        assert!((0..n).all(beside), "wrote beside");
                        // A row's sums do not depend on the rows beside it.
                        input.set(method, &x[..cols], 1, cols);
                        let mut alone = vec![0.0; rows];
                        tile_dots(isa, &strips, &input, &mut Tile::new(&mut alone, 1, rows), &mut scratch);
                        assert!(alone.iter().zip(&out[1..]).all(|(a, b)| a.to_bits() == b.to_bits()));
                    }
                }
            }
        }
    }

    #[test]
    fn blocks_are_unpacked_as_their_rows() {
        for code in Code::ALL {
            let (bytes, values) = packed(code, 37, 320);
            for isa in Isa::available() {
                let mut out = vec![f32::NAN; 5 * 128];
                Strips::new(code, &bytes, 320, 14..19).unpack(isa, 64..192, &mut out);
                let want = (14..19).flat_map(|row| values[row * 320 + 64..row * 320 + 192].to_vec());
                assert!(out.iter().zip(want).all(|(a, b)| a.to_bits() == b.to_bits()), "{code:?} {}", isa.name());
            }
        }
    }

    #[test]
    fn what_is_not_finite_stays_visible() {
        for code in Code::ALL {
            let mut values = vec![0.5; TILE_ROWS * 64];
            values[3 * 64 + 5] = f32::NAN;
            let mut bytes = vec![0; code.strip_bytes(64)];
            code.pack_strip(&values, 64, None, &mut bytes);
            for (isa, method) in methods() {
                let (mut input, mut out) = (Input::default(), [0.0; TILE_ROWS]);
                input.set(method, &[1.0; 64], 1, 64);
                let strips = Strips::new(code, &bytes, 64, 0..TILE_ROWS);
                tile_dots(isa, &strips, &input, &mut Tile::new(&mut out, 1, TILE_ROWS), &mut Vec::new());
                let bad: Vec<usize> = (0..TILE_ROWS).filter(|&r| out[r].is_nan()).collect();
                assert_eq!(bad, [3], "{code:?} {method:?} {}", isa.name());
            }
        }
    }
}
