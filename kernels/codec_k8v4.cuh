// K as int8; V rotated, then as 4-bit codes with an f16 scale and an f16 offset a row. CPU twin:
// `codec::k8v4`, bit for bit.
#pragma once
#include "codec_bytes.cuh"

// Signs of the rotation: channel i's is bit i % 32 of word i / 32 % 4.
__device__ __forceinline__ float flip_value(float x, int channel) {
  int word = MAX_HEAD_DIM > 128 ? channel / 32 % 4 : channel / 32;
  u32 signs = word == 0 ? 0x243f6a88u : word == 1 ? 0x85a308d3u : word == 2 ? 0x13198a2eu : 0x03707344u;
  return __uint_as_float(__float_as_uint(x) ^ (signs >> (channel % 32) << 31));
}

// Channels of a block of the Hadamard transform: the largest power of 2 that divides d, 128 at
// most.
__device__ __forceinline__ int hadamard_block(int d) { return MAX_HEAD_DIM > 128 ? min(d & -d, 128) : d & -d; }

// 1 / sqrt of a block.
__device__ __forceinline__ float hadamard_factor(int d) {
  int block = hadamard_block(d);
  float by = block >= 64 ? 0.125f : block >= 16 ? 0.25f : 0.5f;
  return block == 128 || block == 32 || block == 8 ? by * 0.70710678f : by;
}

// Hadamard transform of a row, of which a warp lane holds channels lane + 32 k. Blocks of at least
// 8 channels.
__device__ __forceinline__ void hadamard(float x[MAX_HEAD_DIM / 32], int d, int lane) {
  int block = hadamard_block(d);
#pragma unroll
  for (int stride = 1; stride < 32; stride *= 2) {
    if (stride >= block) break;
#pragma unroll
    for (int k = 0; k < MAX_HEAD_DIM / 32; k++) {
      float other = __shfl_xor_sync(FULL, x[k], stride);
      x[k] = lane & stride ? __fsub_rn(other, x[k]) : __fadd_rn(x[k], other);
    }
  }
#pragma unroll
  for (int stride = 1; stride < MAX_HEAD_DIM / 32; stride *= 2) {
    if (32 * stride >= block) break;
#pragma unroll
    for (int k = 0; k < MAX_HEAD_DIM / 32; k++) {
      if (k & stride) continue;
      float a = x[k], b = x[k + stride];
      x[k] = __fadd_rn(a, b), x[k + stride] = __fsub_rn(a, b);
    }
  }
  float by = hadamard_factor(d);
#pragma unroll
  for (int k = 0; k < MAX_HEAD_DIM / 32; k++) x[k] = __fmul_rn(x[k], by);
}

// Rotates a row s[d] of V for storing, or, if `back`, a row of attention's output back. By a warp.
__device__ __forceinline__ void turn_row(float* s, int d, bool back, int lane) {
  float x[MAX_HEAD_DIM / 32];
#pragma unroll
  for (int k = 0; k < MAX_HEAD_DIM / 32; k++) {
    int i = lane + 32 * k;
    x[k] = i < d ? s[i] : 0.0f;
    if (!back) x[k] = flip_value(x[k], i);
  }
  hadamard(x, d, lane);
#pragma unroll
  for (int k = 0; k < MAX_HEAD_DIM / 32; k++) {
    int i = lane + 32 * k;
    if (i < d) s[i] = back ? flip_value(x[k], i) : x[k];
  }
  __syncwarp();
}
__device__ __forceinline__ void rotate_value(float* s, int d, int lane) { turn_row(s, d, false, lane); }
__device__ __forceinline__ void unrotate_row(float* s, int d, int lane) { turn_row(s, d, true, lane); }

// Rotates back a row of attention's output that four neighbouring warp lanes hold as fragments of
// mma: x[j] are channels 8 j + 2 (lane % 4) and the next. By a whole warp.
template <int D>
__device__ __forceinline__ void unrotate_fragment(float (*x)[2], int d, int lane) {
  int block = hadamard_block(d);
#pragma unroll
  for (int j = 0; j < D / 8; j++) {
    float a = x[j][0], b = x[j][1];
    x[j][0] = a + b, x[j][1] = a - b;
#pragma unroll
    for (int stride = 1; stride < 4; stride *= 2)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        float other = __shfl_xor_sync(FULL, x[j][i], stride);
        x[j][i] = lane & stride ? other - x[j][i] : x[j][i] + other;
      }
  }
#pragma unroll
  for (int stride = 1; stride < D / 8; stride *= 2) {
    if (8 * stride >= block) break;
#pragma unroll
    for (int j = 0; j < D / 8; j++) {
      if (j & stride) continue;
#pragma unroll
      for (int i = 0; i < 2; i++) {
        float a = x[j][i], b = x[j + stride][i];
        x[j][i] = a + b, x[j + stride][i] = a - b;
      }
    }
  }
  float by = hadamard_factor(d);
