// GEMV: one row of activations times a packed weight (`codes.cuh`, `own.cuh`), in integers. Bound by the bytes of the weight, which
// is read once. CPU twin: `backend::cpu::linear`, followed by `swiglu` if fused.
#pragma once
#include "codes.cuh"

#define ROUND 4        // strips whose sums are reduced together
#define MOST_WARPS 16  // of a block

// Activations as integers: x = value * step for the 64 columns of a tile, |value| < 2^14, in two planes of signed bytes
// (value = 256 high + low). The step is a power of two and the tile's largest |x| keeps 14 bits, so that the error is at most
// 1/64 of what rounding that element to bf16 may cost.
struct TileOfX {
  int sum;     // of the values
  float step;  // halved: sums are of twice the codes' distance from zero
};
// The same of a part of a tile, with the whole step and the sum as f32.
struct PartOfX {
  float sum, step;
};
template <int PARTS>
struct OfX {
  typedef PartOfX Type;
};
template <>
struct OfX<1> {
  typedef TileOfX Type;
};
__device__ __forceinline__ void put_part(TileOfX& part, int sum, float half_step) { part = TileOfX{sum, half_step}; }
__device__ __forceinline__ void put_part(PartOfX& part, int sum, float half_step) {
  part = PartOfX{2.0f * half_step * (float)sum, 2.0f * half_step};
}

// Eight columns of x to integers. Lanes 8 i to 8 i + 7 of a warp hold tile i. Writes the lane's eight bytes of each plane, in
// the order in which `even_bytes` and `odd_bytes` give codes, and the sum and step of each part of the tile.
template <int PARTS>
__device__ __forceinline__ void to_integers(const float x[8], u8* planes, typename OfX<PARTS>::Type* parts, int lane) {
  u32 largest = 0;
#pragma unroll
  for (int k = 0; k < 8; k++) largest = max(largest, __float_as_uint(x[k]) & 0x7fffffffu);
#pragma unroll
  for (int m = 1; m < 8; m *= 2) largest = max(largest, __shfl_xor_sync(FULL, largest, m));
  u32 exponent = max(largest & 0x7f800000u, 20u << 23);
  // 2^13 / 2^exponent, and half of its inverse.
  float scale = __uint_as_float((267u << 23) - exponent), step = __uint_as_float(exponent - (14u << 23));
  if (largest >= 0x7f800000u) scale = 0.0f, step = __uint_as_float(0x7fc00000u);
  // Adding 1.5 * 2^23 rounds to an integer, in the lowest bits; 128 more rounds its high byte, as the low one is signed.
  u32 v[8];
#pragma unroll
  for (int k = 0; k < 8; k++) v[k] = __float_as_uint(fmaf(x[k], scale, 12582912.0f + 128.0f));
  auto bytes = [&](int a, int b, int c, int d, u32 which) {
    return __byte_perm(__byte_perm(v[a], v[b], which), __byte_perm(v[c], v[d], which), 0x5410);
  };
  u32 even_high = bytes(0, 4, 1, 5, 0x0051), odd_high = bytes(2, 6, 3, 7, 0x0051);
  u32 even_low = bytes(0, 4, 1, 5, 0x0040) ^ 0x80808080u, odd_low = bytes(2, 6, 3, 7, 0x0040) ^ 0x80808080u;
  int sum = 256 * sum_bytes(even_high, sum_bytes(odd_high, 0)) + sum_bytes(even_low, sum_bytes(odd_low, 0));
#pragma unroll
  for (int m = 1; m < 8 / PARTS; m *= 2) sum += __shfl_xor_sync(FULL, sum, m);
  u8* to = planes + lane / 8 * 128 + lane % 8 * 8;
  *(uint2*)to = uint2{even_high, odd_high};
  *(uint2*)(to + 64) = uint2{even_low, odd_low};
  if (lane % (8 / PARTS) == 0) put_part(parts[lane / (8 / PARTS)], sum, step);
}

