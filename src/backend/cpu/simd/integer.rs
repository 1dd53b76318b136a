//! Integer dot products with packed weights: codes of 4 and 8 bits times activations of 16 bits. An
//! activation is split into a high and a low signed byte for the 8-bit dot products of AVX-512
//! VNNI, AVX-VNNI or AVX2.
//!
//! Each group of 64 activations has its own scale, the largest magnitude divided by 32,512.
//! Rounding to that scale is off by at most half a step, in addition to the rounding to bf16 that
//! all methods share. Sums of a group are exact.
//!
//! A u32 of codes gives two vectors of bytes: its even nibbles (columns 0, 4, 1 and 5 of eight) and
//! its odd nibbles (columns 2, 6, 3 and 7). Activations are stored in that order once per GEMM.

// Loops index fixed arrays, which the compiler unrolls and keeps in registers.
#![allow(clippy::needless_range_loop)]

use super::super::thread_pool::Tile;
use super::array_of;
use super::strip::{Line, Ordered, Strip, WORDS, put, put_runs, round};
use super::vector::{half, half_512};
use crate::quant::GROUP;
use std::arch::x86_64::*;

/// Cache lines of activations per tile: high bytes for the even and the odd nibbles, then low
/// bytes.
pub(super) const LINES: usize = 4;
/// Largest magnitude of a 16-bit activation. It keeps the high byte at most 127 while the low byte
/// is -128 to 127.
const MOST: f32 = 32_512.0;

/// Instructions for 8-bit dot products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Bytes {
    Avx2,
    AvxVnni,
    Avx512Vnni,
}

/// Columns of a 16-column block in the order of the even nibbles of four u32, two u32 per row; and
/// in the order of the odd nibbles.
const EVEN: [i8; 16] = [0, 4, 1, 5, 8, 12, 9, 13, 0, 4, 1, 5, 8, 12, 9, 13];
const ODD: [i8; 16] = [2, 6, 3, 7, 10, 14, 11, 15, 2, 6, 3, 7, 10, 14, 11, 15];

/// Rounds `x` to bf16 and then to 16 bits, and stores it with the scale and the sum of each group.
pub(super) fn order(x: &[f32], lines: &mut [Line], scales: &mut [f32], sums: &mut [f32], runs: &mut [f32]) {
    #[target_feature(enable = "avx2,fma")]
    fn avx2(x: &[f32], lines: &mut [Line], scales: &mut [f32], sums: &mut [f32], runs: &mut [f32]) {
        for (tile, (x, lines)) in x.as_chunks::<GROUP>().0.iter().zip(lines.as_chunks_mut::<LINES>().0).enumerate() {
            let (scale, totals) = order_group(x, lines);
            put(scales, tile, scale);
            put(sums, tile, scale * totals.iter().sum::<i32>() as f32);
            put_runs(runs, tile, array_of!(4, run => scale * totals[run] as f32));
        }
    }
    // SAFETY: the method exists only where AVX2 was detected.
    unsafe { avx2(x, lines, scales, sums, runs) }
}

/// Rounds and stores one group. Returns its scale, and the sum of every 16 columns.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn order_group(x: &[f32; GROUP], lines: &mut [Line; LINES]) -> (f32, [i32; 4]) {
    let rounded = array_of!(GROUP, i => round(x[i]));
    let mut most = [0f32; 8];
    // Stays zero unless a value is not finite; the scale then becomes NaN.
    let mut bad = [0f32; 8];
    for x in rounded.as_chunks::<8>().0 {
        for i in 0..8 {
            most[i] = if x[i].abs() > most[i] { x[i].abs() } else { most[i] };
            bad[i] += 0.0 * x[i];
        }
    }
    let largest = most.iter().fold(0f32, |a, &b| if b > a { b } else { a });
    let scale = largest / MOST + bad.iter().sum::<f32>();
    let inverse = if largest > 0.0 { MOST / largest } else { 0.0 };
    let (mut high, mut low, mut totals) = ([0i8; GROUP], [0i8; GROUP], [0; 4]);
    for i in 0..GROUP {
        // Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low bits of the
        // float.
        let value = (rounded[i] * inverse + 12_582_912.0).to_bits() as i16;
        low[i] = value as i8;
        high[i] = ((value - low[i] as i16) >> 8) as i8;
        totals[i / 16] += value as i32;
    }
    for (i, (bytes, places)) in [(&high, EVEN), (&high, ODD), (&low, EVEN), (&low, ODD)].into_iter().enumerate() {
        for t in 0..GROUP / 16 {
            // SAFETY: 16 bytes of 64, for t below 4.
            unsafe {
                let block = _mm_loadu_si128(bytes.as_ptr().add(16 * t).cast());
                let ordered = _mm_shuffle_epi8(block, _mm_loadu_si128(places.as_ptr().cast()));
                _mm_storeu_si128(lines[i].0.as_mut_ptr().add(4 * t).cast(), ordered);
            }
        }
    }
    (scale, totals)
}

