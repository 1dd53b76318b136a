//! Matmuls with packed weights: `kernels/codes.cuh`. Up to 32 rows of activations are multiplied
//! directly with the packed tiles. For more rows, some strips of the weight at a time are unpacked
//! to bf16, which mostly stays in L2, and multiplied by the bf16 GEMMs.

use super::abi::Arg::{self, I32, Ptr};
use super::cublaslt::Gemm;
use super::driver::Driver;
use super::gemm::{self, Gate, MAX_DECODE_ROWS, TILE_M};
use super::gpu::Cuda;
use super::kernels::Kernel;
use super::memory::{Acts, IMAGE_RANGE, IMAGE_ROWS, Part, Weight};
use super::scratch::{MAX_DIVIDED, MAX_ROWS, Unpacked};
use crate::quant::file::Words;
use crate::quant::{Code, GROUP, TILE_ROWS};
use crate::tensor::DType;

/// Rows of the weight per tile of the prefill kernels.
const TILE_N: usize = 192;
/// Tiles that a block of the prefill kernels multiplies one after another. Each launch costs some
/// microseconds at its end, but strips of more than half the L2 are read from memory.
const WAVES: usize = 2;

/// Activations with an image have a multiple of [`IMAGE_COLS`] columns, as `packed_wgmma.cu` needs,
/// and at most [`MAX_IMAGE_COLS`], as `rms_norm` writes.
const IMAGE_COLS: usize = 256;
const MAX_IMAGE_COLS: usize = 16384;

/// Maximum blocks of `packed_wgmma.cu` that split the columns of a weight, and minimum groups of
/// tiles for each part of such a block.
const MAX_BLOCKS_OF_K: usize = 4;
const MIN_GROUPS: usize = 4;
/// Maximum rows of activations of [`Kernel::OwnGemm`].
const OWN_ROWS: usize = 8;

/// Rows of `k` columns that fit: whole strips and whole tiles of the GEMM, which give each of
/// `blocks` blocks at most [`WAVES`] tiles.
fn rows_that_fit(scratch: &Unpacked, k: usize, m: usize, blocks: usize) -> usize {
    let fit = (scratch.bytes / (k * size_of::<u16>())).min(MAX_ROWS);
    let tiles = (WAVES * blocks / m.div_ceil(TILE_M)).max(1);
    let whole = (tiles * TILE_N).min(fit / TILE_N * TILE_N);
    if whole > 0 { whole } else { fit / (2 * TILE_ROWS) * (2 * TILE_ROWS) }
}

/// Whether decode multiplies this code with the kernels for codes of GGUF files (`own.cuh`).
pub(super) fn is_own(code: Code) -> bool {
    matches!(code, Code::File(_))
}

/// Layout of scales and minima in the words of a code: `OwnWords` in `own.cuh`.
pub(super) fn words<'a>(code: Code) -> Arg<'a> {
    I32(match code {
        Code::File(code) => code.words() as i32,
        Code::Q8 | Code::Q4 => Words::Sixteenths as i32 + 1,
        Code::Q4H | Code::Q6H => Words::Sixteenths as i32 + 2,
    })
}

/// Computes `out = x weight^T + bias` in f32. x is bf16, or f32 if one of its readers does not use
/// tensor cores.
pub(super) fn matmul(cuda: &Cuda, weight: &Weight, gemm: &Gemm, x: &Acts) {
    for part in &weight.parts {
        let gemm = &gemm::of_part(gemm, part);
        if !x.bf16 || gemm.m > MAX_DECODE_ROWS {
            prefill(cuda, part.code, gemm, x);
        } else if is_own(part.code) {
            decode_own(cuda, part.code, gemm, false);
        } else if !wide(cuda, part.code, gemm, x, None) {
            decode(cuda, part.code, gemm, false);
        }
    }
}

