//! Matmuls with packed weights: `kernels/codes.cuh`. Up to 32 rows of activations are multiplied straight from the packed
//! tiles. For more rows the weight is unpacked, some strips at a time, to bf16 that mostly stays in L2, and the bf16 GEMMs
//! multiply them.

use super::super::{Norm, OutOfMemory};
use super::Cuda;
use super::abi::Arg::{self, F32, I32, Ptr};
use super::cublaslt::Gemm;
use super::driver::Driver;
use super::gemm::{self, MAX_DECODE_ROWS, TILE_M};
use super::kernels::Kernel;
use super::memory::{Acts, Buf, IMAGE_RANGE, IMAGE_ROWS, Stored, Weight};
use crate::protocol::Token;
use crate::quant::{Code, GROUP, TILE_ROWS};
use crate::tensor::DType;
use std::rc::Rc;

/// Bytes of the unpacked strips, and of those on a GPU whose memory is under [`SMALL_GPU_BYTES`].
const SCRATCH_BYTES: usize = 64 << 20;
const SMALL_SCRATCH_BYTES: usize = 16 << 20;
const SMALL_GPU_BYTES: u64 = 20 << 30;
/// Most unpacked rows: room for their biases.
const MAX_ROWS: usize = 8192;
/// Rows of the weight in a tile of the prefill kernels.
const TILE_N: usize = 192;
/// Tiles that a block of the prefill kernels multiplies one after the other: the end of a launch costs some microseconds, and
/// strips of more than half the L2 are read from memory.
const WAVES: usize = 2;

/// Columns of activations are a multiple of the first, and at most the second, where they have an image: what `packed_wgmma.cu`
/// multiplies, and what `rms_norm` writes.
const IMAGE_COLS: usize = 256;
const MAX_IMAGE_COLS: usize = 16384;

/// Most blocks of `packed_wgmma.cu` that divide the columns of a weight, and the fewest groups of tiles for each part of a block.
const MAX_BLOCKS_OF_K: usize = 4;
const MIN_GROUPS: usize = 4;
/// Most blocks that divide the rows of such a weight.
const MAX_DIVIDED: usize = 128;

/// Strips in bf16 between two kernels, and behind them the biases of their rows; or sums of blocks of `packed_wgmma.cu`.
#[derive(Default)]
pub(super) struct Unpacked {
    memory: Option<Buf<u8>>,
    bytes: usize,
    /// Zeros between two kernels: how many blocks have put their sums there.
    arrivals: Option<Buf<i32>>,
}

impl Unpacked {
    /// Makes room for as many strips of a weight as one launch unpacks.
    pub fn reserve(&mut self, driver: &Rc<Driver>, weight: &Weight) -> Result<(), OutOfMemory> {
        if let Stored::Plain(_) = weight.stored {
            return Ok(());
        }
        let all = weight.rows.next_multiple_of(2 * TILE_ROWS) * weight.cols * size_of::<u16>();
        let (_, total) = driver.memory();
        let most = if total < SMALL_GPU_BYTES { SMALL_SCRATCH_BYTES } else { SCRATCH_BYTES };
        let bytes = all.min(most).max(2 * TILE_ROWS * weight.cols * size_of::<u16>());
        if bytes > self.bytes {
            self.memory = Some(Buf::new(driver, bytes + MAX_ROWS * size_of::<f32>())?);
            self.bytes = bytes;
        }
        if self.arrivals.is_none() {
            self.arrivals = Some(Buf::new(driver, MAX_DIVIDED)?);
        }
        Ok(())
    }

    /// Rows of `k` columns that fit: whole strips, and whole tiles of the GEMM that give each of `blocks` blocks at most
    /// [`WAVES`].
    fn rows(&self, k: usize, m: usize, blocks: usize) -> usize {
        let fit = (self.bytes / (k * size_of::<u16>())).min(MAX_ROWS);
        let tiles = (WAVES * blocks / m.div_ceil(TILE_M)).max(1);
        let whole = (tiles * TILE_N).min(fit / TILE_N * TILE_N);
        if whole > 0 { whole } else { fit / (2 * TILE_ROWS) * (2 * TILE_ROWS) }
    }

    /// Room for so many bytes of sums, and the counts of arrivals.
    fn sums(&self, bytes: usize) -> Option<[u64; 2]> {
        let arrivals = self.arrivals.as_ref().filter(|_| bytes <= self.bytes)?;
        Some([self.at(), arrivals.ptr()])
    }

