//! What multiplies: bf16 weights and activations go to tensor cores, many rows of them through libcublasLt where there
//! is one, all else to plain kernels in f32.

use super::abi::Arg::{self, I32, Ptr};
use super::cublaslt::Product;
use super::kernels::Kernel;
use super::memory::{Acts, Buf, Weight};
use super::tiles::tiles;
use super::{BLOCK, Cuda};
use crate::tensor::DType;

/// Up to so many rows of activations the plain kernels multiply row by row of the weights.
const FEW_ROWS: usize = 8;
/// Side of the tiles of the plain kernels.
const TILE: usize = 64;
/// Rows of the weight that a block of `gemv` takes.
const GEMV_ROWS: usize = 4;
/// Up to so many rows `gemm_few_32` takes; it reads the weight once.
pub(super) const SOME_ROWS: usize = 32;
/// Rows of the weight that a block of `gemm_few` takes.
const FEW_TILE_ROWS: usize = 32;
/// Tokens of the tiles of `gemm_tiles` and of `gemm_wgmma`; rows of the former, and of `gemm_tiles_small`.
const TILE_TOKENS: usize = 128;
const TILE_ROWS: usize = 256;
const SMALL_TILE_ROWS: usize = 128;

/// Whether kernels for tensor cores multiply with it.
pub(super) fn on_tensor_cores(weight: &Weight) -> bool {
    weight.dtype == DType::Bf16 && weight.cols.is_multiple_of(8)
}

/// `out = x weight^T + bias`
pub(super) fn product(cuda: &Cuda, out: u64, x: &Acts, weight: &Weight, bias: Option<&Buf<f32>>, n: usize) {
    x.holds(n);
    let p = whole(out, x.ptr(), weight, bias, n);
    if !x.rounded {
        return exact(cuda, &p, weight.dtype);
    }
    assert!(on_tensor_cores(weight), "activations in bf16 for a weight that is multiplied in f32");
    let library = cuda.cublaslt.as_ref().filter(|_| n > SOME_ROWS);
    if !library.is_some_and(|library| library.multiply(&cuda.driver, &p)) {
        rounded(cuda, &p, false);
    }
}

/// Rows of a product of the library's that are gated at a time: what lies between stays in the second-level cache.
pub(super) const GATED_ROWS: usize = 512;

/// `out = silu(gate) * up` of `[gate | up] = x weight^T + bias`, out in bf16.
pub(super) fn gated(
    cuda: &Cuda,
    out: &mut Acts,
    scratch: &mut Acts,
    x: &Acts,
    weight: &Weight,
    bias: Option<&Buf<f32>>,
    n: usize,
) {
    assert!(out.rounded && 2 * out.width == weight.rows, "the gate's output does not fit");
    out.holds(n);
    x.holds(n);
    let mut done = 0;
    if let Some(library) = cuda.cublaslt.as_ref().filter(|_| n > SOME_ROWS && scratch.rows() > 0) {
        while done < n {
            let part = scratch.rows().min(n - done);
            if !library.multiply(&cuda.driver, &whole(scratch.ptr(), x.row(done), weight, bias, part)) {
                break;
            }
            gate(cuda, out, done, scratch, part);
            done += part;
        }
    }
    if done < n {
        rounded(cuda, &whole(out.row(done), x.row(done), weight, bias, n - done), true);
    }
}

/// `out = silu(gate) * up` of rows `[gate | up]`, into the rows from `first` on.
pub(super) fn gate(cuda: &Cuda, out: &mut Acts, first: usize, gate_up: &Acts, n: usize) {
    out.holds(first + n);
    gate_up.holds_exact(n);
    let kernel = if cuda.planted.get() { Kernel::SwigluWrong } else { Kernel::Swiglu };
    let args = [Ptr(out.row(first)), I32(out.rounded as i32), Ptr(gate_up.ptr()), I32(out.width as i32)];
    cuda.driver.launch(kernel, [out.width.div_ceil(4 * BLOCK), n, 1], BLOCK, &args);
}

fn whole(out: u64, x: u64, weight: &Weight, bias: Option<&Buf<f32>>, n: usize) -> Product {
    let bias = bias.map_or(0, Buf::ptr);
    Product { out, x, weight: weight.ptr(), bias, rows: weight.rows, cols: weight.cols, n }
}

