// GEMV: one row of bf16 activations times a bf16 weight. Bound by the bytes of the weight, which is read once.
// CPU twin: `backend::cpu::linear`, followed by `swiglu` if fused.
#include "common.cuh"
#include "tensor.cuh"

// sum + w . x of eight bf16 values, in the order of the columns.
__device__ __forceinline__ float dot8(float sum, uint4 w, uint4 x) {
  const u32 *ws = &w.x, *xs = &x.x;
#pragma unroll
  for (int k = 0; k < 4; k++) {
    sum = fmaf(__uint_as_float(ws[k] << 16), __uint_as_float(xs[k] << 16), sum);
    sum = fmaf(__uint_as_float(ws[k] & 0xffff0000u), __uint_as_float(xs[k] & 0xffff0000u), sum);
  }
  return sum;
}

#define WARPS 4  // of a block, which split K
#define AHEAD 4  // 16-byte loads of each row that a warp lane has in flight
#define ROWS 4   // rows of the weight of a block

// out[n] = x[cols] weight[n, cols]^T + bias[n], x in bf16, out in f32. Grid n / ROWS, 128 threads; cols is a multiple of 8.
// Reads 2 n cols bytes. The first loads of the weight are issued before the previous kernel has ended.
//
// SWIGLU: the weight is [gate | up]; half of a block's rows are gate's and half up's, and out[n / 2] = silu(gate) * up
// in bf16. Grid n / ROWS too.
template <bool SWIGLU>
__device__ __forceinline__ void gemv_rows(void* out, const u16* x, const u16* weight, const float* bias, int n,
                                     int cols) {
  constexpr int OUT = SWIGLU ? ROWS / 2 : ROWS;
  __shared__ float partials[WARPS][ROWS];
  next_may_begin();
  int n_out = SWIGLU ? n / 2 : n, row0 = blockIdx.x * OUT, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const u16* w_rows[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; r++)
    // Rows beyond n are computed as the last one and not written.
    w_rows[r] = weight + (u64)(min(row0 + r % OUT, n_out - 1) + r / OUT * n_out) * cols;
  uint4 w[AHEAD][ROWS];
  auto fetch = [&](int col) {
#pragma unroll
    for (int k = 0; k < AHEAD; k++)
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        int at = col + k * WARPS * 256;
        w[k][r] = at < cols ? load_once(w_rows[r] + at) : uint4{0, 0, 0, 0};
      }
  };
  float sums[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; r++) sums[r] = 0.0f;
  fetch(8 * threadIdx.x);
  wait_previous();
  // Dot products; the next loads are issued as soon as registers are free.
#pragma unroll 1
  for (int first = 0; first < cols; first += AHEAD * WARPS * 256) {
    int col = first + 8 * threadIdx.x;
#pragma unroll
    for (int k = 0; k < AHEAD; k++) {
      int at = col + k * WARPS * 256;
      uint4 v = *(const uint4*)(x + (at < cols ? at : 0));
#pragma unroll
      for (int r = 0; r < ROWS; r++) sums[r] = dot8(sums[r], w[k][r], v);
    }
    fetch(col + AHEAD * WARPS * 256);
  }
  // Reduce over warp lanes, then over warps.
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    float sum = warp_sum(sums[r]);
    if (lane == 0) partials[warp][r] = sum;
  }
  __syncthreads();
  int row = row0 + threadIdx.x;
  if (threadIdx.x >= OUT || row >= n_out) return;
  auto total = [&](int r, int row) {
    float sum = bias ? bias[row] : 0.0f;
#pragma unroll
    for (int k = 0; k < WARPS; k++) sum += partials[k][r];
    return sum;
  };
  float sum = total(threadIdx.x, row);
  if (SWIGLU) sum = silu(sum) * total(threadIdx.x + OUT, n_out + row);
  put(out, SWIGLU, row, sum);
}

#define GEMV(name, SWIGLU) \
  KERNEL __launch_bounds__(32 * WARPS) \
      name(void* out, const u16* x, const u16* weight, const float* bias, int n, int cols) { \
    gemv_rows<SWIGLU>(out, x, weight, bias, n, cols); \
  }
GEMV(gemv, false)
GEMV(gemv_swiglu, true)
