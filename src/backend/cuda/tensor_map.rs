//! TMA descriptors of bf16 matrices and of pages: tiles of 64 columns, rows of 128 bytes, 128-byte
//! swizzle (`kernels/hopper.cuh`).

use super::abi::TensorMap;
use super::error::must;
use cudarc::driver::sys;

/// Columns of a tile: 128 bytes, the width of the swizzle.
const COLUMNS: u32 = 64;

/// Describes the row-major bf16 matrix `[rows, cols]` at device address `at`, read in tiles of
/// `tile_rows` rows. Elements of a tile outside the matrix read as zero.
pub(super) fn tensor_map(at: u64, [rows, cols]: [usize; 2], tile_rows: usize) -> TensorMap {
    encode(at, [cols, rows], [cols * size_of::<u16>()], [COLUMNS, tile_rows as u32])
}

/// Describes `n` pages of bf16 rows `[rows, cols]`, `stride` bytes from page to page, read in tiles
/// of `tile_rows` rows of one page.
pub(super) fn page_map(at: u64, n: usize, stride: usize, [rows, cols]: [usize; 2], tile_rows: usize) -> TensorMap {
    encode(at, [cols, rows, n], [cols * size_of::<u16>(), stride], [COLUMNS, tile_rows as u32, 1])
}

/// `sizes` and `tile` from the innermost dimension out, in elements; `strides` of all but the
/// innermost, in bytes.
fn encode<const RANK: usize, const OUTER: usize>(
    at: u64,
    sizes: [usize; RANK],
    strides: [usize; OUTER],
    tile: [u32; RANK],
) -> TensorMap {
    const { assert!(OUTER + 1 == RANK) };
    let mut map = sys::CUtensorMap { opaque: [0; 16] };
    let (sizes, strides) = (sizes.map(|n| n as u64), strides.map(|n| n as u64));
    let element_strides = [1; RANK];
    // SAFETY: every array is as long as the rank says, one less for strides; the map is live and
    // aligned. The address is one of the GPU and is not read.
    let encoded = unsafe {
        sys::cuTensorMapEncodeTiled(
            &mut map,
            sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            RANK as u32,
            std::ptr::without_provenance_mut(at as usize),
            sizes.as_ptr(),
            strides.as_ptr(),
            tile.as_ptr(),
            element_strides.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    must(encoded.result(), "encoding a tensor map");
    TensorMap { words: map.opaque }
}