    fn at(&self) -> u64 {
        self.memory.as_ref().expect("reserved with the weight").ptr()
    }

    fn biases_at(&self) -> u64 {
        self.at() + self.bytes as u64
    }
}

/// Rows `[n, width]` of a packed embedding.
pub(super) fn embed(cuda: &Cuda, code: Code, out: &mut Acts, table: &Weight, tokens: &Buf<Token>, n: usize) {
    let kernel = match code {
        Code::Q4 => Kernel::EmbedQ4,
        Code::Q8 => Kernel::EmbedQ8,
    };
    let args = [Ptr(out.ptr()), Ptr(table.ptr()), Ptr(tokens.ptr()), I32(out.width as i32)];
    cuda.driver.launch(kernel, [n, 1, 1], super::BLOCK, &args);
}

/// `out = x weight^T + bias` in f32; x is bf16 or, where some reader of it is not on tensor cores, f32.
pub(super) fn matmul(cuda: &Cuda, code: Code, gemm: &Gemm, x: &Acts) {
    if x.bf16 && gemm.m <= MAX_DECODE_ROWS {
        if !wide(cuda, code, gemm, x, None) {
            decode(cuda, code, gemm, false);
        }
        return;
    }
    let most = cuda.unpacked.borrow().rows(gemm.k, gemm.m, cuda.driver.sm_count);
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

/// `out = silu(gate) * up` of `[gate | up] = x weight^T + bias`, x and out in bf16. `scratch` is used where a library
/// multiplies.
pub(super) fn fused_swiglu(cuda: &Cuda, code: Code, gemm: &Gemm, out: &Acts, scratch: &mut Acts, x: &Acts) {
    let ffn = gemm.n / 2;
    let gemm = &Gemm { ld: ffn, ..*gemm };
    assert!(gemm.n.is_multiple_of(2 * TILE_ROWS), "gate and up of {ffn} rows are not whole strips");
    if gemm.m <= MAX_DECODE_ROWS {
        if !wide(cuda, code, gemm, x, Some(out)) {
            decode(cuda, code, gemm, true);
        }
        return;
    }
    // Rows of gate, and of up.
    let most = cuda.unpacked.borrow().rows(gemm.k, gemm.m, cuda.driver.sm_count) / 2;
    let library = !cuda.driver.supports(Kernel::GemmWgmma256) && cuda.cublaslt.is_some() && scratch.rows() > 0;
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
            let args = [Ptr(out), I32(1), Ptr(scratch.ptr()), I32(n as i32), I32(gemm.ld as i32)];
            cuda.driver.launch(Kernel::Swiglu, [n.div_ceil(4 * super::BLOCK), m, 1], super::BLOCK, &args);
        }
    }
}

/// Unpacks `strips` strips from row `first[0]` on and, if `halves` is 2, as many from row `first[1]` on. Returns their
/// address.
fn unpack(cuda: &Cuda, code: Code, gemm: &Gemm, first: [usize; 2], strips: usize, halves: usize) -> u64 {
    let kernel = match code {
        Code::Q4 => Kernel::UnpackQ4,
        Code::Q8 => Kernel::UnpackQ8,
    };
    let to = cuda.unpacked.borrow().at();
    let [gate, up] = first.map(|row| I32((row / TILE_ROWS) as i32));
    let args = [Ptr(to), Ptr(gemm.weight), gate, up, I32(strips as i32), I32(gemm.k as i32)];
    cuda.driver.launch(kernel, [gemm.k / GROUP, halves * strips, 1], 128, &args);
    to
}

/// Address of the biases of `n` rows of gate and `n` of up, one behind the other; 0 if there are none.
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

/// Up to 32 rows straight from the packed tiles.
fn decode(cuda: &Cuda, code: Code, gemm: &Gemm, fused: bool) {
    let driver = &cuda.driver;
    let mut args: Vec<Arg<'_>> = gemm::arguments(gemm);
    // A weight too wide for the GPU's shared memory is left to the kernels of more rows.
    if let Some(gemv) = one_row(cuda, code, gemm.k).filter(|_| gemm.m == 1) {
        args.truncate(6);
        let kernel = if fused { gemv.swiglu } else { gemv.plain };
        return gemv.launch(cuda, code, kernel, gemm, fused, &args);
    }
    args.truncate(7);
    let resident = residents(code).into_iter().find(|r| gemm.m <= r.rows);
    if let Some(resident) = resident.filter(|r| driver.shares(r.shared_bytes(code))) {
        args.push(I32(BATCH as i32));
        let grid = [even_blocks(cuda, gemm, fused), 1, 1];
        let threads = 32 * resident.warps;
        return driver.launch_sharing(
            resident.kernels[fused as usize],
            grid,
            threads,
            resident.shared_bytes(code),
            &args,
        );
    }
    let (kernel, strips) = few(driver, code, gemm.m, fused);
    driver.launch(kernel, [gemm.n.div_ceil(strips * TILE_ROWS), 1, 1], 256, &args);
}

