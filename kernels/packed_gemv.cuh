// GEMV: one row of activations, or up to 4, times a packed weight (`codes.cuh`, `own.cuh`), in
// integers. Bound by the bytes of the weight, which is read once. CPU twin: `backend::cpu::linear`,
// followed by a gate if fused.
#pragma once
#include "codes.cuh"
#include "gates.cuh"

#define ROUND_OF_ONE 4   // strips whose sums are reduced together
#define MOST_WARPS 16    // of a block
#define MOST_TOKENS 4
#define PAD_PARTS 2      // behind the parts of a token's x

// Activations as integers: x = value * step for the 64 columns of a tile, |value| < 2^14, in two
// planes of signed bytes (value = 256 high + low). The step is a power of two and the tile's
// largest |x| keeps 14 bits, so that the error is at most 1/64 of what rounding that element to
// bf16 may cost.
struct TileOfX {
  int sum;     // of the values
  float step;  // halved: sums are of twice the codes' distance from zero
};
// The same of a tile with halves.
struct HalvesOfX {
  int sums[2];
  float step, unused;
};
// The same of a part of a tile, with the sum as f32.
struct PartOfX {
  float sum, step;
};
template <int PARTS, int HALVES>
struct OfX {
  typedef PartOfX Type;
};
template <>
struct OfX<1, 1> {
  typedef TileOfX Type;
};
template <>
struct OfX<1, 2> {
  typedef HalvesOfX Type;
};
// `other`: the sum of the other half.
__device__ __forceinline__ void put_part(TileOfX& part, int sum, int other, float step) { part = TileOfX{sum + other, 0.5f * step}; }
__device__ __forceinline__ void put_part(HalvesOfX& part, int sum, int other, float step) { part = HalvesOfX{{sum, other}, step, 0.0f}; }
__device__ __forceinline__ void put_part(PartOfX& part, int sum, int other, float step) {
  part = PartOfX{step * (float)(sum + other), step};
}

// Eight columns of x to integers. Lanes 8 i to 8 i + 7 of a warp hold tile i. Writes the lane's
// eight bytes of each plane, in the order in which `even_bytes` and `odd_bytes` give codes, and the
// sum and step of each part of the tile.
template <int PARTS, class PART>
__device__ __forceinline__ void to_integers(const float x[8], u8* planes, PART* parts, int lane) {
  u32 largest = 0;
#pragma unroll
  for (int k = 0; k < 8; k++) largest = max(largest, __float_as_uint(x[k]) & 0x7fffffffu);
#pragma unroll
  for (int m = 1; m < 8; m *= 2) largest = max(largest, __shfl_xor_sync(FULL, largest, m));
  u32 exponent = max(largest & 0x7f800000u, 20u << 23);
  // 2^13 / 2^exponent, and its inverse.
  float scale = __uint_as_float((267u << 23) - exponent), step = __uint_as_float(exponent - (13u << 23));
  if (largest >= 0x7f800000u) scale = 0.0f, step = __uint_as_float(0x7fc00000u);
  // Adding 1.5 * 2^23 rounds to an integer, in the lowest bits; 128 more rounds its high byte, as
  // the low one is signed.
  u32 v[8];
#pragma unroll
  for (int k = 0; k < 8; k++) v[k] = __float_as_uint(fmaf(x[k], scale, 12582912.0f + 128.0f));
  auto bytes = [&](int a, int b, int c, int d, u32 which) {
    return __byte_perm(__byte_perm(v[a], v[b], which), __byte_perm(v[c], v[d], which), 0x5410);
  };
  u32 even_high = bytes(0, 4, 1, 5, 0x0051), odd_high = bytes(2, 6, 3, 7, 0x0051);
  u32 even_low = bytes(0, 4, 1, 5, 0x0040) ^ 0x80808080u, odd_low = bytes(2, 6, 3, 7, 0x0040) ^ 0x80808080u;
  int sum = 256 * sum_bytes(even_high, sum_bytes(odd_high, 0)) + sum_bytes(even_low, sum_bytes(odd_low, 0));
  // Lanes of one parity have columns of one half.
#pragma unroll
  for (int m = 2; m < 8 / PARTS; m *= 2) sum += __shfl_xor_sync(FULL, sum, m);
  int other = __shfl_xor_sync(FULL, sum, 1);
  u8* to = planes + lane / 8 * 128 + lane % 8 * 8;
  *(uint2*)to = uint2{even_high, odd_high};
  *(uint2*)(to + 64) = uint2{even_low, odd_low};
  if (lane % (8 / PARTS) == 0) put_part(parts[lane / (8 / PARTS)], sum, other, step);
}

