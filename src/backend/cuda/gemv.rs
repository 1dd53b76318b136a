//! One row of activations times a bf16 weight: `kernels/gemv.cu`.

use super::super::Norm;
use super::Cuda;
use super::abi::Arg::{self, F32, I32, Ptr};
use super::cublaslt::Gemm;
use super::gemm;
use super::kernels::Kernel;

/// Rows of the weight that a block multiplies at once.
const ROWS: usize = 8;
/// Warps that an SM runs at once.
const WARPS_PER_SM: usize = 16;
/// Groups of rows that a block walks over at most: with more, blocks that end early take over from slow ones.
const MOST_ROUNDS: usize = 4;

/// The kernels for weights of up to so many columns.
struct OneRow {
    cols: usize,
    warps: usize,
    plain: Kernel,
    swiglu: Kernel,
    add: Kernel,
    /// With the norm in front: the plain kernel, and that with SwiGLU.
    norm: Option<[Kernel; 2]>,
}

const GEMVS: [OneRow; 3] = {
    use Kernel::*;
    [
        OneRow {
            cols: 2048,
            warps: 4,
            plain: GemvNarrow,
            swiglu: GemvNarrowSwiglu,
            add: GemvNarrowAdd,
            norm: Some([GemvNarrowNorm, GemvNarrowNormSwiglu]),
        },
        OneRow {
            cols: 4096,
            warps: 8,
            plain: GemvWide,
            swiglu: GemvWideSwiglu,
            add: GemvWideAdd,
            norm: Some([GemvWideNorm, GemvWideNormSwiglu]),
        },
        OneRow { cols: usize::MAX, warps: 8, plain: Gemv, swiglu: GemvSwiglu, add: GemvAdd, norm: None },
    ]
};

/// `out = x weight^T + bias`, x in bf16; fused: SwiGLU of that, in bf16.
pub(super) fn matmul(cuda: &Cuda, gemm: &Gemm, fused: bool) {
    let gemv = of(gemm.k);
    gemv.launch(cuda, if fused { gemv.swiglu } else { gemv.plain }, gemm, &arguments(gemm));
}

/// `out += x weight^T + bias`, x in bf16.
pub(super) fn add(cuda: &Cuda, gemm: &Gemm) {
    let gemv = of(gemm.k);
    gemv.launch(cuda, gemv.add, gemm, &arguments(gemm));
}

/// `out = rms_norm(x) weight^T + bias`, x in f32; fused: SwiGLU of that, in bf16. `non_finite` is the address of the flag.
/// False if there is no kernel for a weight so wide.
pub(super) fn norm(cuda: &Cuda, gemm: &Gemm, norm: &Norm<'_, Cuda>, non_finite: u64, fused: bool) -> bool {
    let gemv = of(gemm.k);
    let Some(kernels) = gemv.norm else { return false };
    let [rows, cols, layer] = [gemm.n, gemm.k, norm.layer].map(|n| I32(n as i32));
    let [out, x, weight, bias] = [gemm.out, gemm.x, gemm.weight, gemm.bias].map(Ptr);
    let scale = Ptr(norm.weight.ptr());
    let args = [out, x, weight, bias, scale, F32(norm.eps), layer, Ptr(non_finite), rows, cols];
    gemv.launch(cuda, kernels[fused as usize], gemm, &args);
    true
}

/// The kernels for a weight of `cols` columns.
fn of(cols: usize) -> &'static OneRow {
    GEMVS.iter().find(|gemv| cols <= gemv.cols).expect("the last is for any width")
}

fn arguments<'a>(gemm: &Gemm) -> Vec<Arg<'a>> {
    let mut args = gemm::arguments(gemm);
    args.truncate(6);
    args
}

impl OneRow {
    /// Launches a block for each group of rows; or, where those are few rounds, as many as run at once, all with the same
    /// number of groups but for the last ones.
    fn launch(&self, cuda: &Cuda, kernel: Kernel, gemm: &Gemm, args: &[Arg<'_>]) {
        let groups = gemm.n.div_ceil(ROWS);
        let rounds = groups.div_ceil(WARPS_PER_SM / self.warps * cuda.driver.sm_count);
        let blocks = if rounds <= MOST_ROUNDS { groups.div_ceil(rounds) } else { groups };
        cuda.driver.launch(kernel, [blocks, 1, 1], 32 * self.warps, args);
    }
}
