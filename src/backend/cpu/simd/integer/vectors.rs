//! The dot products of [`super`] in the vectors of each instruction set.

// Loops index fixed arrays, which the compiler unrolls and keeps in registers.
#![allow(clippy::needless_range_loop)]

use super::super::array_of;
use super::super::strip::{Line, MOST_WORDS};
use super::super::vector::{half, half_512};
use crate::quant::file::E2M1_LEVELS;
use std::arch::x86_64::*;

/// Cache lines of activations per tile: high bytes for the even and the odd nibbles, then low
/// bytes.
pub(in super::super) const LINES: usize = 4;
/// In place of their bits: codes of four bits that stand for [`E2M1_LEVELS`].
pub(in super::super) const E2M1: usize = 0xe2_01;
/// Dot products in the vectors of one instruction set.
pub(in super::super) trait Dot {
    type Sums: Copy;
    unsafe fn zero() -> Self::Sums;
    /// Computes the scales of four weight tiles times the scales `of_x` of one activation row, and
    /// stores them at [`scales_at`]. Adds scale * zero point * sum of activations to `zeros`, in
    /// the order of the words.
    unsafe fn scales<const BITS: usize, const HALVES: bool>(
        words: *const u8,
        of_x: &Line,
        sums: &Line,
        scales: *mut f32,
        zeros: &mut [f32; MOST_WORDS],
    );
    /// Returns `sums + scales * dot` by lane, where `dot` is the dot product of the 64 bytes of
    /// codes at each of `planes` with the activations of one tile. `scales` points to the four
    /// scales of rows g and g + 8.
    unsafe fn add<const BITS: usize>(
        sums: Self::Sums,
        planes: [*const u8; 2],
        x: *const Line,
        scales: *const f32,
    ) -> Self::Sums;
    /// Like [`Dot::add`], with separate scales for every 16 columns of both rows.
    unsafe fn add_runs<const BITS: usize>(
        sums: Self::Sums,
        planes: [*const u8; 2],
        x: *const Line,
        scales: __m256,
    ) -> Self::Sums;
    /// Returns the sums of row g and of row g + 8.
    unsafe fn rows(sums: Self::Sums) -> [f32; 2];
}

/// The f16 scale in the word of a half shifted right by one, and its zero point, which is in units
/// of 1 / 8 for codes of 4 bits and of 1 / 2 for those of 6.
const HALF_SCALE: i16 = 0x7fc0;
const HALF_ZERO: i16 = 127;

const fn half_unit(bits: usize) -> f32 {
    (1 << bits) as f32 / 128.0
}

/// Masks for a 4-bit word: the f16 scale in the word shifted right by one, and twice the zero
/// point.
const Q4_SCALE: i16 = 0x7ff0;
const Q4_ZERO: i16 = 31;
const Q8_ZERO: f32 = 128.0;

pub(super) struct Avx512Vnni;

// SAFETY of the intrinsics below: enabled where inlined, and pointers by the trait's contract.
impl Dot for Avx512Vnni {
    type Sums = __m512;