/// Whether kernels that read images multiply activations of that shape: all their readers are packed.
pub(super) fn reads_images(driver: &Driver, rows: usize, width: usize, readers: &[&Weight]) -> bool {
    let packed = readers.iter().all(|w| matches!(w.stored, Stored::Packed(_)));
    let fits = width.is_multiple_of(IMAGE_COLS) && width <= MAX_IMAGE_COLS && rows >= *IMAGE_RANGE.start();
    packed && fits && driver.supports(Kernel::PackedWgmmaQ4Wide)
}

/// 17 to 32 rows by wgmma, with `fused` SwiGLU into those activations; false where there is no image of x.
fn wide(cuda: &Cuda, code: Code, gemm: &Gemm, x: &Acts, fused: Option<&Acts>) -> bool {
    let Some((image, current)) = x.image(gemm.m) else { return false };
    let (driver, [n, k, m]) = (&cuda.driver, [gemm.n, gemm.k, gemm.m].map(|n| I32(n as i32)));
    if !current {
        let args = [Ptr(image), Ptr(gemm.x), k, m];
        driver.launch(Kernel::MakeImage, [driver.sm_count, 1, 1], super::BLOCK, &args);
    }
    let [wide, narrow] = wides(code);
    let kernel = if gemm.n.div_ceil(wide.rows()) * 4 >= driver.sm_count * 3 { wide } else { narrow };
    let filled = fused.map_or(0, |out| out.image_to_fill(gemm.m));
    let (blocks, of_k) = kernel.blocks(driver, gemm);
    let sums = cuda.unpacked.borrow().sums(of_k * blocks * kernel.rows() * IMAGE_ROWS * size_of::<f32>());
    let (of_k, [sums, arrivals]) = sums.map_or((1, [0, 0]), |sums| (of_k, sums));
    let args = [gemm.out, filled, image, gemm.weight, gemm.bias, sums, arrivals].map(Ptr).into_iter().chain([n, k, m]);
    driver.launch_sharing(
        kernel.kernels[fused.is_some() as usize],
        [blocks, of_k, 1],
        32 * (4 * kernel.row_groups * kernel.k_groups + 1),
        kernel.shared_bytes(code),
        &args.collect::<Vec<_>>(),
    );
    true
}

/// A kernel of `packed_wgmma.cu`.
struct Wide {
    /// The plain kernel, and that with fused SwiGLU.
    kernels: [Kernel; 2],
    /// Warpgroups that divide the rows of a block, 64 each, and that divide the columns.
    row_groups: usize,
    k_groups: usize,
    /// Groups of four tiles of columns in flight, for each that divides the columns.
    stages: usize,
}

impl Wide {
    fn rows(&self) -> usize {
        64 * self.row_groups
    }

    /// Blocks that divide the rows, and for each of them those that divide the columns: as many as SMs are left.
    fn blocks(&self, driver: &Driver, gemm: &Gemm) -> (usize, usize) {
        let blocks = gemm.n.div_ceil(self.rows());
        let most = gemm.k / IMAGE_COLS / (self.k_groups * MIN_GROUPS);
        let of_k =
            if blocks <= MAX_DIVIDED { (driver.sm_count / blocks).min(most).clamp(1, MAX_BLOCKS_OF_K) } else { 1 };
        (blocks, of_k)
    }

    /// `Shape` in `packed_wgmma.cu`.
    fn shared_bytes(&self, code: Code) -> usize {
        let unit = code.planes() * 4 * 512 + 128;
        let stage = (4 * IMAGE_ROWS * 128 + 4 * self.row_groups * unit).next_multiple_of(1024);
        let sums = self.k_groups * self.rows() * (IMAGE_ROWS + 1) * size_of::<f32>();
        (self.k_groups * self.stages * stage).max(sums) + 16 * self.k_groups * self.stages + 1024
    }
}

