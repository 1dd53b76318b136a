// Instructions of tensor cores, and of what feeds them, that CUDA C++ has no names for, one function each. The
// software GPU of the tests has functions of its own in their place.
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

// 16 bytes that are read once: the first of a cache's to make room for others.
__device__ __forceinline__ uint4 load_once(const u16* at) {
  uint4 v;
  asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at));
  return v;
}

// What the launch gave a block beside its own arrays.
__device__ __forceinline__ void* dynamic_shared_memory() {
  extern __shared__ __align__(128) unsigned char memory[];
  return memory;
}

__device__ __forceinline__ u32 shared_address(const void* at) { return (u32)__cvta_generic_to_shared(at); }

// Four matrices of 8 x 8 bf16 from shared memory: lane l gives the address of line l % 8 of matrix l / 8,
// and gets of each matrix two neighbours of line l / 4, at column 2 (l % 4).
__device__ __forceinline__ void load_matrices(u32 out[4], const u16* line) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(line)));
}

// The same of the turned matrices: two neighbours of column l / 4, at line 2 (l % 4).
__device__ __forceinline__ void load_matrices_turned(u32 out[4], const u16* line) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(line)));
}

// A matrix of 8 x 8 bf16 turned: lane l holds two neighbours of line l / 4, at column 2 (l % 4), of one and the other.
__device__ __forceinline__ u32 turned(u32 x) {
  u32 out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(x));
  return out;
}

// 16 bytes to shared memory without passing through registers; zeros where not `real`.
__device__ __forceinline__ void copy_async(void* to, const void* from, bool real) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(real ? 16 : 0)
               : "memory");
}
// The same of 8 bytes, and of 4.
__device__ __forceinline__ void copy_async8(void* to, const void* from, bool real) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(to)), "l"(from), "r"(real ? 8 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_async4(void* to, const void* from, bool real) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from), "r"(real ? 4 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most N of this thread's groups are under way.
template <int N>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Two values as bf16, rounded to nearest even, `x` in the lower half.
__device__ __forceinline__ u32 round_pair(float x, float y) {
  u32 out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(y), "f"(x));
  return out;
}

// 2^x, good to 2^-22.
__device__ __forceinline__ float exp2_fast(float x) {
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}

// 1 / x, good to 2^-22.
__device__ __forceinline__ float reciprocal(float x) {
  float out;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}

// Into the second-level cache.
__device__ __forceinline__ void prefetch(const void* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }

#endif

// Both values of a pair of bf16.
__device__ __forceinline__ float sum_pair(u32 x) { return bf16_to_f32((u16)x) + __uint_as_float(x & 0xffff0000u); }
