//! Dot products with the codes of GGUF files ([`crate::quant::file`]). They work like
//! [`super::packed`] and [`super::integer`], with a scale and a minimum for each 16 columns:
//! `scale * (sum of code * x) - minimum * sum of x`.

// Indices of fixed arrays, which the compiler unrolls and keeps in registers.
#![allow(clippy::needless_range_loop)]

use super::super::thread_pool::Tile;
#[cfg(target_arch = "x86_64")]
use super::array_of;
#[cfg(target_arch = "x86_64")]
use super::integer::{self, Bytes, Dot, E2M1, LINES, MOST_ROWS, Work};
#[cfg(target_arch = "aarch64")]
use super::neon::Neon;
#[cfg(target_arch = "x86_64")]
use super::strip::{Line, TILE_BYTES};
use super::strip::{STEPS, Strip};
#[cfg(not(target_arch = "aarch64"))]
use super::vector::Exact;
#[cfg(target_arch = "x86_64")]
use super::vector::{Avx2, Avx512};
use super::vector::{Portable, Vector};
use super::{Isa, Set, by_isa};
#[cfg(target_arch = "x86_64")]
use crate::quant::file::Words;
use crate::quant::file::{FileCode, Runs};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Pairs of rows of a strip.
const PAIRS: usize = 8;
/// Runs of a tile: four of each row.
const TILE_RUNS: usize = 8;

/// Dot products of one strip with all rows of activations, in f32.
pub(super) fn f32_strip(isa: Isa, code: FileCode, job: Strip<'_>, out: &mut Tile<'_>) {
    by_isa!(isa, floats::<>(code: FileCode, job: Strip<'_>, out: &mut Tile<'_>))
}

/// Dot products of one strip with all rows of activations, in integers.
#[cfg(target_arch = "x86_64")]
pub(super) fn integer_strip(bytes: Bytes, code: FileCode, job: Strip<'_>, out: &mut Tile<'_>) {
    integer::enable(bytes, Integers { code, job, out });
}

/// In f32: one pair of rows after the other.
#[inline(always)]
unsafe fn floats<V: Vector>(code: FileCode, job: Strip<'_>, out: &mut Tile<'_>) {
    let (tiles, quads) = (job.tiles, job.tiles.div_ceil(4));
    let (mut runs, levels) = (Runs::ZERO, code.levels());
    for b in 0..out.rows() {
        let lines = job.x.lines[b * tiles * STEPS..].as_ptr().cast::<f32>();
        for g in 0..PAIRS {
            let mut sums = [0f32; 2];
            for tile in 0..tiles {
                if tile.is_multiple_of(4) {
                    code.decode(job.words(), tile / 4, g, &mut runs);
                }
                let mut lanes = [0f32; 16];
                for lane in (0..16).step_by(V::LANES) {
                    // SAFETY: the strip has `tiles` tiles, activations a line for every step of a
                    // tile, and the instruction set of V is enabled.
                    unsafe {
                        let mut part = V::splat(0.0);
                        for codes in job.planes(tile, g) {
                            let codes = codes.add(4 * lane);
                            part = part.mul_add(V::splat(16.0), V::splat(0.0));
                            for step in 0..STEPS {
                                let x = V::load(lines.add((tile * STEPS + step) * 16 + lane));
                                let codes = match levels {
                                    Some(levels) => V::load_levels(codes, 4 * step as u32, levels),
                                    None => V::load_nibbles(codes, 4 * step as u32),
                                };
                                part = codes.mul_add(x, part);
                            }
                        }
                        part.store(lanes.as_mut_ptr().add(lane));
                    }
                }
                let of_x = &job.x.runs[2 * (b * quads + tile / 4)..][..2];
                for run in 0..TILE_RUNS {
                    let (at, lane) = (tile % 4 * TILE_RUNS + run, run / 2 * 4 + run % 2 * 2);
                    let x = f32::from_bits(of_x[at / 16].0[at % 16]);
                    sums[run % 2] += runs.scales[at] * (lanes[lane] + lanes[lane + 1]) - runs.minima[at] * x;
                }
            }
            put(out, b, g, sums);
        }
    }
}

fn put(out: &mut Tile<'_>, b: usize, g: usize, sums: [f32; 2]) {
    for (second, sum) in sums.into_iter().enumerate() {
        if g + PAIRS * second < out.cols() {
            out.row_mut(b)[g + PAIRS * second] = sum;
        }
    }
}

#[cfg(target_arch = "x86_64")]
struct Integers<'a, 'b, 'c> {
    code: FileCode,
    job: Strip<'a>,
    out: &'b mut Tile<'c>,
}

