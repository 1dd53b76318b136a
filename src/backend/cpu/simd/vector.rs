//! A vector of f32, and loads that convert stored values to it.

use super::Format;
use crate::codec::int8_value;
use half::f16;

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// `LANES` values of f32. Pointers need no alignment and must be valid for `LANES` elements. The
/// instruction sets of `Avx2` and `Avx512` must be enabled where methods are inlined.
pub(super) trait Vector: Copy {
    const LANES: usize;
    /// Right-hand sides that fit in registers beside four rows; at most 3.
    const MAX_RHS: usize;
    /// Whether they fit beside eight rows too.
    const EIGHT_ROWS: bool = false;

    unsafe fn splat(v: f32) -> Self;
    unsafe fn load(at: *const f32) -> Self;
    unsafe fn load_f16(at: *const u8) -> Self;
    unsafe fn load_bf16(at: *const u8) -> Self;
    unsafe fn load_fp8(at: *const u8) -> Self;
    unsafe fn load_int8(at: *const u8) -> Self;
    /// Four bits, from bit `shift` on, of `LANES` u32.
    unsafe fn load_nibbles(at: *const u8, shift: u32) -> Self;
    /// The levels that [`Self::load_nibbles`] select.
    unsafe fn load_levels(at: *const u8, shift: u32, levels: &[u8; 16]) -> Self;
    /// `[a, a, b, b]` again and again, of two values.
    unsafe fn load_pairs(at: *const f32) -> Self;
    /// Four values again and again.
    unsafe fn load_fours(at: *const f32) -> Self;
    unsafe fn store(self, at: *mut f32);
    /// `self * a + b`
    unsafe fn mul_add(self, a: Self, b: Self) -> Self;
    /// The sums of four vectors.
    unsafe fn sum4(v: [Self; 4]) -> [f32; 4];
}

/// An element type of stored rows.
pub(super) trait Elem: Copy {
    const FORMAT: Format;
    unsafe fn load<V: Vector>(at: *const u8) -> V;
    unsafe fn scalar(at: *const u8) -> f32;
}

macro_rules! elem {
    ($name:ident, $format:ident, $load:ident, $at:ident => $scalar:expr) => {
        #[derive(Clone, Copy)]
        pub(super) struct $name;
        impl Elem for $name {
            const FORMAT: Format = Format::$format;
            #[inline(always)]
            unsafe fn load<V: Vector>($at: *const u8) -> V {
                // SAFETY: the caller's contract.
                unsafe { V::$load($at.cast()) }
            }
            #[inline(always)]
            unsafe fn scalar($at: *const u8) -> f32 {
                // SAFETY: the pointer is valid for one element.
                unsafe { $scalar }
            }
        }
    };
}

elem!(F32, F32, load, at => at.cast::<f32>().read_unaligned());
elem!(F16, F16, load_f16, at => f16::from_bits(at.cast::<u16>().read_unaligned()).to_f32());
elem!(Bf16, Bf16, load_bf16, at => f32::from_bits((at.cast::<u16>().read_unaligned() as u32) << 16));
elem!(Fp8, Fp8, load_fp8, at => fp8(at.read()));
elem!(Int8, Int8, load_int8, at => int8_value(at.read()));

/// Value of an e4m3fn code: its bits moved into an f32 whose exponent is 120 too low, then scaled,
/// which is right for subnormals too. (The NaN code, 0x7f, reads as 480; a step that makes NaN is
/// found by the norms.)
#[inline(always)]
fn fp8(code: u8) -> f32 {
    f32::from_bits(((code as u32 & 0x80) << 24) | ((code as u32 & 0x7f) << 20)) * FP8_SCALE
}

pub(super) const FP8_SCALE: f32 = f32::from_bits((127 + 120) << 23);

/// Eight lanes in plain Rust. `EXACT`: [`Vector::mul_add`] rounds once even where the target has no
/// such instruction, and takes much longer there.
#[derive(Clone, Copy)]
pub(super) struct Eight<const EXACT: bool>([f32; 8]);

pub(super) type Portable = Eight<false>;
/// The sums of AVX2 and NEON on a machine without either.
#[cfg(not(target_arch = "aarch64"))]
pub(super) type Exact = Eight<true>;

