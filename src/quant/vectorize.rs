//! Compiles a loop for the vector instructions of the machine. Only this file of `quant` holds
//! `unsafe`.
//!
//! The results are the same on any machine: the compiler neither reorders arithmetic nor fuses what
//! is not written as `mul_add`, which rounds once everywhere. The work, and what it calls, must be
//! `#[inline(always)]`; a closure in it, as for `map`, may not be compiled so.

/// Runs `work` as AVX-512 or AVX2 code if the machine has it, some times faster.
#[inline(always)]
pub fn vectorized<T>(work: impl FnOnce() -> T) -> T {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
        fn avx512<T>(work: impl FnOnce() -> T) -> T {
            work()
        }
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
        {
            // SAFETY: the instructions were detected.
            return unsafe { avx512(work) };
        }
    }
    vectorized_by_eight(work)
}

/// [`vectorized`] without AVX-512, which is faster for loops over a group's columns (measured on
/// the search of `q4h`: four times).
#[inline(always)]
pub fn vectorized_by_eight<T>(work: impl FnOnce() -> T) -> T {
    #[cfg(target_arch = "x86_64")]
    {
        // A caller with AVX-512 would make it AVX-512 code again.
        #[inline(never)]
        #[target_feature(enable = "avx2,fma")]
        fn avx2<T>(work: impl FnOnce() -> T) -> T {
            work()
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the instructions were detected.
            return unsafe { avx2(work) };
        }
    }
    work()
}