#[cfg(target_arch = "x86_64")]
impl Work for Integers<'_, '_, '_> {
    #[inline(always)]
    unsafe fn run<D: Dot>(self) {
        let Self { code, job, out } = self;
        job.prefetch_words();
        // SAFETY: the caller's contract.
        unsafe {
            match (code.levels(), job.code.bits()) {
                (Some(_), _) => blocks::<D, E2M1>(code, &job, out),
                (None, 4) => blocks::<D, 4>(code, &job, out),
                _ => blocks::<D, 8>(code, &job, out),
            }
        }
    }
}

/// Products of all rows of activations.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn blocks<D: Dot, const BITS: usize>(code: FileCode, job: &Strip<'_>, out: &mut Tile<'_>) {
    let (n, mut i) = (out.rows(), 0);
    while i < n {
        // SAFETY: the caller's contract.
        unsafe {
            match n - i {
                1 => block::<D, BITS, 1>(code, job, i, out),
                2 | 3 => block::<D, BITS, 2>(code, job, i, out),
                _ => block::<D, BITS, MOST_ROWS>(code, job, i, out),
            }
        }
        i += [1, 2, 2, 4][(n - i).min(4) - 1];
    }
}

/// Products of `B` rows of activations from `first` on.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn block<D: Dot, const BITS: usize, const B: usize>(
    code: FileCode,
    job: &Strip<'_>,
    first: usize,
    out: &mut Tile<'_>,
) {
    let (tiles, quads, input) = (job.tiles, job.tiles.div_ceil(4), job.x);
    // SAFETY: the strip has `tiles` tiles and words for `quads` of four; activations have `LINES`
    // lines for every tile, one of scales and two of sums for every quad; `first + B` is at most
    // their rows. All methods have AVX2.
    unsafe {
        let words = job.words().as_ptr();
        let lines: [_; B] = array_of!(B, b => input.lines.as_ptr().add((first + b) * tiles * LINES));
        let of_x: [_; B] = array_of!(B, b => input.scales.as_ptr().add((first + b) * quads).cast::<f32>());
        let of_sums: [_; B] = array_of!(B, b => input.runs.as_ptr().add(2 * (first + b) * quads).cast::<f32>());
        let mut sums = [[D::zero(); B]; PAIRS];
        let mut minima = [[_mm256_setzero_ps(); B]; PAIRS];
        for quad in 0..quads {
            for g in 0..PAIRS {
                let (scales, factors) = decode_256(code, words.add((quad * PAIRS + g) * code.pair_bytes()));
                for b in 0..B {
                    for tile in 0..4 {
                        let sums = _mm256_load_ps(of_sums[b].add(32 * quad + TILE_RUNS * tile));
                        minima[g][b] = _mm256_fmadd_ps(factors[tile], sums, minima[g][b]);
                    }
                }
                let codes: [*const u8; 2] = [job.codes(4 * quad, g), job.low_codes(4 * quad, g)];
                let x = array_of!(B, b => lines[b].add(4 * quad * LINES));
                let of_x = array_of!(B, b => of_x[b].add(16 * quad));
                sums[g] = match tiles - 4 * quad {
                    1 => quad_dots::<D, BITS, B, 1>(sums[g], codes, x, of_x, scales),
                    2 => quad_dots::<D, BITS, B, 2>(sums[g], codes, x, of_x, scales),
                    3 => quad_dots::<D, BITS, B, 3>(sums[g], codes, x, of_x, scales),
                    _ => {
                        for tile in 0..4 {
                            job.prefetch(codes[0].wrapping_add(TILE_BYTES * tile));
                            if BITS == 8 {
                                job.prefetch(codes[1].wrapping_add(TILE_BYTES * tile));
                            }
                        }
                        quad_dots::<D, BITS, B, 4>(sums[g], codes, x, of_x, scales)
                    }
                };
            }
        }
        for (g, b) in (0..PAIRS).flat_map(|g| (0..B).map(move |b| (g, b))) {
            let (mut sums, mut lanes) = (D::rows(sums[g][b]), [0f32; TILE_RUNS]);
            _mm256_storeu_ps(lanes.as_mut_ptr(), minima[g][b]);
            for second in 0..2 {
                let minimum = (lanes[second] + lanes[second + 2]) + (lanes[second + 4] + lanes[second + 6]);
                sums[second] -= code.zero().unwrap_or(1.0) * minimum;
            }
            put(out, first + b, g, sums);
        }
    }
}

