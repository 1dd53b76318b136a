// Small-batch GEMM of decode whose activations stay in registers. CPU twin: `backend::cpu::linear`,
// followed by `swiglu` if fused.
#pragma once
#include "codes.cuh"

#define BATCH 12  // strips for which a warp keeps its columns of x and a block the sums: even

// out[n, rows] = x[n, cols] weight[rows, cols]^T + bias[rows], n <= 8 * NT, x in bf16, out in f32
// with `ld` values from row to row: a GEMM of M = n, N =
// rows, K = cols. Grid: any number of blocks of WARPS warps; a block computes strips blockIdx.x,
// blockIdx.x + gridDim.x and so on; cols is a multiple of 64. Reads the weight once, and x once a
// block for every BATCH strips, from L2.
//
// In a pass a warp has TILES tiles of columns, whose fragments of x and sums of x it keeps in
// registers for a batch of strips; as many passes as there are columns. Weights come through a ring
// of STAGES units of TILES tiles for each warp, the first ones before the previous kernel has
// ended. Codes become bf16 less their zero point if a tile has halves, else with an offset, so that
// the sum over a tile is scale * (part - (zero + offset) * sum of x); an `mma` with ones gives the
// sum of x. After ROUND strips, the sums of warps
// are added in a fixed order: a token's result does not depend on n or the other tokens. Codes
// whose tiles have several scales become bf16 values instead: `multiply_unit` in `own_gemm.cu`.
//
// `swiglu`: the weight is [gate | up]; strips go in pairs of gate and up, and out[n, rows / 2] =
// silu(gate) * up in bf16; rows is
// a multiple of 32.
template <class CODE, int NT, int WARPS, int TILES, int STAGES, int ROUND>
__device__ __forceinline__ void gemm(CODE code, void* out, const u16* x, const u8* weight, const float* bias, int rows, int cols,
                                     int n, int ld, int swiglu) {
  typedef typename WordsOf<CODE::HALVES>::Type Words;
  constexpr int LOW_TILE = Layout<CODE>::LOW_TILE, TOKENS = 8 * NT, VALUES = STRIP_ROWS * TOKENS;
  constexpr int CODE_BYTES = TILES * (TILE_BYTES + LOW_TILE), UNIT = CODE_BYTES + CODE::MOST_WORD_BYTES;
  static_assert(TILES == GROUP_TILES, "a unit has its words");
  constexpr int WIDTH = NT == 1 ? 8 : TOKENS + 8;  // of a row of partial sums, without bank conflicts
  next_may_begin();
  Layout<CODE> at(cols, code.group_bytes());
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  constexpr int RINGS = WARPS * STAGES * UNIT, PARTIALS = 2 * ROUND * WARPS * STRIP_ROWS * WIDTH;
  u8* memory = (u8*)dynamic_shared_memory<RINGS + (PARTIALS + BATCH * VALUES) * sizeof(float)>();
  u8* ring = memory + warp * STAGES * UNIT;
  float* partials = (float*)(memory + RINGS);  // [2][ROUND][WARPS][16][WIDTH]
  float* totals = partials + PARTIALS;         // [BATCH][16][TOKENS]
  int units = (at.tiles + TILES - 1) / TILES, passes = (units + WARPS - 1) / WARPS;
  Strips<CODE> walk(at, weight, rows, swiglu);
  int strips = walk.count;

  // Copies of the ring, in the order in which they are used.
  int next_batch = 0, next_pass = 0, next_strip = 0;
  auto advance = [&] {
    next_strip = 0;
    if (++next_pass == passes) next_pass = 0, next_batch += BATCH;
  };
  auto fetch = [&](int stage) {
    // In the last pass some warps have no columns.
    while (next_batch < strips && next_pass * WARPS + warp >= units) advance();
    if (next_batch < strips) {
      int first = (next_pass * WARPS + warp) * TILES;
      const u8* from = walk.address(next_batch + next_strip);
      u8* to = ring + stage * UNIT;
#pragma unroll
      for (int i = 0; i < TILES; i++) {
        bool in = first + i < at.tiles;
        int tile = in ? first + i : 0;
        copy_async(to + i * TILE_BYTES + lane * 16, from + tile * TILE_BYTES + lane * 16, in);
        u8* low = to + TILES * TILE_BYTES + i * LOW_TILE;
        const u8* low_from = from + at.low_at + tile * LOW_TILE;
        if (CODE::LOW_BITS == 4) copy_async(low + lane * 16, low_from + lane * 16, in);
        if (CODE::LOW_BITS == 2) copy_async8(low + lane * 8, low_from + lane * 8, in);
      }
      if constexpr (CODE::PARTS > 1)
        copy_words(code, to + CODE_BYTES, from + at.words_at, first / GROUP_TILES, lane);
      else
        copy_words_of((Words*)(to + CODE_BYTES) + lane, from + at.words_at + (first * 8 + lane) * sizeof(Words));
      if (++next_strip == min(BATCH, strips - next_batch)) advance();
    }
    copy_commit();
  };
#pragma unroll
  for (int s = 0; s < STAGES; s++) fetch(s);
  wait_previous();

  int stage = 0, buffer = 0;
  u32 b[TILES][NT][8];
  float of_x[TILES][NT][2];
#pragma unroll 1
  for (int first = 0; first < strips; first += BATCH) {
    int count = min(BATCH, strips - first);
#pragma unroll 1
    for (int pass = 0; pass < passes; pass++) {
      int unit = pass * WARPS + warp;
      bool active = unit < units;
      // The warp's columns of x, which stay if there is but one pass.
      if (active && (passes > 1 || first == 0)) {
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
          for (int j = 0; j < NT; j++) {
            int token = 8 * j + g, col = (unit * TILES + i) * TILE_COLS + t * 16;
            bool in = token < n && col < cols;
            const uint4* from = (const uint4*)(x + (in ? (u64)token * cols + col : 0));
#pragma unroll
            for (int h = 0; h < 2; h++) *(uint4*)(b[i][j] + 4 * h) = in ? from[h] : uint4{0, 0, 0, 0};
            if constexpr (CODE::PARTS == 1 && CODE::HALVES == 1) sum_columns(of_x[i][j], b[i][j]);
          }
      }
#pragma unroll 1
      for (int s0 = 0; s0 < count; s0 += ROUND) {
        int round = min(ROUND, count - s0);
#pragma unroll 1
        for (int s = 0; s < round; s++) {
          float sums[NT][4] = {};
          if (active) {
            copy_wait<STAGES - 1>();
            // Words are copied by other lanes.
            __syncwarp();
            const u8* from = ring + stage * UNIT;
            if constexpr (CODE::PARTS > 1) {
              multiply_unit(code, sums, from, b, lane);
            } else {
#pragma unroll
              for (int i = 0; i < TILES; i++) {
                const u8* low = from + TILES * TILE_BYTES + i * LOW_TILE;
                multiply_tile<CODE, NT>(sums, from + i * TILE_BYTES, low, lane, ((const Words*)(from + CODE_BYTES))[g * TILES + i],
                                        b[i], of_x[i]);
              }
            }
            __syncwarp();
            fetch(stage);
            stage = stage + 1 == STAGES ? 0 : stage + 1;
          }
          float* to = partials + ((buffer * ROUND + s) * WARPS + warp) * STRIP_ROWS * WIDTH;
#pragma unroll
          for (int j = 0; j < NT; j++)
#pragma unroll
            for (int h = 0; h < 2; h++)
              *(float2*)(to + (g + 8 * h) * WIDTH + 8 * j + 2 * t) = float2{sums[j][2 * h], sums[j][2 * h + 1]};
        }
        __syncthreads();
        // Reduce over warps, while other warps go on.
        for (int i = threadIdx.x; i < round * VALUES; i += 32 * WARPS) {
          int s = i / VALUES, value = i % VALUES;
          const float* from = partials + (buffer * ROUND + s) * WARPS * STRIP_ROWS * WIDTH + value / TOKENS * WIDTH +
                              value % TOKENS;
          float sum = 0.0f;
#pragma unroll
          for (int k = 0; k < WARPS; k++) sum += from[k * STRIP_ROWS * WIDTH];
          float* total = totals + (s0 + s) * VALUES + value;
          *total = pass ? *total + sum : sum;
        }
        buffer ^= 1;
      }
    }
    __syncthreads();
    // Write the batch.
    int n_out = swiglu ? rows / 2 : rows;
    for (int i = threadIdx.x; i < (swiglu ? count / 2 : count) * VALUES; i += 32 * WARPS) {
      int s = swiglu ? i / VALUES * 2 : i / VALUES, token = i % VALUES / STRIP_ROWS, r = i % STRIP_ROWS;
      int row = walk.row(first + s) + r;
      if (token >= n || row >= n_out) continue;
      auto total = [&](int s, int row) { return totals[s * VALUES + r * TOKENS + token] + (bias ? bias[row] : 0.0f); };
      float sum = total(s, row);
      if (swiglu) sum = silu(sum) * total(s + 1, n_out + row);
      put(out, swiglu, (u64)token * ld + row, sum);
    }
  }
}
