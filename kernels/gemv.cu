// GEMV: one row of activations times a bf16 weight. Bound by the bytes of the weight, which is read
// once. CPU twin:
// `backend::cpu::linear`, followed by `swiglu` or `add` and preceded by `rms_norm` where they are
// fused.
#include "gates.cuh"
#include "tensor.cuh"

#define ROWS 8   // of the weight that a block multiplies at once
#define LOADS 2  // 16-byte loads of each row that a thread has in flight

// Eight bf16 values as f32.
__device__ __forceinline__ void widen8(float to[8], uint4 v) {
  const u32* words = &v.x;
#pragma unroll
  for (int i = 0; i < 4; i++)
    to[2 * i] = __uint_as_float(words[i] << 16), to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
}

// sum + w . x of eight values, in the order of the columns.
__device__ __forceinline__ float dot8(float sum, uint4 w, const float x[8]) {
  float values[8];
  widen8(values, w);
#pragma unroll
  for (int i = 0; i < 8; i++) sum = fmaf(values[i], x[i], sum);
  return sum;
}

// Sums of ROWS values each over a warp. A step exchanges half of the values that are left, so that
// lanes (32 / ROWS) r to (32 / ROWS) (r + 1) - 1 end with the sum of value r.
__device__ __forceinline__ float warp_sums(float (&values)[ROWS], int lane) {
  int mask = 16;
#pragma unroll
  for (int half = ROWS / 2; half >= 1; half /= 2, mask /= 2) {
    bool upper = lane & mask;
#pragma unroll
    for (int i = 0; i < half; i++) {
      float sent = upper ? values[i] : values[i + half], kept = upper ? values[i + half] : values[i];
      values[i] = kept + __shfl_xor_sync(FULL, sent, mask);
    }
  }
#pragma unroll
  for (; mask >= 1; mask /= 2) values[0] += __shfl_xor_sync(FULL, values[0], mask);
  return values[0];
}

// out[n] = x[cols] weight[n, cols]^T + bias[n], x in bf16, out in f32. A block of WARPS warps,
// which split K, computes groups of ROWS rows: blockIdx.x, blockIdx.x + gridDim.x and so on, any
// grid. cols is a multiple of 8. Reads 2 n cols bytes. The next group is loaded as soon as
// registers are free; the first one before the previous kernel has ended.
//
// GATED: the weight is [gate | up]; half of a group's rows are gate's and half up's, and out[n / 2]
// = f(gate, up) in bf16, where f is the Gate `then`. Otherwise, if `then`, out += instead.
//
// NORM: x is f32 and stands for rms_norm(x), which nobody has to write: its weight multiplies x,
// and the one factor of all columns multiplies the sums. cols is at most STEP, and x stays in
// registers: data returns in the order of its loads, so a load of x between those of weights would
// wait for weights that are needed later. Lowers the non-finite flag to `layer` if x is not finite.
template <int WARPS, bool GATED, bool NORM>
__device__ __forceinline__ void gemv_rows(void* out, const void* x, const u16* weight, const float* bias,
                                          const float* norm, float eps, int layer, int* non_finite, int n, int cols,
                                          int then) {
  constexpr int OUT = GATED ? ROWS / 2 : ROWS, CHUNK = 32 * WARPS * 8, STEP = LOADS * CHUNK;
  __shared__ float partials[2][WARPS][ROWS], squares[WARPS];
  next_may_begin();
  int n_out = GATED ? n / 2 : n, groups = (n_out + OUT - 1) / OUT;
  int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  uint4 w[LOADS][ROWS];
  auto fetch = [&](int k, int row0, int first) {
    int col = first + k * CHUNK + 8 * thread, last = n_out - 1 - row0;
    bool in = col < cols;
    const u16* from = weight + (u64)row0 * cols + (in ? col : 0);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      // Rows beyond n are computed as the last one and not written.
      const u16* at = from + (u64)(u32)min(r % OUT, last) * cols + (r < OUT ? 0 : (u64)n_out * cols);
      w[k][r] = in ? load_once(at) : uint4{0, 0, 0, 0};
    }
  };
#pragma unroll
  for (int k = 0; k < LOADS; k++) fetch(k, blockIdx.x * OUT, 0);
  float values[LOADS][8];  // of x, in the columns of this thread
  auto read8 = [&](float to[8], const float* from, int k) {
    int col = k * CHUNK + 8 * thread;
    float4 zero = {0.0f, 0.0f, 0.0f, 0.0f};
    *(float4*)to = col < cols ? *(const float4*)(from + col) : zero;
    *(float4*)(to + 4) = col < cols ? *(const float4*)(from + col + 4) : zero;
  };
  // The norm's weight does not depend on the previous kernel.
  if (NORM)