/// What the kernels take, rows of activations last.
fn arguments<'a>(p: &Product) -> Vec<Arg<'a>> {
    let [rows, cols, n] = [p.rows, p.cols, p.n].map(|n| I32(n as i32));
    vec![Ptr(p.out), Ptr(p.x), Ptr(p.weight), Ptr(p.bias), rows, cols, n]
}

/// In bf16 on tensor cores.
fn rounded(cuda: &Cuda, p: &Product, gated: bool) {
    use Kernel::*;
    let mut args = arguments(p);
    let pick = |[plain, with_gate]: [Kernel; 2]| if gated { with_gate } else { plain };
    if p.n == 1 {
        args.pop();
        return cuda.driver.launch(pick([Gemv, GemvGated]), [p.rows.div_ceil(GEMV_ROWS), 1, 1], 128, &args);
    }
    if p.n <= SOME_ROWS {
        let blocks = p.rows.div_ceil(FEW_TILE_ROWS);
        // Where each multiprocessor has one block at most, it may as well have all the memory.
        let alone = blocks <= cuda.driver.multiprocessors && cuda.driver.takes(GemmFew32Deep);
        let kernels = match p.n {
            0..=8 => [GemmFew8, GemmFew8Gated],
            9..=16 => [GemmFew16, GemmFew16Gated],
            _ if alone => [GemmFew32Deep, GemmFew32Gated],
            _ => [GemmFew32, GemmFew32Gated],
        };
        return cuda.driver.launch(pick(kernels), [blocks, 1, 1], 256, &args);
    }
    if cuda.driver.takes(GemmWgmma256) {
        return on_hopper(cuda, p, gated);
    }
    // Wide tiles where there are enough of them for the card, and where it has the memory for their stages.
    let tokens = p.n.div_ceil(TILE_TOKENS);
    let enough = tokens * p.rows.div_ceil(TILE_ROWS) >= cuda.driver.multiprocessors;
    let (kernels, rows, threads) = if enough && cuda.driver.takes(GemmTiles) {
        ([GemmTiles, GemmTilesGated], TILE_ROWS, 256)
    } else {
        ([GemmTilesSmall, GemmTilesSmallGated], SMALL_TILE_ROWS, 128)
    };
    cuda.driver.launch(pick(kernels), [tokens, p.rows.div_ceil(rows), 1], threads, &args);
}

/// By Hopper's own instructions: a block takes one tile after the other, and the width of tiles is that at which the
/// busiest block has the fewest rows of the weight; the widest of equals, which reads least.
fn on_hopper(cuda: &Cuda, p: &Product, gated: bool) {
    use Kernel::*;
    let (tokens, blocks) = (p.n.div_ceil(TILE_TOKENS), cuda.driver.multiprocessors);
    let all = |rows: usize| tokens * p.rows.div_ceil(rows);
    let widths: &[(usize, Kernel)] = if gated {
        // 256 is slower here than 192.
        &[(192, GemmWgmma192Gated), (128, GemmWgmma128Gated)]
    } else {
        &[(256, GemmWgmma256), (192, GemmWgmma192), (128, GemmWgmma128)]
    };
    let best = widths.iter().min_by_key(|(rows, _)| all(*rows).div_ceil(blocks) * rows);
    let &(rows, kernel) = best.expect("one of them");
    let mut args = arguments(p);
    let maps = [tiles(p.x, [p.n, p.cols], TILE_TOKENS), tiles(p.weight, [p.rows, p.cols], rows / 2)];
    (args[1], args[2]) = (Arg::of(&maps[0]), Arg::of(&maps[1]));
    cuda.driver.launch(kernel, [all(rows).min(blocks), 1, 1], 288, &args);
}

/// In f32, whatever the weight is kept in.
fn exact(cuda: &Cuda, p: &Product, dtype: DType) {
    use Kernel::*;
    let mut args = arguments(p);
    let (gemv1, gemv8, gemm) = match dtype {
        DType::F32 => (Gemv1F32, Gemv8F32, GemmF32),
        DType::F16 => (Gemv1F16, Gemv8F16, GemmF16),
        DType::Bf16 => (Gemv1Bf16, Gemv8Bf16, GemmBf16),
    };
    if p.n <= FEW_ROWS {
        args.push(I32(p.cols.is_multiple_of(8) as i32));
        cuda.driver.launch(if p.n == 1 { gemv1 } else { gemv8 }, [p.rows.div_ceil(4), 1, 1], 128, &args);
    } else {
        cuda.driver.launch(gemm, [p.rows.div_ceil(TILE), p.n.div_ceil(TILE), 1], 256, &args);
    }
}