// out[rows] = x[cols] weight[rows, cols]^T + bias[rows], x in bf16, out in f32. Grid: any number of blocks of WARPS warps; a block
// computes strips blockIdx.x, blockIdx.x + gridDim.x and so on. cols is a multiple of 64.
//
// Warps share the columns: each has every WARPS-th group of 256, of all strips. A warp lane copies what it multiplies itself
// through a ring of STAGES groups, the first ones before the previous kernel has ended. One token leaves 7 of 8 columns of
// `mma` empty, so column 2 i has the high bytes of x in tile i of the group, and column 2 i + 1 the low ones: lane t finds
// tile t's sums of rows g and g + 8, and scales them alone. Sums of a tile are exact. Codes whose tiles have several scales:
// `multiply_parts` in `own.cuh`.
//
// SWIGLU: the weight is [gate | up]; strips go in pairs of gate and up, and out[rows / 2] = silu(gate) * up in bf16;
// rows is a multiple of 32. ADD: out += instead. CPU twin: `linear`, then `add`.
//
// NORM: x is f32 and stands for rms_norm(x), which nobody has to write: its weight multiplies x before it is rounded, and the
// one factor of all columns multiplies the sums. Lowers the non-finite flag to `layer` if x is not finite. CPU twin:
// `rms_norm`, then `linear`.
template <class CODE, int WARPS, int STAGES, bool SWIGLU, bool ADD, bool NORM>
__device__ __forceinline__ void gemv(CODE code, u8* memory, void* out, const void* x, const u8* weight, const float* bias, const float* norm,
                                     float eps, int layer, int* non_finite, int rows, int cols) {
  typedef typename OfX<CODE::PARTS>::Type Part;
  constexpr int CODE_BYTES = CODE::PLANES * GROUP_TILES * TILE_BYTES, STAGE = CODE_BYTES + CODE::MOST_WORD_BYTES;
  typedef float Sums[ROUND][WARPS][STRIP_ROWS];
  Sums* partials = (Sums*)memory;
  next_may_begin();
  Layout<CODE> at(cols, code.group_bytes());
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  u8 *rings = (u8*)(partials + 2), *ring = rings + warp * STAGES * STAGE, *planes = rings + WARPS * STAGES * STAGE;
  Part* x_parts = (Part*)(planes + at.groups * 2 * GROUP_COLS);
  // Behind the rings, which begin on 128 bytes.
  float* squares = (float*)(x_parts + at.groups * GROUP_TILES * CODE::PARTS);
  int groups = (at.groups - warp + WARPS - 1) / WARPS;  // of this warp
  // Strips of the block; with SWIGLU, strip 2 i is of gate and 2 i + 1 of up.
  Strips<CODE> walk(at, weight, rows, SWIGLU);
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
#pragma unroll
        for (int p = 0; p < CODE::PLANES; p++)
          copy_async(to + (p * GROUP_TILES + i) * TILE_BYTES + lane * 16,
                     next_at + p * at.plane_bytes + (in ? tile : 0) * TILE_BYTES + lane * 16, in);
      }
      if constexpr (CODE::PARTS > 1)
        copy_words(code, to + CODE_BYTES, next_at + CODE::PLANES * at.plane_bytes, group, lane);
      else
        copy_async4(to + CODE_BYTES + lane * 4,
                    next_at + CODE::PLANES * at.plane_bytes + group * WORD_BYTES + lane * 4, true);
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
  if (NORM) {
    int col = warp * GROUP_COLS + lane * 8;
#pragma unroll
    for (int k = 0; k < 2; k++)
      norm_ahead[k] = col < cols ? *(const float4*)(norm + col + 4 * k) : float4{0.0f, 0.0f, 0.0f, 0.0f};
  }
  wait_previous();

  // What the reducing threads of a round add to.
  int s_out = threadIdx.x / STRIP_ROWS, r = threadIdx.x % STRIP_ROWS;
  float before = 0.0f;
  auto read_before = [&](int first) {
    if (!ADD) return;
    int row = (blockIdx.x + (first + s_out) * gridDim.x) * STRIP_ROWS + r;
    if (s_out < min(ROUND, strips - first) && row < rows) before = ((const float*)out)[row];
  };
  read_before(0);

  // The warp's columns of x.
  float square = 0.0f;
  for (int j = 0; j < groups; j++) {
    int group = warp + j * WARPS, col = group * GROUP_COLS + lane * 8;
    float values[8];
    if (NORM) {
#pragma unroll
      for (int k = 0; k < 8; k += 4) {
        float4 v = {0.0f, 0.0f, 0.0f, 0.0f}, by = v;
        if (col < cols) {
          v = *(const float4*)((const float*)x + col + k);
          by = j == 0 ? norm_ahead[k / 4] : *(const float4*)(norm + col + k);
        }
        square += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
        values[k] = v.x * by.x, values[k + 1] = v.y * by.y, values[k + 2] = v.z * by.z, values[k + 3] = v.w * by.w;
      }
    } else {
      uint4 v = col < cols ? *(const uint4*)((const u16*)x + col) : uint4{0, 0, 0, 0};
      const u32* words = &v.x;
#pragma unroll
      for (int k = 0; k < 4; k++) {
        values[2 * k] = __uint_as_float(words[k] << 16);
        values[2 * k + 1] = __uint_as_float(words[k] & 0xffff0000u);
      }
    }
    to_integers<CODE::PARTS>(values, planes + group * 2 * GROUP_COLS, x_parts + group * GROUP_TILES * CODE::PARTS, lane);
  }
  if (NORM) {
    square = warp_sum(square);
    if (lane == 0) squares[warp] = square;
  }
  __syncwarp();

  int stage = 0;
  for (int first = 0, buffer = 0; first < strips; first += ROUND, buffer ^= 1) {
    int round = min(ROUND, strips - first);
#pragma unroll 1
    for (int s = 0; s < round; s++) {
      float sums[2] = {0.0f, 0.0f};
#pragma unroll 1
      for (int j = 0; j < groups; j++) {
        int group = warp + j * WARPS;
        const u8* from = ring + stage * STAGE;
        if constexpr (CODE::PARTS > 1) {
          copy_wait<STAGES - 1>();
          // Words are copied by other lanes.
          __syncwarp();
          multiply_parts(code, sums, from, planes + group * 2 * GROUP_COLS, x_parts + group * GROUP_TILES * CODE::PARTS, lane);
          __syncwarp();
          fetch(stage);
          stage = stage + 1 == STAGES ? 0 : stage + 1;
        } else {
          uint4 b = *(const uint4*)(planes + group * 2 * GROUP_COLS + lane * 16);
          TileOfX of_x = x_parts[group * GROUP_TILES + t];
          copy_wait<STAGES - 1>();
          u32 word = *(const u32*)(from + CODE_BYTES + lane * 4);
          int c[GROUP_TILES][4];
#pragma unroll
          for (int i = 0; i < GROUP_TILES; i++) {
            uint4 high = *(const uint4*)(from + i * TILE_BYTES + lane * 16), low = high;
            if (CODE::PLANES == 2) low = *(const uint4*)(from + (GROUP_TILES + i) * TILE_BYTES + lane * 16);
            c[i][0] = c[i][1] = c[i][2] = c[i][3] = 0;
            u32 a[4] = {even_bytes<CODE>(high.x, low.x), even_bytes<CODE>(high.z, low.z),
                        odd_bytes<CODE>(high.x, low.x), odd_bytes<CODE>(high.z, low.z)};
            u32 more[4] = {even_bytes<CODE>(high.y, low.y), even_bytes<CODE>(high.w, low.w),
                           odd_bytes<CODE>(high.y, low.y), odd_bytes<CODE>(high.w, low.w)};
            mma_bytes(c[i], a, b.x, b.y);
            mma_bytes(c[i], more, b.z, b.w);
          }
          fetch(stage);
          stage = stage + 1 == STAGES ? 0 : stage + 1;
          // Tile t: columns 2 t and 2 t + 1 of rows g and g + 8.
          u32 scales = CODE::scales(word);
#pragma unroll
          for (int h = 0; h < 2; h++) {
            auto of_tile = [&](int k) {
              int low = t & 1 ? c[1][k] : c[0][k], high = t & 1 ? c[3][k] : c[2][k];
              return t & 2 ? high : low;
            };
            int twice = 512 * of_tile(2 * h) + 2 * of_tile(2 * h + 1) - CODE::twice_zero(word >> (16 * h)) * of_x.sum;
            sums[h] = fmaf(f16_value(scales >> (16 * h)) * of_x.step, (float)twice, sums[h]);
          }
        }
      }
#pragma unroll
      for (int h = 0; h < 2; h++) {
        sums[h] += __shfl_xor_sync(FULL, sums[h], 1);
        sums[h] += __shfl_xor_sync(FULL, sums[h], 2);
        if (t == 0) partials[buffer][s][warp][g + 8 * h] = sums[h];
      }
    }
    __syncthreads();
    // Reduce over warps and write, while other warps go on.
    int s = s_out;
    if (s >= round) continue;
    float factor = 1.0f;
    if (NORM) {
      float sum = 0.0f;
#pragma unroll
      for (int k = 0; k < WARPS; k++) sum += squares[k];
      bool reports = blockIdx.x == 0 && threadIdx.x == 0 && first == 0;
      factor = rms_factor(sum, cols, eps, layer, reports ? non_finite : nullptr);
    }
    auto total = [&](int s, int row) {
      float sum = 0.0f;
#pragma unroll
      for (int k = 0; k < WARPS; k++) sum += partials[buffer][s][k][r];
      return sum * factor + (bias ? bias[row] : 0.0f);
    };
    if (SWIGLU) {
      int row = (blockIdx.x + (first / 2 + s) * gridDim.x) * STRIP_ROWS + r;
      if (s < round / 2) put(out, true, row, silu(total(2 * s, row)) * total(2 * s + 1, rows / 2 + row));
    } else {
      int row = (blockIdx.x + (first + s) * gridDim.x) * STRIP_ROWS + r;
      if (row < rows) put(out, false, row, total(s, row) + before);
      read_before(first + ROUND);
    }
  }
}

