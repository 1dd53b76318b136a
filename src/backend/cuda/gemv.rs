//! GEMVs: one row of activations times a weight, or up to [`MOST_ROWS`] rows times a packed weight.
//! Kernels: `kernels/gemv.cu` and `kernels/packed_gemv.cu`.

use super::super::Norm;
use super::abi::Arg::{self, F32, I32, Ptr};
use super::cublaslt::Gemm;
use super::gpu::Cuda;
use super::kernels::{Fused, Kernel};
use super::memory::{Stored, Weight};
use super::{gemm, packed};

/// Maximum rows of activations.
pub(super) const MOST_ROWS: usize = 4;
/// Columns of a packed weight that share words. A row's sums in a round take at most the shared
/// memory of [`SUM_COLS`] columns, plus [`STRIP_COLS`] columns for each strip: `packed_gemv.cuh`.
const GROUP_COLS: usize = 256;
const SUM_COLS: usize = 256;
const STRIP_COLS: usize = 1024;
/// Rows of a bf16 weight that a block multiplies at once.
const ROWS: usize = 8;
/// Warps that an SM runs at once.
const WARPS_PER_SM: usize = 16;
/// Maximum groups of rows per block. If that is not enough, each group gets its own block, and the
/// GPU balances fast and slow blocks.
const MOST_ROUNDS: usize = 4;
/// Columns of a bf16 weight per thread of a block that keeps x in registers, and the maximum
/// threads of such a block.
const COLS: usize = 16;
const MOST_THREADS: usize = 256;

/// How a kernel writes its product: stored, added to the output, or through SwiGLU.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    Store,
    Add,
    Swiglu,
}

/// Multiplies several rows by a packed weight, with one kernel for each part. Returns false if no
/// kernel fits.
fn multiply_rows(cuda: &Cuda, weight: &Weight, gemm: &Gemm, norm: Option<&Norm<'_, Cuda>>, then: Then) -> bool {
    let swiglu = then == Then::Swiglu;
    let own = weight.parts.iter().any(|part| packed::is_own(part.code));
    if own || swiglu && weight.parts.len() > 1 {
        return false;
    }
    let (driver, mut launches) = (&cuda.driver, Vec::new());
    let cols = |strips: usize| gemm.m * (gemm.k.next_multiple_of(GROUP_COLS) + SUM_COLS + strips * STRIP_COLS);
    for part in &weight.parts {
        let kernel = Kernel::PackedGemvRows(part.code);
        let most = kernel.entry().threads;
        // Prefer as many warps as shared memory has room for, then sums of more strips.
        let mut shapes = [(most, 4), (most, 2), (most / 2, 2)].into_iter();
        let fits = |&(threads, strips): &(usize, usize)| driver.supports_width(kernel, threads, cols(strips));
        let Some((threads, strips)) = shapes.find(fits) else { return false };
        launches.push((gemm::of_part(gemm, part), kernel, threads, strips));
    }
    let ld = if swiglu { gemm.n / 2 } else { gemm.n };
    for (part, kernel, threads, strips) in launches {
        let mut args = gemm::arguments(&Gemm { ld, ..part });
        args.splice(4..4, norm_arguments(norm));
        args.extend([swiglu as i32, (then == Then::Add) as i32, strips as i32].map(I32));
        let blocks = packed::even_blocks(cuda, &part, swiglu);
        driver.launch_of_width(kernel, [blocks, 1, 1], threads, cols(strips), &args);
    }
    true
}

/// Arguments of a norm; the address is 0 if there is none.
fn norm_arguments<'a>(norm: Option<&Norm<'_, Cuda>>) -> [Arg<'a>; 4] {
    let Some(norm) = norm else { return [Ptr(0), F32(0.0), I32(0), Ptr(0)] };
    [Ptr(norm.weight.ptr()), F32(norm.eps), I32(norm.layer as i32), Ptr(norm.non_finite.ptr())]
}

/// Arguments of a kernel for one row.
fn arguments<'a>(gemm: &Gemm, norm: Option<&Norm<'_, Cuda>>, then: Then) -> Vec<Arg<'a>> {
    let mut args = gemm::arguments(gemm);
    args.truncate(6);
    match norm {
        Some(_) => drop(args.splice(4..4, norm_arguments(norm))),
        None => args.push(I32((then == Then::Add) as i32)),
    }
    args
}

/// Multiplies one row by a packed weight, with one kernel for each part.
fn multiply_packed(cuda: &Cuda, weight: &Weight, gemm: &Gemm, norm: Option<&Norm<'_, Cuda>>, then: Then) -> bool {
    // SwiGLU is fused only with the norm before it, and only if one kernel multiplies gate and up.
    let swiglu = then == Then::Swiglu;
    if swiglu && (norm.is_none() || weight.parts.len() > 1) {
        return false;
    }
    let fused = Fused::of(norm.is_some(), swiglu);
    let driver = &cuda.driver;
    let mut launches = Vec::new();
    for part in &weight.parts {
        let own = packed::is_own(part.code);
        let bits = part.code.bits() as u8;
        let kernel = if own { Kernel::OwnGemv(bits, fused) } else { Kernel::PackedGemv(part.code, fused) };
        // With less shared memory (99 KB), blocks have half the warps.
        let most = kernel.entry().threads;
        let threads = [most, most / 2].into_iter().find(|&threads| driver.supports_width(kernel, threads, gemm.k));
        let Some(threads) = threads else { return false };
        launches.push((gemm::of_part(gemm, part), kernel, threads, own.then(|| packed::words(part.code))));
    }
    for (part, kernel, threads, words) in launches {
        let mut args = arguments(&part, norm, then);
        args.extend(words);
        let blocks = packed::even_blocks(cuda, &part, swiglu);
        driver.launch_of_width(kernel, [blocks, 1, 1], threads, gemm.k, &args);
    }
    true
}

/// Computes `out = x weight^T + bias` with x in bf16, and applies `then`. With a norm, multiplies
/// `rms_norm(x)` with x in f32. Returns false if there is no kernel for this number of rows, or
/// none that this GPU runs.
pub(super) fn multiply(cuda: &Cuda, weight: &Weight, gemm: &Gemm, norm: Option<&Norm<'_, Cuda>>, then: Then) -> bool {
    if gemm.m > 1 {
        let packed = matches!(weight.stored, Stored::Packed) && gemm.m <= MOST_ROWS;
        return packed && multiply_rows(cuda, weight, gemm, norm, then);
    }
    if let Stored::Packed = weight.stored {
        return multiply_packed(cuda, weight, gemm, norm, then);
    }
    // With a norm, the kernel keeps x in registers.
    if norm.is_some() && gemm.k > COLS * MOST_THREADS {
        return false;
    }
    let narrow = norm.is_some() && gemm.k <= COLS * MOST_THREADS / 2;
    let threads = if narrow { MOST_THREADS / 2 } else { MOST_THREADS };
    let kernel = Kernel::GemvBf16(Fused::of(norm.is_some(), then == Then::Swiglu));
    // If few rounds are needed, launch as many blocks as run at once, all with the same number of
    // groups except the last ones. Otherwise launch a block for each group.
    let groups = gemm.n.div_ceil(ROWS);
    let rounds = groups.div_ceil(WARPS_PER_SM / (threads / 32) * cuda.driver.sm_count);
    let blocks = if rounds <= MOST_ROUNDS { groups.div_ceil(rounds) } else { groups };
    cuda.driver.launch(kernel, [blocks, 1, 1], threads, &arguments(gemm, norm, then));
    true
}