/// Work that is generic over the dot products of an instruction set.
pub(super) trait Work {
    /// The caller has enabled the instructions of `D`.
    unsafe fn run<D: Dot>(self);
}

/// Runs `work` with its instructions enabled.
pub(super) fn enable(bytes: Bytes, work: impl Work) {
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn avx2(work: impl Work) {
        // SAFETY: the instruction set is enabled.
        unsafe { work.run::<Avx2>() }
    }
    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    unsafe fn avx_vnni(work: impl Work) {
        // SAFETY: the instruction set is enabled.
        unsafe { work.run::<AvxVnni>() }
    }
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn avx512_vnni(work: impl Work) {
        // SAFETY: the instruction set is enabled.
        unsafe { work.run::<Avx512Vnni>() }
    }
    // SAFETY: the method exists only where its instructions were detected.
    unsafe {
        match bytes {
            Bytes::Avx2 => avx2(work),
            Bytes::AvxVnni => avx_vnni(work),
            Bytes::Avx512Vnni => avx512_vnni(work),
        }
    }
}

/// Multiplies one strip by all rows of activations.
pub(super) fn strip(bytes: Bytes, job: Strip<'_>, out: &mut Tile<'_>) {
    struct Job<'a, 'b, 'c>(Strip<'a>, &'b mut Tile<'c>);

    impl Work for Job<'_, '_, '_> {
        #[inline(always)]
        unsafe fn run<D: Dot>(self) {
            // SAFETY: the caller's contract.
            unsafe { run::<D>(self.0, self.1) }
        }
    }
    enable(bytes, Job(job, out));
}

/// Number of scales of four tiles. A pair of rows is stored as `[g, g, g + 8, g + 8]`.
const SCALES: usize = 2 * WORDS;

/// Offset of the scales of rows g and g + 8 of tile `t` of four. Each g has the tiles in the order
/// 0, 2, 1, 3.
#[inline(always)]
fn scales_at(quad: usize, g: usize, t: usize) -> usize {
    quad * SCALES + g * 16 + t % 2 * 8 + t / 2 * 4
}

/// Dot products in the vectors of one instruction set.
pub(super) trait Dot {
    type Sums: Copy;
    unsafe fn zero() -> Self::Sums;
    /// Computes the scales of four weight tiles times the scales `of_x` of one activation row, and
    /// stores them at [`scales_at`]. Adds scale * zero point * sum of activations to `zeros`, in
    /// the order of the words.
    unsafe fn scales<const PLANES: usize>(
        words: *const u8,
        of_x: &Line,
        sums: &Line,
        scales: *mut f32,
        zeros: &mut [f32; WORDS],
    );
    /// Returns `sums + scales * dot` by lane, where `dot` is the dot product of the 64 bytes of
    /// codes at each of `planes` with the activations of one tile. `scales` points to the four
    /// scales of rows g and g + 8.
    unsafe fn add<const PLANES: usize>(
        sums: Self::Sums,
        planes: [*const u8; PLANES],
        x: *const Line,
        scales: *const f32,
    ) -> Self::Sums;
    /// Like [`Dot::add`], with separate scales for every 16 columns of both rows.
    unsafe fn add_runs<const PLANES: usize>(
        sums: Self::Sums,
        planes: [*const u8; PLANES],
        x: *const Line,
        scales: __m256,
    ) -> Self::Sums;
    /// Returns the sums of row g and of row g + 8.
    unsafe fn rows(sums: Self::Sums) -> [f32; 2];
}

