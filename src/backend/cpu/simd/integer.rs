//! Dot products with packed weights in integers: codes of 4 and 8 bits times activations of 16 bits, which are a high and a
//! low signed byte, by the byte products of AVX-512 VNNI, AVX-VNNI or AVX2.
//!
//! Each group of 64 activations has a scale of its own, the largest magnitude over 32,512; beyond the rounding to bf16 that
//! all methods share, an activation is off by at most half of that. Sums of a group are exact.
//!
//! A u32 of codes gives two vectors of bytes: its even nibbles, which are columns 0, 4, 1 and 5 of eight, and its odd ones,
//! columns 2, 6, 3 and 7. Activations are stored once per GEMM in that order.

// Indices of fixed arrays, which the compiler unrolls and keeps in registers.
#![allow(clippy::needless_range_loop)]

use super::super::thread_pool::Tile;
use super::strip::{Line, Ordered, Strip, WORDS, put, round};
use crate::quant::GROUP;
use std::arch::x86_64::*;

/// Lines of activations per tile: high bytes of the even and odd nibbles, then the low bytes.
pub(super) const LINES: usize = 4;
/// Largest magnitude of a 16-bit activation: its high byte is at most 127 with a low byte of -128 to 127.
const MOST: f32 = 32_512.0;

/// Instructions for sums of byte products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Bytes {
    Avx2,
    AvxVnni,
    Avx512Vnni,
}

/// Places of a block of 16 columns in the even nibbles of four u32, two of each row, and in the odd ones.
const EVEN: [i8; 16] = [0, 4, 1, 5, 8, 12, 9, 13, 0, 4, 1, 5, 8, 12, 9, 13];
const ODD: [i8; 16] = [2, 6, 3, 7, 10, 14, 11, 15, 2, 6, 3, 7, 10, 14, 11, 15];

/// Rounds `x` to bf16 and then to 16 bits, and stores it with the scale and the sum of each group.
pub(super) fn order(x: &[f32], lines: &mut [Line], scales: &mut [f32], sums: &mut [f32]) {
    #[target_feature(enable = "avx2,fma")]
    fn avx2(x: &[f32], lines: &mut [Line], scales: &mut [f32], sums: &mut [f32]) {
        for (tile, (x, lines)) in x.as_chunks::<GROUP>().0.iter().zip(lines.as_chunks_mut::<LINES>().0).enumerate() {
            let (scale, sum) = order_group(x, lines);
            put(scales, tile, scale);
            put(sums, tile, sum);
        }
    }
    // SAFETY: the method exists only where AVX2 was detected.
    unsafe { avx2(x, lines, scales, sums) }
}

/// Returns scale and sum.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn order_group(x: &[f32; GROUP], lines: &mut [Line; LINES]) -> (f32, f32) {
    let rounded = x.map(round);
    let mut most = [0f32; 8];
    // A sum of zeros, unless a value is not finite.
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
    let (mut high, mut low, mut total) = ([0i8; GROUP], [0i8; GROUP], 0);
    for i in 0..GROUP {
        // The nearest integer is in the low bits of a float of this size.
        let value = (rounded[i] * inverse + 12_582_912.0).to_bits() as i16;
        low[i] = value as i8;
        high[i] = ((value - low[i] as i16) >> 8) as i8;
        total += value as i32;
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
    (scale, scale * total as f32)
}

/// Dot products of one strip with all rows of activations.
pub(super) fn strip(bytes: Bytes, job: Strip<'_>, out: &mut Tile<'_>) {
    #[target_feature(enable = "avx2,fma")]
    unsafe fn avx2(job: Strip<'_>, out: &mut Tile<'_>) {
        // SAFETY: the instruction set is enabled.
        unsafe { run::<Avx2>(job, out) }
    }
    #[target_feature(enable = "avx2,fma,avxvnni")]
    unsafe fn avx_vnni(job: Strip<'_>, out: &mut Tile<'_>) {
        // SAFETY: the instruction set is enabled.
        unsafe { run::<AvxVnni>(job, out) }
    }
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
    unsafe fn avx512_vnni(job: Strip<'_>, out: &mut Tile<'_>) {
        // SAFETY: the instruction set is enabled.
        unsafe { run::<Avx512Vnni>(job, out) }
    }
    // SAFETY: the method exists only where its instructions were detected.
    unsafe {
        match bytes {
            Bytes::Avx2 => avx2(job, out),
            Bytes::AvxVnni => avx_vnni(job, out),
            Bytes::Avx512Vnni => avx512_vnni(job, out),
        }
    }
}

/// Sums of byte products in lanes by row, and their scaled sums.
trait Dot {
    type Sums: Copy;
    unsafe fn zero() -> Self::Sums;
    /// `sums + scales * dot`, where `dot` is that of the 64 bytes of codes at each of `planes` with the activations of one
    /// tile, by lane. The pair of scales is for the rows g and g + 8.
    unsafe fn add<const PLANES: usize>(
        sums: Self::Sums,
        planes: [*const u8; PLANES],
        x: *const Line,
        scales: *const f32,
    ) -> Self::Sums;
    /// The sums of row g and of row g + 8.
    unsafe fn rows(sums: Self::Sums) -> [f32; 2];
}