impl<const EXACT: bool> Vector for Eight<EXACT> {
    const LANES: usize = 8;
    const MAX_RHS: usize = 2;

    #[inline(always)]
    unsafe fn splat(v: f32) -> Self {
        Self([v; 8])
    }

    #[inline(always)]
    unsafe fn load(at: *const f32) -> Self {
        // SAFETY: the trait's contract.
        Self(unsafe { at.cast::<[f32; 8]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn load_f16(at: *const u8) -> Self {
        // SAFETY: the trait's contract.
        let raw = unsafe { at.cast::<[u16; 8]>().read_unaligned() };
        Self(raw.map(|b| f16::from_bits(b).to_f32()))
    }

    #[inline(always)]
    unsafe fn load_bf16(at: *const u8) -> Self {
        // SAFETY: the trait's contract.
        let raw = unsafe { at.cast::<[u16; 8]>().read_unaligned() };
        Self(raw.map(|b| f32::from_bits((b as u32) << 16)))
    }

    #[inline(always)]
    unsafe fn load_fp8(at: *const u8) -> Self {
        // SAFETY: the trait's contract.
        Self(unsafe { at.cast::<[u8; 8]>().read() }.map(fp8))
    }

    #[inline(always)]
    unsafe fn load_int8(at: *const u8) -> Self {
        // SAFETY: the trait's contract.
        Self(unsafe { at.cast::<[u8; 8]>().read() }.map(int8_value))
    }

    #[inline(always)]
    unsafe fn load_nibbles(at: *const u8, shift: u32) -> Self {
        // SAFETY: the trait's contract.
        Self(unsafe { at.cast::<[u32; 8]>().read_unaligned() }.map(|w| (w >> shift & 15) as f32))
    }

    #[inline(always)]
    unsafe fn load_levels(at: *const u8, shift: u32, levels: &[u8; 16]) -> Self {
        // SAFETY: the trait's contract.
        let words = unsafe { at.cast::<[u32; 8]>().read_unaligned() };
        Self(words.map(|w| f32::from(levels[(w >> shift & 15) as usize])))
    }

    #[inline(always)]
    unsafe fn load_pairs(at: *const f32) -> Self {
        // SAFETY: the pointer is valid for two values.
        let [a, b] = unsafe { at.cast::<[f32; 2]>().read_unaligned() };
        Self([a, a, b, b, a, a, b, b])
    }

    #[inline(always)]
    unsafe fn load_fours(at: *const f32) -> Self {
        // SAFETY: the pointer is valid for four values.
        let [a, b, c, d] = unsafe { at.cast::<[f32; 4]>().read_unaligned() };
        Self([a, b, c, d, a, b, c, d])
    }

    #[inline(always)]
    unsafe fn store(self, at: *mut f32) {
        // SAFETY: the trait's contract.
        unsafe { at.cast::<[f32; 8]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, a: Self, b: Self) -> Self {
        let mut out = b;
        for i in 0..8 {
            // Where the target has no fused form by default, `f32::mul_add` is a library call.
            out.0[i] = if EXACT || cfg!(any(target_arch = "aarch64", target_feature = "fma")) {
                self.0[i].mul_add(a.0[i], b.0[i])
            } else {
                self.0[i] * a.0[i] + b.0[i]
            };
        }
        out
    }

    #[inline(always)]
    unsafe fn sum4(v: [Self; 4]) -> [f32; 4] {
        v.map(|v| {
            let h: [f32; 4] = std::array::from_fn(|i| v.0[i] + v.0[i + 4]);
            (h[0] + h[1]) + (h[2] + h[3])
        })
    }
}

#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) struct Avx2(pub(super) __m256);

// SAFETY of the intrinsics below: enabled where inlined, and pointers by the trait's contract.
#[cfg(target_arch = "x86_64")]
impl Vector for Avx2 {
    const LANES: usize = 8;
    const MAX_RHS: usize = 3;

    #[inline(always)]
    unsafe fn splat(v: f32) -> Self {
        unsafe { Self(_mm256_set1_ps(v)) }
    }

    #[inline(always)]
    unsafe fn load(at: *const f32) -> Self {
        unsafe { Self(_mm256_loadu_ps(at)) }
    }

    #[inline(always)]
    unsafe fn load_f16(at: *const u8) -> Self {
        unsafe { Self(_mm256_cvtph_ps(_mm_loadu_si128(at.cast()))) }
    }

    #[inline(always)]
    unsafe fn load_bf16(at: *const u8) -> Self {
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast()));
            Self(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide)))
        }
    }

    #[inline(always)]
    unsafe fn load_fp8(at: *const u8) -> Self {
        unsafe {
            let wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(at.cast()));
            let sign = _mm256_slli_epi32::<24>(_mm256_and_si256(wide, _mm256_set1_epi32(0x80)));
            let rest = _mm256_slli_epi32::<20>(_mm256_and_si256(wide, _mm256_set1_epi32(0x7f)));
            let tiny = _mm256_castsi256_ps(_mm256_or_si256(sign, rest));
            Self(_mm256_mul_ps(tiny, _mm256_set1_ps(FP8_SCALE)))
        }
    }

    #[inline(always)]
    unsafe fn load_int8(at: *const u8) -> Self {
        unsafe {
            let wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(at.cast()));
            let sign = _mm256_slli_epi32::<24>(_mm256_and_si256(wide, _mm256_set1_epi32(0x80)));
            let magnitude = _mm256_cvtepi32_ps(_mm256_and_si256(wide, _mm256_set1_epi32(0x7f)));
            Self(_mm256_castsi256_ps(_mm256_or_si256(_mm256_castps_si256(magnitude), sign)))
        }
    }

    #[inline(always)]
    unsafe fn load_nibbles(at: *const u8, shift: u32) -> Self {
        unsafe {
            let words = _mm256_srl_epi32(_mm256_loadu_si256(at.cast()), _mm_cvtsi32_si128(shift as i32));
            Self(_mm256_cvtepi32_ps(_mm256_and_si256(words, _mm256_set1_epi32(15))))
        }
    }

    #[inline(always)]
    unsafe fn load_levels(at: *const u8, shift: u32, levels: &[u8; 16]) -> Self {
        unsafe {
            let levels = _mm256_broadcastsi128_si256(_mm_loadu_si128(levels.as_ptr().cast()));
            let words = _mm256_srl_epi32(_mm256_loadu_si256(at.cast()), _mm_cvtsi32_si128(shift as i32));
            let bytes = _mm256_shuffle_epi8(levels, _mm256_and_si256(words, _mm256_set1_epi32(15)));
            Self(_mm256_cvtepi32_ps(_mm256_and_si256(bytes, _mm256_set1_epi32(255))))
        }
    }

    #[inline(always)]
    unsafe fn load_pairs(at: *const f32) -> Self {
        unsafe {
            Self(_mm256_permute_ps::<0b01_01_00_00>(_mm256_castpd_ps(_mm256_set1_pd(
                at.cast::<f64>().read_unaligned(),
            ))))
        }
    }

    #[inline(always)]
    unsafe fn load_fours(at: *const f32) -> Self {
        unsafe { Self(_mm256_broadcast_ps(&_mm_loadu_ps(at))) }
    }

    #[inline(always)]
    unsafe fn store(self, at: *mut f32) {
        unsafe { _mm256_storeu_ps(at, self.0) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, a: Self, b: Self) -> Self {
        unsafe { Self(_mm256_fmadd_ps(self.0, a.0, b.0)) }
    }

    #[inline(always)]
    unsafe fn sum4(v: [Self; 4]) -> [f32; 4] {
        unsafe { sum4_halves(half(v[0].0), half(v[1].0), half(v[2].0), half(v[3].0)) }
    }
}

