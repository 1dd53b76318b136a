// Small-batch GEMM of decode: 2 to 32 rows of bf16 activations times a packed weight (`codes.cuh`).
// Bound by the bytes of the weight, which is read once. CPU twin: `backend::cpu::linear`, followed
// by `swiglu` if fused.
#include "codes.cuh"

#define WARPS 8

// out[n, rows] = x[n, cols] weight[rows, cols]^T + bias[rows], n <= 8 * NT, x in bf16, out in f32
// with `ld` values from row to row: a GEMM of M = n, N = rows, K = cols. A block computes STRIPS *
// WARPS / KW strips, 256 threads; cols is a multiple of 64. Reads the weight once, and x once a
// block, from L2.
//
// The weight is the A operand of `mma`, straight from its tile. A stage is KW tiles of columns of
// both inputs, copied to shared memory STAGES - 1 ahead, the weight's first ones before the
// previous kernel has ended. A warp multiplies one tile of columns of every stage for its STRIPS
// strips (split K over KW warps), as in `packed_resident.cuh`. Sums of warps are
// added in a fixed order: a token's result does not depend on n or the other tokens.
//
// `swiglu`: the weight is [gate | up]; half of the block's strips are gate's and half up's, and
// out[n, rows / 2] =
// silu(gate) * up in bf16; rows is a multiple of 32.
template <class CODE, int NT, int STRIPS, int KW, int STAGES>
__device__ __forceinline__ void gemm(void* out, const u16* x, const u8* weight, const float* bias, int rows, int cols,
                                     int n, int ld, bool swiglu) {
  typedef typename WordsOf<CODE::HALVES>::Type Words;
  constexpr int LOW_TILE = Layout<CODE>::LOW_TILE, TOKENS = 8 * NT, BLOCK = STRIPS * WARPS / KW, HALF = BLOCK / 2;
  // Of a strip in a stage.
  constexpr int HIGH = KW * TILE_BYTES, LOW = KW * LOW_TILE, GROUP_BYTES = CODE::MOST_WORD_BYTES;
  constexpr int CODE_BYTES = BLOCK * (HIGH + LOW), WORDS = BLOCK * KW * GROUP_BYTES / GROUP_TILES;
  constexpr int ROW = KW * TILE_COLS * 2, STAGE = CODE_BYTES + WORDS + TOKENS * ROW;
  // Of a row of partial sums, which reuse the stages' memory.
  constexpr int WIDTH = BLOCK * STRIP_ROWS + 1, PARTIALS = KW * TOKENS * WIDTH * sizeof(float);
  int outs = (swiglu ? HALF : BLOCK) * STRIP_ROWS;
  u8* stages = (u8*)dynamic_shared_memory<(STAGES * STAGE > PARTIALS ? STAGES * STAGE : PARTIALS)>();
  next_may_begin();
  Layout<CODE> at(cols);
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  int tile = warp % KW, strip0 = warp / KW * STRIPS;  // of the warp in a stage
  int strips = (rows + STRIP_ROWS - 1) / STRIP_ROWS, steps = (at.tiles + KW - 1) / KW;
  auto strip_at = [&](int i) {
    int strip = swiglu ? (int)blockIdx.x * HALF + i % HALF : (int)blockIdx.x * BLOCK + i;
    // Strips beyond the last are computed as the last one and not written.
    strip = min(strip, (swiglu ? strips / 2 : strips) - 1);
    return weight + at.strip_bytes * (swiglu && i >= HALF ? strip + strips / 2 : strip);
  };
  // Chunks outside are filled with zeros; their address is not read, but has to be valid.
  auto fetch_weight = [&](int stage, int step) {
    u8* to = stages + stage * STAGE;
#pragma unroll
    for (int i = threadIdx.x; i < BLOCK * HIGH / 16; i += 32 * WARPS) {
      int chunk = i % (HIGH / 16);
      bool in = step * KW + chunk / (TILE_BYTES / 16) < at.tiles;
      copy_async(to + i * 16, strip_at(i / (HIGH / 16)) + (in ? step * HIGH + chunk * 16 : 0), in);
    }
    if constexpr (LOW > 0) {
#pragma unroll
      for (int i = threadIdx.x; i < BLOCK * LOW / 16; i += 32 * WARPS) {
        int chunk = i % (LOW / 16);
        bool in = step * KW + chunk / (LOW_TILE / 16) < at.tiles;
        copy_async(to + BLOCK * HIGH + i * 16, strip_at(i / (LOW / 16)) + at.low_at + (in ? step * LOW + chunk * 16 : 0), in);
      }
    }
#pragma unroll
    for (int i = threadIdx.x; i < WORDS / 16; i += 32 * WARPS) {
      constexpr int CHUNKS = KW * GROUP_BYTES / GROUP_TILES / 16;
      int chunk = i % CHUNKS, group = step * KW / GROUP_TILES + chunk / (GROUP_BYTES / 16);
      bool in = group < at.groups;
      const u8* from = strip_at(i / CHUNKS) + at.words_at;
      copy_async(to + CODE_BYTES + i * 16, from + (in ? group * GROUP_BYTES + chunk % (GROUP_BYTES / 16) * 16 : 0), in);
    }
  };
  auto fetch_x = [&](int stage, int step) {
    u8* to = stages + stage * STAGE + CODE_BYTES + WORDS;
#pragma unroll
    for (int i = threadIdx.x; i < TOKENS * ROW / 16; i += 32 * WARPS) {
      int token = i / (ROW / 16), chunk = i % (ROW / 16), col = step * KW * TILE_COLS + chunk * 8;
      bool in = token < n && col < cols;
      // XOR-swizzled, so that the two tokens of a quarter warp's loads hit different banks.
      copy_async(to + token * ROW + (chunk ^ (token & 1)) * 16, x + (in ? (u64)token * cols + col : 0), in);
    }
  };
  float sums[STRIPS][NT][4] = {};
#pragma unroll
  for (int s = 0; s < STAGES - 1; s++)
    if (s < steps) fetch_weight(s, s);
  wait_previous();
#pragma unroll
  for (int s = 0; s < STAGES - 1; s++) {
    if (s < steps) fetch_x(s, s);
    copy_commit();
  }
  int stage = 0;
  // Main loop over K.
#pragma unroll 1
  for (int step = 0; step < steps; step++) {
    copy_wait<STAGES - 2>();
    __syncthreads();
    // Prefetch into the stage that all warps have left at this barrier.
    int ahead = step + STAGES - 1, free = stage == 0 ? STAGES - 1 : stage - 1;
    if (ahead < steps) {
      fetch_weight(free, ahead);
      fetch_x(free, ahead);
    }
    copy_commit();
    const u8 *codes = stages + stage * STAGE, *words = codes + CODE_BYTES, *xs = words + WORDS + tile * TILE_COLS * 2;
    stage = stage + 1 == STAGES ? 0 : stage + 1;
    u32 b[NT][8];
    float of_x[NT][2];
#pragma unroll
    for (int j = 0; j < NT; j++) {
      const u8* row = xs + (8 * j + g) * ROW;
#pragma unroll
      for (int h = 0; h < 2; h++) *(uint4*)(b[j] + 4 * h) = *(const uint4*)(row + ((2 * t + h) ^ (g & 1)) * 16);
      if constexpr (CODE::HALVES == 1) sum_columns(of_x[j], b[j]);
    }
#pragma unroll
    for (int s = 0; s < STRIPS; s++) {
      int strip = strip0 + s;
      const u8* of_group = words + (strip * KW + tile / GROUP_TILES * GROUP_TILES) * (GROUP_BYTES / GROUP_TILES);
      const u8 *from = codes + strip * HIGH + tile * TILE_BYTES, *low = codes + BLOCK * HIGH + strip * LOW + tile * LOW_TILE;
      multiply_tile<CODE, NT>(sums[s], from, low, lane, ((const Words*)of_group)[g * GROUP_TILES + tile % GROUP_TILES], b, of_x);
    }
  }
  copy_wait<0>();
  __syncthreads();

  float* partials = (float*)stages;  // [KW][TOKENS][WIDTH]
#pragma unroll
  for (int s = 0; s < STRIPS; s++)
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
      for (int k = 0; k < 4; k++) {
        int token = 8 * j + 2 * t + k % 2, row = (strip0 + s) * STRIP_ROWS + 8 * (k / 2) + g;
        partials[(tile * TOKENS + token) * WIDTH + row] = sums[s][j][k];
      }
  __syncthreads();
  int n_out = swiglu ? rows / 2 : rows;
  // Reduce over warps and write.
  for (int i = threadIdx.x; i < TOKENS * outs; i += 32 * WARPS) {
    int token = i / outs, r = i % outs, row = blockIdx.x * outs + r;
    if (token >= n || row >= n_out) continue;
    auto total = [&](int r, int row) {
      float sum = bias ? bias[row] : 0.0f;
#pragma unroll
      for (int k = 0; k < KW; k++) sum += partials[(k * TOKENS + token) * WIDTH + r];
      return sum;
    };
    float sum = total(r, row);
    if (swiglu) sum = silu(sum) * total(r + outs, n_out + row);
    put(out, swiglu, (u64)token * ld + row, sum);
  }
}

