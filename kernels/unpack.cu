// Rows of weights as numbers: embedding, and strips of packed weights (`codes.cuh`, `own.cuh`) in
// bf16 for the GEMMs of prefill. value = scale * code - minimum, rounded once. CPU twins: `embed`,
// `Packed::row`.
#include "own.cuh"

// Scale and minimum of eight columns of a row of a strip.
template <int P, int LOW>
__device__ __forceinline__ void scale_of(Own<P, LOW> code, float& scale, float& minimum, const u8* words, int row, int col) {
  int tile = col / TILE_COLS, run = col % GROUP_COLS / 16;
  if (code.words == TILES) {
    u32 word = ((const u16*)words)[((tile / GROUP_TILES * 8 + row % 8) * GROUP_TILES + tile % GROUP_TILES) * 2 + row / 8];
    scale = f16_value(P == 1 ? Q4::scales(word) : Q8::scales(word));
    minimum = scale * (0.5f * (float)(P == 1 ? Q4::zero_units(word) : Q8::zero_units(word)));
    return;
  }
  if (code.words == TILE_HALVES) {
    typedef OfHalves<4 + LOW> CODE;
    int pair = (tile / GROUP_TILES * 8 + row % 8) * GROUP_TILES + tile % GROUP_TILES;
    u32 word = ((const u16*)words)[(pair * 2 + row / 8) * 2 + col / 8 % 2];
    scale = f16_value(CODE::scales(word)), minimum = scale * ((float)CODE::zero_units(word) * (1.0f / CODE::UNITS));
    return;
  }
  words += (u64)(col / GROUP_COLS) * code.group_bytes() + row % 8 * code.pair_bytes();
  float scales[2], minima[2];
  BY_WORDS(P, code, scale_run, scales, minima, words, run, code.zero())
  scale = row < 8 ? scales[0] : scales[1], minimum = row < 8 ? minima[0] : minima[1];
}

// Eight columns of a row of a strip, from column `col` on.
template <int P, int LOW>
__device__ __forceinline__ void eight_of(float (&values)[8], Own<P, LOW> code, const u8* strip, const Layout<Own<P, LOW>>& at, int row,
                                         int col) {
  int chunk = (4 * (row % 8) + col % TILE_COLS / 16) * 16 + row / 8 * 8;
  u32 high = *(const u32*)(strip + col / TILE_COLS * TILE_BYTES + chunk + col % 16 / 8 * 4), low = 0;
  const u8* low_tile = strip + at.low_at + col / TILE_COLS * at.LOW_TILE;
  if (LOW == 4) low = *(const u32*)(low_tile + chunk + col % 16 / 8 * 4);
  if (LOW == 2) low = *(const u32*)(low_tile + chunk / 2) >> col % 16 / 8 * 4;
  float scale, minimum;
  scale_of(code, scale, minimum, strip + at.words_at, row, col);
#pragma unroll
  for (int k = 0; k < 8; k++) {
    int shift = 4 * (k / 2) + 16 * (k % 2), c = high >> shift & 15;
    if (LOW == 4) c = 16 * c + (low >> shift & 15);
    if (LOW == 2) c = 4 * c + (low >> (8 * (k / 4 + 2 * (k % 2)) + k % 4 / 2 * 2) & 3);
    values[k] = fmaf(scale, (float)c, -minimum);
  }
}

template <class OWN>
__device__ __forceinline__ void embed_row(OWN code, float* out, const u8* table, u32 token, float scale, int width) {
  Layout<OWN> at(width, code.group_bytes());
  for (int i = threadIdx.x * 8; i < width; i += blockDim.x * 8) {
    float values[8];
    eight_of(values, code, table + at.strip_bytes * (token / STRIP_ROWS), at, token % STRIP_ROWS, i);
#pragma unroll
    for (int k = 0; k < 8; k++) out[i + k] = scale * values[k];
  }
}

template <class OWN>
__device__ __forceinline__ void unpack_strips(OWN code, u16* out, const u8* weight, int first, int second, int strips, int cols) {
  Layout<OWN> at(cols, code.group_bytes());
  int index = blockIdx.y, row = threadIdx.x / 8, col = blockIdx.x * TILE_COLS + threadIdx.x % 8 * 8;
  const u8* strip = weight + at.strip_bytes * (index < strips ? first + index : second + index - strips);
  float values[8];
  eight_of(values, code, strip, at, row, col);
  *(uint4*)(out + ((u64)index * STRIP_ROWS + row) * cols + col) =
      uint4{round_pair(values[0], values[1]), round_pair(values[2], values[3]), round_pair(values[4], values[5]),
            round_pair(values[6], values[7])};
}

// Calls FUNCTION with an Own of codes of that many bits.
#define BY_BITS(bits, words, FUNCTION, ...)                      \
  if (bits == 4) FUNCTION(Own<1>{words}, __VA_ARGS__);           \
  else if (bits == 6) FUNCTION(Own<2, 2>{words}, __VA_ARGS__);   \
  else FUNCTION(Own<2>{words}, __VA_ARGS__);

// out[i, width] = scale * table[tokens[i], width] in f32 for n tokens. The table is packed in codes
// of that many bits with words of that kind, or if `bits` is 0 a matrix of dtype `words`. Grid n,
// any block. Reads n rows of the table, writes n rows of f32.
KERNEL embed(float* out, const void* table, const u32* tokens, float scale, int width, int bits, int words) {
  after_previous();
  u32 token = tokens[blockIdx.x];
  out += (u64)blockIdx.x * width;
  if (bits) {
    BY_BITS(bits, words, embed_row, out, (const u8*)table, token, scale, width)
    return;
  }
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
    unpack(u16* out, const u8* weight, int first, int second, int strips, int cols, int bits, int words) {
  after_previous();
  BY_BITS(bits, words, unpack_strips, out, weight, first, second, strips, cols)
}