// The codes of a tile of a group as A fragments of two `mma`, of a warp lane's 16 columns.
template <class CODE>
struct Bytes {
  u32 a[2][4];
  __device__ __forceinline__ Bytes(const u8* group, int tile, int lane) {
    const u8* low = group + GROUP_TILES * TILE_BYTES + tile * Layout<CODE>::LOW_TILE;
    LaneCodes<CODE::LOW_BITS> v(group + tile * TILE_BYTES, low, lane);
#pragma unroll
    for (int eight = 0; eight < 2; eight++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        a[eight][h] = even_bytes<CODE>(v.high[h][eight], v.low[h][eight]);
        a[eight][2 + h] = odd_bytes<CODE>(v.high[h][eight], v.low[h][eight]);
      }
  }
  __device__ __forceinline__ void multiply(int (&c)[4], uint4 b) const { multiply(c, c, b); }
  // The sums of each half.
  __device__ __forceinline__ void multiply(int (&c)[4], int (&of_second)[4], uint4 b) const {
    mma_bytes(c, a[0], b.x, b.y);
    mma_bytes(of_second, a[1], b.z, b.w);
  }
};

// sums += the sums of a tile, with the high and the low bytes of x in c, of rows g and g + 8, times
// their scales.
template <class CODE>
__device__ __forceinline__ void scale_tile(float (&sums)[2], const int (&c)[1][4], u32 word, TileOfX of_x) {
  u32 scales = CODE::scales(word);
#pragma unroll
  for (int h = 0; h < 2; h++) {
    int twice = 512 * c[0][2 * h] + 2 * c[0][2 * h + 1] - CODE::zero_units(word >> (16 * h)) * of_x.sum;
    sums[h] = fmaf(f16_value(scales >> (16 * h)) * of_x.step, (float)twice, sums[h]);
  }
}
// The same with halves. The step counts once for both.
template <class CODE>
__device__ __forceinline__ void scale_tile(float (&sums)[2], const int (&c)[2][4], uint2 words, HalvesOfX of_x) {
  float of_tile[2] = {0.0f, 0.0f};
#pragma unroll
  for (int half = 0; half < 2; half++) {
    u32 word = words_of(words, half), scales = CODE::scales(word);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      int units = 256 * CODE::UNITS * c[half][2 * h] + CODE::UNITS * c[half][2 * h + 1] -
                  CODE::zero_units(word >> (16 * h)) * of_x.sums[half];
      of_tile[h] = fmaf(f16_value(scales >> (16 * h)), (float)units, of_tile[h]);
    }
  }
#pragma unroll
  for (int h = 0; h < 2; h++) sums[h] = fmaf(of_x.step * (1.0f / CODE::UNITS), of_tile[h], sums[h]);
}

// What is fused, known to the compiler: the loop of one row of Qwen3-8B takes 4 % longer with
// arguments instead.
template <bool GATED, bool NORM>
struct Fixed {
  static constexpr bool gated = GATED, norm = NORM;
  int then;
};
// The same as arguments.
struct Fused {
  int gated, then, norm;
};