#pragma unroll
  for (int j = 0; j < D / 8; j++)
#pragma unroll
    for (int i = 0; i < 2; i++) x[j][i] = flip_value(x[j][i] * by, 8 * j + lane % 4 * 2 + i);
}

// Rounds to nearest even.
__device__ __forceinline__ u16 f32_to_f16(float x) {
  u32 bits = __float_as_uint(x), sign = bits >> 16 & 0x8000, a = bits & 0x7fffffffu;
  if (a >= 0x47800000u) return (u16)(sign | (a > 0x7f800000u ? 0x7e00 : 0x7c00));
  if (a < 0x38800000u) return (u16)(sign | (u32)rintf(__uint_as_float(a) * 16777216.0f));
  return (u16)(sign | (a + 0xfff + ((a >> 13) & 1) - 0x38000000u) >> 13);
}

// Rows of 4-bit codes. Eight channels share a u32: channel 2 i is at bit 4 i, channel 2 i + 1 at
// bit 4 i + 16, so that a shift and a mask make a pair of neighbours.
struct Int4Rows {
  static const int EIGHT_BYTES = 4;

  static __device__ __forceinline__ u32 pair(u32 x, int i) { return (x >> (4 * i)) & 0x000f000fu; }

  // Eight neighbouring codes; as bf16 each is a subnormal of code 2^-133, as int8 codes are.
  typedef u32 Eight;
  static __device__ __forceinline__ Eight load(const u8* row, int channel, bool real) {
    return real ? *(const u32*)(row + channel / 8 * EIGHT_BYTES) : 0;
  }
  static __device__ __forceinline__ uint4 as_bf16(Eight x) { return uint4{pair(x, 0), pair(x, 1), pair(x, 2), pair(x, 3)}; }

  static __device__ __forceinline__ float2 affine(u32 side) {
    return float2{f16_value(side), f16_value(side >> 16)};
  }

  // Encodes a row x[d] by a warp: `codes` are what the cache stores, x becomes what it gives back.
  // Returns scale and offset.
  static __device__ __forceinline__ u32 encode(u8* codes, float* x, int d, int lane) {
    float v[MAX_HEAD_DIM / 32], low = __uint_as_float(0x7f800000u), high = NEG_INFINITY;
    bool nan = false;
#pragma unroll
    for (int k = 0; k < MAX_HEAD_DIM / 32; k++) {
      int i = lane + 32 * k;
      v[k] = i < d ? x[i] : 0.0f;
      if (i < d) low = fminf(low, v[k]), high = fmaxf(high, v[k]), nan |= v[k] != v[k];
    }
    high = warp_max(high), low = -warp_max(-low);
    u32 low16 = f32_to_f16(low);
    if (low16 == 0x8000) low16 = 0;
    float offset = f16_value(low16), least = fmaxf(fabsf(offset) * (1.0f / 512.0f), 1.0f / (1 << 18));
    u32 scale16 = f32_to_f16(fmaxf(__fdiv_rn(__fsub_rn(high, offset), 15.0f), least));
    nan |= (low16 & 0x7c00) == 0x7c00 || (scale16 & 0x7c00) == 0x7c00;
    u32 side = __any_sync(FULL, nan) ? 0x7e007e00u : low16 << 16 | scale16;
    float2 by = affine(side);
#pragma unroll
    for (int k = 0; k < MAX_HEAD_DIM / 32; k++) {
      int i = lane + 32 * k;
      float step = rintf(__fdiv_rn(__fsub_rn(v[k], by.y), by.x));
      u32 code = i < d ? (u32)fminf(fmaxf(step, 0.0f), 15.0f) : 0;
      if (i < d) x[i] = __fadd_rn(__fmul_rn((float)code, by.x), by.y);
      u32 word = code << (i % 8 / 2 * 4 + i % 2 * 16);
#pragma unroll
      for (int m = 1; m < 8; m *= 2) word |= __shfl_xor_sync(FULL, word, m);
      // Rows are multiples of 8 bytes: the last word may be no channel's.
      if (lane % 8 == 0 && i < (d + 15) / 16 * 16) ((u32*)codes)[i / 8] = word;
    }
    __syncwarp();
    return side;
  }
};

struct K8V4Codec {
  using K = ByteRows;
  using V = Int4Rows;
  static const bool PACKED = true, SCALED = true, AFFINE = true, ROTATED = true;
  static constexpr float QUERY_FACTOR = ByteCodec::QUERY_FACTOR, WEIGHT_FACTOR = ByteCodec::WEIGHT_FACTOR;
  ByteRows k;
  Int4Rows v;

  __device__ __forceinline__ explicit K8V4Codec(const Kv&) : k(ByteRows::int8()) {}
  static __device__ __forceinline__ float score_factor() { return ByteCodec::INT8_SCORE_FACTOR; }
  static __device__ __forceinline__ float sum_factor() { return ByteCodec::INT8_SUM_FACTOR; }
};
