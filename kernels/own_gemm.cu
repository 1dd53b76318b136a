// Small-batch GEMM of decode with the codes of GGUF files (`own.cuh`).
#include "own.cuh"
#include "packed_resident.cuh"

// Two of eight codes, of a row with that scale, as values in bf16. `offset`: -(minimum + scale *
// 2^(4 P)), as codes become f32 with 2^(4 P) added.
template <int P>
__device__ __forceinline__ u32 value_pair(u32 high, u32 low, int i, float scale, float offset) {
  float v[2];
  if (P == 1) {
    // 16 + code
    u32 first = i == 0 ? high << 19 : i == 1 ? high << 15 : i == 2 ? high << 11 : high << 7;
    u32 second = i == 0 ? high << 3 : high >> (4 * i - 3);
    v[0] = __uint_as_float(logic3<0xea>(first, 0x00780000u, 0x41800000u));
    v[1] = __uint_as_float(logic3<0xea>(second, 0x00780000u, 0x41800000u));
  } else {
    // 256 + code
    u32 codes = logic3<0xe4>(i == 0 ? high << 4 : high >> (4 * i - 4), low >> (4 * i), 0x00f000f0u);  // the mask's bits from high
    v[0] = __uint_as_float(logic3<0xea>(codes << 15, 0x007f8000u, 0x43800000u));
    v[1] = __uint_as_float(logic3<0xea>(codes >> 1, 0x007f8000u, 0x43800000u));
  }
  return round_pair(fmaf(scale, v[0], offset), fmaf(scale, v[1], offset));
}

// What `value_pair` needs for a warp lane's 16 columns of each tile of a group, in rows g and g +
// 8.
template <int WORDS>
__device__ __forceinline__ void scale_tiles(float (&scales)[GROUP_TILES][2], float (&offsets)[GROUP_TILES][2], const u8* pair, int t,
                                            float added, float zero) {
#pragma unroll
  for (int i = 0; i < GROUP_TILES; i++) {
    scale_run<WORDS>(scales[i], offsets[i], pair, 4 * i + t, zero);
#pragma unroll
    for (int h = 0; h < 2; h++) offsets[i][h] = -fmaf(scales[i][h], added, offsets[i][h]);
  }
}

// sums += x W^T of a group of tiles, each value of W rounded once to bf16. `from`: the group's
// codes, then its words, all in shared memory; `b`: fragments of x.
template <int P, int NT>
__device__ __forceinline__ void multiply_unit(Own<P> code, float (&sums)[NT][4], const u8* from,
                                              const u32 (&b)[GROUP_TILES][NT][8], int lane) {
  constexpr int CODE_BYTES = P * GROUP_TILES * TILE_BYTES;
  int g = lane / 4, t = lane % 4;
  const u8* pair = from + CODE_BYTES + g * code.pair_bytes();
  float scales[GROUP_TILES][2], offsets[GROUP_TILES][2];
  BY_WORDS(P, code, scale_tiles, scales, offsets, pair, t, P == 1 ? 16.0f : 256.0f, code.zero())
#pragma unroll
  for (int i = 0; i < GROUP_TILES; i++) {
    const u8* tile = from + i * TILE_BYTES + lane * 16;
    uint4 high = *(const uint4*)tile, low = high;
    if (P == 2) low = *(const uint4*)(tile + GROUP_TILES * TILE_BYTES);
#pragma unroll
    for (int k = 0; k < 4; k++) {
      u32 a[4];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        int h = j % 2, pair_of = k % 2 * 2 + j / 2;
        u32 x0 = h ? (k < 2 ? high.z : high.w) : (k < 2 ? high.x : high.y);
        u32 x1 = h ? (k < 2 ? low.z : low.w) : (k < 2 ? low.x : low.y);
        a[j] = value_pair<P>(x0, x1, pair_of, scales[i][h], offsets[i][h]);
      }
#pragma unroll
      for (int j = 0; j < NT; j++) mma(sums[j], a, b[i][j] + 2 * k);
    }
  }
}

#define OWN_GEMM(name, P, NT, WARPS, STAGES, ROUND)                                                                       \
  KERNEL __launch_bounds__(32 * WARPS, 2)                                                                                 \
      name(void* out, const u16* x, const u8* weight, const float* bias, int rows, int cols, int n, int ld, int swiglu,   \
           int words) {                                                                                                   \
    gemm<Own<P>, NT, WARPS, 4, STAGES, ROUND>(Own<P>{words}, out, x, weight, bias, rows, cols, n, ld, swiglu);            \
  }
OWN_GEMM(own_gemm_4, 1, 1, 8, 3, 2)
OWN_GEMM(own_gemm_8, 2, 1, 8, 2, 2)
