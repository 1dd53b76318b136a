// K and V as fp8 (e4m3fn) with one f32 scale a row: max|x| / 448, or 1 where all are 0. CPU twin: `codec::fp8`, bit for
// bit.
#pragma once
#include "codec_scaled.cuh"

struct Fp8Codec {
  using K = Fp8Codec;
  using V = Fp8Codec;
  static const bool PACKED = true, SCALED = true, AFFINE = false, ROTATED = false;
  static const int EIGHT_BYTES = 8;
  // Tensor cores read the bits of an e4m3 code as a bf16, which is 2^-120 times the code's value: exact, for subnormal
  // bf16 too. These factors keep every f32 and bf16 in between normal: q is multiplied by 2^100, so scores are 2^-20 of
  // their value; weights of V by 2^104, so sums are 2^-16 of theirs. Powers of 2 change no rounding.
  static constexpr float QUERY_FACTOR = 0x1p100f, SCORE_FACTOR = 0x1p20f, WEIGHT_FACTOR = 0x1p104f,
                         SUM_FACTOR = 0x1p16f;

  static __device__ __forceinline__ float scale(float most) { return most == 0.0f ? 1.0f : __fdiv_rn(most, 448.0f); }

  // Rounds to nearest even and saturates at +-448. NaN becomes 0x7f, with or without a sign.
  static __device__ __forceinline__ u8 code(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    u16 codes;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(0.0f), "f"(x));
    return (u8)codes;
#else
    u32 bits = __float_as_uint(x);
    u8 sign = (bits >> 24) & 0x80;
    float a = fabsf(x);
    if (a != a) return sign | 0x7f;
    if (a >= 448.0f) return sign | 0x7e;
    if (a < 0.015625f) return sign | (u8)(int)rintf(a * 512.0f);
    bits &= 0x7fffffffu;
    u32 code = ((bits + 0x7ffff + ((bits >> 20) & 1)) >> 20) - (120 << 3);
    return sign | (u8)(code < 0x7e ? code : 0x7e);
#endif
  }

  static __device__ __forceinline__ float value(u8 code) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    float x;
    asm("{.reg .b32 values; .reg .b16 low, high; cvt.rn.f16x2.e4m3x2 values, %1; mov.b32 {low, high}, values; cvt.f32.f16 %0, low;}"
        : "=f"(x)
        : "h"((u16)code));
    return x;
#else
    int exponent = (code >> 3) & 15, mantissa = code & 7;
    float a = exponent == 0 ? mantissa * (1.0f / 512.0f)
                            : __uint_as_float(((u32)(exponent + 120) << 23) | ((u32)mantissa << 20));
    if ((code & 0x7f) == 0x7f) a = __uint_as_float(0x7fc00000u);
    return code & 0x80 ? -a : a;
#endif
  }

  static __device__ __forceinline__ u32 pair(u32 x, int i) {
    return i == 0 ? ((x << 8) & 0x80008000u) | ((x << 4) & 0x07f007f0u) : (x & 0x80008000u) | ((x >> 4) & 0x07f007f0u);
  }

  using Eight = EightCodes<Fp8Codec>;

  static __device__ __forceinline__ float2 affine(u32 side) { return float2{__uint_as_float(side), 0.0f}; }

  static __device__ __forceinline__ u32 encode(u8* codes, float* x, int d, int lane) {
    return encode_scaled<Fp8Codec>(codes, x, d, lane);
  }
};