/// The dot products of all rows of activations. The order of a row's sums does not depend on the others.
#[inline(always)]
unsafe fn run<D: Dot>(mut job: Strip<'_>, out: &mut Tile<'_>) {
    job.decode_scales();
    let (n, mut i) = (out.rows(), 0);
    while i < n {
        // SAFETY: the caller's contract.
        unsafe {
            match (n - i, job.planes()) {
                (1, 1) => block::<D, 1, 1, 8>(&job, i, out),
                (1, _) => block::<D, 2, 1, 8>(&job, i, out),
                (2 | 3, 1) => block::<D, 1, 2, 4>(&job, i, out),
                (2 | 3, _) => block::<D, 2, 2, 4>(&job, i, out),
                (_, 1) => block::<D, 1, 4, 2>(&job, i, out),
                _ => block::<D, 2, 4, 2>(&job, i, out),
            }
        }
        i += [1, 2, 2, 4][(n - i).min(4) - 1];
    }
}

/// Products of `B` rows of activations from `first` on, for `G` pairs of rows of weights at a time.
#[inline(always)]
unsafe fn block<D: Dot, const PLANES: usize, const B: usize, const G: usize>(
    job: &Strip<'_>,
    first: usize,
    out: &mut Tile<'_>,
) {
    let (tiles, input): (usize, &Ordered) = (job.tiles, job.x);
    let quads = tiles.div_ceil(4);
    let line =
        |lines: &[Line], b: usize, quad: usize| -> [f32; 16] { bytemuck::cast(lines[(first + b) * quads + quad].0) };
    // What zero points add, in the order of the words.
    let mut zeros = [[0f32; WORDS]; B];
    for quad in 0..quads {
        let offsets = job.offsets(quad * WORDS);
        for b in 0..B {
            let sums = line(&input.sums, b, quad);
            for (zeros, offsets) in zeros[b].as_chunks_mut::<16>().0.iter_mut().zip(offsets.as_chunks::<16>().0) {
                for i in 0..16 {
                    zeros[i] += offsets[i] * sums[i];
                }
            }
        }
    }
    for g in (0..8).step_by(G) {
        // SAFETY: the strip has `tiles` tiles and words for `quads` of four; activations have `LINES` lines for every tile;
        // `first + B` is at most the rows of activations.
        let sums = unsafe {
            let x: [*const Line; B] = std::array::from_fn(|b| input.lines.as_ptr().add((first + b) * tiles * LINES));
            let mut sums = [[D::zero(); G]; B];
            for quad in 0..quads {
                // Scales of the weights times those of the activations.
                let mut scales = [[[0f32; 8]; G]; B];
                let own = &job.scales[quad * WORDS + g * 8..][..G * 8];
                for b in 0..B {
                    let of_x = line(&input.scales, b, quad);
                    for i in 0..G {
                        for j in 0..8 {
                            scales[b][i][j] = own[i * 8 + j] * of_x[j];
                        }
                    }
                }
                for t in 0..4.min(tiles - quad * 4) {
                    let tile = quad * 4 + t;
                    for i in 0..G {
                        let planes: [*const u8; PLANES] = std::array::from_fn(|plane| job.codes(plane, tile, g + i));
                        for plane in planes {
                            job.prefetch(plane);
                        }
                        for b in 0..B {
                            let scales = scales[b][i].as_ptr().add(2 * t);
                            sums[b][i] = D::add::<PLANES>(sums[b][i], planes, x[b].add(tile * LINES), scales);
                        }
                    }
                }
            }
            sums
        };
        for (b, i) in (0..B).flat_map(|b| (0..G).map(move |i| (b, i))) {
            // SAFETY: the instruction set is enabled.
            let sums = unsafe { D::rows(sums[b][i]) };
            for second in 0..2 {
                let (row, z) = (g + i + 8 * second, &zeros[b][(g + i) * 8 + second..]);
                if row < out.cols() {
                    out.row_mut(first + b)[row] = sums[second] - ((z[0] + z[2]) + (z[4] + z[6]));
                }
            }
        }
    }
}

struct Avx512Vnni;

// SAFETY of the intrinsics below: enabled where inlined, and pointers by the trait's contract.
impl Dot for Avx512Vnni {
    type Sums = __m512;

    #[inline(always)]
    unsafe fn zero() -> __m512 {
        unsafe { _mm512_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn add<const PLANES: usize>(
        sums: __m512,
        planes: [*const u8; PLANES],
        x: *const Line,
        scales: *const f32,
    ) -> __m512 {
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
            let x: [__m512i; LINES] = std::array::from_fn(|i| _mm512_load_si512(x.add(i).cast()));
            let zero = _mm512_setzero_si512();
            let high = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(zero, even, x[0]), odd, x[1]);
            let low = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(zero, even, x[2]), odd, x[3]);
            let dot = _mm512_add_epi32(_mm512_slli_epi32::<8>(high), low);
            let pair = _mm512_castpd_ps(_mm512_set1_pd(scales.cast::<f64>().read_unaligned()));
            _mm512_fmadd_ps(_mm512_permute_ps::<0b01_01_00_00>(pair), _mm512_cvtepi32_ps(dot), sums)
        }
    }

    #[inline(always)]
    unsafe fn rows(sums: __m512) -> [f32; 2] {
        unsafe {
            let half = _mm256_add_ps(_mm512_castps512_ps256(sums), _mm512_extractf32x8_ps::<1>(sums));
            rows_of_halves(half)
        }
    }
}