// The dynamic shared memory of a block of MOST_WARPS warps; one of fewer needs as much less.
template <class CODE, int STAGES>
__device__ __forceinline__ u8* gemv_memory() {
  constexpr int RING = STAGES * (CODE::PLANES * GROUP_TILES * TILE_BYTES + CODE::MOST_WORD_BYTES);
  constexpr int FIXED = MOST_WARPS * (2 * ROUND * STRIP_ROWS * sizeof(float) + sizeof(float) + RING);
  return (u8*)dynamic_shared_memory<FIXED, 2 * GROUP_COLS + GROUP_TILES * CODE::PARTS * sizeof(TileOfX)>();
}

// Blocks of half the warps are for GPUs with 99 KB of shared memory for a block. With their number, or the norm, SwiGLU and the sum, as
// arguments of the loop, one row of Qwen3-8B takes 4 % longer. `code` is one of the type CODE.
#define BY_WARPS(code, CODE, STAGES, SWIGLU, ADD, NORM, ...)                                                       \
  u8* memory = gemv_memory<CODE, STAGES>();                                                                        \
  if (blockDim.x == 32 * MOST_WARPS) gemv<CODE, MOST_WARPS, STAGES, SWIGLU, ADD, NORM>(code, memory, __VA_ARGS__); \
  else gemv<CODE, MOST_WARPS / 2, STAGES, SWIGLU, ADD, NORM>(code, memory, __VA_ARGS__);