/// Multiplies more rows than decode takes: unpacks strips of the weight, then multiplies them.
fn prefill(cuda: &Cuda, code: Code, gemm: &Gemm, x: &Acts) {
    let most = rows_that_fit(&cuda.unpacked.borrow(), gemm.k, gemm.m, cuda.driver.sm_count);
    for first in (0..gemm.n).step_by(most) {
        let n = most.min(gemm.n - first);
        let weight = unpack(cuda, code, gemm, [first, first], n.div_ceil(TILE_ROWS), 1);
        let at = |address: u64| if address == 0 { 0 } else { address + (first * size_of::<f32>()) as u64 };
        let part = Gemm { out: at(gemm.out), bias: at(gemm.bias), weight, n, ..*gemm };
        match x.bf16 {
            true => gemm::bf16(cuda, &part),
            false => gemm::plain(cuda, &part, DType::Bf16),
        }
    }
}

/// Computes `out = silu(gate) * up` from `[gate | up] = x weight^T + bias`, with x and out in bf16.
/// `scratch` is used if a library multiplies, or if gate and up have different codes.
pub(super) fn fused_swiglu(cuda: &Cuda, weight: &Weight, gemm: &Gemm, out: &mut Acts, scratch: &mut Acts, x: &Acts) {
    let [Part { code, .. }] = weight.parts[..] else {
        for row in (0..gemm.m).step_by(scratch.rows()) {
            let m = scratch.rows().min(gemm.m - row);
            matmul(cuda, weight, &Gemm { out: scratch.ptr(), x: x.row(row), m, ..*gemm }, x);
            gemm::glu(cuda, out, row, scratch, m, Gate::Silu);
        }
        return;
    };
    let ffn = gemm.n / 2;
    let gemm = &Gemm { ld: ffn, ..*gemm };
    assert!(gemm.n.is_multiple_of(2 * TILE_ROWS), "gate and up of {ffn} rows are not whole strips");
    if gemm.m > MAX_DECODE_ROWS {
        prefill_swiglu(cuda, code, gemm, scratch);
    } else if is_own(code) {
        decode_own(cuda, code, gemm, true);
    } else if !wide(cuda, code, gemm, x, Some(out)) {
        decode(cuda, code, gemm, true);
    }
}

/// Runs [`fused_swiglu`] for more rows than decode takes, if gate and up have the same code.
fn prefill_swiglu(cuda: &Cuda, code: Code, gemm: &Gemm, scratch: &mut Acts) {
    let ffn = gemm.n / 2;
    // Rows of gate, and as many of up.
    let most = rows_that_fit(&cuda.unpacked.borrow(), gemm.k, gemm.m, cuda.driver.sm_count) / 2;
    let library = !cuda.driver.supports(gemm::WGMMA) && cuda.cublaslt.is_some() && scratch.rows() > 0;
    for first in (0..ffn).step_by(most) {
        let n = most.min(ffn - first);
        let weight = unpack(cuda, code, gemm, [first, ffn + first], n.div_ceil(TILE_ROWS), 2);
        let bias = biases(cuda, gemm, [first, ffn + first], n);
        let out = gemm.out + (first * size_of::<u16>()) as u64;
        let part = Gemm { out, bias, weight, n: 2 * n, ..*gemm };
        if !library {
            gemm::tensor_cores(cuda, &part, true);
            continue;
        }
        for row in (0..gemm.m).step_by(scratch.rows()) {
            let m = scratch.rows().min(gemm.m - row);
            let x = gemm.x + (row * gemm.k * size_of::<u16>()) as u64;
            gemm::bf16(cuda, &Gemm { out: scratch.ptr(), x, m, ld: 2 * n, ..part });
            let out = out + (row * gemm.ld * size_of::<u16>()) as u64;
            let args = [Ptr(out), I32(1), Ptr(scratch.ptr()), I32(n as i32), I32(gemm.ld as i32), I32(0)];
            cuda.driver.launch(
                Kernel::Glu,
                [n.div_ceil(4 * super::kernels::BLOCK), m, 1],
                super::kernels::BLOCK,
                &args,
            );
        }
    }
}

