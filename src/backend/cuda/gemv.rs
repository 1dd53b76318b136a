//! One row of activations times a weight, and up to [`MOST_ROWS`] times a packed one: `kernels/gemv.cu` and
//! `kernels/packed_gemv.cu`.

use super::super::Norm;
use super::Cuda;
use super::abi::Arg::{self, F32, I32, Ptr};
use super::cublaslt::Gemm;
use super::kernels::{Fused, Kernel};
use super::memory::{Stored, Weight};
use super::{gemm, packed};

/// Most rows of activations.
pub(super) const MOST_ROWS: usize = 4;
/// Columns of a packed weight that have words in common. A row's sums of a round of strips take no more shared memory than so many
/// columns, and so many more for each strip: `packed_gemv.cuh`.
const GROUP_COLS: usize = 256;
const SUM_COLS: usize = 256;
const STRIP_COLS: usize = 1024;
/// Rows of a bf16 weight that a block multiplies at once.
const ROWS: usize = 8;
/// Warps that an SM runs at once.
const WARPS_PER_SM: usize = 16;
/// Groups of rows that a block walks over at most: with more, blocks that end early take over from slow ones.
const MOST_ROUNDS: usize = 4;
/// Columns of a bf16 weight to a thread of a block that keeps x in registers, and its most threads.
const COLS: usize = 16;
const MOST_THREADS: usize = 256;

/// What a kernel does with its product.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    Store,
    Add,
    Swiglu,
}

/// Several rows by a packed weight.
fn multiply_rows(cuda: &Cuda, weight: &Weight, gemm: &Gemm, norm: Option<&Norm<'_, Cuda>>, then: Then) -> bool {
    let [part] = &weight.parts[..] else { return false };
    if packed::is_own(weight, part.code) {
        return false;
    }
    let (driver, kernel) = (&cuda.driver, Kernel::PackedGemvRows(part.code));
    let most = kernel.entry().threads;
    let cols = |strips: usize| gemm.m * (gemm.k.next_multiple_of(GROUP_COLS) + SUM_COLS + strips * STRIP_COLS);
    // As many warps as shared memory has room for, and sums of as many strips.
    let mut shapes = [(most, 4), (most, 2), (most / 2, 2)].into_iter();
    let fits = |&(threads, strips): &(usize, usize)| driver.supports_width(kernel, threads, cols(strips));
    let Some((threads, strips)) = shapes.find(fits) else { return false };
    let swiglu = then == Then::Swiglu;
    let ld = if swiglu { gemm.n / 2 } else { gemm.n };
    let mut args = gemm::arguments(&Gemm { ld, ..*gemm });
    args.splice(4..4, norm_arguments(norm));
    args.extend([swiglu as i32, (then == Then::Add) as i32, strips as i32].map(I32));
    let blocks = packed::even_blocks(cuda, gemm, swiglu);
    driver.launch_of_width(kernel, [blocks, 1, 1], threads, cols(strips), &args);
    true
}

/// The arguments of a norm; none is an address of 0.
fn norm_arguments<'a>(norm: Option<&Norm<'_, Cuda>>) -> [Arg<'a>; 4] {
    let Some(norm) = norm else { return [Ptr(0), F32(0.0), I32(0), Ptr(0)] };
    [Ptr(norm.weight.ptr()), F32(norm.eps), I32(norm.layer as i32), Ptr(norm.non_finite.ptr())]
}

/// The arguments of a kernel of one row.
fn arguments<'a>(gemm: &Gemm, norm: Option<&Norm<'_, Cuda>>, then: Then) -> Vec<Arg<'a>> {
    let mut args = gemm::arguments(gemm);
    args.truncate(6);
    match norm {
        Some(_) => drop(args.splice(4..4, norm_arguments(norm))),
        None => args.push(I32((then == Then::Add) as i32)),
    }
    args
}

/// One row by a packed weight: a kernel for each part.
fn multiply_packed(cuda: &Cuda, weight: &Weight, gemm: &Gemm, norm: Option<&Norm<'_, Cuda>>, then: Then) -> bool {
    // SwiGLU comes with the norm before it, and gate and up in one kernel.
    let swiglu = then == Then::Swiglu;
    if swiglu && (norm.is_none() || weight.parts.len() > 1) {
        return false;
    }
    let fused = Fused::of(norm.is_some(), swiglu);
    let driver = &cuda.driver;
    let mut launches = Vec::new();
    for part in &weight.parts {
        let own = packed::is_own(weight, part.code);
        let planes = part.code.planes() as u8;
        let kernel = if own { Kernel::OwnGemv(planes, fused) } else { Kernel::PackedGemv(part.code, fused) };
        // With less shared memory (99 KB) blocks have half the warps.
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

/// `out = x weight^T + bias`, x in bf16, and what is fused; or, with a norm, of `rms_norm(x)`, x in f32. False if there is no kernel
/// for so many rows, or none that this GPU runs.
pub(super) fn multiply(cuda: &Cuda, weight: &Weight, gemm: &Gemm, norm: Option<&Norm<'_, Cuda>>, then: Then) -> bool {
    if gemm.m > 1 {
        let packed = matches!(weight.stored, Stored::Packed) && gemm.m <= MOST_ROWS;
        return packed && multiply_rows(cuda, weight, gemm, norm, then);
    }
    if let Stored::Packed = weight.stored {
        return multiply_packed(cuda, weight, gemm, norm, then);
    }
    // With a norm, x stays in registers.
    if norm.is_some() && gemm.k > COLS * MOST_THREADS {
        return false;
    }
    let narrow = norm.is_some() && gemm.k <= COLS * MOST_THREADS / 2;
    let threads = if narrow { MOST_THREADS / 2 } else { MOST_THREADS };
    let kernel = Kernel::GemvBf16(Fused::of(norm.is_some(), then == Then::Swiglu));
    // A block for each group of rows; or, where those are few rounds, as many as run at once, all with the same number of
    // groups but for the last ones.
    let groups = gemm.n.div_ceil(ROWS);
    let rounds = groups.div_ceil(WARPS_PER_SM / (threads / 32) * cuda.driver.sm_count);
    let blocks = if rounds <= MOST_ROUNDS { groups.div_ceil(rounds) } else { groups };
    cuda.driver.launch(kernel, [blocks, 1, 1], threads, &arguments(gemm, norm, then));
    true
}
