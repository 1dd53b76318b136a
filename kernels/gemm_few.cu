// Products of two to 32 rows of activations with bf16 weights: bound by the bytes of the weight, which are read once.
// CPU twin: `backend::cpu::linear`, and `swiglu` after it where the kernel is gated.
#include "common.cuh"
#include "tensor.cuh"

// out[n, rows] = x[n, cols] weight[rows, cols]^T + bias, n <= 8 * NT, x in bf16. The weight is the left factor, straight
// from memory: lane t of group g takes 16 bytes of lines g and g + 8, and as the order of columns in a sum is free, its
// eight columns are those of two products; x stands against them in the same order. A block has 32 rows, its
// warps each a part of the columns; a token's sums are the same whatever n and the other tokens are. Grid
// (rows / 32), 256 threads. cols is a multiple of 8.
//
// GATED: the weight is [gate | up], lines g are gate's and lines g + 8 up's, and silu(gate) * up goes to
// out[n, rows / 2] in bf16.
#define WARPS 8
template <int NT, int STEPS, bool GATED>
__device__ __forceinline__ void gemm_few(void* out, const u16* x, const u16* weight, const float* bias, int rows,
                                         int cols, int n) {
  constexpr int MT = 2, LINES = 16 * MT, OUT = GATED ? LINES / 2 : LINES;
  __shared__ float parts[WARPS][NT * 8][LINES + 1];
  next_may_begin();
  int wide = GATED ? rows / 2 : rows, row0 = blockIdx.x * OUT;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  int steps = (cols + 31) / 32, from = steps * warp / WARPS, to = steps * (warp + 1) / WARPS;
  const u16* lines[MT][2];
#pragma unroll
  for (int i = 0; i < MT; i++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      int row = row0 + (GATED ? 8 * i + g : 16 * i + 8 * half + g);
      // Rows that are not there are computed as the last one and not written.
      lines[i][half] = weight + (u64)(min(row, wide - 1) + (GATED ? half * wide : 0)) * cols;
    }
  uint4 w[STEPS][MT][2];
  auto fetch = [&](int step) {
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      int col = (step + s) * 32 + 8 * t;
      bool in = step + s < to && col < cols;
#pragma unroll
      for (int i = 0; i < MT; i++)
#pragma unroll
        for (int half = 0; half < 2; half++)
          w[s][i][half] = in ? load_once(lines[i][half] + col) : uint4{0, 0, 0, 0};
    }
  };
  float sums[MT][NT][4];
#pragma unroll
  for (int i = 0; i < MT; i++)
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
      for (int k = 0; k < 4; k++) sums[i][j][k] = 0.0f;

  fetch(from);
  wait_previous();
#pragma unroll 1
  for (int step = from; step < to; step += STEPS) {
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
      int col = (step + s) * 32 + 8 * t;
#pragma unroll
      for (int j = 0; j < NT; j++) {
        int token = 8 * j + g;
        bool in = step + s < to && col < cols && token < n;
        uint4 v = in ? *(const uint4*)(x + (u64)token * cols + col) : uint4{0, 0, 0, 0};
        u32 first[2] = {v.x, v.y}, second[2] = {v.z, v.w};
#pragma unroll
        for (int i = 0; i < MT; i++) {
          uint4 p = w[s][i][0], q = w[s][i][1];
          u32 left[4] = {p.x, q.x, p.y, q.y}, right[4] = {p.z, q.z, p.w, q.w};
          mma(sums[i][j], left, first);
          mma(sums[i][j], right, second);
        }
      }
    }
    fetch(step + STEPS);
  }

#pragma unroll
  for (int i = 0; i < MT; i++)
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
      for (int k = 0; k < 4; k++) parts[warp][8 * j + 2 * t + k % 2][16 * i + 8 * (k / 2) + g] = sums[i][j][k];
  __syncthreads();
  auto total = [&](int token, int line, int row) {
    float sum = bias ? bias[row] : 0.0f;
#pragma unroll
    for (int k = 0; k < WARPS; k++) sum += parts[k][token][line];
    return sum;
  };
  for (int at = threadIdx.x; at < NT * 8 * OUT; at += WARPS * 32) {
    int token = at / OUT, r = at % OUT, row = row0 + r, line = GATED ? r / 8 * 16 + r % 8 : r;
    if (token >= n || row >= wide) continue;
    float sum = total(token, line, row);
    if (GATED) sum = silu(sum) * total(token, line + 8, wide + row);
    put(out, GATED, (u64)token * wide + row, sum);
  }
}

#define GEMM_FEW(name, NT, STEPS, GATED)                                                                          \
  KERNEL __launch_bounds__(32 * WARPS)                                                                            \
      name(void* out, const u16* x, const u16* weight, const float* bias, int rows, int cols, int n) {            \
    gemm_few<NT, STEPS, GATED>(out, x, weight, bias, rows, cols, n);                                              \
  }
GEMM_FEW(gemm_few_8, 1, 4, false)
GEMM_FEW(gemm_few_16, 2, 4, false)
GEMM_FEW(gemm_few_32, 4, 2, false)
GEMM_FEW(gemm_few_8_gated, 1, 4, true)
GEMM_FEW(gemm_few_16_gated, 2, 4, true)
GEMM_FEW(gemm_few_32_gated, 4, 2, true)
