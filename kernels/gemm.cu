// Products of many rows of activations with bf16 weights on tensor cores. CPU twin: `backend::cpu::linear`, and
// `swiglu` after it where the kernel is gated.
#include "common.cuh"
#include "tensor.cuh"

#define DEPTH 64  // columns of a stage
#define CHUNKS 8  // of 8 columns in a line of a stage
#define STAGES 3  // on their way or being multiplied

// Where 8 columns of a line stand in a stage: shifted so that the eight lines that one ldmatrix reads meet all banks.
__device__ __forceinline__ int chunk_at(int line, int chunk) { return line * DEPTH + (chunk ^ (line & 7)) * 8; }

// out[n, rows] = x[n, cols] weight[rows, cols]^T + bias with f32 sums, x in bf16. A block has a tile of BM tokens x BN
// rows, a warp 64 x 64 of it (4 x 8 tiles of 16 x 8). Fragments of the next 16 columns are read from shared memory
// while these are multiplied, and stages travel two ahead. Grid (n / BM, rows / BN): neighbours share a tile of the
// weight, which is read from memory about once, while x stays in the second-level cache. cols is a multiple of 8.
//
// GATED: the weight is [gate | up], a warp has 32 rows of either, and silu(gate) * up goes to out[n, rows / 2] in bf16.
template <int BM, int BN, bool GATED>
__device__ __forceinline__ void multiply_tiles(void* out, const u16* x, const u16* weight, const float* bias, int rows,
                                           int cols, int n) {
  constexpr int SIDE = 64, ACROSS = BN / SIDE, THREADS = BM / SIDE * ACROSS * 32, AT_ONCE = THREADS / CHUNKS;
  next_may_begin();
  u16 *xs = (u16*)dynamic_shared_memory(), *ws = xs + STAGES * BM * DEPTH;
  // Rows of out, and where the second half of the weight begins.
  int wide = GATED ? rows / 2 : rows, token0 = blockIdx.x * BM, row0 = blockIdx.y * (GATED ? BN / 2 : BN);
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int warp_token = warp / ACROSS * SIDE, warp_row = warp % ACROSS * SIDE;
  float sums[4][8][4];
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
      for (int k = 0; k < 4; k++) sums[i][j][k] = 0.0f;

  int chunk = threadIdx.x % CHUNKS, line0 = threadIdx.x / CHUNKS;
  auto fetch = [&](int stage, int k0) {
    int col = k0 + chunk * 8;
    // What lies outside is filled with zeros; its address is not read, but has to be one.
#pragma unroll
    for (int line = line0; line < BM; line += AT_ONCE) {
      int token = token0 + line;
      bool in = token < n && col < cols;
      copy_async(xs + stage * BM * DEPTH + chunk_at(line, chunk), x + (in ? (u64)token * cols + col : 0), in);
    }
#pragma unroll
    for (int line = line0; line < BN; line += AT_ONCE) {
      int row = row0 + (GATED ? line / SIDE * (SIDE / 2) + line % (SIDE / 2) : line);
      bool in = row < wide && col < cols;
      if (GATED && line % SIDE >= SIDE / 2) row += wide;
      copy_async(ws + stage * BN * DEPTH + chunk_at(line, chunk), weight + (in ? (u64)row * cols + col : 0), in);
    }
  };
  u32 a[2][4][4], b[2][8][2];
  auto read = [&](int to, int stage, int k) {
    const u16 *xt = xs + stage * BM * DEPTH, *wt = ws + stage * BN * DEPTH;
#pragma unroll
    for (int i = 0; i < 4; i++)
      load_matrices(a[to][i], xt + chunk_at(warp_token + 16 * i + lane % 16, 2 * k + lane / 16));
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      u32 two[4];
      load_matrices(two, wt + chunk_at(warp_row + 8 * j + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
      b[to][j][0] = two[0], b[to][j][1] = two[1], b[to][j + 1][0] = two[2], b[to][j + 1][1] = two[3];
    }
  };

  wait_previous();
  int tiles = (cols + DEPTH - 1) / DEPTH;
#pragma unroll
  for (int s = 0; s < STAGES - 1; s++) {
    if (s < tiles) fetch(s, s * DEPTH);
    copy_commit();
  }
  copy_wait<STAGES - 2>();
  __syncthreads();
  read(0, 0, 0);
  int stage = 0, free = STAGES - 1;
  auto after = [](int stage) { return stage + 1 == STAGES ? 0 : stage + 1; };
#pragma unroll 1
  for (int tile = 0; tile < tiles; tile++) {
#pragma unroll
    for (int k = 0; k < DEPTH / 16; k++) {
      if (k == DEPTH / 16 - 1) {
        copy_wait<STAGES - 2>();
        __syncthreads();
        stage = after(stage);
      }
      read((k + 1) % 2, stage, (k + 1) % (DEPTH / 16));
      if (k == 0) {
        // Into the stage that all warps were done with at the last barrier.
        if (tile + STAGES - 1 < tiles) fetch(free, (tile + STAGES - 1) * DEPTH);
        copy_commit();
        free = after(free);
      }
#pragma unroll
      for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 8; j++) mma(sums[i][j], a[k % 2][i], b[k % 2][j]);
    }
  }

  int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int j = 0; j < (GATED ? 4 : 8); j++) {
    int row = row0 + (GATED ? warp_row / 2 : warp_row) + 8 * j + 2 * t;
    if (row >= wide) continue;
    bool both = row + 1 < wide;
    float add[2], add_up[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
      bool in = bias && row + k < wide;
      add[k] = in ? bias[row + k] : 0.0f;
      add_up[k] = GATED && in ? bias[wide + row + k] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        int token = token0 + warp_token + 16 * i + 8 * half + g;
        if (token >= n) continue;
        u64 at = (u64)token * wide + row;
        float v[2];
#pragma unroll
        for (int k = 0; k < 2; k++) {
          v[k] = sums[i][j][2 * half + k] + add[k];
          if (GATED) v[k] = silu(v[k]) * (sums[i][(j + 4) % 8][2 * half + k] + add_up[k]);
        }
        if (wide % 2 == 0) {
          put2(out, GATED, at, v[0], v[1]);
        } else {
          put(out, GATED, at, v[0]);
          if (both) put(out, GATED, at + 1, v[1]);
        }
      }
  }
}

// STAGES * (BM + BN) * DEPTH * 2 bytes of shared memory: `Kernel::shared_bytes`.
#define GEMM_TILES(name, BM, BN, GATED, BLOCKS)                                                                   \
  KERNEL __launch_bounds__(BM / 64 * (BN / 64) * 32, BLOCKS)                                                      \
      name(void* out, const u16* x, const u16* weight, const float* bias, int rows, int cols, int n) {            \
    multiply_tiles<BM, BN, GATED>(out, x, weight, bias, rows, cols, n);                                               \
  }
GEMM_TILES(gemm_tiles, 128, 256, false, 1)
GEMM_TILES(gemm_tiles_gated, 128, 256, true, 1)
GEMM_TILES(gemm_tiles_small, 128, 128, false, 2)
GEMM_TILES(gemm_tiles_small_gated, 128, 128, true, 2)
