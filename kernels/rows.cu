// Row by row: embedding, norms, sums, the gate. Activations [n, width] in f32; what only products read may be bf16
// (`rounded`). All are bound by the bytes of their rows, read and written once. CPU twins: the ops of these names
// in `backend::cpu`.
#include "common.cuh"

// out[i] = table[tokens[i]]. Grid n, any block. Reads n rows of the table, writes n rows.
KERNEL embed(float* out, const void* table, int dtype, const u32* tokens, int width) {
  after_previous();
  u64 from = (u64)tokens[blockIdx.x] * width;
  float* to = out + (u64)blockIdx.x * width;
  for (int i = threadIdx.x; i < width; i += blockDim.x)
    to[i] = dtype == F32   ? weight_at<F32>(table, from + i)
            : dtype == F16 ? weight_at<F16>(table, from + i)
                           : weight_at<BF16>(table, from + i);
}

// acc += x over `len` values. Grid covers them.
KERNEL add(float* acc, const float* x, u64 len) {
  after_previous();
  u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < len) acc[i] += x[i];
}

// Scale of an RMS norm over a row of `width` values, with the fault of one that is not finite.
__device__ __forceinline__ float rms_scale(float squares, int width, float eps, int layer, int* fault) {
  float mean = block_sum(squares) / width;
  if (threadIdx.x == 0 && fault && !(fabsf(mean) < __int_as_float(0x7f800000))) atomicMin(fault, layer);
  return 1.0f / sqrtf(mean + eps);
}

// Pieces of four values of a row that a thread keeps, so that it reads them once.
#define KEPT 4

// x += more, where there is more; out = x / sqrt(mean(x^2) + eps) * weight. Grid n, block of whole warps. Rows of more
// than 4 * KEPT values a thread, or that are no multiple of 4 wide, are read twice. `fault` may be null.
KERNEL __launch_bounds__(1024) rms_norm(void* out, int rounded, float* x, const float* more, const float* weight, float eps,
                                        int layer, int* fault, int width) {
  next_may_begin();
  u64 from = (u64)blockIdx.x * width;
  int step = 4 * blockDim.x, first = 4 * threadIdx.x;
  float squares = 0.0f;
  if (width % 4 == 0 && width <= KEPT * step) {
    float4 row[KEPT], by[KEPT];
#pragma unroll
    for (int k = 0; k < KEPT; k++) {
      int i = first + k * step;
      if (i < width) by[k] = *(const float4*)(weight + i);
    }
    wait_previous();
#pragma unroll
    for (int k = 0; k < KEPT; k++) {
      int i = first + k * step;
      if (i < width) row[k] = *(const float4*)(x + from + i);
    }
    if (more) {
#pragma unroll
      for (int k = 0; k < KEPT; k++) {
        int i = first + k * step;
        if (i >= width) continue;
        float4 v = *(const float4*)(more + from + i);
        row[k].x += v.x, row[k].y += v.y, row[k].z += v.z, row[k].w += v.w;
        *(float4*)(x + from + i) = row[k];
      }
    }
#pragma unroll
    for (int k = 0; k < KEPT; k++)
      if (first + k * step < width)
        squares += row[k].x * row[k].x + row[k].y * row[k].y + row[k].z * row[k].z + row[k].w * row[k].w;
    float scale = rms_scale(squares, width, eps, layer, fault);
#pragma unroll
    for (int k = 0; k < KEPT; k++) {
      int i = first + k * step;
      float4 v = row[k];
      if (i < width)
        put4(out, rounded, from + i,
             float4{v.x * scale * by[k].x, v.y * scale * by[k].y, v.z * scale * by[k].z, v.w * scale * by[k].w});
    }
    return;
  }
  wait_previous();
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    float v = x[from + i];
    if (more) x[from + i] = v += more[from + i];
    squares += v * v;
  }
  float scale = rms_scale(squares, width, eps, layer, fault);
  for (int i = threadIdx.x; i < width; i += blockDim.x) put(out, rounded, from + i, x[from + i] * scale * weight[i]);
}

__device__ __forceinline__ void gate(void* out, int rounded, const float* gate_up, int ffn, int gate_at, int up_at) {
  after_previous();
  int i = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= ffn) return;
  const float *g = gate_up + (u64)blockIdx.y * 2 * ffn + gate_at, *u = gate_up + (u64)blockIdx.y * 2 * ffn + up_at;
  u64 to = (u64)blockIdx.y * ffn + i;
  if (ffn % 4 == 0) {
    float4 a = *(const float4*)(g + i), b = *(const float4*)(u + i);
    put4(out, rounded, to, float4{silu(a.x) * b.x, silu(a.y) * b.y, silu(a.z) * b.z, silu(a.w) * b.w});
  } else {
    for (int k = 0; k < 4 && i + k < ffn; k++) put(out, rounded, to + k, silu(g[i + k]) * u[i + k]);
  }
}

// out[n, ffn] = silu(gate) * up of rows [gate | up]. Grid (blocks of ffn / 4, n).
KERNEL swiglu(void* out, int rounded, const float* gate_up, int ffn) { gate(out, rounded, gate_up, ffn, 0, ffn); }

// As `swiglu`, and wrong: gate and up change places. `doctor` plants it to show that it would notice.
KERNEL swiglu_wrong(void* out, int rounded, const float* gate_up, int ffn) {
  gate(out, rounded, gate_up, ffn, ffn, 0);
}

// d = value * scale - offset of an adapter's logits [n, heads]. Grid covers n * heads. In two
// roundings as on the CPU: near 0 a fused one marks differently.
KERNEL decide(float* decisions, const float* raw, float scale, float offset, int per_layer, int heads, int n) {
  after_previous();
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n * heads) return;
  float value = raw[per_layer ? i / heads * heads : i];
  decisions[i] = __fsub_rn(__fmul_rn(value, scale), offset);
}
