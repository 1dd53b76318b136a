// K and V as bf16, rounded to nearest even. CPU twin: `codec::bf16`.
#pragma once
#include "kv.cuh"
#include "tensor.cuh"

struct Bf16Rows {
  static const int EIGHT_BYTES = 16;

  __device__ __forceinline__ explicit Bf16Rows(const Kv&) {}

  typedef uint4 Eight;
  static __device__ __forceinline__ Eight load(const u8* row, int channel, bool real) {
    return real ? *(const uint4*)(row + channel / 8 * EIGHT_BYTES) : uint4{0, 0, 0, 0};
  }
  static __device__ __forceinline__ uint4 as_bf16(Eight x) { return x; }
  static __device__ __forceinline__ u32 pair(u32 x, int) { return x; }

  static __device__ __forceinline__ float2 affine(u32) { return float2{1.0f, 0.0f}; }

  // Encodes a row x[d] by a warp: `codes` are what the cache stores, x becomes what it gives back.
  static __device__ __forceinline__ u32 encode(u8* codes, float* x, int d, int lane) {
#pragma unroll
    for (int k = 0; k < MAX_HEAD_DIM / 32; k++) {
      int i = lane + 32 * k;
      if (i >= d) continue;
      u16 code = f32_to_bf16(x[i]);
      ((u16*)codes)[i] = code;
      x[i] = bf16_to_f32(code);
    }
    __syncwarp();
    return 0;
  }
};

struct Bf16Codec {
  using K = Bf16Rows;
  using V = Bf16Rows;
  static const bool PACKED = false, SCALED = false, AFFINE = false, ROTATED = false;
  static constexpr float QUERY_FACTOR = 1.0f, WEIGHT_FACTOR = 1.0f;
  Bf16Rows k, v;

  __device__ __forceinline__ explicit Bf16Codec(const Kv& kv) : k(kv), v(kv) {}
  static __device__ __forceinline__ float score_factor() { return 1.0f; }
  static __device__ __forceinline__ float sum_factor() { return 1.0f; }
};
