//! Matrices of bf16 as kernels with Hopper's instructions copy them: by tiles of 64 columns, each line of 128 bytes
//! swizzled (`kernels/hopper.cuh`).

use super::abi::TensorMap;
use super::driver::must;
use cudarc::driver::sys;

/// Columns of a tile: what a swizzled line has.
const COLUMNS: u32 = 64;

/// A matrix at that address of the card, `rows` by `cols`, in tiles of `tile_rows` rows. What a tile has outside the
/// matrix is zero.
pub(super) fn tiles(at: u64, [rows, cols]: [usize; 2], tile_rows: usize) -> TensorMap {
    let mut map = sys::CUtensorMap { opaque: [0; 16] };
    let (sizes, line_bytes) = ([cols as u64, rows as u64], [(cols * size_of::<u16>()) as u64]);
    let (tile, steps) = ([COLUMNS, tile_rows as u32], [1, 1]);
    // SAFETY: every array is as long as the rank says, one less for strides; the map is live and aligned. The address
    // is one of the card and is not read.
    let made = unsafe {
        sys::cuTensorMapEncodeTiled(
            &mut map,
            sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            2,
            std::ptr::without_provenance_mut(at as usize),
            sizes.as_ptr(),
            line_bytes.as_ptr(),
            tile.as_ptr(),
            steps.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    must(made, "describing a matrix to it");
    TensorMap { words: map.opaque }
}