/// Maximum rows of activations that are multiplied together.
pub(super) const MOST_ROWS: usize = 4;

/// Multiplies all rows of activations. The order in which a row is summed does not depend on the
/// other rows.
#[inline(always)]
unsafe fn run<D: Dot>(mut job: Strip<'_>, out: &mut Tile<'_>) {
    job.prefetch_words();
    let room = MOST_ROWS * job.tiles.div_ceil(4) * SCALES;
    job.scales.resize(room.max(job.scales.len()), 0.0);
    let (n, mut i) = (out.rows(), 0);
    while i < n {
        // SAFETY: the caller's contract.
        unsafe {
            match (n - i, job.planes()) {
                (1, 1) => block::<D, 1, 1, 8>(&mut job, i, out),
                (1, _) => block::<D, 2, 1, 8>(&mut job, i, out),
                (2 | 3, 1) => block::<D, 1, 2, 4>(&mut job, i, out),
                (2 | 3, _) => block::<D, 2, 2, 4>(&mut job, i, out),
                (_, 1) => block::<D, 1, MOST_ROWS, 2>(&mut job, i, out),
                _ => block::<D, 2, MOST_ROWS, 2>(&mut job, i, out),
            }
        }
        i += [1, 2, 2, 4][(n - i).min(4) - 1];
    }
}

/// Multiplies `B` rows of activations, from `first` on, by `G` pairs of weight rows at a time.
#[inline(always)]
unsafe fn block<D: Dot, const PLANES: usize, const B: usize, const G: usize>(
    job: &mut Strip<'_>,
    first: usize,
    out: &mut Tile<'_>,
) {
    let (tiles, input): (usize, &Ordered) = (job.tiles, job.x);
    let quads = tiles.div_ceil(4);
    let mut zeros = [[0f32; WORDS]; B];
    // SAFETY: the strip has `tiles` tiles and words for `quads` of four; activations have `LINES`
    // lines for every tile, and one of scales and one of sums for every quad; `first + B` is at
    // most their rows; the scratch has room for `MOST_ROWS` of them.
    unsafe {
        let scales = job.scales.as_mut_ptr();
        for quad in 0..quads {
            for b in 0..B {
                let line = (first + b) * quads + quad;
                let (of_x, sums) = (&input.scales[line], &input.sums[line]);
                let words = job.words()[quad * 2 * WORDS..].as_ptr();
                D::scales::<PLANES>(words, of_x, sums, scales.add((b * quads + quad) * SCALES), &mut zeros[b]);
            }
        }
        let x: [*const Line; B] = array_of!(B, b => input.lines.as_ptr().add((first + b) * tiles * LINES));
        for g in (0..8).step_by(G) {
            let mut sums = [[D::zero(); G]; B];
            for tile in 0..tiles {
                for i in 0..G {
                    let planes: [*const u8; PLANES] = array_of!(PLANES, plane => job.codes(plane, tile, g + i));
                    for plane in planes {
                        job.prefetch(plane);
                    }
                    let at = scales_at(tile / 4, g + i, tile % 4);
                    for b in 0..B {
                        let scales = scales.add(b * quads * SCALES + at);
                        sums[b][i] = D::add::<PLANES>(sums[b][i], planes, x[b].add(tile * LINES), scales);
                    }
                }
            }
            for (b, i) in (0..B).flat_map(|b| (0..G).map(move |i| (b, i))) {
                let sums = D::rows(sums[b][i]);
                for second in 0..2 {
                    let (row, z) = (g + i + 8 * second, &zeros[b][(g + i) * 8 + second..]);
                    if row < out.cols() {
                        out.row_mut(first + b)[row] = sums[second] - ((z[0] + z[2]) + (z[4] + z[6]));
                    }
                }
            }
        }
    }
}

/// Masks for a 4-bit word: the f16 scale in the word shifted right by one, and twice the zero
/// point.
const Q4_SCALE: i16 = 0x7ff0;
const Q4_ZERO: i16 = 31;
const Q8_ZERO: f32 = 128.0;

struct Avx512Vnni;

// SAFETY of the intrinsics below: enabled where inlined, and pointers by the trait's contract.
impl Dot for Avx512Vnni {
    type Sums = __m512;

