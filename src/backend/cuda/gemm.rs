//! GEMMs: `out[m, n] = x[m, k] weight[n, k]^T + bias[n]`. M is the rows of activations (tokens), N
//! the rows of the weight and K its columns. bf16 weights and activations use tensor cores, in
//! prefill through libcublasLt if it is installed. Everything else uses plain f32 kernels.

use super::abi;
use super::abi::Arg::{self, I32, Ptr};
use super::cublaslt::Gemm;
use super::driver::Driver;
use super::gpu::Cuda;
use super::kernels::BLOCK;
use super::kernels::{Fused, Kernel};
use super::memory::{Acts, Buf, Part, UNSCALED_ROWS, Weight, dtype_number};
use super::tensor_map::tensor_map;
use crate::tensor::DType;
use std::ops::RangeInclusive;

/// Maximum rows for which the plain f32 kernels are GEMVs.
const FEW_ROWS: usize = 8;
/// Side of the square tiles of the plain f32 GEMM.
const TILE: usize = 64;
/// Maximum rows of activations in decode: they are one tile, and the weight is read once. More rows
/// are prefill.
pub(super) const MAX_DECODE_ROWS: usize = 32;
const _: () = assert!(UNSCALED_ROWS <= MAX_DECODE_ROWS);
/// Rows of activations per tile of the prefill kernels.
pub(super) const TILE_M: usize = 128;
/// Rows that libcublasLt multiplies before SwiGLU is applied to them: the intermediate result stays
/// in L2.
pub(super) const SWIGLU_ROWS: usize = 512;

/// A kernel of `gemm_wgmma.cu`. A GPU that supports it supports the whole file.
pub(super) const WGMMA: Kernel = Kernel::GemmWgmma(256, Fused::Nothing);

/// Condition for using a kernel: its blocks per SM in this launch.
enum Occupancy {
    Any,
    /// At most `per_sm` blocks per SM, and at least `k` columns.
    Few {
        per_sm: usize,
        k: usize,
    },
    /// At least one block per SM.
    Many,
}

/// A bf16 kernel on tensor cores.
struct GemmKernel {
    m: RangeInclusive<usize>,
    launches: Occupancy,
    kernel: fn(Fused) -> Kernel,
    /// Whether a variant with fused SwiGLU exists.
    fuses: bool,
    /// Rows of activations and rows of the weight per block.
    tile: [usize; 2],
}

impl GemmKernel {
    /// Number of tiles along M and along N.
    fn tiles(&self, gemm: &Gemm) -> [usize; 2] {
        [gemm.m.div_ceil(self.tile[0]), gemm.n.div_ceil(self.tile[1])]
    }
}

/// Kernels in order of preference. The first one is used that fits the rows and the blocks and
/// whose shared memory the GPU has.
const GEMM_KERNELS: &[GemmKernel] = {
    use Kernel::{GemmDecode, GemmTiles, GemmTilesSmall};
    const fn row(
        m: RangeInclusive<usize>,
        launches: Occupancy,
        kernel: fn(Fused) -> Kernel,
        fuses: bool,
        tile: [usize; 2],
    ) -> GemmKernel {
        GemmKernel { m, launches, kernel, fuses, tile }
    }
    // A block alone on its SM can use all of the shared memory.
    const ALONE: Occupancy = Occupancy::Few { per_sm: 1, k: 0 };
    &[
        row(2..=8, Occupancy::Few { per_sm: 2, k: 8192 }, |f| GemmDecode(8, "_long", f), false, [8, 16]),
        row(2..=8, Occupancy::Any, |f| GemmDecode(8, "", f), true, [8, 16]),
        row(9..=16, ALONE, |f| GemmDecode(16, "_tall", f), false, [16, 32]),
        row(9..=16, Occupancy::Any, |f| GemmDecode(16, "", f), true, [16, 16]),
        row(17..=MAX_DECODE_ROWS, ALONE, |f| GemmDecode(32, "_deep", f), false, [32, 32]),
        row(17..=MAX_DECODE_ROWS, Occupancy::Any, |f| GemmDecode(32, "", f), true, [32, 32]),
        row(33..=usize::MAX, Occupancy::Many, |_| GemmTiles, true, [TILE_M, 256]),
        row(33..=usize::MAX, Occupancy::Any, |_| GemmTilesSmall, true, [TILE_M, 128]),
    ]
};

/// Runs a GEMM of bf16 inputs and at least two rows, with libcublasLt or with our kernels.
pub(super) fn bf16(cuda: &Cuda, gemm: &Gemm) {
    let library = cuda.cublaslt.as_ref().filter(|_| gemm.m > MAX_DECODE_ROWS);
    if !library.is_some_and(|library| library.multiply(&cuda.driver, gemm)) {
        tensor_cores(cuda, gemm, false);
    }
}

