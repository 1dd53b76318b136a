// Packed weights: matrices of 4-bit or 8-bit codes in tiles of 16 rows x 64 columns. Rust twin:
// `src/quant.rs`.
//
// A strip is 16 rows: PLANES x [cols / 64] tiles of 512 bytes, then the words. A tile holds a
// nibble of each code; 8-bit codes have a tile plane of high nibbles and one of low ones. Chunk 4 g
// + t of 16 bytes (g < 8, t < 4) holds columns 16 t to 16 t + 15 of row g, then those of row g + 8:
// what warp lane 4 g + t needs for `mma`. A u32 holds eight columns: nibble i is column 2 i, nibble
// i + 4 column 2 i + 1. Words are [groups of 4 tiles][g][tile of the group]{row g, row g + 8}, 16
// bits each: scale and, for 4-bit codes, zero point of 64 columns of a row. value = scale * (code -
// zero).
#pragma once
#include "common.cuh"
#include "tensor.cuh"

#define TILE_BYTES 512
#define TILE_COLS 64
#define STRIP_ROWS 16
#define GROUP_TILES 4                       // tiles whose words lie together
#define GROUP_COLS (GROUP_TILES * TILE_COLS)
#define WORD_BYTES 128                      // of a group of tiles
#define NIBBLES 0x0f0f0f0fu

// A code says how many planes of nibbles it has, how many scales a row of a tile, and the bytes
// that words of a group of tiles take.

// 4-bit codes. A word is bits 14 to 4 of the scale as f16, then twice the zero point in 5 bits.
struct Q4 {
  static constexpr int PLANES = 1;
  static constexpr int PARTS = 1, MOST_WORD_BYTES = WORD_BYTES;
  static constexpr __device__ int group_bytes() { return WORD_BYTES; }
  static __device__ __forceinline__ u32 scales(u32 words) { return (words >> 1) & 0x7ff07ff0u; }
  static __device__ __forceinline__ int twice_zero(u32 word) { return word & 31; }
  // What decoding adds to the zero point: nibbles become bf16 as 128 + code.
  static __device__ __forceinline__ float offset(u32 word) { return 0.5f * (float)(int)(word & 31) + 128.0f; }
};

// 8-bit codes around 128. A word is the scale as f16.
struct Q8 {
  static constexpr int PLANES = 2;
  static constexpr int PARTS = 1, MOST_WORD_BYTES = WORD_BYTES;
  static constexpr __device__ int group_bytes() { return WORD_BYTES; }
  static __device__ __forceinline__ u32 scales(u32 words) { return words; }
  static __device__ __forceinline__ int twice_zero(u32) { return 256; }
  // 16 (128 + high) + (128 + low) = code + 2,176.
  static __device__ __forceinline__ float offset(u32) { return 16 * 128.0f + 128.0f + 128.0f; }
};

// Sizes of a packed matrix. The words of a group of tiles take `group_bytes`, those of a strip a
// multiple of 128.
template <class CODE>
struct Layout {
  int tiles, groups;
  u64 plane_bytes, strip_bytes;
  __device__ __forceinline__ explicit Layout(int cols, int group_bytes = WORD_BYTES) {
    tiles = cols / TILE_COLS;
    groups = (tiles + GROUP_TILES - 1) / GROUP_TILES;
    plane_bytes = (u64)tiles * TILE_BYTES;
    strip_bytes = CODE::PLANES * plane_bytes + (((u64)groups * group_bytes + WORD_BYTES - 1) & ~(u64)(WORD_BYTES - 1));
  }
};