#define PACKED_GEMM(name, CODE, NT, STRIPS, KW, STAGES, BLOCKS) \
  KERNEL __launch_bounds__(32 * WARPS, BLOCKS) \
      name(void* out, const u16* x, const u8* weight, const float* bias, int rows, int cols, int n, int ld, int swiglu) { \
    gemm<CODE, NT, STRIPS, KW, STAGES>(out, x, weight, bias, rows, cols, n, ld, swiglu); \
  }
PACKED_GEMM(packed_gemm_q4_8, Q4, 1, 2, 8, 4, 2)
PACKED_GEMM(packed_gemm_q4_16, Q4, 2, 2, 8, 3, 1)
PACKED_GEMM(packed_gemm_q4_32, Q4, 4, 2, 4, 3, 1)
PACKED_GEMM(packed_gemm_q8_8, Q8, 1, 2, 8, 3, 2)
PACKED_GEMM(packed_gemm_q8_16, Q8, 2, 2, 8, 3, 1)
PACKED_GEMM(packed_gemm_q8_32, Q8, 4, 2, 4, 3, 1)
PACKED_GEMM(packed_gemm_q4h_8, Q4H, 1, 2, 8, 4, 2)
PACKED_GEMM(packed_gemm_q4h_16, Q4H, 2, 2, 8, 3, 1)
PACKED_GEMM(packed_gemm_q4h_32, Q4H, 4, 2, 4, 3, 1)
PACKED_GEMM(packed_gemm_q6h_8, Q6H, 1, 2, 8, 3, 2)
PACKED_GEMM(packed_gemm_q6h_16, Q6H, 2, 2, 8, 3, 1)
PACKED_GEMM(packed_gemm_q6h_32, Q6H, 4, 2, 4, 3, 1)
