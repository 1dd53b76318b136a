// Products of many rows of activations with bf16 weights on tensor cores. CPU twin: `backend::cpu::linear`.
#include "common.cuh"
#include "tensor.cuh"

// x as bf16 parts: high = bf16(x), low = bf16(x - high), together good to 2^-17. Reads 4 bytes a value and
// writes 4; `len` is a multiple of 4. Grid covers len / 4.
KERNEL split_rows(u16* high, u16* low, const float* x, u64 len) {
  after_previous();
  u64 at = 4 * ((u64)blockIdx.x * blockDim.x + threadIdx.x);
  if (at >= len) return;
  float4 v = *(const float4*)(x + at);
  u32 h[2], l[2];
  split(v.x, v.y, &h[0], &l[0]);
  split(v.z, v.w, &h[1], &l[1]);
  *(uint2*)(high + at) = uint2{h[0], h[1]};
  *(uint2*)(low + at) = uint2{l[0], l[1]};
}

#define SIDE 128   // of a block's tile, tokens and rows
#define DEPTH 32   // columns of a stage
#define CHUNKS 4   // of 8 columns in a line of a stage

// Where 8 columns of a line stand in a stage: shifted so that the eight lines that one ldmatrix reads, and
// the four chunks that one line is filled with, each meet all banks.
__device__ __forceinline__ int chunk_at(int line, int chunk) {
  return line * DEPTH + (chunk ^ ((line >> 1) & (CHUNKS - 1))) * 8;
}

// out[n, rows] = (high + low)[n, cols] weight[rows, cols]^T + bias with f32 sums. 256 threads: a warp has
// 64 tokens x 32 rows, 4 x 4 tiles of 16 x 8, and meets every fragment of the weight with both parts of x.
// Grid (n / 128, rows / 128): neighbours share a tile of the weight, which is read from memory about once,
// while x stays in the second-level cache. The next stage travels while one is multiplied: two stages,
// 48 KB, two blocks on a multiprocessor. cols is a multiple of 8.
KERNEL __launch_bounds__(256, 2) gemm_tiles(float* out, const u16* high, const u16* low, const u16* weight,
                                           const float* bias, int rows, int cols, int n) {
  after_previous();
  __shared__ __align__(128) u16 stages[2][3][SIDE * DEPTH];
  int token0 = blockIdx.x * SIDE, row0 = blockIdx.y * SIDE;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int warp_token = warp / 4 * 64, warp_row = warp % 4 * 32;
  float sums[4][4][4];
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int k = 0; k < 4; k++) sums[i][j][k] = 0.0f;

  auto fetch = [&](int stage, int k0) {
    int chunk = threadIdx.x % CHUNKS, col = k0 + chunk * 8;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      int line = threadIdx.x / CHUNKS + 64 * i, token = token0 + line, row = row0 + line, to = chunk_at(line, chunk);
      // What lies outside is filled with zeros; its address is not read, but has to be one.
      bool in_x = token < n && col < cols, in_w = row < rows && col < cols;
      u64 x_at = in_x ? (u64)token * cols + col : 0, w_at = in_w ? (u64)row * cols + col : 0;
      copy_async(&stages[stage][0][to], high + x_at, in_x);
      copy_async(&stages[stage][1][to], low + x_at, in_x);
      copy_async(&stages[stage][2][to], weight + w_at, in_w);
    }
    copy_commit();
  };

  fetch(0, 0);
  int stage = 0;
#pragma unroll 1
  for (int k0 = 0; k0 < cols; k0 += DEPTH, stage ^= 1) {
    if (k0 + DEPTH < cols) {
      fetch(stage ^ 1, k0 + DEPTH);
      copy_wait<1>();
    } else {
      copy_wait<0>();
    }
    __syncthreads();
    const u16 *xh = stages[stage][0], *xl = stages[stage][1], *w = stages[stage][2];
#pragma unroll
    for (int k = 0; k < DEPTH / 8; k += 2) {
      u32 b[4][2];
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        u32 two[4];
        load_matrices(two, w + chunk_at(warp_row + 8 * j + lane / 16 * 8 + lane % 8, k + lane / 8 % 2));
        b[j][0] = two[0], b[j][1] = two[1], b[j + 1][0] = two[2], b[j + 1][1] = two[3];
      }
#pragma unroll
      for (int i = 0; i < 4; i++) {
        int at = chunk_at(warp_token + 16 * i + lane % 16, k + lane / 16);
        u32 a[4];
        load_matrices(a, xl + at);
#pragma unroll
        for (int j = 0; j < 4; j++) mma(sums[i][j], a, b[j]);
        load_matrices(a, xh + at);
#pragma unroll
        for (int j = 0; j < 4; j++) mma(sums[i][j], a, b[j]);
      }
    }
    __syncthreads();
  }

  int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int j = 0; j < 4; j++) {
    int row = row0 + warp_row + 8 * j + 2 * t;
    if (row >= rows) continue;
    bool both = row + 1 < rows;
    float add0 = bias ? bias[row] : 0.0f, add1 = bias && both ? bias[row + 1] : 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        int token = token0 + warp_token + 16 * i + 8 * half + g;
        if (token >= n) continue;
        float* to = out + (u64)token * rows + row;
        float v0 = sums[i][j][2 * half] + add0, v1 = sums[i][j][2 * half + 1] + add1;
        if (rows % 2 == 0) {
          *(float2*)to = float2{v0, v1};
        } else {
          to[0] = v0;
          if (both) to[1] = v1;
        }
      }
  }
}

