// K and V as int8 with one f32 scale a row: max|x| / 127, or 1 where all are 0. A code is sign and magnitude: bit 7 is the
// sign, the low 7 bits are rint(|x| / scale). CPU twin: `codec::int8`, bit for bit.
//
// Sign and magnitude, not two's complement: a code becomes a bf16 by moving bits, as an fp8 code does.
#pragma once
#include "codec_scaled.cuh"

struct Int8Codec {
  using K = Int8Codec;
  using V = Int8Codec;
  static const bool PACKED = true, SCALED = true, AFFINE = false, ROTATED = false;
  static const int EIGHT_BYTES = 8;
  // Tensor cores read sign and magnitude m as a subnormal bf16 of m 2^-133, exactly. These factors keep every f32 and
  // bf16 in between normal: q is multiplied by 2^100, so scores are 2^-33 of their value (in units of K's scale) and no
  // product with q >= 2^-90 is subnormal; weights of V by 2^104, which leaves weight times scale finite up to 2^24 and
  // makes sums 2^-29 of their value. Powers of 2 change no rounding.
  static constexpr float QUERY_FACTOR = 0x1p100f, SCORE_FACTOR = 0x1p33f, WEIGHT_FACTOR = 0x1p104f,
                         SUM_FACTOR = 0x1p29f;

  static __device__ __forceinline__ float scale(float most) { return most == 0.0f ? 1.0f : __fdiv_rn(most, 127.0f); }

  static __device__ __forceinline__ u8 code(float x) {
    u8 sign = (__float_as_uint(x) >> 24) & 0x80;
    return sign | (u8)(int)fminf(rintf(fabsf(x)), 127.0f);
  }

  static __device__ __forceinline__ float value(u8 code) {
    float a = (float)(code & 0x7f);
    return code & 0x80 ? -a : a;
  }

  static __device__ __forceinline__ u32 pair(u32 x, int i) {
    return i == 0 ? ((x << 8) & 0x80008000u) | (x & 0x007f007fu) : (x & 0x80008000u) | ((x >> 8) & 0x007f007fu);
  }

  using Eight = EightCodes<Int8Codec>;

  static __device__ __forceinline__ float2 affine(u32 side) { return float2{__uint_as_float(side), 0.0f}; }

  static __device__ __forceinline__ u32 encode(u8* codes, float* x, int d, int lane) {
    return encode_scaled<Int8Codec>(codes, x, d, lane);
  }
};
