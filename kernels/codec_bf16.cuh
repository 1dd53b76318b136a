// K and V as bf16, rounded to nearest even. CPU twin: `codec::bf16`.
#pragma once
#include "tensor.cuh"

struct Bf16Codec {
  using K = Bf16Codec;
  using V = Bf16Codec;
  static const bool PACKED = false, SCALED = false, AFFINE = false, ROTATED = false;
  static const int EIGHT_BYTES = 16;
  static constexpr float QUERY_FACTOR = 1.0f, SCORE_FACTOR = 1.0f, WEIGHT_FACTOR = 1.0f, SUM_FACTOR = 1.0f;

  // Eight consecutive channels of a stored row; zeros where not `real`.
  struct Eight {
    uint4 x;
    __device__ __forceinline__ void load(const u8* row, int channel, bool real) {
      x = real ? *(const uint4*)(row + channel / 8 * EIGHT_BYTES) : uint4{0, 0, 0, 0};
    }
    __device__ __forceinline__ uint4 as_bf16() const { return x; }
  };

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