// out[m, rows] = x[m, cols] weight[rows, cols]^T + bias[rows], x in bf16, out in f32 with ld values
// from row to row: a GEMM of M = m, N = rows, K = cols, m at most MOST_ROWS, which is 1 or
// MOST_TOKENS. Grid: any number of blocks of WARPS warps; a block computes strips blockIdx.x,
// blockIdx.x + gridDim.x and so on. cols is a multiple of 64.
//
// Warps share the columns: each has every WARPS-th group of 256, of all strips. A warp lane copies
// what it multiplies itself through a ring of STAGES groups, the first ones before the previous
// kernel has ended. One token leaves 7 of 8 columns of
// `mma` empty, so column 2 i has the high bytes of x in tile i of the group, and column 2 i + 1 the
// low ones: lane t finds
// tile t's sums of rows g and g + 8, and scales them alone. Of several tokens column 2 i has the
// high bytes of token i, and lane t finds its token's sums, tile after tile: four tokens take no
// more `mma` than one. Sums of a tile are exact, and a token's result does not depend on m. Codes
// whose tiles have several scales: `multiply_parts` in `own.cuh`.
//
// fused.gated: the weight is [gate | up]; strips go in pairs of gate and up, and out[m, rows / 2]
// = f(gate, up) in bf16, where f is the Gate `then`; rows is a multiple of 32. Otherwise, if
// `then`, out += instead. CPU twin: `linear`, then `swiglu`, `geglu` or `add`.
//
// fused.norm: x is f32 and stands for rms_norm(x), which nobody has to write: its weight multiplies
// x before it is rounded, and the one factor of all columns multiplies the sums. Lowers the
// non-finite flag to `layer` if x is not finite. CPU twin:
// `rms_norm`, then `linear`.
template <class CODE, int WARPS, int STAGES, int MOST_ROWS, class FUSED>
__device__ __forceinline__ void gemv(CODE code, FUSED fused, u8* memory, void* out, const void* x, const u8* weight, const float* bias,
                                     const float* norm, float eps, int layer, int* non_finite, int rows, int cols, int m, int ld,
                                     int round_most) {
  typedef typename OfX<CODE::PARTS, CODE::HALVES>::Type Part;
  typedef typename WordsOf<CODE::HALVES>::Type Words;
  constexpr bool ONE = MOST_ROWS == 1;
  constexpr int LOW_TILE = Layout<CODE>::LOW_TILE, CODE_BYTES = GROUP_TILES * (TILE_BYTES + LOW_TILE);
  constexpr int STAGE = CODE_BYTES + CODE::MOST_WORD_BYTES;
  if (ONE) m = 1, round_most = ROUND_OF_ONE;
  const int ROUND = round_most;
  next_may_begin();
  Layout<CODE> at(cols, code.group_bytes());
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  u8 *ring = memory + warp * STAGES * STAGE, *planes = memory + WARPS * STAGES * STAGE;
  // From one token to the next; parts of two lie in other banks.
  int row_bytes = at.groups * 2 * GROUP_COLS, row_parts = at.groups * GROUP_TILES * CODE::PARTS + (ONE ? 0 : PAD_PARTS);
  // [2][ROUND][WARPS][STRIP_ROWS], of several tokens [2][ROUND][STRIP_ROWS][m][WARPS + 1]
  float* partials = (float*)(planes + m * row_bytes);
  float* squares = partials + 2 * ROUND * STRIP_ROWS * m * (ONE ? WARPS : WARPS + 1);  // [m][WARPS]
  Part* x_parts = (Part*)(squares + WARPS * m);
  auto partial = [&](int buffer, int s, int warp, int row, int token) -> float& {
    int strip = buffer * ROUND + s;
    return partials[ONE ? (strip * WARPS + warp) * STRIP_ROWS + row : ((strip * STRIP_ROWS + row) * m + token) * (WARPS + 1) + warp];
  };
  int groups = (at.groups - warp + WARPS - 1) / WARPS;  // of this warp
  // Strips of the block; with a gate, strip 2 i is of gate and 2 i + 1 of up.
  Strips<CODE> walk(at, weight, rows, fused.gated);
  int strips = walk.count;

  // Copies of the ring, in the order in which they are used.
  int next_strip = 0, next_group = 0;
  const u8* next_at = walk.address(0);
  auto fetch = [&](int stage) {
    if (next_strip < strips && groups > 0) {
      int group = warp + next_group * WARPS;
      u8* to = ring + stage * STAGE;
#pragma unroll
      for (int i = 0; i < GROUP_TILES; i++) {
        int tile = group * GROUP_TILES + i;
        bool in = tile < at.tiles;
        if (!in) tile = 0;
        copy_async(to + i * TILE_BYTES + lane * 16, next_at + tile * TILE_BYTES + lane * 16, in);
        u8* low = to + GROUP_TILES * TILE_BYTES + i * LOW_TILE;
        const u8* from = next_at + at.low_at + tile * LOW_TILE;
        if (CODE::LOW_BITS == 4) copy_async(low + lane * 16, from + lane * 16, in);
        if (CODE::LOW_BITS == 2) copy_async8(low + lane * 8, from + lane * 8, in);
      }
      if constexpr (CODE::PARTS > 1)
        copy_words(code, to + CODE_BYTES, next_at + at.words_at, group, lane);
      else
        copy_words_of((Words*)(to + CODE_BYTES) + lane, next_at + at.words_at + (group * 32 + lane) * sizeof(Words));
      if (++next_group == groups) {
        next_group = 0;
        if (++next_strip < strips) next_at = walk.address(next_strip);
      }
    }
    copy_commit();
  };
#pragma unroll
  for (int s = 0; s < STAGES; s++) fetch(s);
  // The norm's weights of the warp's first group do not depend on the previous kernel.
  float4 norm_ahead[2];
  if (fused.norm) {
    int col = warp * GROUP_COLS + lane * 8;
#pragma unroll
    for (int k = 0; k < 2; k++)
      norm_ahead[k] = col < cols ? *(const float4*)(norm + col + 4 * k) : float4{0.0f, 0.0f, 0.0f, 0.0f};
  }
  wait_previous();

  // What the reducing threads of a round add to: a row of the weight, a token, and a strip of the
  // round each, of several tokens for SHARES threads.
  constexpr int SHARES = ONE ? 1 : WARPS / 8;
  int value = threadIdx.x / SHARES;
  int r = ONE ? value % STRIP_ROWS : value / ROUND % STRIP_ROWS, token = ONE ? 0 : value / (ROUND * STRIP_ROWS);
  int s_out = ONE ? value / STRIP_ROWS : token < m ? value % ROUND : ROUND;
  float before = 0.0f, factor = 1.0f;
  auto read_before = [&](int first) {
    if (fused.gated || !fused.then) return;
    int row = (blockIdx.x + (first + s_out) * gridDim.x) * STRIP_ROWS + r;
    if (s_out < min(ROUND, strips - first) && row < rows) before = ((const float*)out)[token * ld + row];
  };
  read_before(0);

  // A group of x to integers. All tokens are loaded before the first one is converted.
  float square[MOST_ROWS] = {};
  auto convert = [&](int j) {
    int group = warp + j * WARPS, col = group * GROUP_COLS + lane * 8;
    // Eight columns of each, in bf16 or f32.
    uint4 loaded[MOST_ROWS][2];
#pragma unroll
    for (int i = 0; i < MOST_ROWS; i++) {
      loaded[i][0] = loaded[i][1] = uint4{0, 0, 0, 0};
      if (col >= cols || i >= m) continue;
      if (fused.norm) {
        loaded[i][0] = *(const uint4*)((const float*)x + i * cols + col);
        loaded[i][1] = *(const uint4*)((const float*)x + i * cols + col + 4);
      } else {
        loaded[i][0] = *(const uint4*)((const u16*)x + i * cols + col);
      }
    }
    float by[8];
    if (fused.norm) {
#pragma unroll
      for (int k = 0; k < 8; k += 4) {
        float4 v = {0.0f, 0.0f, 0.0f, 0.0f};
        if (col < cols) v = j == 0 ? norm_ahead[k / 4] : *(const float4*)(norm + col + k);
        by[k] = v.x, by[k + 1] = v.y, by[k + 2] = v.z, by[k + 3] = v.w;
      }
    }
#pragma unroll
    for (int i = 0; i < MOST_ROWS; i++) {
      if (!ONE && i >= m) break;
      float values[8];
      if (fused.norm) {
#pragma unroll
        for (int k = 0; k < 8; k++) values[k] = __uint_as_float((&loaded[i][k / 4].x)[k % 4]);
#pragma unroll
        for (int k = 0; k < 8; k += 4)
          square[i] += values[k] * values[k] + values[k + 1] * values[k + 1] + values[k + 2] * values[k + 2] +
                       values[k + 3] * values[k + 3];
#pragma unroll
        for (int k = 0; k < 8; k++) values[k] *= by[k];
      } else {
        const u32* words = &loaded[i][0].x;
#pragma unroll
        for (int k = 0; k < 4; k++) {
          values[2 * k] = __uint_as_float(words[k] << 16);
          values[2 * k + 1] = __uint_as_float(words[k] & 0xffff0000u);
        }
      }
      to_integers<CODE::PARTS>(values, planes + i * row_bytes + group * 2 * GROUP_COLS,
                               x_parts + i * row_parts + group * GROUP_TILES * CODE::PARTS, lane);
    }
    __syncwarp();
  };
  auto write_squares = [&] {
    if (!fused.norm) return;
#pragma unroll
    for (int i = 0; i < MOST_ROWS; i++) {
      float sum = warp_sum(square[i]);
      if (lane == 0 && i < m) squares[i * WARPS + warp] = sum;
    }
  };
  if (ONE) {
    for (int j = 0; j < groups; j++) convert(j);
    write_squares();
  }

  int stage = 0;
  for (int first = 0, buffer = 0; first < strips; first += ROUND, buffer ^= 1) {
    int round = min(ROUND, strips - first);
#pragma unroll 1
    for (int s = 0; s < round; s++) {
      // Of several tokens those of token t.
      float sums[2] = {0.0f, 0.0f};
#pragma unroll 1
      for (int j = 0; j < groups; j++) {
        int group = warp + j * WARPS;
        const u8 *from = ring + stage * STAGE, *of_group = planes + group * 2 * GROUP_COLS;
        const Part* parts = x_parts + group * GROUP_TILES * CODE::PARTS;
        if constexpr (CODE::PARTS > 1) {
          copy_wait<STAGES - 1>();
          // Words are copied by other lanes.
          __syncwarp();
          multiply_parts(code, sums, from, of_group, parts, lane);
          __syncwarp();
        } else if constexpr (ONE) {
          uint4 b = *(const uint4*)(of_group + lane * 16);
          Part of_x = parts[t];
          copy_wait<STAGES - 1>();
          Words words = ((const Words*)(from + CODE_BYTES))[lane];
          int c[GROUP_TILES][CODE::HALVES][4] = {};
#pragma unroll
          for (int i = 0; i < GROUP_TILES; i++) Bytes<CODE>(from, i, lane).multiply(c[i][0], c[i][CODE::HALVES - 1], b);
          fetch(stage);
          stage = stage + 1 == STAGES ? 0 : stage + 1;
          // Tile t: columns 2 t and 2 t + 1 of rows g and g + 8.
          int of_tile[CODE::HALVES][4];
#pragma unroll
          for (int half = 0; half < CODE::HALVES; half++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
              int low = t & 1 ? c[1][half][k] : c[0][half][k], high = t & 1 ? c[3][half][k] : c[2][half][k];
              of_tile[half][k] = t & 2 ? high : low;
            }
          scale_tile<CODE>(sums, of_tile, words, of_x);
          continue;
        } else {
          // The groups of the first strip are converted as they are needed.
          if (first == 0 && s == 0) convert(j);
          copy_wait<STAGES - 1>();
          // The words are copied by other lanes.
          __syncwarp();
          Words words[GROUP_TILES];
#pragma unroll
          for (int i = 0; i < GROUP_TILES * (int)sizeof(Words) / 16; i++)
            ((uint4*)words)[i] = ((const uint4*)((const Words*)(from + CODE_BYTES) + g * GROUP_TILES))[i];
          // Columns behind those of the last token are another's, and are not read.
          const u8* of_b = of_group + min(g / 2, m - 1) * row_bytes + g % 2 * 64 + t * 16;
          const Part* of_x = parts + min(t, m - 1) * row_parts;
          int c[GROUP_TILES][CODE::HALVES][4] = {};
#pragma unroll
          for (int i = 0; i < GROUP_TILES; i++)
            Bytes<CODE>(from, i, lane).multiply(c[i][0], c[i][CODE::HALVES - 1], *(const uint4*)(of_b + i * 128));
          __syncwarp();
          fetch(stage);
          stage = stage + 1 == STAGES ? 0 : stage + 1;
#pragma unroll
          for (int i = 0; i < GROUP_TILES; i++) scale_tile<CODE>(sums, c[i], words[i], of_x[i]);
          continue;
        }
        fetch(stage);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
      }
      if (!ONE && first == 0 && s == 0) write_squares();
#pragma unroll
      for (int h = 0; h < 2; h++) {
        float sum = sums[h];
        if (ONE) {
          sum += __shfl_xor_sync(FULL, sum, 1);
          sum += __shfl_xor_sync(FULL, sum, 2);
        }
        if (t < m) partial(buffer, s, warp, g + 8 * h, t) = sum;
      }
    }
    __syncthreads();
    // Reduce over warps and write, while other warps go on.
    int s = s_out;
    if (ONE && s >= round) continue;
    int share = threadIdx.x % SHARES;
    // Sums of a value's shares. By a whole warp where there are several.
    auto of_shares = [&](const float* from, int stride) {
      float sum = 0.0f;
#pragma unroll
      for (int k = 0; k < WARPS / SHARES; k++) sum += from[(share * (WARPS / SHARES) + k) * stride];
#pragma unroll
      for (int mask = 1; mask < SHARES; mask *= 2) sum += __shfl_xor_sync(FULL, sum, mask);
      return sum;
    };
    if (fused.norm && (ONE || first == 0)) {
      float sum = of_shares(squares + min(token, m - 1) * WARPS, 1);
      bool reports = blockIdx.x == 0 && r == 0 && s == 0 && share == 0 && first == 0;
      factor = rms_factor(sum, cols, eps, layer, reports ? non_finite : nullptr);
    }
    auto total = [&](int s, int row) {
      float sum = of_shares(&partial(buffer, min(s, ROUND - 1), 0, r, min(token, m - 1)), ONE ? STRIP_ROWS : 1);
      return sum * factor + (bias && row < rows ? bias[row] : 0.0f);
    };
    if (ONE && fused.gated) {
      int row = (blockIdx.x + (first / 2 + s) * gridDim.x) * STRIP_ROWS + r;
      if (s < round / 2) put(out, true, row, gated(fused.then, total(2 * s, row), total(2 * s + 1, rows / 2 + row)));
    } else if (fused.gated) {
      // Gate and up of a row are those of neighbouring values.
      int row = (blockIdx.x + (first + s) / 2 * gridDim.x) * STRIP_ROWS + r;
      float mine = total(s, s % 2 ? rows / 2 + row : row), up = __shfl_xor_sync(FULL, mine, SHARES);
      if (s < round && s % 2 == 0 && share == 0) put(out, true, token * ld + row, gated(fused.then, mine, up));
    } else {
      int row = (blockIdx.x + (first + s) * gridDim.x) * STRIP_ROWS + r;
      float mine = total(s, row);
      if (s < round && share == 0 && row < rows) put(out, false, token * ld + row, mine + before);
      read_before(first + ROUND);
    }
  }
}