/// For matrices with enough rows for all SMs, and for others.
fn wides(code: Code) -> [Wide; 2] {
    use Kernel::*;
    let of = |kernels, row_groups, k_groups, stages| Wide { kernels, row_groups, k_groups, stages };
    match code {
        Code::Q4 => [
            of([PackedWgmmaQ4Wide, PackedWgmmaQ4WideSwiglu], 3, 1, 5),
            of([PackedWgmmaQ4Narrow, PackedWgmmaQ4NarrowSwiglu], 1, 4, 2),
        ],
        Code::Q8 => [
            of([PackedWgmmaQ8Wide, PackedWgmmaQ8WideSwiglu], 3, 1, 3),
            of([PackedWgmmaQ8Narrow, PackedWgmmaQ8NarrowSwiglu], 1, 3, 2),
        ],
    }
}

/// Blocks that walk over strips: at most one to an SM, all with the same number of strips but for the last ones.
fn even_blocks(cuda: &Cuda, gemm: &Gemm, fused: bool) -> usize {
    let outs = gemm.n.div_ceil(TILE_ROWS) / if fused { 2 } else { 1 };
    outs.div_ceil(outs.div_ceil(cuda.driver.sm_count))
}

/// `out += x weight^T + bias` of one row, x in bf16. False if this GPU has no kernel for it.
pub(super) fn add(cuda: &Cuda, code: Code, gemm: &Gemm) -> bool {
    let Some(gemv) = one_row(cuda, code, gemm.k).filter(|_| gemm.m == 1) else { return false };
    let mut args = gemm::arguments(gemm);
    args.truncate(6);
    gemv.launch(cuda, code, gemv.add, gemm, false, &args);
    true
}

/// `out = rms_norm(x) weight^T + bias` of one row, x in f32; fused: SwiGLU of that, in bf16. `non_finite` is the address
/// of the flag. False if this GPU has no kernel for it.
pub(super) fn norm(cuda: &Cuda, code: Code, gemm: &Gemm, norm: &Norm<'_, Cuda>, non_finite: u64, fused: bool) -> bool {
    let Some(gemv) = one_row(cuda, code, gemm.k).filter(|_| gemm.m == 1) else { return false };
    let [rows, cols, layer] = [gemm.n, gemm.k, norm.layer].map(|n| I32(n as i32));
    let [out, x, weight, bias] = [gemm.out, gemm.x, gemm.weight, gemm.bias].map(Ptr);
    let scale = Ptr(norm.weight.ptr());
    let args = [out, x, weight, bias, scale, F32(norm.eps), layer, Ptr(non_finite), rows, cols];
    let kernel = if fused { gemv.norm_swiglu } else { gemv.norm };
    gemv.launch(cuda, code, kernel, gemm, fused, &args);
    true
}

/// The kernels of `packed_gemv.cu` for one row.
struct OneRow {
    plain: Kernel,
    swiglu: Kernel,
    add: Kernel,
    norm: Kernel,
    norm_swiglu: Kernel,
    warps: usize,
    /// Groups of columns that a warp has in flight.
    stages: usize,
}

/// The fastest that the GPU has the shared memory for, with a weight of that many columns.
fn one_row(cuda: &Cuda, code: Code, cols: usize) -> Option<OneRow> {
    gemvs(code).into_iter().find(|gemv| cuda.driver.shares(gemv.shared_bytes(code, cols)))
}