/// Lanes are two of row g and two of row g + 8, twice.
#[inline(always)]
unsafe fn rows_of_halves(sums: __m256) -> [f32; 2] {
    unsafe {
        let sums = _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps::<1>(sums));
        let pairs = _mm_hadd_ps(sums, sums);
        [_mm_cvtss_f32(pairs), _mm_cvtss_f32(_mm_movehdup_ps(pairs))]
    }
}

/// Both halves of a line, codes of `PLANES` planes as bytes: even nibbles, odd nibbles.
#[inline(always)]
unsafe fn codes_256<const PLANES: usize>(planes: [*const u8; PLANES], half: usize) -> [__m256i; 2] {
    unsafe {
        let low_nibbles = _mm256_set1_epi32(0x0f0f_0f0f);
        let load = |plane: usize| _mm256_loadu_si256(planes[plane].add(32 * half).cast());
        let last = load(PLANES - 1);
        let [even, odd] = [last, _mm256_srli_epi32::<4>(last)].map(|codes| _mm256_and_si256(codes, low_nibbles));
        if PLANES == 1 {
            return [even, odd];
        }
        let high = load(0);
        let up = _mm256_slli_epi32::<4>(_mm256_and_si256(high, low_nibbles));
        [_mm256_or_si256(even, up), _mm256_or_si256(odd, _mm256_andnot_si256(low_nibbles, high))]
    }
}

#[inline(always)]
unsafe fn scaled_256(sums: __m256, high: __m256i, low: __m256i, scales: *const f32) -> __m256 {
    unsafe {
        let dot = _mm256_add_epi32(_mm256_slli_epi32::<8>(high), low);
        let pair = _mm256_castpd_ps(_mm256_set1_pd(scales.cast::<f64>().read_unaligned()));
        _mm256_fmadd_ps(_mm256_permute_ps::<0b01_01_00_00>(pair), _mm256_cvtepi32_ps(dot), sums)
    }
}

struct AvxVnni;

impl Dot for AvxVnni {
    type Sums = __m256;

    #[inline(always)]
    unsafe fn zero() -> __m256 {
        unsafe { _mm256_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn add<const PLANES: usize>(
        sums: __m256,
        planes: [*const u8; PLANES],
        x: *const Line,
        scales: *const f32,
    ) -> __m256 {
        unsafe {
            let (mut high, mut low) = (_mm256_setzero_si256(), _mm256_setzero_si256());
            for half in 0..2 {
                let [even, odd] = codes_256(planes, half);
                let x = |line: usize| _mm256_load_si256(x.cast::<__m256i>().add(2 * line + half));
                high = _mm256_dpbusd_avx_epi32(_mm256_dpbusd_avx_epi32(high, even, x(0)), odd, x(1));
                low = _mm256_dpbusd_avx_epi32(_mm256_dpbusd_avx_epi32(low, even, x(2)), odd, x(3));
            }
            scaled_256(sums, high, low, scales)
        }
    }

    #[inline(always)]
    unsafe fn rows(sums: __m256) -> [f32; 2] {
        unsafe { rows_of_halves(sums) }
    }
}

struct Avx2;

impl Dot for Avx2 {
    type Sums = __m256;

    #[inline(always)]
    unsafe fn zero() -> __m256 {
        unsafe { _mm256_setzero_ps() }
    }

    /// Products of a byte and a nibble: two of them, even four, fit in 16 bits.
    #[inline(always)]
    unsafe fn add<const PLANES: usize>(
        sums: __m256,
        planes: [*const u8; PLANES],
        x: *const Line,
        scales: *const f32,
    ) -> __m256 {
        unsafe {
            let (mut high, mut low) = (_mm256_setzero_si256(), _mm256_setzero_si256());
            for half in 0..2 {
                let x = |line: usize| _mm256_load_si256(x.cast::<__m256i>().add(2 * line + half));
                for plane in 0..PLANES {
                    let [even, odd] = codes_256([planes[plane]], half);
                    let factor = _mm256_set1_epi16(if plane + 1 < PLANES { 16 } else { 1 });
                    let pairs = |even_x, odd_x| {
                        let pairs =
                            _mm256_add_epi16(_mm256_maddubs_epi16(even, even_x), _mm256_maddubs_epi16(odd, odd_x));
                        _mm256_madd_epi16(pairs, factor)
                    };
                    high = _mm256_add_epi32(high, pairs(x(0), x(1)));
                    low = _mm256_add_epi32(low, pairs(x(2), x(3)));
                }
            }
            scaled_256(sums, high, low, scales)
        }
    }

    #[inline(always)]
    unsafe fn rows(sums: __m256) -> [f32; 2] {
        unsafe { rows_of_halves(sums) }
    }
}