    #[inline(always)]
    unsafe fn zero() -> __m512 {
        unsafe { _mm512_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn scales<const PLANES: usize>(
        words: *const u8,
        of_x: &Line,
        sums: &Line,
        scales: *mut f32,
        zeros: &mut [f32; WORDS],
    ) {
        unsafe {
            let of_x = _mm512_load_ps(of_x.0.as_ptr().cast());
            let sums = _mm512_load_ps(sums.0.as_ptr().cast());
            for i in 0..WORDS / 16 {
                let words = _mm256_loadu_si256(words.add(32 * i).cast());
                let (scale, zero) = if PLANES == 1 {
                    let twice = _mm512_cvtepu16_epi32(_mm256_and_si256(words, _mm256_set1_epi16(Q4_ZERO)));
                    let scale = _mm256_and_si256(_mm256_srli_epi16::<1>(words), _mm256_set1_epi16(Q4_SCALE));
                    (_mm512_cvtph_ps(scale), _mm512_mul_ps(_mm512_cvtepi32_ps(twice), _mm512_set1_ps(0.5)))
                } else {
                    (_mm512_cvtph_ps(words), _mm512_set1_ps(Q8_ZERO))
                };
                let at = zeros.as_mut_ptr().add(16 * i);
                _mm512_storeu_ps(at, _mm512_fmadd_ps(_mm512_mul_ps(scale, zero), sums, _mm512_loadu_ps(at)));
                let scale = _mm512_mul_ps(scale, of_x);
                let (even, odd) = (_mm512_unpacklo_ps(scale, scale), _mm512_unpackhi_ps(scale, scale));
                let scales = scales.add(32 * i);
                _mm256_storeu_ps(scales, _mm512_castps512_ps256(even));
                _mm256_storeu_ps(scales.add(8), _mm512_castps512_ps256(odd));
                _mm256_storeu_ps(scales.add(16), _mm512_extractf32x8_ps::<1>(even));
                _mm256_storeu_ps(scales.add(24), _mm512_extractf32x8_ps::<1>(odd));
            }
        }
    }

    #[inline(always)]
    unsafe fn add<const PLANES: usize>(
        sums: __m512,
        planes: [*const u8; PLANES],
        x: *const Line,
        scales: *const f32,
    ) -> __m512 {
        unsafe {
            let dot = dot_512(planes, x);
            _mm512_fmadd_ps(_mm512_broadcast_f32x4(_mm_loadu_ps(scales)), dot, sums)
        }
    }

    #[inline(always)]
    unsafe fn add_runs<const PLANES: usize>(
        sums: __m512,
        planes: [*const u8; PLANES],
        x: *const Line,
        scales: __m256,
    ) -> __m512 {
        unsafe {
            let twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
            let scales = _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(scales));
            _mm512_fmadd_ps(scales, dot_512(planes, x), sums)
        }
    }

    #[inline(always)]
    unsafe fn rows(sums: __m512) -> [f32; 2] {
        unsafe { rows_of_halves(half_512(sums)) }
    }
}

/// Dot products by lane of 64 bytes of codes per plane with the activations of a tile.
#[inline(always)]
unsafe fn dot_512<const PLANES: usize>(planes: [*const u8; PLANES], x: *const Line) -> __m512 {
    unsafe {
        let low_nibbles = _mm512_set1_epi32(0x0f0f_0f0f);
        let last = _mm512_loadu_si512(planes[PLANES - 1].cast());
        let shifted = _mm512_srli_epi32::<4>(last);
        let [even, odd] = if PLANES == 1 {
            [_mm512_and_si512(last, low_nibbles), _mm512_and_si512(shifted, low_nibbles)]
        } else {
            // mask ? low plane : high plane
            let high = _mm512_loadu_si512(planes[0].cast());
            let up = _mm512_slli_epi32::<4>(high);
            [
                _mm512_ternarylogic_epi32::<0xca>(low_nibbles, last, up),
                _mm512_ternarylogic_epi32::<0xca>(low_nibbles, shifted, high),
            ]
        };
        let x: [__m512i; LINES] = array_of!(LINES, i => _mm512_load_si512(x.add(i).cast()));
        let zero = _mm512_setzero_si512();
        let high = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(zero, even, x[0]), odd, x[1]);
        let low = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(zero, even, x[2]), odd, x[3]);
        _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32::<8>(high), low))
    }
}

