//! Instruction sets that this machine has, and how a kernel is compiled for each.

/// Columns of a dot product that are summed together. Longer products are sums of such sums, so
/// that a GEMM can go through its matrices in blocks that fit the caches.
pub(in crate::backend::cpu) const BLOCK_COLS: usize = 1024;

/// Element format of a stored row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backend::cpu) enum Format {
    F32,
    F16,
    Bf16,
    /// e4m3fn; the caller applies the row's scale.
    Fp8,
    /// Sign and 7-bit magnitude; the caller applies the row's scale.
    Int8,
}

impl Format {
    pub fn size_bytes(self) -> usize {
        match self {
            Format::F32 => 4,
            Format::F16 | Format::Bf16 => 2,
            Format::Fp8 | Format::Int8 => 1,
        }
    }
}

/// An instruction set that this machine was detected to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backend::cpu) struct Isa(pub(super) Set);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Set {
    Exact,
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl Isa {
    /// The same bits on every machine, at the speed of AVX2 where there is AVX2 or NEON.
    pub const EXACT: Isa = Isa(Set::Exact);

    /// All that this machine can run, fastest first.
    pub fn available() -> Vec<Isa> {
        let mut levels = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            if has_avx512() {
                levels.push(Isa(Set::Avx512));
            }
            if has_avx2() {
                levels.push(Isa(Set::Avx2));
            }
        }
        #[cfg(target_arch = "aarch64")]
        levels.push(Isa(Set::Neon));
        levels.push(Isa(Set::Portable));
        levels
    }

    pub fn best() -> Isa {
        Self::available()[0]
    }

    pub fn name(self) -> &'static str {
        match self.0 {
            Set::Exact => "exact",
            Set::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 => "avx512",
            #[cfg(target_arch = "aarch64")]
            Set::Neon => "neon",
        }
    }
}

/// Whether this machine has what [`Set::Avx2`] uses.
#[cfg(target_arch = "x86_64")]
pub(super) fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

/// Whether this machine has what [`Set::Avx512`] uses.
#[cfg(target_arch = "x86_64")]
pub(super) fn has_avx512() -> bool {
    has_avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

/// Builds `[$value; $len]` with `$value` evaluated for each index, by a loop that the compiler
/// unrolls. Intrinsics in a closure, as for `std::array::from_fn`, stay calls if the closure is
/// compiled before it is inlined. Only link-time optimisation would avoid that.
macro_rules! array_of {
    ($len:expr, $i:ident => $value:expr) => {{
        let mut all = {
            let $i = 0;
            [$value; $len]
        };
        for $i in 1..$len {
            all[$i] = $value;
        }
        all
    }};
}
pub(super) use array_of;

/// Compiles `$body`, which must be `#[inline(always)]` and generic over a vector type, for every
/// instruction set, and calls the one that `$isa` names.
macro_rules! by_isa {
    ($isa:expr, $body:ident :: <$($generic:ident),*> ($($arg:ident : $ty:ty),* $(,)?)) => {{
        #[cfg(target_arch = "x86_64")]
        #[allow(clippy::too_many_arguments)]
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        unsafe fn avx512<$($generic: Elem),*>($($arg: $ty),*) {
            // SAFETY: the caller's contract is `$body`'s.
            unsafe { $body::<Avx512, $($generic),*>($($arg),*) }
        }
        #[cfg(target_arch = "x86_64")]
        #[allow(clippy::too_many_arguments)]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn avx2<$($generic: Elem),*>($($arg: $ty),*) {
            // SAFETY: the caller's contract is `$body`'s.
            unsafe { $body::<Avx2, $($generic),*>($($arg),*) }
        }
        // SAFETY: an `Isa` exists only if its instructions were detected. The function that uses
        // this macro upholds the rest of `$body`'s contract.
        unsafe {
            match $isa.0 {
                #[cfg(target_arch = "x86_64")]
                Set::Exact if $crate::backend::cpu::simd::isa::has_avx2() => avx2::<$($generic),*>($($arg),*),
                #[cfg(target_arch = "aarch64")]
                Set::Exact => $body::<Neon, $($generic),*>($($arg),*),
                #[cfg(not(target_arch = "aarch64"))]
                Set::Exact => $body::<Exact, $($generic),*>($($arg),*),
                Set::Portable => $body::<Portable, $($generic),*>($($arg),*),
                #[cfg(target_arch = "x86_64")]
                Set::Avx2 => avx2::<$($generic),*>($($arg),*),
                #[cfg(target_arch = "x86_64")]
                Set::Avx512 => avx512::<$($generic),*>($($arg),*),
                #[cfg(target_arch = "aarch64")]
                Set::Neon => $body::<Neon, $($generic),*>($($arg),*),
            }
        }
    }};
}
pub(super) use by_isa;