#pragma unroll
    for (int k = 0; k < LOADS; k++) read8(values[k], norm, k);
  wait_previous();

  // What the writing threads add to.
  float before = 0.0f;
  auto read_before = [&](int row0) {
    if (!GATED && then && thread < OUT && row0 + thread < n_out) before = ((const float*)out)[row0 + thread];
  };
  read_before(blockIdx.x * OUT);
  uint4 next[LOADS];
  auto fetch_x = [&](int first) {
#pragma unroll
    for (int k = 0; k < LOADS; k++) {
      int col = first + k * CHUNK + 8 * thread;
      next[k] = *(const uint4*)((const u16*)x + (col < cols ? col : 0));
    }
  };
  auto take_x = [&] {
#pragma unroll
    for (int k = 0; k < LOADS; k++) widen8(values[k], next[k]);
  };
  float square = 0.0f;
  if (NORM) {
#pragma unroll
    for (int k = 0; k < LOADS; k++) {
      float row[8];
      read8(row, (const float*)x, k);
#pragma unroll
      for (int i = 0; i < 8; i++) square += row[i] * row[i], values[k][i] *= row[i];
    }
  } else {
    fetch_x(0);
  }

#pragma unroll 1
  for (int group = blockIdx.x, buffer = 0; group < groups; group += gridDim.x, buffer ^= 1) {
    int row0 = group * OUT, next_row0 = row0 + gridDim.x * OUT;
    float sums[ROWS] = {};
    // Dot products.
#pragma unroll 1
    for (int first = 0; first < cols; first += STEP) {
      bool ends = NORM || first + STEP >= cols;
      int fetch_row0 = ends ? next_row0 : row0, fetch_first = ends ? 0 : first + STEP;
      bool more = fetch_row0 < n_out;
      if (!NORM) {
        take_x();
        if (more) fetch_x(fetch_first);
      }
#pragma unroll
      for (int k = 0; k < LOADS; k++) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) sums[r] = dot8(sums[r], w[k][r], values[k]);
        if (more) fetch(k, fetch_row0, fetch_first);
      }
      if (NORM) break;
    }
    float sum = warp_sums(sums, lane);
    if (lane % (32 / ROWS) == 0) partials[buffer][warp][lane / (32 / ROWS)] = sum;
    if (NORM && group == blockIdx.x) {
      square = warp_sum(square);
      if (lane == 0) squares[warp] = square;
    }
    __syncthreads();
    // Reduce over warps and write, while other warps go on.
    int row = row0 + thread;
    if (thread >= OUT || row >= n_out) continue;
    float factor = 1.0f;
    if (NORM) {
      float sum = 0.0f;
#pragma unroll
      for (int k = 0; k < WARPS; k++) sum += squares[k];
      factor = rms_factor(sum, cols, eps, layer, row == 0 ? non_finite : nullptr);
    }
    auto total = [&](int r, int row) {
      float sum = 0.0f;
#pragma unroll
      for (int k = 0; k < WARPS; k++) sum += partials[buffer][k][r];
      return sum * factor + (bias ? bias[row] : 0.0f);
    };
    float y = total(thread, row) + before;
    if (GATED) y = gated(then, y, total(thread + OUT, n_out + row));
    put(out, GATED, row, y);
    read_before(next_row0);
  }
}

// With the norm or the gate as arguments of the loop one row of Qwen3-8B and Llama-3.2-1B takes 3 %
// longer; as much with the number of warps, 4 for weights of up to 2,048 columns.
#define NORM_GEMV(name, GATED)                                                                                       \
  KERNEL __launch_bounds__(256, 2)                                                                                   \
      name(void* out, const float* x, const u16* weight, const float* bias, const float* norm, float eps, int layer, \
           int* non_finite, int n, int cols, int then) {                                                             \
    if (blockDim.x == 128) gemv_rows<4, GATED, true>(out, x, weight, bias, norm, eps, layer, non_finite, n, cols, GATED ? then : 0); \
    else gemv_rows<8, GATED, true>(out, x, weight, bias, norm, eps, layer, non_finite, n, cols, GATED ? then : 0);   \
  }
#define GEMV(name, GATED)                                                                                                         \
  KERNEL __launch_bounds__(256, 2) name(void* out, const u16* x, const u16* weight, const float* bias, int n, int cols, int then) { \
    gemv_rows<8, GATED, false>(out, x, weight, bias, nullptr, 0.0f, 0, nullptr, n, cols, then);                                   \
  }
// A gate behind up to 4,096 columns comes with the norm before them.
GEMV(gemv, false)
GEMV(gemv_swiglu, true)
NORM_GEMV(gemv_norm, false)
NORM_GEMV(gemv_norm_swiglu, true)