/// Sums each row's lanes. The vector holds two lanes of row g and two of row g + 8, twice.
#[inline(always)]
unsafe fn rows_of_halves(sums: __m256) -> [f32; 2] {
    unsafe {
        let sums = half(sums);
        let pairs = _mm_hadd_ps(sums, sums);
        [_mm_cvtss_f32(pairs), _mm_cvtss_f32(_mm_movehdup_ps(pairs))]
    }
}

/// Codes of half a line as bytes, taken from `PLANES` planes: even nibbles, odd nibbles.
#[inline(always)]
unsafe fn codes_256<const PLANES: usize>(planes: [*const u8; PLANES], half: usize) -> [__m256i; 2] {
    unsafe {
        let low_nibbles = _mm256_set1_epi32(0x0f0f_0f0f);
        let last = _mm256_loadu_si256(planes[PLANES - 1].add(32 * half).cast());
        let even = _mm256_and_si256(last, low_nibbles);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<4>(last), low_nibbles);
        if PLANES == 1 {
            return [even, odd];
        }
        let high = _mm256_loadu_si256(planes[0].add(32 * half).cast());
        let up = _mm256_slli_epi32::<4>(_mm256_and_si256(high, low_nibbles));
        [_mm256_or_si256(even, up), _mm256_or_si256(odd, _mm256_andnot_si256(low_nibbles, high))]
    }
}

#[inline(always)]
unsafe fn scaled_256(sums: __m256, high: __m256i, low: __m256i, scales: *const f32) -> __m256 {
    unsafe {
        let dot = _mm256_add_epi32(_mm256_slli_epi32::<8>(high), low);
        let scales = _mm256_broadcast_ps(&_mm_loadu_ps(scales));
        _mm256_fmadd_ps(scales, _mm256_cvtepi32_ps(dot), sums)
    }
}

/// Adds half a tile: two runs of 16 columns, each with a scale per row.
#[inline(always)]
unsafe fn scaled_runs_256(sums: __m256, [high, low]: [__m256i; 2], scales: __m256, half: usize) -> __m256 {
    unsafe {
        let dot = _mm256_add_epi32(_mm256_slli_epi32::<8>(high), low);
        let twice = _mm256_add_epi32(_mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3), _mm256_set1_epi32(4 * half as i32));
        _mm256_fmadd_ps(_mm256_permutevar8x32_ps(scales, twice), _mm256_cvtepi32_ps(dot), sums)
    }
}

/// Implements [`Dot::scales`] in vectors of 8.
#[inline(always)]
unsafe fn scales_256<const PLANES: usize>(
    words: *const u8,
    of_x: &Line,
    sums: &Line,
    scales: *mut f32,
    zeros: &mut [f32; WORDS],
) {
    unsafe {
        // Both halves of a line are equal.
        let of_x = _mm256_load_ps(of_x.0.as_ptr().cast());
        let sums = _mm256_load_ps(sums.0.as_ptr().cast());
        for g in 0..WORDS / 8 {
            let words = _mm_loadu_si128(words.add(16 * g).cast());
            let (scale, zero) = if PLANES == 1 {
                let twice = _mm256_cvtepu16_epi32(_mm_and_si128(words, _mm_set1_epi16(Q4_ZERO)));
                let scale = _mm_and_si128(_mm_srli_epi16::<1>(words), _mm_set1_epi16(Q4_SCALE));
                (_mm256_cvtph_ps(scale), _mm256_mul_ps(_mm256_cvtepi32_ps(twice), _mm256_set1_ps(0.5)))
            } else {
                (_mm256_cvtph_ps(words), _mm256_set1_ps(Q8_ZERO))
            };
            let at = zeros.as_mut_ptr().add(8 * g);
            _mm256_storeu_ps(at, _mm256_fmadd_ps(_mm256_mul_ps(scale, zero), sums, _mm256_loadu_ps(at)));
            let scale = _mm256_mul_ps(scale, of_x);
            _mm256_storeu_ps(scales.add(16 * g), _mm256_unpacklo_ps(scale, scale));
            _mm256_storeu_ps(scales.add(16 * g + 8), _mm256_unpackhi_ps(scale, scale));
        }
    }
}