/// The lower half plus the upper one.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn half(v: __m256) -> __m128 {
    unsafe { _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v)) }
}

/// Like [`half`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn half_512(v: __m512) -> __m256 {
    unsafe { _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v)) }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn sum4_halves(a: __m128, b: __m128, c: __m128, d: __m128) -> [f32; 4] {
    let mut out = [0.0; 4];
    // SAFETY: `out` holds four values.
    unsafe { _mm_storeu_ps(out.as_mut_ptr(), _mm_hadd_ps(_mm_hadd_ps(a, b), _mm_hadd_ps(c, d))) };
    out
}

#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) struct Avx512(pub(super) __m512);

#[cfg(target_arch = "x86_64")]
impl Vector for Avx512 {
    const LANES: usize = 16;
    const MAX_RHS: usize = 3;
    const EIGHT_ROWS: bool = true;

    #[inline(always)]
    unsafe fn splat(v: f32) -> Self {
        unsafe { Self(_mm512_set1_ps(v)) }
    }

    #[inline(always)]
    unsafe fn load(at: *const f32) -> Self {
        unsafe { Self(_mm512_loadu_ps(at)) }
    }

    #[inline(always)]
    unsafe fn load_f16(at: *const u8) -> Self {
        unsafe { Self(_mm512_cvtph_ps(_mm256_loadu_si256(at.cast()))) }
    }

