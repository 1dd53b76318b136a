// Small-batch GEMM of decode, as `packed_gemm.cu`, for GPUs with much shared memory, with our own
// codes.
#include "packed_resident.cuh"

#define PACKED_RESIDENT(name, CODE, NT, WARPS, STAGES, ROUND) \
  KERNEL __launch_bounds__(32 * WARPS, 1) \
      name(void* out, const u16* x, const u8* weight, const float* bias, int rows, int cols, int n, int ld, int swiglu) { \
    gemm<CODE, NT, WARPS, 4, STAGES, ROUND>(CODE(), out, x, weight, bias, rows, cols, n, ld, swiglu); \
  }
PACKED_RESIDENT(packed_resident_q4_8, Q4, 1, 16, 3, 2)
PACKED_RESIDENT(packed_resident_q4_16, Q4, 2, 16, 3, 1)
PACKED_RESIDENT(packed_resident_q4_32, Q4, 4, 8, 5, 2)
PACKED_RESIDENT(packed_resident_q8_8, Q8, 1, 16, 2, 2)
PACKED_RESIDENT(packed_resident_q8_16, Q8, 2, 8, 4, 1)
PACKED_RESIDENT(packed_resident_q8_32, Q8, 4, 8, 4, 1)
PACKED_RESIDENT(packed_resident_q4h_8, Q4H, 1, 16, 3, 2)
PACKED_RESIDENT(packed_resident_q4h_16, Q4H, 2, 16, 3, 1)
PACKED_RESIDENT(packed_resident_q4h_32, Q4H, 4, 8, 5, 2)
PACKED_RESIDENT(packed_resident_q6h_8, Q6H, 1, 16, 2, 2)
PACKED_RESIDENT(packed_resident_q6h_16, Q6H, 2, 8, 4, 1)
PACKED_RESIDENT(packed_resident_q6h_32, Q6H, 4, 8, 4, 1)
