//! [`Vector`] over NEON, which every aarch64 processor has: eight lanes in two registers.

use super::vector::{FP8_SCALE, Vector};
use std::arch::aarch64::*;

#[derive(Clone, Copy)]
pub(super) struct Neon([float32x4_t; 2]);

/// Eight bytes as u32.
#[inline(always)]
unsafe fn wide(at: *const u8) -> [uint32x4_t; 2] {
    // SAFETY: the pointer is valid for eight bytes.
    unsafe {
        let half = vmovl_u8(vld1_u8(at));
        [vmovl_u16(vget_low_u16(half)), vmovl_high_u16(half)]
    }
}

// SAFETY of the intrinsics below: NEON is part of the target, and pointers by the trait's contract.
impl Vector for Neon {
    const LANES: usize = 8;
    const MAX_RHS: usize = 2;

    #[inline(always)]
    unsafe fn splat(v: f32) -> Self {
        unsafe { Self([vdupq_n_f32(v); 2]) }
    }

    #[inline(always)]
    unsafe fn load(at: *const f32) -> Self {
        unsafe { Self([vld1q_f32(at), vld1q_f32(at.add(4))]) }
    }

    #[inline(always)]
    unsafe fn load_f16(at: *const u8) -> Self {
        let (low, high);
        // SAFETY: the conversions are part of NEON and touch their operands only. (Rust has them as
        // intrinsics of an unstable type.)
        unsafe {
            let halves = vreinterpretq_u16_u8(vld1q_u8(at));
            std::arch::asm!(
                "fcvtl {low:v}.4s, {halves:v}.4h",
                "fcvtl2 {high:v}.4s, {halves:v}.8h",
                halves = in(vreg) halves,
                low = out(vreg) low,
                high = lateout(vreg) high,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        Self([low, high])
    }

    #[inline(always)]
    unsafe fn load_bf16(at: *const u8) -> Self {
        unsafe {
            let halves = vreinterpretq_u16_u8(vld1q_u8(at));
            let wide = [vshll_n_u16::<16>(vget_low_u16(halves)), vshll_high_n_u16::<16>(halves)];
            Self(wide.map(|v| vreinterpretq_f32_u32(v)))
        }
    }

    #[inline(always)]
    unsafe fn load_fp8(at: *const u8) -> Self {
        unsafe {
            Self(wide(at).map(|code| {
                let sign = vshlq_n_u32::<24>(vandq_u32(code, vdupq_n_u32(0x80)));
                let rest = vshlq_n_u32::<20>(vandq_u32(code, vdupq_n_u32(0x7f)));
                vmulq_n_f32(vreinterpretq_f32_u32(vorrq_u32(sign, rest)), FP8_SCALE)
            }))
        }
    }

    #[inline(always)]
    unsafe fn load_int8(at: *const u8) -> Self {
        unsafe {
            Self(wide(at).map(|code| {
                let sign = vshlq_n_u32::<24>(vandq_u32(code, vdupq_n_u32(0x80)));
                let magnitude = vcvtq_f32_u32(vandq_u32(code, vdupq_n_u32(0x7f)));
                vreinterpretq_f32_u32(vorrq_u32(vreinterpretq_u32_f32(magnitude), sign))
            }))
        }
    }

    #[inline(always)]
    unsafe fn load_nibbles(at: *const u8, shift: u32) -> Self {
        unsafe {
            // A shift by a negative number of bits is one to the right.
            let right = vdupq_n_s32(-(shift as i32));
            Self([at, at.add(16)].map(|at| {
                let words = vshlq_u32(vreinterpretq_u32_u8(vld1q_u8(at)), right);
                vcvtq_f32_u32(vandq_u32(words, vdupq_n_u32(15)))
            }))
        }
    }

    #[inline(always)]
    unsafe fn load_levels(at: *const u8, shift: u32, levels: &[u8; 16]) -> Self {
        unsafe {
            let (levels, right) = (vld1q_u8(levels.as_ptr()), vdupq_n_s32(-(shift as i32)));
            Self([at, at.add(16)].map(|at| {
                let words = vshlq_u32(vreinterpretq_u32_u8(vld1q_u8(at)), right);
                let nibbles = vreinterpretq_u8_u32(vandq_u32(words, vdupq_n_u32(15)));
                let bytes = vreinterpretq_u32_u8(vqtbl1q_u8(levels, nibbles));
                vcvtq_f32_u32(vandq_u32(bytes, vdupq_n_u32(255)))
            }))
        }
    }

    #[inline(always)]
    unsafe fn load_pairs(at: *const f32) -> Self {
        unsafe {
            let pair = vld1_f32(at);
            Self([vcombine_f32(vdup_lane_f32::<0>(pair), vdup_lane_f32::<1>(pair)); 2])
        }
    }

    #[inline(always)]
    unsafe fn load_fours(at: *const f32) -> Self {
        unsafe { Self([vld1q_f32(at); 2]) }
    }

    #[inline(always)]
    unsafe fn store(self, at: *mut f32) {
        unsafe {
            vst1q_f32(at, self.0[0]);
            vst1q_f32(at.add(4), self.0[1]);
        }
    }

    #[inline(always)]
    unsafe fn mul_add(self, a: Self, b: Self) -> Self {
        unsafe { Self([vfmaq_f32(b.0[0], self.0[0], a.0[0]), vfmaq_f32(b.0[1], self.0[1], a.0[1])]) }
    }

    #[inline(always)]
    unsafe fn sum4(v: [Self; 4]) -> [f32; 4] {
        let mut out = [0.0; 4];
        unsafe {
            let h = v.map(|v| vaddq_f32(v.0[0], v.0[1]));
            vst1q_f32(out.as_mut_ptr(), vpaddq_f32(vpaddq_f32(h[0], h[1]), vpaddq_f32(h[2], h[3])));
        }
        out
    }
}