    #[inline(always)]
    unsafe fn load_bf16(at: *const u8) -> Self {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast()));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)))
        }
    }

    #[inline(always)]
    unsafe fn load_fp8(at: *const u8) -> Self {
        unsafe {
            let wide = _mm512_cvtepu8_epi32(_mm_loadu_si128(at.cast()));
            let sign = _mm512_slli_epi32::<24>(_mm512_and_si512(wide, _mm512_set1_epi32(0x80)));
            let rest = _mm512_slli_epi32::<20>(_mm512_and_si512(wide, _mm512_set1_epi32(0x7f)));
            let tiny = _mm512_castsi512_ps(_mm512_or_si512(sign, rest));
            Self(_mm512_mul_ps(tiny, _mm512_set1_ps(FP8_SCALE)))
        }
    }

    #[inline(always)]
    unsafe fn load_int8(at: *const u8) -> Self {
        unsafe {
            let wide = _mm512_cvtepu8_epi32(_mm_loadu_si128(at.cast()));
            let sign = _mm512_slli_epi32::<24>(_mm512_and_si512(wide, _mm512_set1_epi32(0x80)));
            let magnitude = _mm512_cvtepi32_ps(_mm512_and_si512(wide, _mm512_set1_epi32(0x7f)));
            Self(_mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(magnitude), sign)))
        }
    }

    #[inline(always)]
    unsafe fn load_nibbles(at: *const u8, shift: u32) -> Self {
        unsafe {
            let words = _mm512_srl_epi32(_mm512_loadu_si512(at.cast()), _mm_cvtsi32_si128(shift as i32));
            Self(_mm512_cvtepi32_ps(_mm512_and_si512(words, _mm512_set1_epi32(15))))
        }
    }

    #[inline(always)]
    unsafe fn load_levels(at: *const u8, shift: u32, levels: &[u8; 16]) -> Self {
        unsafe {
            let levels = _mm512_broadcast_i32x4(_mm_loadu_si128(levels.as_ptr().cast()));
            let words = _mm512_srl_epi32(_mm512_loadu_si512(at.cast()), _mm_cvtsi32_si128(shift as i32));
            let bytes = _mm512_shuffle_epi8(levels, _mm512_and_si512(words, _mm512_set1_epi32(15)));
            Self(_mm512_cvtepi32_ps(_mm512_and_si512(bytes, _mm512_set1_epi32(255))))
        }
    }

    #[inline(always)]
    unsafe fn load_pairs(at: *const f32) -> Self {
        unsafe {
            let pair = _mm512_set1_pd(at.cast::<f64>().read_unaligned());
            Self(_mm512_permute_ps::<0b01_01_00_00>(_mm512_castpd_ps(pair)))
        }
    }

    #[inline(always)]
    unsafe fn load_fours(at: *const f32) -> Self {
        unsafe { Self(_mm512_broadcast_f32x4(_mm_loadu_ps(at))) }
    }

    #[inline(always)]
    unsafe fn store(self, at: *mut f32) {
        unsafe { _mm512_storeu_ps(at, self.0) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, a: Self, b: Self) -> Self {
        unsafe { Self(_mm512_fmadd_ps(self.0, a.0, b.0)) }
    }

    #[inline(always)]
    unsafe fn sum4(v: [Self; 4]) -> [f32; 4] {
        unsafe {
            let [a, b, c, d] = v;
            sum4_halves(half(half_512(a.0)), half(half_512(b.0)), half(half_512(c.0)), half(half_512(d.0)))
        }
    }
}
