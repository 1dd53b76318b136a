// Rows of one-byte codes with one f32 scale each: what the codecs fp8 and int8 share.
#pragma once
#include "tensor.cuh"

// Encodes a row x[d] by a warp: `codes` are what the cache stores, x becomes what it gives back. Returns the scale's
// bits. The codes of NaN decode to finite values in attention, so a row that holds a NaN gets NaN as its scale.
template <class Codec>
__device__ __forceinline__ u32 encode_scaled(u8* codes, float* x, int d, int lane) {
  float v[MAX_HEAD_DIM / 32], most = 0.0f;
#pragma unroll
  for (int k = 0; k < MAX_HEAD_DIM / 32; k++) {
    v[k] = lane + 32 * k < d ? x[lane + 32 * k] : 0.0f;
    most = fmaxf(most, fabsf(v[k]));
  }
  float scale = Codec::scale(warp_max(most));
  bool nan = false;
#pragma unroll
  for (int k = 0; k < MAX_HEAD_DIM / 32; k++) {
    int i = lane + 32 * k;
    if (i >= d) continue;
    nan |= v[k] != v[k];
    codes[i] = Codec::code(__fdiv_rn(v[k], scale));
    x[i] = __fmul_rn(Codec::value(codes[i]), scale);
  }
  __syncwarp();
  return __any_sync(FULL, nan) ? 0x7fc00000u : __float_as_uint(scale);
}

// Eight neighbouring codes of a row. Neighbours are brought to the high bytes of two halves to become a pair.
template <class Codec>
struct EightCodes {
  uint2 x;
  __device__ __forceinline__ void load(const u8* row, int channel, bool real) {
    x = real ? *(const uint2*)(row + channel) : uint2{0, 0};
  }
  __device__ __forceinline__ uint4 as_bf16() const {
    return uint4{neighbours(x.x, 0x1404), neighbours(x.x, 0x3424), neighbours(x.y, 0x1404), neighbours(x.y, 0x3424)};
  }
  static __device__ __forceinline__ u32 neighbours(u32 codes, u32 which) {
    return Codec::pair(__byte_perm(codes, 0, which), 1);
  }
};
