// Products with weights [rows, cols] that stay as they are in the file, f32 activations and sums.
// CPU twin: `backend::cpu::linear`.
#include "common.cuh"
#include "tensor.cuh"

// Few rows of activations: out[n, rows] = x[n, cols] weight^T + bias, n <= N. A warp takes one row of
// the weight and all n rows of x. Grid covers rows by warps. Bound by the bytes of the weight, which
// are read once; x comes from the caches. `vector`: cols is a multiple of 8.
template <int T, int N>
__device__ __forceinline__ void gemv(float* out, const float* x, const void* weight, const float* bias, int rows,
                                     int cols, int n, int vector) {
  int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  u64 from = (u64)row * cols;
  float sums[N];
#pragma unroll
  for (int k = 0; k < N; k++) sums[k] = 0.0f;
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

#define GEMV(name, type, most)                                                                                    \
  KERNEL name(float* out, const float* x, const void* weight, const float* bias, int rows, int cols, int n,       \
              int vector) {                                                                                       \
    gemv<type, most>(out, x, weight, bias, rows, cols, n, vector);                                                \
  }
GEMV(gemv1_f32, F32, 1)
GEMV(gemv1_f16, F16, 1)
GEMV(gemv1_bf16, BF16, 1)
GEMV(gemv8_f32, F32, 8)
GEMV(gemv8_f16, F16, 8)
GEMV(gemv8_bf16, BF16, 8)

// Many rows of activations: the same product by tiles of 64 x 64, in f32. Grid (rows / 64, n / 64),
// 256 threads, each with 4 x 4 sums. Reads x rows/64 times and the weight n/64 times. The plain path
// that serves every width and type.
#define TILE 64
#define DEPTH 16
template <int T>
__device__ __forceinline__ void gemm(float* out, const float* x, const void* weight, const float* bias, int rows,
                                     int cols, int n) {
  __shared__ float xs[DEPTH][TILE + 4], ws[DEPTH][TILE + 4];
  int row0 = blockIdx.x * TILE, token0 = blockIdx.y * TILE;
  int tr = threadIdx.x % 16, tn = threadIdx.x / 16;
  float sums[4][4];
#pragma unroll
  for (int a = 0; a < 4; a++)
#pragma unroll
    for (int b = 0; b < 4; b++) sums[a][b] = 0.0f;
  for (int k0 = 0; k0 < cols; k0 += DEPTH) {
#pragma unroll
    for (int part = 0; part < TILE * DEPTH / 256; part++) {
      int at = part * 256 + threadIdx.x, k = at % DEPTH, line = at / DEPTH;
      bool inside = k0 + k < cols;
      bool token = inside && token0 + line < n, row = inside && row0 + line < rows;
      xs[k][line] = token ? x[(u64)(token0 + line) * cols + k0 + k] : 0.0f;
      ws[k][line] = row ? weight_at<T>(weight, (u64)(row0 + line) * cols + k0 + k) : 0.0f;
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
      if (row < rows) out[(u64)token * rows + row] = sums[i][j] + (bias ? bias[row] : 0.0f);
    }
  }
}

#define GEMM(name, type)                                                                                          \
  KERNEL __launch_bounds__(256)                                                                                   \
      name(float* out, const float* x, const void* weight, const float* bias, int rows, int cols, int n) {        \
    gemm<type>(out, x, weight, bias, rows, cols, n);                                                              \
  }
GEMM(gemm_f32, F32)
GEMM(gemm_f16, F16)
GEMM(gemm_bf16, BF16)

#define STEP 32
#define PITCH 40  // of a line of 32 bf16 in shared memory: no two lanes of a fragment meet in a bank

__device__ __forceinline__ u32 pair(u16 low, u16 high) { return low | (u32)high << 16; }

// Two neighbours of a line as bf16, and what that leaves over as bf16: together good to 2^-17.
__device__ __forceinline__ void split(float x, float y, u32* high, u32* low) {
  u16 a = f32_to_bf16(x), b = f32_to_bf16(y);
  *high = pair(a, b);
  *low = pair(f32_to_bf16(x - bf16_to_f32(a)), f32_to_bf16(y - bf16_to_f32(b)));
}

// The product on tensor cores for bf16 weights: x is split into two bf16 parts, so that the result is as
// good as f32's but for the last bits. Tiles of 32 * M tokens and 128 rows of the weight, 256 threads;
// a warp has M x 4 tiles of 16 x 8. Grid (rows / 128, n / (32 * M)). The next 32 columns travel while
// these are multiplied. cols is a multiple of 8.
template <int M>
__device__ __forceinline__ void gemm_split(float* out, const float* x, const u16* weight, const float* bias, int rows,
                                           int cols, int n) {
  __shared__ __align__(16) u16 x_high[32 * M][PITCH], x_low[32 * M][PITCH], w[128][PITCH];
  int row0 = blockIdx.x * 128, token0 = blockIdx.y * 32 * M;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  int warp_token = warp / 4 * 16 * M, warp_row = warp % 4 * 32;
  int x_line = threadIdx.x / 8, x_col = threadIdx.x % 8 * 4, w_line = threadIdx.x / 4, w_col = threadIdx.x % 4 * 8;
  float sums[M][4][4];
#pragma unroll
  for (int i = 0; i < M; i++)
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int k = 0; k < 4; k++) sums[i][j][k] = 0.0f;
  float4 next_x[M];
  uint4 next_w[2];
  auto fetch = [&](int k0) {
#pragma unroll
    for (int i = 0; i < M; i++) {
      int token = token0 + x_line + 32 * i;
      bool in = token < n && k0 + x_col < cols;
      next_x[i] = in ? *(const float4*)(x + (u64)token * cols + k0 + x_col) : float4{0.0f, 0.0f, 0.0f, 0.0f};
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
      int row = row0 + w_line + 64 * i;
      bool in = row < rows && k0 + w_col < cols;
      next_w[i] = in ? *(const uint4*)(weight + (u64)row * cols + k0 + w_col) : uint4{0, 0, 0, 0};
    }
  };
  fetch(0);
#pragma unroll 1
  for (int k0 = 0; k0 < cols; k0 += STEP) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < M; i++) {
      u32 high[2], low[2];
      split(next_x[i].x, next_x[i].y, &high[0], &low[0]);
      split(next_x[i].z, next_x[i].w, &high[1], &low[1]);
      *(uint2*)&x_high[x_line + 32 * i][x_col] = uint2{high[0], high[1]};
      *(uint2*)&x_low[x_line + 32 * i][x_col] = uint2{low[0], low[1]};
    }