impl OneRow {
    /// Launches one of the kernels.
    fn launch(&self, cuda: &Cuda, code: Code, kernel: Kernel, gemm: &Gemm, fused: bool, args: &[Arg<'_>]) {
        let grid = [even_blocks(cuda, gemm, fused), 1, 1];
        cuda.driver.launch_sharing(kernel, grid, 32 * self.warps, self.shared_bytes(code, gemm.k), args);
    }

    /// Shared memory of a block: partial sums, the ring, and x as integers.
    fn shared_bytes(&self, code: Code, cols: usize) -> usize {
        let stage = code.planes() * 4 * 512 + 128;
        let groups = cols.div_ceil(4 * GROUP);
        let sums = (2 * 4 * TILE_ROWS + 1) * size_of::<f32>();
        self.warps * (sums + self.stages * stage) + groups * (2 * 4 * GROUP + 4 * 8)
    }
}

/// The fastest first.
fn gemvs(code: Code) -> [OneRow; 2] {
    use Kernel::*;
    let gemv = |[plain, swiglu, add, norm, norm_swiglu]: [Kernel; 5], warps, stages| OneRow {
        plain,
        swiglu,
        add,
        norm,
        norm_swiglu,
        warps,
        stages,
    };
    match code {
        Code::Q4 => [
            gemv([PackedGemvQ4, PackedGemvQ4Swiglu, PackedGemvQ4Add, PackedGemvQ4Norm, PackedGemvQ4NormSwiglu], 16, 3),
            gemv(
                [
                    PackedGemvQ4Small,
                    PackedGemvQ4SmallSwiglu,
                    PackedGemvQ4SmallAdd,
                    PackedGemvQ4SmallNorm,
                    PackedGemvQ4SmallNormSwiglu,
                ],
                8,
                4,
            ),
        ],
        Code::Q8 => [
            gemv([PackedGemvQ8, PackedGemvQ8Swiglu, PackedGemvQ8Add, PackedGemvQ8Norm, PackedGemvQ8NormSwiglu], 16, 2),
            gemv(
                [
                    PackedGemvQ8Small,
                    PackedGemvQ8SmallSwiglu,
                    PackedGemvQ8SmallAdd,
                    PackedGemvQ8SmallNorm,
                    PackedGemvQ8SmallNormSwiglu,
                ],
                8,
                2,
            ),
        ],
    }
}

/// Strips for which a block of `packed_resident.cu` keeps the sums.
const BATCH: usize = 12;

/// A kernel of `packed_resident.cu`.
struct Resident {
    /// Most rows of activations.
    rows: usize,
    /// The plain kernel, and that with fused SwiGLU.
    kernels: [Kernel; 2],
    warps: usize,
    /// Units of four tiles of columns that a warp has in flight.
    stages: usize,
    /// Strips whose sums are reduced together.
    round: usize,
}

impl Resident {
    /// Shared memory of a block: the rings, the warps' sums of two rounds, and the sums of a batch.
    fn shared_bytes(&self, code: Code) -> usize {
        let width = if self.rows == 8 { 8 } else { self.rows + 8 };
        let sums = 2 * self.round * self.warps * width + BATCH * self.rows;
        self.warps * self.stages * (code.planes() * 4 * 512 + 128) + sums * TILE_ROWS * size_of::<f32>()
    }
}

fn residents(code: Code) -> [Resident; 3] {
    use Kernel::*;
    let of = |rows, kernels, warps, stages, round| Resident { rows, kernels, warps, stages, round };
    match code {
        Code::Q4 => [
            of(8, [PackedResidentQ4N8, PackedResidentQ4N8Swiglu], 16, 3, 2),
            of(16, [PackedResidentQ4N16, PackedResidentQ4N16Swiglu], 16, 3, 1),
            of(32, [PackedResidentQ4N32, PackedResidentQ4N32Swiglu], 8, 5, 2),
        ],
        Code::Q8 => [
            of(8, [PackedResidentQ8N8, PackedResidentQ8N8Swiglu], 16, 2, 2),
            of(16, [PackedResidentQ8N16, PackedResidentQ8N16Swiglu], 8, 4, 1),
            of(32, [PackedResidentQ8N32, PackedResidentQ8N32Swiglu], 8, 4, 1),
        ],
    }
}

/// The first kernel for up to so many rows that the GPU has the shared memory for, and the strips of its blocks.
fn few(driver: &Driver, code: Code, m: usize, fused: bool) -> (Kernel, usize) {
    use Kernel::*;
    const Q4: [(usize, [Kernel; 2], usize); 3] = [
        (8, [PackedGemmQ4N8, PackedGemmQ4N8Swiglu], 2),
        (16, [PackedGemmQ4N16, PackedGemmQ4N16Swiglu], 2),
        (32, [PackedGemmQ4N32, PackedGemmQ4N32Swiglu], 4),
    ];
    const Q8: [(usize, [Kernel; 2], usize); 3] = [
        (8, [PackedGemmQ8N8, PackedGemmQ8N8Swiglu], 2),
        (16, [PackedGemmQ8N16, PackedGemmQ8N16Swiglu], 2),
        (32, [PackedGemmQ8N32, PackedGemmQ8N32Swiglu], 4),
    ];
    let table = match code {
        Code::Q4 => Q4,
        Code::Q8 => Q8,
    };
    let fits = |(rows, kernels, _): &(usize, [Kernel; 2], usize)| m <= *rows && driver.supports(kernels[0]);
    let (_, kernels, strips) = table.into_iter().find(fits).expect("all GPUs run those of 32 rows");
    (kernels[fused as usize], strips)
}
