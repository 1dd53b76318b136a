// Codecs of one byte per value and one f32 scale per row, which is 1 if all values are 0: fp8 and
// int8. The cache's view says which one it is, so that kernels have one instance for both. CPU
// twins, bit for bit for finite rows:
//   `codec::fp8`   e4m3fn; scale max|x| / 448
//   `codec::int8`  sign in bit 7, magnitude rint(|x| / scale) below it; scale max|x| / 127. Not
//                  two's complement, so that it becomes a bf16 by moving bits, as an fp8 code does
#pragma once
#include "kv.cuh"
#include "tensor.cuh"

struct ByteRows {
  static const int EIGHT_BYTES = 8;
  // Moves magnitudes of codes to their place in a bf16: in each half of a u32, the low byte's is
  // multiplied by `factor`, the high byte's shifted right by `shift`. `bits` masks both halves. The
  // multiplication is a left shift that does not run on the ALU, where the masks run.
  u32 factor, shift, bits;

  __device__ __forceinline__ ByteRows(u32 factor, u32 shift, u32 bits) : factor(factor), shift(shift), bits(bits) {}
  __device__ __forceinline__ explicit ByteRows(const Kv& kv) : ByteRows(kv.code_factor, kv.code_shift, kv.code_bits) {}
  static __device__ __forceinline__ ByteRows int8() { return ByteRows(1, 8, 0x007f007fu); }
  __device__ __forceinline__ bool is_fp8() const { return shift == 4; }

  // The e4m3fn code of x, rounded to nearest even and saturated at +-448. NaN becomes 0x7f, with or
  // without its sign.
  static __device__ __forceinline__ u8 fp8_code(float x) {
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
  static __device__ __forceinline__ float fp8_value(u8 code) {
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

  __device__ __forceinline__ u8 code(float x) const {
    if (is_fp8()) return fp8_code(x);
    u8 sign = (__float_as_uint(x) >> 24) & 0x80;
    return sign | (u8)(int)fminf(rintf(fabsf(x)), 127.0f);
  }
  __device__ __forceinline__ float value(u8 code) const {
    if (is_fp8()) return fp8_value(code);
    float a = (float)(code & 0x7f);
    return code & 0x80 ? -a : a;
  }

  __device__ __forceinline__ u32 pair(u32 x, int i) const {
    return i == 0 ? ((x << 8) & 0x80008000u) | ((x * factor) & bits) : (x & 0x80008000u) | ((x >> shift) & bits);
  }

  // Eight consecutive codes of a row. as_bf16 moves two neighbours at a time to the high bytes of
  // the halves of a u32, from where `pair` decodes them.
  typedef uint2 Eight;
  static __device__ __forceinline__ Eight load(const u8* row, int channel, bool real) {
    return real ? *(const uint2*)(row + channel) : uint2{0, 0};
  }
  __device__ __forceinline__ uint4 as_bf16(Eight x) const {
    auto neighbours = [&](u32 codes, u32 which) { return pair(__byte_perm(codes, 0, which), 1); };
    return uint4{neighbours(x.x, 0x1404), neighbours(x.x, 0x3424), neighbours(x.y, 0x1404), neighbours(x.y, 0x3424)};
  }

  static __device__ __forceinline__ float2 affine(u32 side) { return float2{__uint_as_float(side), 0.0f}; }

  // Encodes a row x[d] by a whole warp: writes its codes, and replaces x by the values that they
  // decode to. Returns the bits of the scale. The codes of NaN decode to finite values in
  // attention, so a row that holds a NaN gets NaN as its scale.
  __device__ __forceinline__ u32 encode(u8* codes, float* x, int d, int lane) const {
    float v[MAX_HEAD_DIM / 32], most = 0.0f;
#pragma unroll
    for (int k = 0; k < MAX_HEAD_DIM / 32; k++) {
      v[k] = lane + 32 * k < d ? x[lane + 32 * k] : 0.0f;
      most = fmaxf(most, fabsf(v[k]));
    }
    most = warp_max(most);
    float scale = most == 0.0f ? 1.0f : __fdiv_rn(most, is_fp8() ? 448.0f : 127.0f);
    bool nan = false;
#pragma unroll
    for (int k = 0; k < MAX_HEAD_DIM / 32; k++) {
      int i = lane + 32 * k;
      if (i >= d) continue;
      nan |= v[k] != v[k];
      codes[i] = code(__fdiv_rn(v[k], scale));
      x[i] = __fmul_rn(value(codes[i]), scale);
    }
    __syncwarp();
    return __any_sync(FULL, nan) ? 0x7fc00000u : __float_as_uint(scale);
  }
};

// Tensor cores read the bits of an e4m3 code as a bf16 of 2^-120 times the code's value, and an
// int8 magnitude m as the subnormal bf16 m 2^-133. Both are exact, because tensor cores do not
// flush subnormals. Two powers of 2, which change no rounding, keep all other f32 and bf16 values
// normal:
//   QUERY_FACTOR   makes scores 2^-20 (fp8) or 2^-33 (int8) of their value in units of K's scale.
//                  No product of int8 with |q| >= 2^-90 is subnormal.
//   WEIGHT_FACTOR  makes sums 2^-16 (fp8) or 2^-29 (int8) of their value. Weight times scale is
//                  finite for scales below 2^24.
struct ByteCodec {
  using K = ByteRows;
  using V = ByteRows;
  static const bool PACKED = true, SCALED = true, AFFINE = false, ROTATED = false;
  static constexpr float QUERY_FACTOR = 0x1p100f, WEIGHT_FACTOR = 0x1p104f;
  static constexpr float INT8_SCORE_FACTOR = 0x1p33f, INT8_SUM_FACTOR = 0x1p29f;
  ByteRows k, v;

  __device__ __forceinline__ explicit ByteCodec(const Kv& kv) : k(kv), v(kv) {}
  __device__ __forceinline__ float score_factor() const { return k.is_fp8() ? 0x1p20f : INT8_SCORE_FACTOR; }
  __device__ __forceinline__ float sum_factor() const { return k.is_fp8() ? 0x1p16f : INT8_SUM_FACTOR; }
};