/// Adds the products of two rows of `N` tiles of a quad. `of_x` are the scales of the activations
/// of its tiles, two apart.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn quad_dots<D: Dot, const BITS: usize, const B: usize, const N: usize>(
    mut sums: [D::Sums; B],
    codes: [*const u8; 2],
    x: [*const Line; B],
    of_x: [*const f32; B],
    scales: [__m256; 4],
) -> [D::Sums; B] {
    unsafe {
        for tile in 0..N {
            for b in 0..B {
                let scales = _mm256_mul_ps(scales[tile], _mm256_broadcast_ss(&*of_x[b].add(2 * tile)));
                let codes = codes.map(|codes| codes.wrapping_add(TILE_BYTES * tile));
                sums[b] = D::add_runs::<BITS>(sums[b], codes, x[b].add(tile * LINES), scales);
            }
        }
        sums
    }
}

/// The words of two rows in a quad: for each tile the scales of its runs, and what their sums of
/// activations are multiplied with, the minima or (for codes around a zero) the scales.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn decode_256(code: FileCode, words: *const u8) -> ([__m256; 4], [__m256; 4]) {
    unsafe {
        match code.words() {
            Words::Halves => {
                let scales = spread(halves(words), halves(words.add(16)));
                (scales, scales)
            }
            Words::Pairs => {
                let zero = _mm256_setzero_ps();
                let [low, high] = [halves(words.add(32)), halves(words.add(48))];
                let minima = spread(_mm256_sub_ps(zero, low), _mm256_sub_ps(zero, high));
                (spread(halves(words), halves(words.add(16))), minima)
            }
            Words::Super => {
                let low = _mm_loadu_si128(words.add(8).cast());
                let high = _mm_loadl_epi64(words.add(24).cast());
                let nibbles = _mm_set1_epi8(15);
                let high =
                    _mm_unpacklo_epi64(_mm_and_si128(high, nibbles), _mm_and_si128(_mm_srli_epi16::<4>(high), nibbles));
                let scales = _mm_and_si128(low, _mm_set1_epi8(63));
                let low = _mm_and_si128(_mm_srli_epi16::<6>(low), _mm_set1_epi8(3));
                let minima = _mm_or_si128(low, _mm_slli_epi16::<2>(high));
                (spread_bytes(scales, factors(words)), spread_bytes(minima, factors(words.add(4))))
            }
            Words::Sixteenths => {
                let scales = array_of!(4, tile => {
                    let bytes = _mm_loadl_epi64(words.add(4 + TILE_RUNS * tile).cast());
                    _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), factors(words))
                });
                (scales, scales)
            }
            Words::Powers => {
                let scales = spread(half_powers(words), half_powers(words.add(8)));
                (scales, scales)
            }
        }
    }
}

/// Half the values of eight E8M0 scales.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn half_powers(at: *const u8) -> __m256 {
    unsafe {
        let bits = _mm256_slli_epi32::<23>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(at.cast())));
        let powers = _mm256_castsi256_ps(_mm256_max_epi32(bits, _mm256_set1_epi32(1 << 22)));
        _mm256_mul_ps(powers, _mm256_set1_ps(0.5))
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn halves(at: *const u8) -> __m256 {
    unsafe { _mm256_cvtph_ps(_mm_loadu_si128(at.cast())) }
}

/// Two f16, of rows g and g + 8 in turn.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn factors(at: *const u8) -> __m256 {
    unsafe { _mm256_cvtph_ps(_mm_set1_epi32(at.cast::<i32>().read_unaligned())) }
}

/// [`spread`] of 16 bytes times factors.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn spread_bytes(bytes: __m128i, factors: __m256) -> [__m256; 4] {
    unsafe {
        let low = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
        let high = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128::<8>(bytes)));
        spread(_mm256_mul_ps(low, factors), _mm256_mul_ps(high, factors))
    }
}

/// From two groups of 32 columns to runs of 16: each pair of rows twice.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn spread(low: __m256, high: __m256) -> [__m256; 4] {
    unsafe {
        let (low, high) = (_mm256_castps_pd(low), _mm256_castps_pd(high));
        [
            _mm256_castpd_ps(_mm256_permute4x64_pd::<0x50>(low)),
            _mm256_castpd_ps(_mm256_permute4x64_pd::<0xfa>(low)),
            _mm256_castpd_ps(_mm256_permute4x64_pd::<0x50>(high)),
            _mm256_castpd_ps(_mm256_permute4x64_pd::<0xfa>(high)),
        ]
    }
}