/// Computes `out = silu(gate) * up` from `[gate | up] = x weight^T + bias` for at least two rows,
/// with `out` in bf16.
pub(super) fn fused_swiglu(
    cuda: &Cuda,
    out: &mut Acts,
    scratch: &mut Acts,
    x: &Acts,
    weight: &Weight,
    bias: Option<&Buf<f32>>,
    m: usize,
) {
    let mut done = 0;
    if let Some(library) = cuda.cublaslt.as_ref().filter(|_| m > MAX_DECODE_ROWS && scratch.rows() > 0) {
        while done < m {
            let rows = scratch.rows().min(m - done);
            if !library.multiply(&cuda.driver, &describe(scratch.ptr(), x.row(done), weight, bias, rows)) {
                break;
            }
            glu(cuda, out, done, scratch, rows, Gate::Silu);
            done += rows;
        }
    }
    if done < m {
        let gemm = Gemm { ld: out.width, ..describe(out.row(done), x.row(done), weight, bias, m - done) };
        tensor_cores(cuda, &gemm, true);
    }
}

/// What becomes of a gate and up: `Gate` in `gates.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    Silu,
    Gelu,
    /// [`ExpertsArgs::clamped`](super::super::ExpertsArgs::clamped)
    Clamped,
}

/// Where `m` rows of gates and of up begin in f32, and how many values apart they are.
struct Gates {
    at: [u64; 2],
    apart: [usize; 2],
    m: usize,
}

/// `out`, an address in bf16 or f32, its width, and how many values its rows are apart.
struct Gated {
    at: u64,
    bf16: bool,
    width: usize,
    apart: usize,
}

fn launch_glu(cuda: &Cuda, out: &Gated, from: &Gates, gate: Gate) {
    let int = |n: usize| I32(n as i32);
    let [[gates, up], [of_gates, of_up]] = [from.at.map(Ptr), from.apart.map(int)];
    let to = [Ptr(out.at), I32(out.bf16 as i32), gates, up, of_gates, of_up];
    let args = [&to[..], &[int(out.width), int(out.apart), I32(gate as i32)]].concat();
    cuda.driver.launch(Kernel::Glu, [out.width.div_ceil(4 * BLOCK), from.m, 1], BLOCK, &args);
}

/// `m` rows `[gate | up]` of f32 one after the other.
fn side_by_side(at: u64, width: usize, m: usize) -> Gates {
    Gates { at: [at, at + (width * size_of::<f32>()) as u64], apart: [2 * width; 2], m }
}

/// Computes `out` from `m` rows `[gate | up]` and writes it to the rows of `out` from `first` on.
pub(super) fn glu(cuda: &Cuda, out: &mut Acts, first: usize, gate_up: &Acts, m: usize, gate: Gate) {
    out.fills(first + m);
    gate_up.holds_f32(m);
    let to = Gated { at: out.row(first), bf16: out.bf16, width: out.width, apart: out.width };
    launch_glu(cuda, &to, &side_by_side(gate_up.ptr(), out.width, m), gate);
}

/// The same for columns of an output in bf16, whose rows are `apart` values apart; `gate_up` is an
/// address.
pub(super) fn glu_columns(cuda: &Cuda, [at, gate_up]: [u64; 2], [width, apart]: [usize; 2], m: usize, gate: Gate) {
    launch_glu(cuda, &Gated { at, bf16: true, width, apart }, &side_by_side(gate_up, width, m), gate);
}

/// `out = gelu(y) * columns` of `m` rows, as many columns of `rows` from `at` on.
pub(super) fn gelu_times(cuda: &Cuda, out: &mut Acts, y: &Acts, rows: &Acts, at: usize, m: usize) {
    out.fills(m);
    [y, rows].iter().for_each(|acts| acts.holds_f32(m));
    assert!(y.width == out.width && at + out.width <= rows.width, "{} columns from {at} on", out.width);
    let columns = rows.ptr() + (at * size_of::<f32>()) as u64;
    let from = Gates { at: [y.ptr(), columns], apart: [y.width, rows.width], m };
    let to = Gated { at: out.ptr(), bf16: out.bf16, width: out.width, apart: out.width };
    launch_glu(cuda, &to, &from, Gate::Gelu);
}

pub(super) fn describe(out: u64, x: u64, weight: &Weight, bias: Option<&Buf<f32>>, m: usize) -> Gemm {
    let (n, k) = (weight.rows, weight.cols);
    Gemm { out, x, weight: weight.ptr(), bias: bias.map_or(0, Buf::ptr), m, n, k, ld: n }
}

/// Narrows a matmul to one part of a packed weight. `out` is f32.
pub(super) fn of_part(gemm: &Gemm, part: &Part) -> Gemm {
    let moved = |address: u64| if address == 0 { 0 } else { address + (part.first * size_of::<f32>()) as u64 };
    let (out, bias, weight) = (moved(gemm.out), moved(gemm.bias), gemm.weight + part.at as u64);
    Gemm { out, bias, weight, n: part.rows, ..*gemm }
}

