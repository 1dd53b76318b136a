// GEMM of prefill: many rows of bf16 activations times a bf16 weight, with `mma`. CPU twin:
// `backend::cpu::linear`, followed by
// `swiglu` if fused. Hopper: `gemm_wgmma.cu`.
#include "common.cuh"
#include "tensor.cuh"

#define DEPTH 64  // columns of a stage
#define CHUNKS 8  // 16-byte chunks of a tile row
#define STAGES 3  // in flight or being multiplied

// Offset of a 16-byte chunk of a tile row. Chunks are XOR-swizzled, so that the eight rows of an
// ldmatrix hit all banks.
__device__ __forceinline__ int chunk_at(int tile_row, int chunk) { return tile_row * DEPTH + (chunk ^ (tile_row & 7)) * 8; }

// out[n, rows] = x[n, cols] weight[rows, cols]^T + bias[rows], x in bf16, out in f32: a GEMM of M =
// n, N = rows, K = cols. Rows of out are `ld` values apart. Grid (n / BM, rows / BN), BM / 64 * BN
// / 64 warps; cols is a multiple of 8. Neighbouring blocks share a tile of the weight, which is
// read from memory about once, while x stays in L2.
//
// A block has a tile of BM x BN, a warp 64 x 64 of it (4 x 8 `mma` tiles of 16 x 8). Fragments of
// the next 16 columns are read from shared memory while these are multiplied; async copies run two
// stages ahead.
//
// SWIGLU: the weight is [gate | up]; a warp has 32 rows of either, and out[n, rows / 2] =
// silu(gate) * up in bf16.
template <int BM, int BN, bool SWIGLU>
__device__ __forceinline__ void gemm_tile(u16* memory, void* out, const u16* x, const u16* weight, const float* bias, int rows,
                                           int cols, int n, int ld) {
  constexpr int SIDE = 64, WARPS_N = BN / SIDE, THREADS = BM / SIDE * WARPS_N * 32, AT_ONCE = THREADS / CHUNKS;
  next_may_begin();
  u16 *xs = memory, *ws = xs + STAGES * BM * DEPTH;
  // Rows of out, and where the second half of the weight begins.
  int n_out = SWIGLU ? rows / 2 : rows, token0 = blockIdx.x * BM, row0 = blockIdx.y * (SWIGLU ? BN / 2 : BN);
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int warp_token = warp / WARPS_N * SIDE, warp_row = warp % WARPS_N * SIDE;
  float sums[4][8][4] = {};

  int chunk = threadIdx.x % CHUNKS, tile_row0 = threadIdx.x / CHUNKS;
  auto fetch = [&](int stage, int k0) {
    int col = k0 + chunk * 8;
    // Chunks outside are filled with zeros; their address is not read, but has to be valid.
#pragma unroll
    for (int tile_row = tile_row0; tile_row < BM; tile_row += AT_ONCE) {
      int token = token0 + tile_row;
      bool in = token < n && col < cols;
      copy_async(xs + stage * BM * DEPTH + chunk_at(tile_row, chunk), x + (in ? (u64)token * cols + col : 0), in);
    }
#pragma unroll
    for (int tile_row = tile_row0; tile_row < BN; tile_row += AT_ONCE) {
      int row = row0 + (SWIGLU ? tile_row / SIDE * (SIDE / 2) + tile_row % (SIDE / 2) : tile_row);
      bool in = row < n_out && col < cols;
      if (SWIGLU && tile_row % SIDE >= SIDE / 2) row += n_out;
      copy_async(ws + stage * BN * DEPTH + chunk_at(tile_row, chunk), weight + (in ? (u64)row * cols + col : 0), in);
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
  // Main loop over K.
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
        // Prefetch into the stage that all warps have left at the last barrier.
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

  // Epilogue: bias, SwiGLU, write.
  int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int j = 0; j < (SWIGLU ? 4 : 8); j++) {
    int row = row0 + (SWIGLU ? warp_row / 2 : warp_row) + 8 * j + 2 * t;
    if (row >= n_out) continue;
    bool both = row + 1 < n_out;
    float add[2], add_up[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
      bool in = bias && row + k < n_out;
      add[k] = in ? bias[row + k] : 0.0f;
      add_up[k] = SWIGLU && in ? bias[n_out + row + k] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        int token = token0 + warp_token + 16 * i + 8 * half + g;
        if (token >= n) continue;
        u64 at = (u64)token * ld + row;
        float v[2];
#pragma unroll
        for (int k = 0; k < 2; k++) {
          v[k] = sums[i][j][2 * half + k] + add[k];
          if (SWIGLU) v[k] = silu(v[k]) * (sums[i][(j + 4) % 8][2 * half + k] + add_up[k]);
        }
        if (ld % 2 == 0 && both) {
          put2(out, SWIGLU, at, v[0], v[1]);
        } else {
          put(out, SWIGLU, at, v[0]);
          if (both) put(out, SWIGLU, at + 1, v[1]);
        }
      }
  }
}

// SwiGLU as an argument of the loop over K takes a tenth longer.
#define GEMM_TILES(name, BM, BN, BLOCKS)                                                                                  \
  KERNEL __launch_bounds__(BM / 64 * (BN / 64) * 32, BLOCKS)                                                              \
      name(void* out, const u16* x, const u16* weight, const float* bias, int rows, int cols, int n, int ld, int swiglu) { \
    u16* memory = (u16*)dynamic_shared_memory<STAGES * (BM + BN) * DEPTH * sizeof(u16)>();                                \
    if (swiglu) gemm_tile<BM, BN, true>(memory, out, x, weight, bias, rows, cols, n, ld);                                 \
    else gemm_tile<BM, BN, false>(memory, out, x, weight, bias, rows, cols, n, ld);                                       \
  }
GEMM_TILES(gemm_tiles, 128, 256, 1)
GEMM_TILES(gemm_tiles_small, 128, 128, 2)