// Few rows of activations: out[n, rows] as above, n <= 8 * NT. The weight is the left factor here, straight
// from memory: lane t of group g takes 16 bytes of lines g and g + 8, and as the order of columns in a sum
// is free, its eight columns are those of two products; x stands against them in the same order. A block
// has 16 * MT rows, its warps each a part of the columns. Grid (rows / (16 * MT)), 256 threads. Bound by
// the bytes of the weight; x is read once for every 16 * MT rows, from the caches.
#define FEW_WARPS 8
template <int MT, int NT, int STEPS>
__device__ __forceinline__ void gemm_few(float* out, const float* x, const u16* weight, const float* bias, int rows,
                                         int cols, int n) {
  __shared__ float parts[FEW_WARPS][NT * 8][MT * 16 + 1];
  int row0 = blockIdx.x * 16 * MT, warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  int steps = (cols + 31) / 32, from = steps * warp / FEW_WARPS, to = steps * (warp + 1) / FEW_WARPS;
  float sums[MT][NT][4];
#pragma unroll
  for (int i = 0; i < MT; i++)
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
      for (int k = 0; k < 4; k++) sums[i][j][k] = 0.0f;

#pragma unroll 1
  for (int step = from; step < to; step += STEPS) {
    uint4 w[STEPS][MT][2];
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      int col = (step + s) * 32 + 8 * t;
#pragma unroll
      for (int i = 0; i < MT; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          int row = row0 + 16 * i + 8 * half + g;
          bool in = step + s < to && col < cols && row < rows;
          w[s][i][half] = in ? *(const uint4*)(weight + (u64)row * cols + col) : uint4{0, 0, 0, 0};
        }
    }
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      int col = (step + s) * 32 + 8 * t;
#pragma unroll
      for (int j = 0; j < NT; j++) {
        int token = 8 * j + g;
        bool in = step + s < to && col < cols && token < n;
        const float4* at = (const float4*)(x + (in ? (u64)token * cols + col : 0));
        float4 zero = {0.0f, 0.0f, 0.0f, 0.0f}, a = in ? at[0] : zero, b = in ? at[1] : zero;
        u32 high[4], low[4];
        split(a.x, a.y, &high[0], &low[0]);
        split(a.z, a.w, &high[1], &low[1]);
        split(b.x, b.y, &high[2], &low[2]);
        split(b.z, b.w, &high[3], &low[3]);
#pragma unroll
        for (int i = 0; i < MT; i++) {
          uint4 p = w[s][i][0], q = w[s][i][1];
          u32 first[4] = {p.x, q.x, p.y, q.y}, second[4] = {p.z, q.z, p.w, q.w};
          mma(sums[i][j], first, low);
          mma(sums[i][j], second, low + 2);
          mma(sums[i][j], first, high);
          mma(sums[i][j], second, high + 2);
        }
      }
    }
  }

#pragma unroll
  for (int i = 0; i < MT; i++)
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
      for (int k = 0; k < 4; k++) parts[warp][8 * j + 2 * t + k % 2][16 * i + 8 * (k / 2) + g] = sums[i][j][k];
  __syncthreads();
  for (int at = threadIdx.x; at < NT * 8 * MT * 16; at += FEW_WARPS * 32) {
    int token = at / (MT * 16), r = at % (MT * 16), row = row0 + r;
    if (token >= n || row >= rows) continue;
    float sum = bias ? bias[row] : 0.0f;
#pragma unroll
    for (int k = 0; k < FEW_WARPS; k++) sum += parts[k][token][r];
    out[(u64)token * rows + row] = sum;
  }
}

#define GEMM_FEW(name, MT, NT, STEPS)                                                                             \
  KERNEL __launch_bounds__(256)                                                                                   \
      name(float* out, const float* x, const u16* weight, const float* bias, int rows, int cols, int n) {         \
    after_previous();                                                                                                      \
    gemm_few<MT, NT, STEPS>(out, x, weight, bias, rows, cols, n);                                                 \
  }
GEMM_FEW(gemm_few_8, 1, 1, 4)
GEMM_FEW(gemm_few_16, 2, 2, 2)
GEMM_FEW(gemm_few_32, 2, 4, 2)