    #[inline(always)]
    unsafe fn zero() -> __m512 {
        unsafe { _mm512_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn scales<const BITS: usize, const HALVES: bool>(
        words: *const u8,
        of_x: &Line,
        sums: &Line,
        scales: *mut f32,
        zeros: &mut [f32; MOST_WORDS],
    ) {
        unsafe {
            let of_x = _mm512_load_ps(of_x.0.as_ptr().cast());
            let sums = _mm512_load_ps(sums.0.as_ptr().cast());
            if HALVES {
                let tile = _mm512_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6);
                let of_x = _mm512_permutexvar_ps(tile, of_x);
                for g in 0..8 {
                    let words = _mm256_loadu_si256(words.add(32 * g).cast());
                    let units = _mm512_cvtepu16_epi32(_mm256_and_si256(words, _mm256_set1_epi16(HALF_ZERO)));
                    let zero = _mm512_mul_ps(_mm512_cvtepi32_ps(units), _mm512_set1_ps(half_unit(BITS)));
                    let scale = _mm256_and_si256(_mm256_srli_epi16::<1>(words), _mm256_set1_epi16(HALF_SCALE));
                    let scale = _mm512_cvtph_ps(scale);
                    let at = zeros.as_mut_ptr().add(16 * g);
                    _mm512_storeu_ps(at, _mm512_fmadd_ps(_mm512_mul_ps(scale, zero), sums, _mm512_loadu_ps(at)));
                    _mm512_storeu_ps(scales.add(16 * g), _mm512_mul_ps(scale, of_x));
                }
                return;
            }
            for i in 0..MOST_WORDS / 32 {
                let words = _mm256_loadu_si256(words.add(32 * i).cast());
                let (scale, zero) = if BITS == 4 {
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
    unsafe fn add<const BITS: usize>(
        sums: __m512,
        planes: [*const u8; 2],
        x: *const Line,
        scales: *const f32,
    ) -> __m512 {
        unsafe {
            let dot = dot_512::<BITS>(planes, x);
            _mm512_fmadd_ps(_mm512_broadcast_f32x4(_mm_loadu_ps(scales)), dot, sums)
        }
    }

    #[inline(always)]
    unsafe fn add_runs<const BITS: usize>(
        sums: __m512,
        planes: [*const u8; 2],
        x: *const Line,
        scales: __m256,
    ) -> __m512 {
        unsafe {
            let twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
            let scales = _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(scales));
            _mm512_fmadd_ps(scales, dot_512::<BITS>(planes, x), sums)
        }
    }

    #[inline(always)]
    unsafe fn rows(sums: __m512) -> [f32; 2] {
        unsafe { rows_of_halves(half_512(sums)) }
    }
}

/// Dot products by lane of 64 bytes of codes per plane with the activations of a tile.
#[inline(always)]
unsafe fn dot_512<const BITS: usize>(planes: [*const u8; 2], x: *const Line) -> __m512 {
    unsafe {
        let low_nibbles = _mm512_set1_epi32(0x0f0f_0f0f);
        let high = _mm512_loadu_si512(planes[0].cast());
        let [even, odd] = match BITS {
            4 => [_mm512_and_si512(high, low_nibbles), _mm512_and_si512(_mm512_srli_epi32::<4>(high), low_nibbles)],
            E2M1 => {
                let levels = _mm512_broadcast_i32x4(_mm_loadu_si128(E2M1_LEVELS.as_ptr().cast()));
                let even = _mm512_shuffle_epi8(levels, _mm512_and_si512(high, low_nibbles));
                let odd = _mm512_and_si512(_mm512_srli_epi32::<4>(high), low_nibbles);
                [even, _mm512_shuffle_epi8(levels, odd)]
            }
            6 => {
                let twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
                let low = _mm512_castsi256_si512(_mm256_loadu_si256(planes[1].cast()));
                let low = _mm512_permutexvar_epi32(twice, low);
                // The second eight columns have the upper four bits of each byte.
                let low = _mm512_srlv_epi32(low, _mm512_set1_epi64(4 << 32));
                let upper = _mm512_set1_epi32(0x3c3c_3c3c);
                // mask ? high plane : low plane, of which two bits are left
                let both = _mm512_set1_epi32(0x3f3f_3f3f);
                let of = |high, low| _mm512_and_si512(_mm512_ternarylogic_epi32::<0xca>(upper, high, low), both);
                [of(_mm512_slli_epi32::<2>(high), low), of(_mm512_srli_epi32::<2>(high), _mm512_srli_epi32::<2>(low))]
            }
            _ => {
                // mask ? low plane : high plane
                let low = _mm512_loadu_si512(planes[1].cast());
                [
                    _mm512_ternarylogic_epi32::<0xca>(low_nibbles, low, _mm512_slli_epi32::<4>(high)),
                    _mm512_ternarylogic_epi32::<0xca>(low_nibbles, _mm512_srli_epi32::<4>(low), high),
                ]
            }
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

/// Codes of half a line as bytes: even nibbles, odd nibbles.
#[inline(always)]
unsafe fn codes_256<const BITS: usize>(planes: [*const u8; 2], half: usize) -> [__m256i; 2] {
    unsafe {
        let low_nibbles = _mm256_set1_epi32(0x0f0f_0f0f);
        let high = _mm256_loadu_si256(planes[0].add(32 * half).cast());
        match BITS {
            4 => [_mm256_and_si256(high, low_nibbles), _mm256_and_si256(_mm256_srli_epi32::<4>(high), low_nibbles)],
            E2M1 => {
                let levels = _mm256_broadcastsi128_si256(_mm_loadu_si128(E2M1_LEVELS.as_ptr().cast()));
                let even = _mm256_shuffle_epi8(levels, _mm256_and_si256(high, low_nibbles));
                let odd = _mm256_and_si256(_mm256_srli_epi32::<4>(high), low_nibbles);
                [even, _mm256_shuffle_epi8(levels, odd)]
            }
            6 => {
                let twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
                let low = _mm256_castsi128_si256(_mm_loadu_si128(planes[1].add(16 * half).cast()));
                let low = _mm256_permutevar8x32_epi32(low, twice);
                // The second eight columns have the upper four bits of each byte.
                let low = _mm256_srlv_epi32(low, _mm256_set1_epi64x(4 << 32));
                let (upper, two) = (_mm256_set1_epi32(0x3c3c_3c3c), _mm256_set1_epi32(0x0303_0303));
                let of = |high, low| _mm256_or_si256(_mm256_and_si256(high, upper), _mm256_and_si256(low, two));
                [of(_mm256_slli_epi32::<2>(high), low), of(_mm256_srli_epi32::<2>(high), _mm256_srli_epi32::<2>(low))]
            }
            _ => {
                let low = _mm256_loadu_si256(planes[1].add(32 * half).cast());
                let even = _mm256_and_si256(low, low_nibbles);
                let odd = _mm256_and_si256(_mm256_srli_epi32::<4>(low), low_nibbles);
                let up = _mm256_slli_epi32::<4>(_mm256_and_si256(high, low_nibbles));
                [_mm256_or_si256(even, up), _mm256_or_si256(odd, _mm256_andnot_si256(low_nibbles, high))]
            }
        }
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

/// Dot products in vectors of 256 bits.
trait Halves {
    /// Adds the dot products of half a tile with the high bytes and with the low bytes of the
    /// activations.
    unsafe fn half<const BITS: usize>(
        sums: [__m256i; 2],
        planes: [*const u8; 2],
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
    unsafe fn scales<const BITS: usize, const HALVES: bool>(
        words: *const u8,
        of_x: &Line,
        sums: &Line,
        scales: *mut f32,
        zeros: &mut [f32; MOST_WORDS],
    ) {
        unsafe {
            if HALVES {
                let of_x = _mm256_load_ps(of_x.0.as_ptr().cast());
                let tiles = [_mm256_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2), _mm256_setr_epi32(4, 4, 4, 4, 6, 6, 6, 6)];
                for i in 0..MOST_WORDS / 8 {
                    let words = _mm_loadu_si128(words.add(16 * i).cast());
                    let units = _mm256_cvtepu16_epi32(_mm_and_si128(words, _mm_set1_epi16(HALF_ZERO)));
                    let zero = _mm256_mul_ps(_mm256_cvtepi32_ps(units), _mm256_set1_ps(half_unit(BITS)));
                    let scale = _mm256_cvtph_ps(_mm_and_si128(_mm_srli_epi16::<1>(words), _mm_set1_epi16(HALF_SCALE)));
                    let sums = _mm256_load_ps(sums.0.as_ptr().add(8 * (i % 2)).cast());
                    let at = zeros.as_mut_ptr().add(8 * i);
                    _mm256_storeu_ps(at, _mm256_fmadd_ps(_mm256_mul_ps(scale, zero), sums, _mm256_loadu_ps(at)));
                    let of_x = _mm256_permutevar8x32_ps(of_x, tiles[i % 2]);
                    _mm256_storeu_ps(scales.add(8 * i), _mm256_mul_ps(scale, of_x));
                }
                return;
            }
            // Both halves of a line are equal.
            let of_x = _mm256_load_ps(of_x.0.as_ptr().cast());
            let sums = _mm256_load_ps(sums.0.as_ptr().cast());
            for g in 0..MOST_WORDS / 16 {
                let words = _mm_loadu_si128(words.add(16 * g).cast());
                let (scale, zero) = if BITS == 4 {
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

    #[inline(always)]
    unsafe fn add<const BITS: usize>(
        sums: __m256,
        planes: [*const u8; 2],
        x: *const Line,
        scales: *const f32,
    ) -> __m256 {
        unsafe {
            let zero = [_mm256_setzero_si256(); 2];
            let [high, low] = H::half::<BITS>(H::half::<BITS>(zero, planes, x, 0), planes, x, 1);
            scaled_256(sums, high, low, scales)
        }
    }

    #[inline(always)]
    unsafe fn add_runs<const BITS: usize>(
        mut sums: __m256,
        planes: [*const u8; 2],
        x: *const Line,
        scales: __m256,
    ) -> __m256 {
        unsafe {
            for half in 0..2 {
                let dots = H::half::<BITS>([_mm256_setzero_si256(); 2], planes, x, half);
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

pub(super) struct AvxVnni;

impl Halves for AvxVnni {
    #[inline(always)]
    unsafe fn half<const BITS: usize>(
        [high, low]: [__m256i; 2],
        planes: [*const u8; 2],
        x: *const Line,
        half: usize,
    ) -> [__m256i; 2] {
        unsafe {
            let [even, odd] = codes_256::<BITS>(planes, half);
            let x: [__m256i; LINES] =
                array_of!(LINES, line => _mm256_load_si256(x.cast::<__m256i>().add(2 * line + half)));
            [
                _mm256_dpbusd_avx_epi32(_mm256_dpbusd_avx_epi32(high, even, x[0]), odd, x[1]),
                _mm256_dpbusd_avx_epi32(_mm256_dpbusd_avx_epi32(low, even, x[2]), odd, x[3]),
            ]
        }
    }
}

pub(super) struct Avx2;

impl Halves for Avx2 {
    /// Products of a byte and at most six bits. A sum of four of them fits in 16 bits.
    #[inline(always)]
    unsafe fn half<const BITS: usize>(
        [mut high, mut low]: [__m256i; 2],
        planes: [*const u8; 2],
        x: *const Line,
        half: usize,
    ) -> [__m256i; 2] {
        unsafe {
            let x: [__m256i; LINES] =
                array_of!(LINES, line => _mm256_load_si256(x.cast::<__m256i>().add(2 * line + half)));
            // Codes of 8 bits plane by plane, as nibbles.
            for plane in 0..if BITS == 8 { 2 } else { 1 } {
                let [even, odd] = match BITS {
                    8 => codes_256::<4>([planes[plane]; 2], half),
                    _ => codes_256::<BITS>(planes, half),
                };
                let factor = _mm256_set1_epi16(if BITS == 8 && plane == 0 { 16 } else { 1 });
                let pairs = _mm256_add_epi16(_mm256_maddubs_epi16(even, x[0]), _mm256_maddubs_epi16(odd, x[1]));
                high = _mm256_add_epi32(high, _mm256_madd_epi16(pairs, factor));
                let pairs = _mm256_add_epi16(_mm256_maddubs_epi16(even, x[2]), _mm256_maddubs_epi16(odd, x[3]));
                low = _mm256_add_epi32(low, _mm256_madd_epi16(pairs, factor));
            }
            [high, low]
        }
    }
}