/// Unpacks `strips` strips from row `first[0]` on and, if `halves` is 2, as many from row
/// `first[1]` on. Returns their address.
fn unpack(cuda: &Cuda, code: Code, gemm: &Gemm, first: [usize; 2], strips: usize, halves: usize) -> u64 {
    let to = cuda.unpacked.borrow().at();
    let [gate, up] = first.map(|row| I32((row / TILE_ROWS) as i32));
    let [n, cols, bits] = [strips, gemm.k, code.bits()].map(|n| I32(n as i32));
    let args = [Ptr(to), Ptr(gemm.weight), gate, up, n, cols, bits, words(code)];
    cuda.driver.launch(Kernel::Unpack, [gemm.k / GROUP, halves * strips, 1], 128, &args);
    to
}

/// Returns the address of the biases of `n` rows of gate followed by `n` of up, or 0 without
/// biases.
fn biases(cuda: &Cuda, gemm: &Gemm, first: [usize; 2], n: usize) -> u64 {
    if gemm.bias == 0 {
        return 0;
    }
    let (to, bytes) = (cuda.unpacked.borrow().biases_at(), n * size_of::<f32>());
    for (i, row) in first.into_iter().enumerate() {
        cuda.driver.copy_within(to + (i * bytes) as u64, gemm.bias + (row * size_of::<f32>()) as u64, bytes);
    }
    to
}

/// Multiplies up to 32 rows directly with the packed tiles.
fn decode(cuda: &Cuda, code: Code, gemm: &Gemm, fused: bool) {
    let driver = &cuda.driver;
    let mut args: Vec<Arg<'_>> = gemm::arguments(gemm);
    args.push(I32(fused as i32));
    let most = *[8, 16, 32].iter().find(|&&rows| gemm.m <= rows).expect("at most 32 rows");
    let resident = Kernel::PackedResident(code, most as u8);
    if driver.supports(resident) {
        let grid = [even_blocks(cuda, gemm, fused), 1, 1];
        return driver.launch(resident, grid, resident.entry().threads, &args);
    }
    // The first shape for this number of rows whose shared memory the GPU has, with the strips per
    // block.
    let shapes = [(8, 2), (16, 2), (32, 4)].map(|(rows, strips)| (rows, Kernel::PackedGemm(code, rows as u8), strips));
    let fits = |(rows, kernel, _): &(usize, Kernel, usize)| gemm.m <= *rows && driver.supports(*kernel);
    let (_, kernel, strips) = shapes.into_iter().find(fits).expect("all GPUs run those of 32 rows");
    driver.launch(kernel, [gemm.n.div_ceil(strips * TILE_ROWS), 1, 1], kernel.entry().threads, &args);
}

/// Multiplies rows with the kernel for codes of GGUF files, [`OWN_ROWS`] at a time.
fn decode_own(cuda: &Cuda, code: Code, gemm: &Gemm, fused: bool) {
    let kernel = Kernel::OwnGemm(code.bits() as u8);
    // A block takes half the shared memory of a large GPU's SM, so two of them run on it.
    let blocks = outs(gemm, fused).div_ceil(outs(gemm, fused).div_ceil(2 * cuda.driver.sm_count));
    for row in (0..gemm.m).step_by(OWN_ROWS) {
        let (value, of_x) = (if fused { size_of::<u16>() } else { size_of::<f32>() }, size_of::<u16>());
        let (out, x) = (gemm.out + (row * gemm.ld * value) as u64, gemm.x + (row * gemm.k * of_x) as u64);
        let mut args = gemm::arguments(&Gemm { out, x, m: OWN_ROWS.min(gemm.m - row), ..*gemm });
        args.extend([I32(fused as i32), words(code)]);
        cuda.driver.launch(kernel, [blocks, 1, 1], kernel.entry().threads, &args);
    }
}