#pragma unroll
    for (int i = 0; i < 2; i++) *(uint4*)&w[w_line + 64 * i][w_col] = next_w[i];
    __syncthreads();
    if (k0 + STEP < cols) fetch(k0 + STEP);
#pragma unroll
    for (int k = 0; k < STEP; k += 16) {
      u32 b[4][2];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const u16* at = &w[warp_row + 8 * j + g][k + 2 * t];
        b[j][0] = *(const u32*)at;
        b[j][1] = *(const u32*)(at + 8);
      }
#pragma unroll
      for (int i = 0; i < M; i++) {
        int line = warp_token + 16 * i + g;
        const u16 *high = &x_high[line][k + 2 * t], *low = &x_low[line][k + 2 * t];
        u32 a[4] = {*(const u32*)high, *(const u32*)(high + 8 * PITCH), *(const u32*)(high + 8),
                    *(const u32*)(high + 8 * PITCH + 8)};
        u32 rest[4] = {*(const u32*)low, *(const u32*)(low + 8 * PITCH), *(const u32*)(low + 8),
                       *(const u32*)(low + 8 * PITCH + 8)};
#pragma unroll
        for (int j = 0; j < 4; j++) {
          mma(sums[i][j], rest, b[j]);
          mma(sums[i][j], a, b[j]);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < M; i++)
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int k = 0; k < 4; k++) {
        int token = token0 + warp_token + 16 * i + g + k / 2 * 8, row = row0 + warp_row + 8 * j + 2 * t + k % 2;
        if (token < n && row < rows) out[(u64)token * rows + row] = sums[i][j][k] + (bias ? bias[row] : 0.0f);
      }
}

#define GEMM_SPLIT(name, M)                                                                                       \
  KERNEL __launch_bounds__(256)                                                                                   \
      name(float* out, const float* x, const u16* weight, const float* bias, int rows, int cols, int n) {         \
    gemm_split<M>(out, x, weight, bias, rows, cols, n);                                                           \
  }
GEMM_SPLIT(gemm_split_64, 2)
GEMM_SPLIT(gemm_split_128, 4)