/// Arguments of all kernels here. N, K, M and the stride of the output come last. Kernels for few
/// rows take a norm or SwiGLU instead of the stride. Kernels for one row (`gemv.rs`) take no M
/// either, and others append arguments of their own.
pub(super) fn arguments<'a>(gemm: &Gemm) -> Vec<Arg<'a>> {
    let [n, k, m, ld] = [gemm.n, gemm.k, gemm.m, gemm.ld].map(|n| I32(n as i32));
    vec![Ptr(gemm.out), Ptr(gemm.x), Ptr(gemm.weight), Ptr(gemm.bias), n, k, m, ld]
}

/// Runs a bf16 GEMM of at least two rows on tensor cores.
pub(super) fn tensor_cores(cuda: &Cuda, gemm: &Gemm, fused: bool) {
    let driver = &cuda.driver;
    if gemm.m <= MAX_DECODE_ROWS {
        return decode(cuda, gemm, fused, &abi::Norm::default());
    }
    if driver.supports(WGMMA) {
        return hopper(cuda, gemm, fused);
    }
    let (best, kernel) = fastest(driver, gemm, fused);
    let [m_tiles, n_tiles] = best.tiles(gemm);
    let mut args = arguments(gemm);
    args.push(I32(fused as i32));
    driver.launch(kernel, [m_tiles, n_tiles, 1], kernel.entry().threads, &args);
}

/// Like [`tensor_cores`], for at most [`MAX_DECODE_ROWS`] rows, which are one tile, and with this
/// GEMM's part of a norm.
pub(super) fn decode(cuda: &Cuda, gemm: &Gemm, fused: bool, norm: &abi::Norm) {
    let (best, kernel) = fastest(&cuda.driver, gemm, fused);
    let mut args = arguments(gemm);
    args[7] = Arg::of(norm);
    cuda.driver.launch(kernel, [best.tiles(gemm)[1], 1, 1], kernel.entry().threads, &args);
}

/// Returns the kernel of the table for this launch and GPU.
fn fastest(driver: &Driver, gemm: &Gemm, fused: bool) -> (&'static GemmKernel, Kernel) {
    let fitting = |row: &GemmKernel| {
        let blocks: usize = row.tiles(gemm).iter().product();
        let chosen = match row.launches {
            Occupancy::Any => true,
            Occupancy::Few { per_sm, k } => blocks <= per_sm * driver.sm_count && gemm.k >= k,
            Occupancy::Many => blocks >= driver.sm_count,
        };
        let kernel = (row.kernel)(Fused::of(false, fused));
        let fits = row.m.contains(&gemm.m) && chosen && (row.fuses || !fused) && driver.supports(kernel);
        fits.then_some(kernel)
    };
    let best = GEMM_KERNELS.iter().find_map(|row| Some((row, fitting(row)?)));
    best.expect("a kernel for any two rows or more and any GPU")
}

/// Prefill with `wgmma`. Blocks are persistent and process one tile after another. The tile width
/// minimizes the weight rows of the busiest block. Of equal widths the widest is used, because it
/// reads least.
fn hopper(cuda: &Cuda, gemm: &Gemm, fused: bool) {
    let (m_tiles, blocks) = (gemm.m.div_ceil(TILE_M), cuda.driver.sm_count);
    let tiles = |width: usize| m_tiles * gemm.n.div_ceil(width);
    // With SwiGLU, 256 is slower than 192. Without it, 192 is at most 1 % faster.
    let widths: &[u16] = if fused { &[192, 128] } else { &[256, 128] };
    let best = widths.iter().min_by_key(|&&width| tiles(width.into()).div_ceil(blocks) * usize::from(width));
    let best = *best.expect("one of them");
    let (width, kernel) = (usize::from(best), Kernel::GemmWgmma(best, Fused::of(false, fused)));
    let x = tensor_map(gemm.x, [gemm.m, gemm.k], TILE_M);
    let weight = tensor_map(gemm.weight, [gemm.n, gemm.k], width / 2);
    let mut args = arguments(gemm);
    (args[1], args[2]) = (Arg::of(&x), Arg::of(&weight));
    cuda.driver.launch(kernel, [tiles(width).min(blocks), 1, 1], kernel.entry().threads, &args);
}

/// Runs a GEMM in f32, for any dtype of the weight.
pub(super) fn plain(cuda: &Cuda, gemm: &Gemm, dtype: DType) {
    let mut args = arguments(gemm);
    args.push(I32(dtype_number(dtype)));
    if gemm.m <= FEW_ROWS && gemm.ld == gemm.n {
        // Whether rows of the weight may be read eight elements at a time. This replaces the
        // stride.
        args[7] = I32(gemm.k.is_multiple_of(8) as i32);
        cuda.driver.launch(Kernel::GemvPlain, [gemm.n.div_ceil(4), 1, 1], 128, &args);
    } else {
        cuda.driver.launch(Kernel::Gemm, [gemm.n.div_ceil(TILE), gemm.m.div_ceil(TILE), 1], 256, &args);
    }
}