// The strips that a block walks over: blockIdx.x, blockIdx.x + gridDim.x and so on. With SwiGLU the
// weight is [gate | up], strip 2 i of the block is one of gate, and 2 i + 1 that of up for the same
// outputs.
template <class CODE>
struct Strips {
  const u8* weight;
  u64 strip_bytes;
  int swiglu, outs, count;
  __device__ __forceinline__ Strips(const Layout<CODE>& at, const void* weight, int rows, int swiglu)
      : weight((const u8*)weight), strip_bytes(at.strip_bytes), swiglu(swiglu ? 1 : 0) {
    outs = (rows + STRIP_ROWS - 1) / STRIP_ROWS >> this->swiglu;
    count = (outs - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x << this->swiglu;
  }
  __device__ __forceinline__ int strip(int i) const { return blockIdx.x + (i >> swiglu) * gridDim.x; }
  __device__ __forceinline__ const u8* address(int i) const {
    return weight + strip_bytes * (swiglu & i ? strip(i) + outs : strip(i));
  }
  // First row of the output of strip i.
  __device__ __forceinline__ int row(int i) const { return strip(i) * STRIP_ROWS; }
};

// Columns 2 i and 2 i + 1 of eight as a pair of bf16, 128 + nibble each.
__device__ __forceinline__ u32 nibble_pair(u32 word, int i) { return ((word >> (4 * i)) & 0x000f000fu) | 0x43004300u; }

// The A fragment of `mma` of step k of a tile, in bf16, from a warp lane's 16 bytes.
__device__ __forceinline__ void fragment(u32 a[4], uint4 v, int k) {
  u32 row = k < 2 ? v.x : v.y, row8 = k < 2 ? v.z : v.w;
  int i = k % 2 * 2;
  a[0] = nibble_pair(row, i), a[1] = nibble_pair(row8, i);
  a[2] = nibble_pair(row, i + 1), a[3] = nibble_pair(row8, i + 1);
}

// The codes of eight columns as bytes, from the planes' words: `even` has columns 0, 4, 1, 5 and
// `odd` 2, 6, 3, 7.
template <class CODE>
__device__ __forceinline__ u32 even_bytes(u32 high, u32 low) {
  return CODE::PLANES == 1 ? high & NIBBLES : ((high << 4) & ~NIBBLES) | (low & NIBBLES);
}
template <class CODE>
__device__ __forceinline__ u32 odd_bytes(u32 high, u32 low) {
  return CODE::PLANES == 1 ? (high >> 4) & NIBBLES : (high & ~NIBBLES) | ((low >> 4) & NIBBLES);
}

// Sums of x over a tile's columns, from its fragments: those that `mma` with ones gives this lane.
__device__ __forceinline__ void sum_columns(float (&of_x)[2], const u32 (&b)[8]) {
  const u32 ones[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
  float c[4] = {};
#pragma unroll
  for (int k = 0; k < 4; k++) mma(c, ones, b + 2 * k);
  of_x[0] = c[0], of_x[1] = c[1];
}

// sums += x W^T of a tile's 16 rows of W and NT tiles of 8 rows of x. `codes`: this warp lane's 16
// bytes of the first plane,
// `plane` bytes before those of the next; `word`: of rows g and g + 8; `b`: fragments of x; `of_x`:
// sums of x over the tile's
// columns.
template <class CODE, int NT>
__device__ __forceinline__ void multiply_tile(float (&sums)[NT][4], const u8* codes, int plane, u32 word, const u32 (&b)[NT][8],
                                              const float (&of_x)[NT][2]) {
  float scale[2], offset[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    scale[h] = f16_value(CODE::scales(word) >> (16 * h));
    offset[h] = CODE::offset(word >> (16 * h));
  }
  u32 a[CODE::PLANES][4][4];
#pragma unroll
  for (int p = 0; p < CODE::PLANES; p++) {
    uint4 v = *(const uint4*)(codes + p * plane);
#pragma unroll
    for (int k = 0; k < 4; k++) fragment(a[p][k], v, k);
  }
#pragma unroll
  for (int j = 0; j < NT; j++) {
    float c[4] = {};
#pragma unroll
    for (int p = 0; p < CODE::PLANES; p++) {
      if (p == 1) c[0] *= 16.0f, c[1] *= 16.0f, c[2] *= 16.0f, c[3] *= 16.0f;
#pragma unroll
      for (int k = 0; k < 4; k++) mma(c, a[p][k], b[j] + 2 * k);
    }
#pragma unroll
    for (int k = 0; k < 4; k++) sums[j][k] = fmaf(scale[k / 2], fmaf(-offset[k / 2], of_x[j][k % 2], c[k]), sums[j][k]);
  }
}
