// GEMV with our own codes.
#include "packed_gemv.cuh"

#define PACKED_GEMV(name, CODE, STAGES)                                                                                   \
  KERNEL __launch_bounds__(32 * MOST_WARPS, 1)                                                                            \
      name(void* out, const void* x, const u8* weight, const float* bias, int rows, int cols, int then) {                 \
    BY_WARPS(CODE(), CODE, STAGES, 1, (Fixed<false, false>{then}), out, x, weight, bias, nullptr, 0.0f, 0, nullptr, rows, cols, 1, 0, 0) \
  }
#define PACKED_NORM_GEMV(name, CODE, STAGES, GATED, PER_SM)                                                              \
  KERNEL __launch_bounds__(32 * MOST_WARPS, PER_SM)                                                                      \
      name(void* out, const float* x, const u8* weight, const float* bias, const float* norm, float eps,                 \
           int layer, int* non_finite, int rows, int cols, int then) {                                                   \
    BY_WARPS(CODE(), CODE, STAGES, 1, (Fixed<GATED, true>{GATED ? then : 0}), out, x, weight, bias, norm, eps, layer, non_finite, rows, cols, 1, 0, 0) \
  }
// Up to 4 tokens, with or without a norm.
#define PACKED_GEMV_ROWS(name, CODE, STAGES)                                                                             \
  KERNEL __launch_bounds__(32 * MOST_WARPS, 1)                                                                           \
      name(void* out, const void* x, const u8* weight, const float* bias, const float* norm, float eps, int layer,       \
           int* non_finite, int rows, int cols, int m, int ld, int gated, int then, int round) {                         \
    BY_WARPS(CODE(), CODE, STAGES, MOST_TOKENS, (Fused{gated, then, norm != nullptr}), out, x, weight, bias, norm, eps, layer, non_finite, rows, \
             cols, m, ld, round)                                                                                                \
  }
#define PACKED_GEMVS(name, CODE, STAGES)         \
  PACKED_GEMV(name, CODE, STAGES)                \
  /* The projection in front of attention: half of the registers are left to blocks of attention, which begin beside it. */ \
  PACKED_NORM_GEMV(name##_norm, CODE, STAGES, false, 2) \
  PACKED_NORM_GEMV(name##_norm_swiglu, CODE, STAGES, true, 1) \
  PACKED_GEMV_ROWS(name##_rows, CODE, STAGES)
PACKED_GEMVS(packed_gemv_q4, Q4, 3)
PACKED_GEMVS(packed_gemv_q8, Q8, 2)
PACKED_GEMVS(packed_gemv_q4h, Q4H, 3)
PACKED_GEMVS(packed_gemv_q6h, Q6H, 2)
