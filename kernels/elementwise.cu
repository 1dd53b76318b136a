// Elementwise and row-wise ops: residual add, RMS norm, gated linear units. Activations are [n,
// width] in f32; matmul inputs may be bf16 (`bf16`). All are bound by memory bandwidth. CPU twins:
// the ops of `backend::cpu` named.
#include "gates.cuh"
#include "image.cuh"

// acc[len] += x[len]. One thread per value. Moves 12 bytes per value. CPU twin: `add`.
KERNEL add(float* acc, const float* x, u64 len) {
  after_previous();
  u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < len) acc[i] += x[i];
}

// Factor of a row's norm, from each thread's sum of squares.
__device__ __forceinline__ float row_factor(float squares, int width, float eps, int layer, int* non_finite) {
  return rms_factor(block_sum(squares), width, eps, layer, threadIdx.x == 0 ? non_finite : nullptr);
}

// Vectors of four values of a row that a thread keeps in registers, so that it reads them once.
#define KEPT 4

// x += more if `more` is not null; out = x / sqrt(mean(x^2) + eps) * weight, or if `add` is not 0,
// out = add * (out + that), in f32. Grid n, a block of whole warps per row. Moves 4 bytes in and 2
// or 4 out per value, 8 more with `more`, 4 with `add`. Rows of more than 4 * KEPT values per
// thread, or whose width is no multiple of 4, are read twice; of others an image is written too, if
// `image` is not null. `non_finite` may be null. CPU twin: `rms_norm`.
KERNEL __launch_bounds__(1024) rms_norm(void* out, u8* image, int bf16, float* x, const float* more, const float* weight, float eps,
                                        int layer, int* non_finite, int width, float add) {
  next_may_begin();
  u64 from = (u64)blockIdx.x * width;
  int step = 4 * blockDim.x, first = 4 * threadIdx.x;
  float squares = 0.0f;
  if (width % 4 == 0 && width <= KEPT * step) {
    float4 row[KEPT], by[KEPT];
    // The weight does not depend on the previous kernel.
#pragma unroll
    for (int k = 0; k < KEPT; k++) {
      int i = first + k * step;
      if (i < width) by[k] = *(const float4*)(weight + i);
    }
    wait_previous();
    // Read the row.
#pragma unroll
    for (int k = 0; k < KEPT; k++) {
      int i = first + k * step;
      if (i < width) row[k] = *(const float4*)(x + from + i);
    }
    // Residual add.
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
    float scale = row_factor(squares, width, eps, layer, non_finite);
    // Normalize.
#pragma unroll
    for (int k = 0; k < KEPT; k++) {
      int i = first + k * step;
      float4 v = row[k];
      if (i >= width) continue;
      v = float4{v.x * scale * by[k].x, v.y * scale * by[k].y, v.z * scale * by[k].z, v.w * scale * by[k].w};
      if (add != 0.0f) {
        float4 before = *(const float4*)((const float*)out + from + i);
        v = float4{add * (before.x + v.x), add * (before.y + v.y), add * (before.z + v.z), add * (before.w + v.w)};
      }
      put4(out, bf16, from + i, v);
      if (!image) continue;
      put_image2(image, blockIdx.x, i, v.x, v.y);
      put_image2(image, blockIdx.x, i + 2, v.z, v.w);
    }
    return;
  }
  wait_previous();
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    float v = x[from + i];
    if (more) x[from + i] = v += more[from + i];
    squares += v * v;
  }
  float scale = row_factor(squares, width, eps, layer, non_finite);
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    float v = x[from + i] * scale * weight[i];
    put(out, bf16, from + i, add != 0.0f ? add * (((const float*)out)[from + i] + v) : v);
  }
}

// out[n, ffn] = f(gate, up), where f is a Gate: SiLU or GELU of the gate times up, or
// `clamped_swiglu`. Rows of gate and up are f32, `gate_ld` and `up_ld` values apart; out is f32 or
// bf16, its rows `ld` values apart. Grid (ffn / (4 * block), n), any block. Moves 8 bytes in and 2
// or 4 out per element. CPU twins: `swiglu`, `geglu`, `clamped_swiglu`.
KERNEL glu(void* out, int bf16, const float* gate, const float* up, int gate_ld, int up_ld, int ffn, int ld, int kind) {
  after_previous();
  int i = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= ffn) return;
  gate += (u64)blockIdx.y * gate_ld, up += (u64)blockIdx.y * up_ld;
  auto f = [&](float gate, float up) { return gated(kind, gate, up); };
  u64 to = (u64)blockIdx.y * ld + i;
  if ((ffn | ld | gate_ld | up_ld) % 4 == 0 && (u64)up % 16 == 0) {
    float4 a = *(const float4*)(gate + i), b = *(const float4*)(up + i);
    put4(out, bf16, to, float4{f(a.x, b.x), f(a.y, b.y), f(a.z, b.z), f(a.w, b.w)});
  } else {
    for (int k = 0; k < 4 && i + k < ffn; k++) put(out, bf16, to + k, f(gate[i + k], up[i + k]));
  }
}

// x[len] = cap * tanh(x / cap). One thread per value. Moves 8 bytes per value. CPU twin:
// `After::Cap`.
KERNEL cap(float* x, float cap, u64 len) {
  after_previous();
  u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < len) x[i] = cap * tanhf(x[i] / cap);
}

// out[len] = x[len], in bf16 if `bf16`. One thread per four values. CPU twin: `copy`.
KERNEL copy_values(void* out, int bf16, const float* x, u64 len) {
  after_previous();
  u64 i = 4 * ((u64)blockIdx.x * blockDim.x + threadIdx.x);
  if (i + 4 <= len) put4(out, bf16, i, *(const float4*)(x + i));
  else
    for (; i < len; i++) put(out, bf16, i, x[i]);
}
