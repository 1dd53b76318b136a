// Packed weights: matrices of 4-bit or 8-bit codes in tiles of 16 rows x 64 columns. Rust twin:
// `src/quant.rs`.
//
// A strip is 16 rows: [cols / 64] tiles of 512 bytes, then the low bits, then the words. A tile
// holds four bits of each code; codes of more bits have tiles of the others, 256 bytes for two bits
// and 512 for four. Chunk 4 g + t of 16 bytes (g < 8, t < 4) holds columns 16 t to 16 t + 15 of row
// g, then those of row g + 8: what warp lane 4 g + t needs for `mma`. A u32 holds eight columns:
// nibble i is column 2 i, nibble i + 4 column 2 i + 1. Two low bits are chunks of 8 bytes, a u32 of
// 16 columns for row g and one for row g + 8; byte i has those of the codes whose nibbles are in
// byte i of both u32: even and odd nibbles of the first, then of the second.
//
// Words are [groups of 4 tiles][g][tile of the group]{row g, row g + 8}, 16 bits each: scale and
// zero point of 64 columns of a row, or two words of its halves. Columns 8 i to 8 i + 7 are of the
// first half if i is even. value = scale * (code - zero).
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

// A code says how many bits it has below the upper four, how many words a row of a tile has, how
// many units a step of its zero point, how many scales a row of a tile has in `own.cuh`, and the
// bytes that words of a group of tiles take.

// 4-bit codes. A word is bits 14 to 4 of the scale as f16, then twice the zero point in 5 bits.
struct Q4 {
  static constexpr int LOW_BITS = 0, HALVES = 1, UNITS = 2;
  static constexpr int PARTS = 1, MOST_WORD_BYTES = WORD_BYTES;
  static constexpr __device__ int group_bytes() { return WORD_BYTES; }
  static __device__ __forceinline__ u32 scales(u32 words) { return (words >> 1) & 0x7ff07ff0u; }
  static __device__ __forceinline__ int zero_units(u32 word) { return word & 31; }
  // What decoding adds to the zero point: nibbles become bf16 as 128 + code.
  static __device__ __forceinline__ float offset(u32 word) { return 0.5f * (float)(int)(word & 31) + 128.0f; }
};

// 8-bit codes around 128. A word is the scale as f16.
struct Q8 {
  static constexpr int LOW_BITS = 4, HALVES = 1, UNITS = 2;
  static constexpr int PARTS = 1, MOST_WORD_BYTES = WORD_BYTES;
  static constexpr __device__ int group_bytes() { return WORD_BYTES; }
  static __device__ __forceinline__ u32 scales(u32 words) { return words; }
  static __device__ __forceinline__ int zero_units(u32) { return 256; }
  // 16 (128 + high) + (128 + low) = code + 2,176.
  static __device__ __forceinline__ float offset(u32) { return 16 * 128.0f + 128.0f + 128.0f; }
};

// 4-bit and 6-bit codes with a word for each half of a tile's columns: bits 14 to 6 of the scale as
// f16, then the zero point in 7 bits, in units of 1 / 8 or 1 / 2.
template <int BITS>
struct OfHalves {
  static constexpr int LOW_BITS = BITS - 4, HALVES = 2, UNITS = 128 >> BITS;
  static constexpr int PARTS = 1, MOST_WORD_BYTES = 2 * WORD_BYTES;
  static constexpr __device__ int group_bytes() { return 2 * WORD_BYTES; }
  static __device__ __forceinline__ u32 scales(u32 words) { return (words >> 1) & 0x7fc07fc0u; }
  static __device__ __forceinline__ int zero_units(u32 word) { return word & 127; }
};
typedef OfHalves<4> Q4H;
typedef OfHalves<6> Q6H;

// Words of rows g and g + 8 in a tile; with halves both of row g, then both of row g + 8.
template <int HALVES>
struct WordsOf {
  typedef u32 Type;
};
template <>
struct WordsOf<2> {
  typedef uint2 Type;
};
// The words of both rows for one half, in the halves of a register.
__device__ __forceinline__ u32 words_of(u32 words, int) { return words; }
__device__ __forceinline__ u32 words_of(uint2 words, int half) { return __byte_perm(words.x, words.y, half ? 0x7632 : 0x5410); }
// Starts to copy the words of a tile to shared memory.
__device__ __forceinline__ void copy_words_of(u32* to, const u8* from) { copy_async4(to, from, true); }
__device__ __forceinline__ void copy_words_of(uint2* to, const u8* from) { copy_async8(to, from, true); }

