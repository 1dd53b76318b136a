// GEMV with the codes of GGUF files (`own.cuh`).
#include "own.cuh"
#include "packed_gemv.cuh"

// The scales of a warp lane's parts of a group of tiles, in rows g and g + 8, times the steps of x;
// sums -= minima times sums of x.
template <int WORDS, int PARTS>
__device__ __forceinline__ void scale_parts(float (&scales)[PARTS][2], float (&sums)[2], const u8* pair, const PartOfX* of_x, int t,
                                            float zero) {
#pragma unroll
  for (int q = 0; q < PARTS; q++) {
    float minima[2];
    scale_run<WORDS>(scales[q], minima, pair, (4 * q + t) * (4 / PARTS), zero);
    PartOfX x = of_x[4 * q + t];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      sums[h] = fmaf(-minima[h], x.sum, sums[h]);
      scales[q][h] *= x.step;
    }
  }
}

// sums += the products of rows g and g + 8 of a group of tiles with a warp lane's parts of x: lane
// 4 g + t has parts 4 q + t, q below PARTS. `from`: the group's codes, then its words, all in
// shared memory; `planes` and `of_x`: of the group.
//
// One token leaves 7 of 8 columns of `mma` empty. B number q has the high and the low bytes of x of
// four parts in its columns, each with zeros where other parts are: columns 2 i and 2 i + 1 are
// those of part 4 q + i. Sums of a part are exact.
template <int P>
__device__ __forceinline__ void multiply_parts(Own<P> code, float (&sums)[2], const u8* from, const u8* planes, const PartOfX* of_x,
                                               int lane) {
  constexpr int PARTS = Own<P>::PARTS, TILES_OF_B = 4 / PARTS, CODE_BYTES = P * GROUP_TILES * TILE_BYTES;
  int g = lane / 4, t = lane % 4;
  const u8* pair = from + CODE_BYTES + g * code.pair_bytes();
  float scales[PARTS][2];
  BY_WORDS(P, code, scale_parts, scales, sums, pair, of_x, t, code.zero())
  // Column g of B has the bytes of this lane's 16 columns, or zeros.
  bool mine = t * PARTS / 4 == g / 2 % PARTS;
  const u8* bytes = planes + g / 2 / PARTS * 128 + g % 2 * 64 + t * 16;
#pragma unroll
  for (int q = 0; q < PARTS; q++) {
    uint4 b = mine ? *(const uint4*)(bytes + q * TILES_OF_B * 128) : uint4{0, 0, 0, 0};
    int c[TILES_OF_B][4];
#pragma unroll
    for (int i = 0; i < TILES_OF_B; i++) {
      c[i][0] = c[i][1] = c[i][2] = c[i][3] = 0;
      Bytes<Own<P>>(from, q * TILES_OF_B + i, lane).multiply(c[i], b);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
      int dot[TILES_OF_B];
#pragma unroll
      for (int i = 0; i < TILES_OF_B; i++) dot[i] = 256 * c[i][2 * h] + c[i][2 * h + 1];
      sums[h] = fmaf(scales[q][h], (float)(t & 2 ? dot[TILES_OF_B - 1] : dot[0]), sums[h]);
    }
  }
}

#define OWN_GEMV(name, P, STAGES)                                                                                       \
  KERNEL __launch_bounds__(32 * MOST_WARPS, 1)                                                                          \
      name(void* out, const void* x, const u8* weight, const float* bias, int rows, int cols, int then, int words) {    \
    BY_WARPS(Own<P>{words}, Own<P>, STAGES, 1, (Fixed<false, false>{then}), out, x, weight, bias, nullptr, 0.0f, 0, nullptr, rows, \
             cols, 1, 0, 0)                                                                                             \
  }
#define OWN_NORM_GEMV(name, P, STAGES, GATED)                                                                           \
  KERNEL __launch_bounds__(32 * MOST_WARPS, 1)                                                                          \
      name(void* out, const float* x, const u8* weight, const float* bias, const float* norm, float eps,                \
           int layer, int* non_finite, int rows, int cols, int then, int words) {                                       \
    BY_WARPS(Own<P>{words}, Own<P>, STAGES, 1, (Fixed<GATED, true>{GATED ? then : 0}), out, x, weight, bias, norm, eps, layer, non_finite, \
             rows, cols, 1, 0, 0)                                                                                       \
  }
#define OWN_GEMVS(name, P, STAGES)                \
  OWN_GEMV(name, P, STAGES)                       \
  OWN_NORM_GEMV(name##_norm, P, STAGES, false)    \
  OWN_NORM_GEMV(name##_norm_swiglu, P, STAGES, true)
OWN_GEMVS(own_gemv_4, 1, 3)
OWN_GEMVS(own_gemv_8, 2, 2)
