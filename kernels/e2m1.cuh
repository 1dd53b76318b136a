// Codes of MXFP4: nibbles are E2M1 (a sign, two bits of exponent and one of mantissa), in tiles as
// `codes.cuh` has them. Words are bytes, [groups of 4 tiles][g][tile of the group][2 halves of 32
// columns]{row g, row g + 8}: E8M0 scales, powers of two. Rust twin: `src/quant/file.rs`.
#pragma once
#include "codes.cuh"

struct Mxfp4 {
  // No scale and zero point for a whole tile.
  static constexpr int LOW_BITS = 0, HALVES = 0, MOST_WORD_BYTES = WORD_BYTES;
};

#ifndef SOFTWARE_GPU
// Products of two pairs of bf16. Subnormal numbers stay as they are.
__device__ __forceinline__ u32 multiply_pair(u32 x, u32 y) {
  u32 out;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(x), "r"(y), "r"(0x80008000u));
  return out;
}
#endif

// A scale, 2^(e - 127), twice as bf16. 255 is infinite.
__device__ __forceinline__ u32 power_pair(u32 e) { return max(e << 7, 64u) * 0x10001u; }

// Columns 2 i and 2 i + 1 of eight as a pair of bf16, times `scale`: exact. The bits of a code are
// those of a bf16 whose exponent is 126 too low.
__device__ __forceinline__ u32 e2m1_pair(u32 word, int i, u32 scale) {
  u32 magnitude = i < 2 ? word << (6 - 4 * i) : word >> (4 * i - 6);
  u32 pair = logic3<0xe4>(word << (12 - 4 * i), magnitude & 0x01c001c0u, 0x80008000u);  // the mask's bits from the first
  return multiply_pair(multiply_pair(pair, 0x7e807e80u), scale);
}

// sums += x W^T of a tile, as `multiply_tile`. `words`: those of rows g and g + 8.
template <int NT>
__device__ __forceinline__ void multiply_e2m1(float (&sums)[NT][4], const u8* codes, int lane, u32 words, const u32 (&b)[NT][8]) {
  LaneCodes<0> v(codes, codes, lane);
  // The lane's 16 columns are in one half.
  u32 of_half = words >> (lane % 4 / 2 * 16);
  const u32 scales[2] = {power_pair(of_half & 255), power_pair(of_half >> 8 & 255)};
#pragma unroll
  for (int k = 0; k < 4; k++) {
    u32 a[4];
#pragma unroll
    for (int j = 0; j < 4; j++) a[j] = e2m1_pair(v.high[j % 2][k / 2], k % 2 * 2 + j / 2, scales[j % 2]);
#pragma unroll
    for (int j = 0; j < NT; j++) mma(sums[j], a, b[j] + 2 * k);
  }
}