// The dynamic shared memory of a block of MOST_WARPS warps; one of fewer needs as much less. Of
// several tokens, what does not depend on their number, and what 256 columns of a token add: a
// token's sums of a round of S strips take no more than SUM_COLS + S STRIP_COLS columns, which
// `gemv.rs` has too.
#define SUM_COLS 256
#define STRIP_COLS 1024
template <class CODE, int STAGES, int MOST_ROWS>
__device__ __forceinline__ u8* gemv_memory() {
  constexpr int RING = STAGES * (GROUP_TILES * (TILE_BYTES + Layout<CODE>::LOW_TILE) + CODE::MOST_WORD_BYTES);
  constexpr int PART = sizeof(typename OfX<CODE::PARTS, CODE::HALVES>::Type);
  constexpr int SUMS = 2 * ROUND_OF_ONE * STRIP_ROWS * sizeof(float) + sizeof(float);
  constexpr int OF_STRIP = 2 * STRIP_ROWS * (MOST_WARPS + 1) * sizeof(float);
  constexpr int OF_TOKEN = MOST_WARPS * sizeof(float) + PAD_PARTS * PART;
  constexpr int OF_GROUP = 2 * GROUP_COLS + GROUP_TILES * CODE::PARTS * PART;
  static_assert(MOST_ROWS == 1 || (OF_STRIP <= STRIP_COLS / GROUP_COLS * OF_GROUP && OF_TOKEN <= SUM_COLS / GROUP_COLS * OF_GROUP),
                "sums of a token");
  return (u8*)dynamic_shared_memory<MOST_WARPS * (RING + (MOST_ROWS == 1 ? SUMS : 0)), OF_GROUP>();
}

// Blocks of half the warps are for GPUs with 99 KB of shared memory for a block, and where several
// tokens leave no room for more: with their number as an argument, one row of Qwen3-8B takes 4 %
// longer. `code` is one of the type CODE.
#define BY_WARPS(code, CODE, STAGES, MOST_ROWS, fused, ...)                                               \
  u8* memory = gemv_memory<CODE, STAGES, MOST_ROWS>();                                                    \
  if (blockDim.x == 32 * MOST_WARPS) gemv<CODE, MOST_WARPS, STAGES, MOST_ROWS>(code, fused, memory, __VA_ARGS__); \
  else gemv<CODE, MOST_WARPS / 2, STAGES, MOST_ROWS>(code, fused, memory, __VA_ARGS__);
