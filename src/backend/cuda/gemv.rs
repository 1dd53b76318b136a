//! One row of activations times a bf16 weight: `kernels/gemv.cu`.

use super::super::Norm;
use super::Cuda;
use super::abi::Arg::{self, F32, I32, Ptr};
use super::cublaslt::Gemm;
use super::gemm;
use super::kernels::{Fused, Kernel};

/// Rows of the weight that a block multiplies at once.
const ROWS: usize = 8;
/// Warps that an SM runs at once.
const WARPS_PER_SM: usize = 16;
/// Groups of rows that a block walks over at most: with more, blocks that end early take over from slow ones.
const MOST_ROUNDS: usize = 4;
/// Most columns of a GEMV with the norm before it.
const MAX_NORM_COLS: usize = 4096;

/// The instances for weights of up to so many columns, the last for any.
const INSTANCES: [(usize, &str); 3] = [(2048, "_narrow"), (4096, "_wide"), (usize::MAX, "")];

/// The kernel for a weight of `cols` columns.
fn kernel(cols: usize, fused: Fused) -> Kernel {
    let instance = INSTANCES.iter().find(|(most, _)| cols <= *most).expect("the last is for any width");
    // There is one instance of SwiGLU without a norm: decode has it with the norm where that is fused.
    Kernel::GemvBf16(if fused == Fused::Swiglu { "" } else { instance.1 }, fused)
}

/// `out = x weight^T + bias`, x in bf16; fused: SwiGLU of that, in bf16.
pub(super) fn matmul(cuda: &Cuda, gemm: &Gemm, fused: bool) {
    launch(cuda, kernel(gemm.k, Fused::swiglu(fused)), gemm, &arguments(gemm));
}

/// `out += x weight^T + bias`, x in bf16.
pub(super) fn add(cuda: &Cuda, gemm: &Gemm) {
    launch(cuda, kernel(gemm.k, Fused::Add), gemm, &arguments(gemm));
}

/// `out = rms_norm(x) weight^T + bias`, x in f32; fused: SwiGLU of that, in bf16.
/// False if there is no kernel for a weight so wide.
pub(super) fn norm(cuda: &Cuda, gemm: &Gemm, norm: &Norm<'_, Cuda>, fused: bool) -> bool {
    if gemm.k > MAX_NORM_COLS {
        return false;
    }
    let [rows, cols, layer] = [gemm.n, gemm.k, norm.layer].map(|n| I32(n as i32));
    let [out, x, weight, bias] = [gemm.out, gemm.x, gemm.weight, gemm.bias].map(Ptr);
    let scale = Ptr(norm.weight.ptr());
    let args = [out, x, weight, bias, scale, F32(norm.eps), layer, Ptr(norm.non_finite.ptr()), rows, cols];
    launch(cuda, kernel(gemm.k, if fused { Fused::NormSwiglu } else { Fused::Norm }), gemm, &args);
    true
}

fn arguments<'a>(gemm: &Gemm) -> Vec<Arg<'a>> {
    let mut args = gemm::arguments(gemm);
    args.truncate(6);
    args
}

/// Launches a block for each group of rows; or, where those are few rounds, as many as run at once, all with the same
/// number of groups but for the last ones.
fn launch(cuda: &Cuda, kernel: Kernel, gemm: &Gemm, args: &[Arg<'_>]) {
    let (groups, threads) = (gemm.n.div_ceil(ROWS), kernel.entry().threads);
    let rounds = groups.div_ceil(WARPS_PER_SM / (threads / 32) * cuda.driver.sm_count);
    let blocks = if rounds <= MOST_ROUNDS { groups.div_ceil(rounds) } else { groups };
    cuda.driver.launch(kernel, [blocks, 1, 1], threads, args);
}