/// Dot products in vectors of 256 bits.
trait Halves {
    /// Adds the dot products of half a tile with the high bytes and with the low bytes of the
    /// activations.
    unsafe fn half<const PLANES: usize>(
        sums: [__m256i; 2],
        planes: [*const u8; PLANES],
        x: *const Line,
        half: usize,
    ) -> [__m256i; 2];
}

impl<H: Halves> Dot for H {
    type Sums = __m256;

    #[inline(always)]
    unsafe fn zero() -> __m256 {
        unsafe { _mm256_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn scales<const PLANES: usize>(
        words: *const u8,
        of_x: &Line,
        sums: &Line,
        scales: *mut f32,
        zeros: &mut [f32; WORDS],
    ) {
        unsafe { scales_256::<PLANES>(words, of_x, sums, scales, zeros) }
    }

    #[inline(always)]
    unsafe fn add<const PLANES: usize>(
        sums: __m256,
        planes: [*const u8; PLANES],
        x: *const Line,
        scales: *const f32,
    ) -> __m256 {
        unsafe {
            let zero = [_mm256_setzero_si256(); 2];
            let [high, low] = H::half(H::half(zero, planes, x, 0), planes, x, 1);
            scaled_256(sums, high, low, scales)
        }
    }

    #[inline(always)]
    unsafe fn add_runs<const PLANES: usize>(
        mut sums: __m256,
        planes: [*const u8; PLANES],
        x: *const Line,
        scales: __m256,
    ) -> __m256 {
        unsafe {
            for half in 0..2 {
                let dots = H::half([_mm256_setzero_si256(); 2], planes, x, half);
                sums = scaled_runs_256(sums, dots, scales, half);
            }
            sums
        }
    }

    #[inline(always)]
    unsafe fn rows(sums: __m256) -> [f32; 2] {
        unsafe { rows_of_halves(sums) }
    }
}

struct AvxVnni;

impl Halves for AvxVnni {
    #[inline(always)]
    unsafe fn half<const PLANES: usize>(
        [high, low]: [__m256i; 2],
        planes: [*const u8; PLANES],
        x: *const Line,
        half: usize,
    ) -> [__m256i; 2] {
        unsafe {
            let [even, odd] = codes_256(planes, half);
            let x: [__m256i; LINES] =
                array_of!(LINES, line => _mm256_load_si256(x.cast::<__m256i>().add(2 * line + half)));
            [
                _mm256_dpbusd_avx_epi32(_mm256_dpbusd_avx_epi32(high, even, x[0]), odd, x[1]),
                _mm256_dpbusd_avx_epi32(_mm256_dpbusd_avx_epi32(low, even, x[2]), odd, x[3]),
            ]
        }
    }
}

struct Avx2;

impl Halves for Avx2 {
    /// Products of a byte and a nibble. A sum of two of them fits in 16 bits, and so does a sum of
    /// four.
    #[inline(always)]
    unsafe fn half<const PLANES: usize>(
        [mut high, mut low]: [__m256i; 2],
        planes: [*const u8; PLANES],
        x: *const Line,
        half: usize,
    ) -> [__m256i; 2] {
        unsafe {
            let x: [__m256i; LINES] =
                array_of!(LINES, line => _mm256_load_si256(x.cast::<__m256i>().add(2 * line + half)));
            for plane in 0..PLANES {
                let [even, odd] = codes_256([planes[plane]], half);
                let factor = _mm256_set1_epi16(if plane + 1 < PLANES { 16 } else { 1 });
                let pairs = _mm256_add_epi16(_mm256_maddubs_epi16(even, x[0]), _mm256_maddubs_epi16(odd, x[1]));
                high = _mm256_add_epi32(high, _mm256_madd_epi16(pairs, factor));
                let pairs = _mm256_add_epi16(_mm256_maddubs_epi16(even, x[2]), _mm256_maddubs_epi16(odd, x[3]));
                low = _mm256_add_epi32(low, _mm256_madd_epi16(pairs, factor));
            }
            [high, low]
        }
    }
}
