// Instructions of tensor cores that CUDA C++ has no names for, one function each. The software GPU of the tests
// has functions of its own in their place.
#pragma once
#include "common.cuh"

#ifndef SOFTWARE_GPU

// c += a b of one warp: a [16, 16] by rows, b [16, 8] by columns, in bf16 with f32 sums. Lane t of group
// g (lane = 4 g + t) holds a at rows g, g + 8 and columns 2t, 2t + 8; b at column g and rows 2t, 2t + 8; c
// at rows g, g + 8 and columns 2t, 2t + 1.
__device__ __forceinline__ void mma(float c[4], const u32 a[4], const u32 b[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#endif
