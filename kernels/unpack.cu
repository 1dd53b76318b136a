// Rows of packed weights (`codes.cuh`) as numbers: embedding, and strips of bf16 for the GEMMs of prefill.
#include "codes.cuh"

// The code of a column of a row of a strip.
template <class CODE>
__device__ __forceinline__ int code_at(const u8* strip, const Layout<CODE>& at, int row, int col) {
  int t = col % TILE_COLS / 16, q = col % 8, nibble = q / 2 + q % 2 * 4;
  const u8* chunk = strip + col / TILE_COLS * TILE_BYTES + (4 * (row % 8) + t) * 16 + row / 8 * 8 + col % 16 / 8 * 4;
  int code = 0;
#pragma unroll
  for (int p = 0; p < CODE::PLANES; p++)
    code = 16 * code + (*(const u32*)(chunk + p * at.plane_bytes) >> (4 * nibble) & 15);
  return code;
}

// The words of rows g and g + 8 of a tile.
template <class CODE>
__device__ __forceinline__ u32 words_at(const u8* strip, const Layout<CODE>& at, int g, int tile) {
  const u8* words = strip + CODE::PLANES * at.plane_bytes + tile / GROUP_TILES * WORD_BYTES;
  return *(const u32*)(words + g * 16 + tile % GROUP_TILES * 4);
}

// value = scale * (code - zero), rounded once.
template <class CODE>
__device__ __forceinline__ float decode(int code, u32 word) {
  return f16_value(CODE::scales(word)) * 0.5f * (float)(2 * code - CODE::twice_zero(word));
}

// out[i, width] = scale * table[tokens[i], width] in f32. Grid n, any block. CPU twin: `embed`.
template <class CODE>
__device__ __forceinline__ void embed_row(float* out, const u8* table, const u32* tokens, float scale, int width) {
  Layout<CODE> at(width);
  u32 token = tokens[blockIdx.x];
  int row = token % STRIP_ROWS;
  const u8* strip = table + at.strip_bytes * (token / STRIP_ROWS);
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    u32 words = words_at<CODE>(strip, at, row % 8, i / TILE_COLS);
    out[(u64)blockIdx.x * width + i] = scale * decode<CODE>(code_at<CODE>(strip, at, row, i), words >> (row / 8 * 16));
  }
}

// out[strips * 16, cols] in bf16 = strips first, first + 1 and so on of a weight, each value rounded once; behind them, if
// `second` is not negative, as many strips from there on. Grid (cols / 64, all strips), 128 threads: a block has a tile, a
// thread eight columns of a row. Reads the strips and writes 2 bytes per value.
template <class CODE>
__device__ __forceinline__ void unpack_strips(u16* out, const u8* weight, int first, int second, int strips, int cols) {
  Layout<CODE> at(cols);
  int index = blockIdx.y, tile = blockIdx.x;
  const u8* strip = weight + at.strip_bytes * (index < strips ? first + index : second + index - strips);
  int row = threadIdx.x / 8, eight = threadIdx.x % 8;  // columns 8 eight and on
  u32 word = words_at<CODE>(strip, at, row % 8, tile) >> (row / 8 * 16);
  const u8* chunk = strip + tile * TILE_BYTES + (4 * (row % 8) + eight / 2) * 16 + row / 8 * 8 + eight % 2 * 4;
  u32 high = *(const u32*)chunk, low = CODE::PLANES == 2 ? *(const u32*)(chunk + at.plane_bytes) : 0;
  float scale = f16_value(CODE::scales(word)) * 0.5f;
  int zero = CODE::twice_zero(word);
  u32 pairs[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    float v[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
      int code = high >> (4 * i + 16 * k) & 15;
      if (CODE::PLANES == 2) code = 16 * code + (low >> (4 * i + 16 * k) & 15);
      v[k] = scale * (float)(2 * code - zero);
    }
    pairs[i] = round_pair(v[0], v[1]);
  }
  u64 to = ((u64)index * STRIP_ROWS + row) * cols + tile * TILE_COLS + eight * 8;
  *(uint4*)(out + to) = uint4{pairs[0], pairs[1], pairs[2], pairs[3]};
}

// `planes`: those of the code.
KERNEL embed_packed(float* out, const u8* table, const u32* tokens, float scale, int width, int planes) {
  after_previous();
  if (planes == 1) embed_row<Q4>(out, table, tokens, scale, width);
  else embed_row<Q8>(out, table, tokens, scale, width);
}
KERNEL __launch_bounds__(128) unpack(u16* out, const u8* weight, int first, int second, int strips, int cols, int planes) {
  after_previous();
  if (planes == 1) unpack_strips<Q4>(out, weight, first, second, strips, cols);
  else unpack_strips<Q8>(out, weight, first, second, strips, cols);
}
