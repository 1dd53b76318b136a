// Row by row: embedding, norms, sums, the gate. f32 activations [n, width]. All are bound by the bytes
// of their rows, read and written once. CPU twins: the ops of these names in `backend::cpu`.
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

// out = x / sqrt(mean(x^2) + eps) * weight. Grid n, block of whole warps. `fault` may be null.
KERNEL rms_norm(float* out, const float* x, const float* weight, float eps, int layer, int* fault, int width) {
  after_previous();
  const float* from = x + (u64)blockIdx.x * width;
  float* to = out + (u64)blockIdx.x * width;
  float squares = 0.0f;
  for (int i = threadIdx.x; i < width; i += blockDim.x) squares += from[i] * from[i];
  float scale = rms_scale(squares, width, eps, layer, fault);
  for (int i = threadIdx.x; i < width; i += blockDim.x) to[i] = from[i] * scale * weight[i];
}

// residual += x, then the norm of it. Grid n, block of whole warps.
KERNEL add_rms_norm(float* out, float* residual, const float* x, const float* weight, float eps, int layer, int* fault,
                    int width) {
  after_previous();
  const float* more = x + (u64)blockIdx.x * width;
  float* row = residual + (u64)blockIdx.x * width;
  float* to = out + (u64)blockIdx.x * width;
  float squares = 0.0f;
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    float sum = row[i] + more[i];
    row[i] = sum;
    squares += sum * sum;
  }
  float scale = rms_scale(squares, width, eps, layer, fault);
  for (int i = threadIdx.x; i < width; i += blockDim.x) to[i] = row[i] * scale * weight[i];
}

// out[n, ffn] = silu(gate) * up of rows [gate | up]. Grid (blocks of ffn, n).
KERNEL swiglu(float* out, const float* gate_up, int ffn) {
  after_previous();
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= ffn) return;
  const float* row = gate_up + (u64)blockIdx.y * 2 * ffn;
  float gate = row[i];
  out[(u64)blockIdx.y * ffn + i] = gate / (1.0f + expf(-gate)) * row[ffn + i];
}

// As `swiglu`, and wrong: gate and up change places. `doctor` plants it to show that it would notice.
KERNEL swiglu_wrong(float* out, const float* gate_up, int ffn) {
  after_previous();
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= ffn) return;
  const float* row = gate_up + (u64)blockIdx.y * 2 * ffn;
  float gate = row[ffn + i];
  out[(u64)blockIdx.y * ffn + i] = gate / (1.0f + expf(-gate)) * row[i];
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