// Sizes of a packed matrix. The words of a group of tiles take `group_bytes`, those of a strip a
// multiple of 128.
template <class CODE>
struct Layout {
  static constexpr int LOW_TILE = CODE::LOW_BITS * STRIP_ROWS * TILE_COLS / 8;
  int tiles, groups;
  // Where the low bits and the words of a strip begin.
  u64 low_at, words_at, strip_bytes;
  __device__ __forceinline__ explicit Layout(int cols, int group_bytes = CODE::MOST_WORD_BYTES) {
    tiles = cols / TILE_COLS;
    groups = (tiles + GROUP_TILES - 1) / GROUP_TILES;
    low_at = (u64)tiles * TILE_BYTES;
    words_at = (u64)tiles * (TILE_BYTES + LOW_TILE);
    strip_bytes = words_at + (((u64)groups * group_bytes + WORD_BYTES - 1) & ~(u64)(WORD_BYTES - 1));
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

// A warp lane's 16 columns of a tile in rows g and g + 8: for each row and each eight columns the
// nibbles, and the low bits.
template <int LOW_BITS>
struct LaneCodes {
  u32 high[2][2], low[2][2];
  // `codes` and `low_codes`: of a tile.
  __device__ __forceinline__ LaneCodes(const u8* codes, const u8* low_codes, int lane) {
    uint4 v = *(const uint4*)(codes + lane * 16);
    high[0][0] = v.x, high[0][1] = v.y, high[1][0] = v.z, high[1][1] = v.w;
    if (LOW_BITS == 4) {
      v = *(const uint4*)(low_codes + lane * 16);
      low[0][0] = v.x, low[0][1] = v.y, low[1][0] = v.z, low[1][1] = v.w;
    } else if (LOW_BITS == 2) {
      uint2 two = *(const uint2*)(low_codes + lane * 8);
      low[0][0] = two.x, low[0][1] = two.x >> 4, low[1][0] = two.y, low[1][1] = two.y >> 4;
    }
  }
};

// (x & mask) | bits, and (~x & mask) | bits.
__device__ __forceinline__ u32 and_or(u32 x, u32 mask, u32 bits) { return logic3<0xea>(x, mask, bits); }
__device__ __forceinline__ u32 and_not_or(u32 x, u32 mask, u32 bits) { return logic3<0xae>(x, mask, bits); }

// Columns 2 i and 2 i + 1 of eight as a pair of bf16, 128 + nibble each.
__device__ __forceinline__ u32 nibble_pair(u32 word, int i) { return ((word >> (4 * i)) & 0x000f000fu) | 0x43004300u; }

// The pair of zero points of which `code_pair` is relative: `word` is that of a half.
template <class CODE>
__device__ __forceinline__ u32 zero_pair(u32 word) {
  word = word & 127u | (CODE::LOW_BITS ? 0x4280u : 0x4180u);
  return __byte_perm(word, 0, 0x1010);
}

// Columns 2 i and 2 i + 1 of eight as a pair of bf16, less the zero point: exact. Of halves: 16 +
// code less 16 + zero, or 64 + code less 64 + zero.
template <class CODE>
__device__ __forceinline__ u32 code_less_zero(u32 high, u32 low, int i, u32 zero) {
  u32 moved = i == 0 ? high << 3 : high >> (4 * i - 3);
  if (CODE::LOW_BITS == 0) return subtract_codes(and_or(moved, 0x00780078u, 0x41804180u), zero);
  int shift = 8 * (i / 2) + 2 * (i % 2) - 1;
  u32 two = shift < 0 ? low << 1 : low >> shift;
  return subtract_codes(and_or(two, 0x00060006u, and_or(moved, 0x00780078u, 0x42804280u)), zero);
}

// The codes of eight columns as bytes: `even` has columns 0, 4, 1, 5 and `odd` 2, 6, 3, 7.
template <class CODE>
__device__ __forceinline__ u32 even_bytes(u32 high, u32 low) {
  if (CODE::LOW_BITS == 0) return high & NIBBLES;
  if (CODE::LOW_BITS == 2) return ((high << 2) & (NIBBLES << 2)) | (low & 0x03030303u);
  return ((high << 4) & ~NIBBLES) | (low & NIBBLES);
}
template <class CODE>
__device__ __forceinline__ u32 odd_bytes(u32 high, u32 low) {
  if (CODE::LOW_BITS == 0) return (high >> 4) & NIBBLES;
  if (CODE::LOW_BITS == 2) return ((high >> 2) & (NIBBLES << 2)) | ((low >> 2) & 0x03030303u);
  return (high & ~NIBBLES) | ((low >> 4) & NIBBLES);
}

// Sums of x over a tile's columns, from its fragments: those that `mma` with ones gives this lane.
// Codes with halves have their zero points subtracted before they are multiplied.
__device__ __forceinline__ void sum_columns(float (&of_x)[2], const u32 (&b)[8]) {
  const u32 ones[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
  float c[4] = {};
#pragma unroll
  for (int k = 0; k < 4; k++) mma(c, ones, b + 2 * k);
  of_x[0] = c[0], of_x[1] = c[1];
}

// The A fragment of `mma` of step k of a tile: the nibbles of a plane, 128 + nibble.
__device__ __forceinline__ void fragment(u32 a[4], const u32 (&plane)[2][2], int k) {
#pragma unroll
  for (int j = 0; j < 4; j++) a[j] = nibble_pair(plane[j % 2][k / 2], k % 2 * 2 + j / 2);
}

// sums += x W^T of a tile's 16 rows of W and NT tiles of 8 rows of x. `codes` and `low`: of the
// tile; `words`: of rows g and g + 8; `b`: fragments of x; `of_x`: sums of x over the tile's
// columns, not read if the code has halves.
template <class CODE, int NT, class WORDS>
__device__ __forceinline__ void multiply_tile(float (&sums)[NT][4], const u8* codes, const u8* low, int lane, WORDS words,
                                              const u32 (&b)[NT][8], const float (&of_x)[NT][2]) {
  LaneCodes<CODE::LOW_BITS> v(codes, low, lane);
  if constexpr (CODE::HALVES == 2) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      u32 word = words_of(words, half), scales = CODE::scales(word), a[2][4];
      const u32 zero[2] = {zero_pair<CODE>(word), zero_pair<CODE>(word >> 16)};
#pragma unroll
      for (int k = 0; k < 2; k++)
#pragma unroll
        for (int j = 0; j < 4; j++)
          a[k][j] = code_less_zero<CODE>(v.high[j % 2][half], v.low[j % 2][half], 2 * k + j / 2, zero[j % 2]);
#pragma unroll
      for (int j = 0; j < NT; j++) {
        float c[4] = {};
        mma(c, a[0], b[j] + 4 * half);
        mma(c, a[1], b[j] + 4 * half + 2);
#pragma unroll
        for (int k = 0; k < 4; k++) sums[j][k] = fmaf(f16_value(scales >> (16 * (k / 2))), c[k], sums[j][k]);
      }
    }
  } else {
    constexpr int PLANES = CODE::LOW_BITS ? 2 : 1;
    float scale[2], offset[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      scale[h] = f16_value(CODE::scales(words) >> (16 * h));
      offset[h] = CODE::offset(words >> (16 * h));
    }
    u32 a[PLANES][4][4];
#pragma unroll
    for (int p = 0; p < PLANES; p++)
#pragma unroll
      for (int k = 0; k < 4; k++) fragment(a[p][k], p ? v.low : v.high, k);
#pragma unroll
    for (int j = 0; j < NT; j++) {
      float c[4] = {};
#pragma unroll
      for (int p = 0; p < PLANES; p++) {
        if (p == 1) c[0] *= 16.0f, c[1] *= 16.0f, c[2] *= 16.0f, c[3] *= 16.0f;
#pragma unroll
        for (int k = 0; k < 4; k++) mma(c, a[p][k], b[j] + 2 * k);
      }
#pragma unroll
      for (int k = 0; k < 4; k++) sums[j][k] = fmaf(scale[k / 2], fmaf(-offset[k / 2], of_x[j][k % 2], c[k]), sums[j][k]);
    }
  }
}
