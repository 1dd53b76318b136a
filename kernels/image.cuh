// Activations in the order in which `packed_wgmma.cu` reads them: up to 32 rows of bf16 as the B
// operand of wgmma. An image is [cols / 64] tiles of 32 rows of 64 columns, 128-byte swizzled
// (`tile_at` in `hopper.cuh`). Within a tile columns are permuted as the codes of a packed weight
// lie (`codes.cuh`): columns 16 c + 8 h + 2 j and the next are pair c of chunk 4 h + j.
#pragma once
#include "tensor.cuh"

#define IMAGE_ROWS 32
#define IMAGE_TILE (IMAGE_ROWS * 128)  // bytes

// Byte of columns `col` and col + 1 of a row; col is even.
__device__ __forceinline__ int image_at(int row, int col) {
  return col / 64 * IMAGE_TILE + row * 128 + ((col % 16 / 2 ^ row) & 7) * 16 + col % 64 / 16 * 4;
}

// Stores columns `col` and col + 1 of a row as bf16; col is even.
__device__ __forceinline__ void put_image2(u8* image, int row, int col, float x, float y) {
  *(u32*)(image + image_at(row, col)) = (u32)f32_to_bf16(x) | (u32)f32_to_bf16(y) << 16;
}
