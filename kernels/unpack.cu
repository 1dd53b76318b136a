// Rows of weights as numbers: embedding, and strips of packed weights (`codes.cuh`, `own.cuh`) in
// bf16 for the GEMMs of prefill. value = scale * code - minimum, rounded once. CPU twins: `embed`,
// `Packed::row`.
#include "own.cuh"

// Scale and minimum of a run of 16 columns of a row of a strip.
template <int P>
__device__ __forceinline__ void scale_of(Own<P> code, float& scale, float& minimum, const u8* strip, const Layout<Own<P>>& at, int row,
                                         int col) {
  const u8* words = strip + P * at.plane_bytes + (u64)(col / GROUP_COLS) * code.group_bytes() + row % 8 * code.pair_bytes();
  int run = col % GROUP_COLS / 16;
  if (P == 1 && code.words == TILES) {
    u32 word = *(const u32*)(words + run / 4 * 4) >> (row / 8 * 16);
    scale = f16_value(Q4::scales(word)), minimum = scale * (0.5f * (float)Q4::twice_zero(word));
    return;
  }
  float scales[2], minima[2];
  BY_WORDS(P, code, scale_run, scales, minima, words, run, code.zero())
  scale = row < 8 ? scales[0] : scales[1], minimum = row < 8 ? minima[0] : minima[1];
}

// Eight columns of a row of a strip, from column `col` on.
template <int P>
__device__ __forceinline__ void eight_of(float (&values)[8], Own<P> code, const u8* strip, const Layout<Own<P>>& at, int row, int col) {
  const u8* chunk = strip + col / TILE_COLS * TILE_BYTES + (4 * (row % 8) + col % TILE_COLS / 16) * 16 + row / 8 * 8 + col % 16 / 8 * 4;
  u32 high = *(const u32*)chunk, low = P == 2 ? *(const u32*)(chunk + at.plane_bytes) : 0;
  float scale, minimum;
  scale_of(code, scale, minimum, strip, at, row, col);
#pragma unroll
  for (int k = 0; k < 8; k++) {
    int shift = 4 * (k / 2) + 16 * (k % 2), c = high >> shift & 15;
    if (P == 2) c = 16 * c + (low >> shift & 15);
    values[k] = fmaf(scale, (float)c, -minimum);
  }
}

template <int P>
__device__ __forceinline__ void embed_row(Own<P> code, float* out, const u8* table, u32 token, float scale, int width) {
  Layout<Own<P>> at(width, code.group_bytes());
  for (int i = threadIdx.x * 8; i < width; i += blockDim.x * 8) {
    float values[8];
    eight_of(values, code, table + at.strip_bytes * (token / STRIP_ROWS), at, token % STRIP_ROWS, i);
#pragma unroll
    for (int k = 0; k < 8; k++) out[i + k] = scale * values[k];
  }
}

template <int P>
__device__ __forceinline__ void unpack_strips(Own<P> code, u16* out, const u8* weight, int first, int second, int strips, int cols) {
  Layout<Own<P>> at(cols, code.group_bytes());
  int index = blockIdx.y, row = threadIdx.x / 8, col = blockIdx.x * TILE_COLS + threadIdx.x % 8 * 8;
  const u8* strip = weight + at.strip_bytes * (index < strips ? first + index : second + index - strips);
  float values[8];
  eight_of(values, code, strip, at, row, col);
  *(uint4*)(out + ((u64)index * STRIP_ROWS + row) * cols + col) =
      uint4{round_pair(values[0], values[1]), round_pair(values[2], values[3]), round_pair(values[4], values[5]),
            round_pair(values[6], values[7])};
}

// out[i, width] = scale * table[tokens[i], width] in f32 for n tokens. The table is packed in
// `planes` planes of nibbles with words of that kind, or if `planes` is 0 a matrix of dtype
// `words`. Grid n, any block. Reads n rows of the table, writes n rows of f32.
KERNEL embed(float* out, const void* table, const u32* tokens, float scale, int width, int planes, int words) {
  after_previous();
  u32 token = tokens[blockIdx.x];
  out += (u64)blockIdx.x * width;
  if (planes == 1) return embed_row(Own<1>{words}, out, (const u8*)table, token, scale, width);
  if (planes == 2) return embed_row(Own<2>{words}, out, (const u8*)table, token, scale, width);
  u64 from = (u64)token * width;
  for (int i = threadIdx.x; i < width; i += blockDim.x)
    out[i] = scale * (words == F32   ? weight_at<F32>(table, from + i)
                      : words == F16 ? weight_at<F16>(table, from + i)
                                     : weight_at<BF16>(table, from + i));
}

// out[strips * 16, cols] in bf16 = strips first, first + 1 and so on of a weight; behind them, if
// `second` is not negative, as many strips from there on. Grid (cols / 64, all strips), 128
// threads: a block has a tile, a thread eight columns of a row. Reads the strips and writes 2 bytes
// per value.
KERNEL __launch_bounds__(128)
    unpack(u16* out, const u8* weight, int first, int second, int strips, int cols, int planes, int words) {
  after_previous();
  if (planes == 1) unpack_strips(Own<1>{words}, out, weight, first, second, strips, cols);
  else unpack_strips(Own<2>{words}, out, weight, first, second, strips, cols);
}
