// Product of one row of activations with bf16 weights: bound by the bytes of the weight, which are read once.
// CPU twin: `backend::cpu::linear`, and `swiglu` after it where the kernel is gated.
#include "common.cuh"
#include "tensor.cuh"

// The sum of eight products, in the order of the columns.
__device__ __forceinline__ float dot8(float sum, uint4 w, uint4 x) {
  const u32 *ws = &w.x, *xs = &x.x;
#pragma unroll
  for (int k = 0; k < 4; k++) {
    sum = fmaf(__uint_as_float(ws[k] << 16), __uint_as_float(xs[k] << 16), sum);
    sum = fmaf(__uint_as_float(ws[k] & 0xffff0000u), __uint_as_float(xs[k] & 0xffff0000u), sum);
  }
  return sum;
}

#define SHARE 4    // warps of a block, which share its rows by columns
#define AHEAD 4    // pieces of 16 bytes that a lane has under way of each row
#define TOGETHER 4 // rows of a block

// One row of activations: out[rows] = x[cols] weight[rows, cols]^T + bias, x in bf16. The first loads of the weight wait
// for nobody. Grid (rows / TOGETHER), 128 threads; cols is a multiple of 8.
//
// GATED: the weight is [gate | up], half of a block's rows are gate's and half up's, and silu(gate) * up goes to
// out[rows / 2] in bf16.
template <bool GATED>
__device__ __forceinline__ void multiply_row(void* out, const u16* x, const u16* weight, const float* bias, int rows,
                                     int cols) {
  constexpr int OUT = GATED ? TOGETHER / 2 : TOGETHER;
  __shared__ float parts[SHARE][TOGETHER];
  next_may_begin();
  int wide = GATED ? rows / 2 : rows, row0 = blockIdx.x * OUT, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const u16* lines[TOGETHER];
#pragma unroll
  for (int r = 0; r < TOGETHER; r++)
    // Rows that are not there are computed as the last one and not written.
    lines[r] = weight + (u64)(min(row0 + r % OUT, wide - 1) + r / OUT * wide) * cols;
  uint4 w[AHEAD][TOGETHER];
  auto fetch = [&](int col) {
#pragma unroll
    for (int k = 0; k < AHEAD; k++)
#pragma unroll
      for (int r = 0; r < TOGETHER; r++) {
        int at = col + k * SHARE * 256;
        w[k][r] = at < cols ? load_once(lines[r] + at) : uint4{0, 0, 0, 0};
      }
  };
  float sums[TOGETHER];
#pragma unroll
  for (int r = 0; r < TOGETHER; r++) sums[r] = 0.0f;
  fetch(8 * threadIdx.x);
  wait_previous();
#pragma unroll 1
  for (int first = 0; first < cols; first += AHEAD * SHARE * 256) {
    int col = first + 8 * threadIdx.x;
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
      int at = col + k * SHARE * 256;
      uint4 v = *(const uint4*)(x + (at < cols ? at : 0));
#pragma unroll
      for (int r = 0; r < TOGETHER; r++) sums[r] = dot8(sums[r], w[k][r], v);
    }
    fetch(col + AHEAD * SHARE * 256);
  }
#pragma unroll
  for (int r = 0; r < TOGETHER; r++) {
    float sum = warp_sum(sums[r]);
    if (lane == 0) parts[warp][r] = sum;
  }
  __syncthreads();
  int row = row0 + threadIdx.x;
  if (threadIdx.x >= OUT || row >= wide) return;
  auto total = [&](int r, int row) {
    float sum = bias ? bias[row] : 0.0f;
#pragma unroll
    for (int k = 0; k < SHARE; k++) sum += parts[k][r];
    return sum;
  };
  float sum = total(threadIdx.x, row);
  if (GATED) sum = silu(sum) * total(threadIdx.x + OUT, wide + row);
  put(out, GATED, row, sum);
}

#define GEMV(name, GATED)                                                                                         \
  KERNEL __launch_bounds__(32 * SHARE)                                                                            \
      name(void* out, const u16* x, const u16* weight, const float* bias, int rows, int cols) {                   \
    multiply_row<GATED>(out, x, weight, bias, rows, cols);                                                                \
  }
GEMV(gemv, false)
GEMV(gemv_gated, true)