/// Whether activations of this shape are multiplied by kernels that read images: all their readers
/// are packed.
pub(super) fn reads_images(driver: &Driver, rows: usize, width: usize, readers: &[&Weight]) -> bool {
    let packed = readers.iter().all(|w| w.parts.iter().all(|part| !is_own(part.code)));
    let fits = width.is_multiple_of(IMAGE_COLS) && width <= MAX_IMAGE_COLS && rows >= *IMAGE_RANGE.start();
    packed && fits && driver.supports(Kernel::PackedWgmma(Code::Q4, "wide"))
}

/// Multiplies 17 to 32 rows with wgmma. If `fused` is given, SwiGLU writes into it. Returns false
/// if x has no image.
fn wide(cuda: &Cuda, code: Code, gemm: &Gemm, x: &Acts, fused: Option<&Acts>) -> bool {
    let Some((image, current)) = x.image(gemm.m) else { return false };
    let (driver, [n, k, m]) = (&cuda.driver, [gemm.n, gemm.k, gemm.m].map(|n| I32(n as i32)));
    if !current {
        let args = [Ptr(image), Ptr(gemm.x), k, m];
        driver.launch(Kernel::MakeImage, [driver.sm_count, 1, 1], super::kernels::BLOCK, &args);
    }
    let [wide, narrow] = wides(code);
    let shape = if gemm.n.div_ceil(wide.rows()) * 4 >= driver.sm_count * 3 { wide } else { narrow };
    let filled = fused.map_or(0, |out| out.image_to_fill(gemm.m));
    let (blocks, of_k) = shape.blocks(driver, gemm);
    let sums = cuda.unpacked.borrow().sums(of_k * blocks * shape.rows() * IMAGE_ROWS * size_of::<f32>());
    let (of_k, [sums, arrivals]) = sums.map_or((1, [0, 0]), |sums| (of_k, sums));
    let args = [gemm.out, filled, image, gemm.weight, gemm.bias, sums, arrivals].map(Ptr);
    let args = args.into_iter().chain([n, k, m, I32(gemm.ld as i32), I32(fused.is_some() as i32)]);
    let kernel = Kernel::PackedWgmma(code, shape.name);
    driver.launch(kernel, [blocks, of_k, 1], kernel.entry().threads, &args.collect::<Vec<_>>());
    true
}

/// Shape of a kernel of `packed_wgmma.cu`.
struct Wide {
    name: &'static str,
    /// Warpgroups of a block along its rows, 64 rows each, and along the columns.
    row_groups: usize,
    k_groups: usize,
}

impl Wide {
    fn rows(&self) -> usize {
        64 * self.row_groups
    }

    /// Blocks along the rows, and blocks along the columns for each of them: as many as SMs are
    /// left.
    fn blocks(&self, driver: &Driver, gemm: &Gemm) -> (usize, usize) {
        let blocks = gemm.n.div_ceil(self.rows());
        let most = gemm.k / IMAGE_COLS / (self.k_groups * MIN_GROUPS);
        let of_k =
            if blocks <= MAX_DIVIDED { (driver.sm_count / blocks).min(most).clamp(1, MAX_BLOCKS_OF_K) } else { 1 };
        (blocks, of_k)
    }
}

/// Shapes for matrices with enough rows for all SMs, and for other matrices.
fn wides(code: Code) -> [Wide; 2] {
    let k_groups = match code {
        Code::Q4 | Code::Q4H => 4,
        Code::Q8 | Code::Q6H | Code::File(_) => 3,
    };
    [Wide { name: "wide", row_groups: 3, k_groups: 1 }, Wide { name: "narrow", row_groups: 1, k_groups }]
}

/// Number of blocks that walk over strips: at most one per SM, all with the same number of strips
/// except the last ones.
pub(super) fn even_blocks(cuda: &Cuda, gemm: &Gemm, fused: bool) -> usize {
    let outs = outs(gemm, fused);
    outs.div_ceil(outs.div_ceil(cuda.driver.sm_count))
}

/// Number of strips of the output.
fn outs(gemm: &Gemm, fused: bool) -> usize {
    gemm.n.div_ceil(TILE_ROWS) / if fused { 2 } else { 1 }
}
