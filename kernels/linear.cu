// Plain f32 matmuls with a weight of any dtype and width, for what the tensor-core kernels do not
// support. f32 activations and accumulators. CPU twin: `backend::cpu::linear`.
#include "tensor.cuh"

#define N 8  // most rows of the GEMV

// GEMV of n <= N rows: out[n, rows] = x[n, cols] weight[rows, cols]^T + bias[rows]. A warp per row
// of the weight, any block. Bound by the bytes of the weight, which is read once; x comes from L2.
// `vector`: cols is a multiple of 8.
template <int T>
__device__ __forceinline__ void gemv(float* out, const float* x, const void* weight, const float* bias, int rows,
                                     int cols, int n, int vector) {
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  u64 from = (u64)row * cols;
  float sums[N] = {};
  if (vector) {
#pragma unroll 2
    for (int i = lane * 8; i < cols; i += 256) {
      float w[8];
      weight8<T>(w, weight, from + i);
#pragma unroll
      for (int k = 0; k < N; k++) {
        if (k >= n) break;
        const float4* at = (const float4*)(x + (u64)k * cols + i);
        float4 a = at[0], b = at[1];
        sums[k] += w[0] * a.x + w[1] * a.y + w[2] * a.z + w[3] * a.w;
        sums[k] += w[4] * b.x + w[5] * b.y + w[6] * b.z + w[7] * b.w;
      }
    }
  } else {
    for (int i = lane; i < cols; i += 32) {
      float w = weight_at<T>(weight, from + i);
#pragma unroll
      for (int k = 0; k < N; k++)
        if (k < n) sums[k] += w * x[(u64)k * cols + i];
    }
  }
#pragma unroll
  for (int k = 0; k < N; k++) {
    if (k >= n) break;
    float sum = warp_sum(sums[k]);
    if (lane == 0) out[(u64)k * rows + row] = sum + (bias ? bias[row] : 0.0f);
  }
}

KERNEL gemv_plain(float* out, const float* x, const void* weight, const float* bias, int rows, int cols, int n, int vector, int dtype) {
  after_previous();
  if (dtype == F32) gemv<F32>(out, x, weight, bias, rows, cols, n, vector);
  else if (dtype == F16) gemv<F16>(out, x, weight, bias, rows, cols, n, vector);
  else gemv<BF16>(out, x, weight, bias, rows, cols, n, vector);
}

// The same for any n, in tiles of 64 x 64; rows of out are `ld` values apart. Grid (rows / 64, n /
// 64), 256 threads with 4 x 4 outputs each. Reads x rows / 64 times and the weight n / 64 times.
#define TILE 64
#define DEPTH 16
typedef float Stage[DEPTH][TILE + 4];
template <int T>
__device__ __forceinline__ void gemm_tile(Stage& xs, Stage& ws, float* out, const float* x, const void* weight,
                                          const float* bias, int rows, int cols, int n, int ld) {
  int row0 = blockIdx.x * TILE, token0 = blockIdx.y * TILE;
  int tr = threadIdx.x % 16, tn = threadIdx.x / 16;
  float sums[4][4] = {};
  // Main loop over K: stage a tile of both inputs, multiply it.
  for (int k0 = 0; k0 < cols; k0 += DEPTH) {
#pragma unroll
    for (int part = 0; part < TILE * DEPTH / 256; part++) {
      int at = part * 256 + threadIdx.x, k = at % DEPTH, tile_row = at / DEPTH;
      bool inside = k0 + k < cols;
      bool token = inside && token0 + tile_row < n, row = inside && row0 + tile_row < rows;
      xs[k][tile_row] = token ? x[(u64)(token0 + tile_row) * cols + k0 + k] : 0.0f;
      ws[k][tile_row] = row ? weight_at<T>(weight, (u64)(row0 + tile_row) * cols + k0 + k) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < DEPTH; k++) {
      float a[4], b[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        a[i] = xs[k][tn * 4 + i];
        b[i] = ws[k][tr * 4 + i];
      }
#pragma unroll
      for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) sums[i][j] += a[i] * b[j];
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
    int token = token0 + tn * 4 + i;
    if (token >= n) break;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      int row = row0 + tr * 4 + j;
      if (row < rows) out[(u64)token * ld + row] = sums[i][j] + (bias ? bias[row] : 0.0f);
    }
  }
}

KERNEL __launch_bounds__(256)
    gemm(float* out, const float* x, const void* weight, const float* bias, int rows, int cols, int n, int ld, int dtype) {
  __shared__ Stage xs, ws;
  after_previous();
  if (dtype == F32) gemm_tile<F32>(xs, ws, out, x, weight, bias, rows, cols, n, ld);
  else if (dtype == F16) gemm_tile<F16>(xs, ws, out, x, weight, bias, rows, cols, n, ld);
  else gemm_tile<BF16>(xs, ws, out, x, weight, bias, rows, cols, n, ld);
}
