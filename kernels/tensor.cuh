// PTX instructions that CUDA C++ has no names for, one function each: tensor cores, and what feeds
// them. The software GPU of the tests has its own versions.
#pragma once
#include "common.cuh"

#ifndef SOFTWARE_GPU

// c += a b of one warp: a [16, 16] by rows, b [16, 8] by columns, in bf16 with f32 sums. Lane t of
// group g (lane = 4 g + t) holds a at rows g, g + 8 and columns 2t, 2t + 8; b at column g and rows
// 2t, 2t + 8; c at rows g, g + 8 and columns 2t, 2t + 1.
__device__ __forceinline__ void mma(float c[4], const u32 a[4], const u32 b[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// c += a b of one warp in integers: a [16, 32] of unsigned bytes by rows, b [32, 8] of signed bytes
// by columns. Lane t of group g holds a at rows g, g + 8 and columns 4t to 4t + 3, 4t + 16 to 4t +
// 19; b at column g and those rows; c as above.
__device__ __forceinline__ void mma_bytes(int c[4], const u32 a[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// sum + the four signed bytes of x.
__device__ __forceinline__ int sum_bytes(u32 x, int sum) {
  int out;
  asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(out) : "r"(x), "r"(0x01010101), "r"(sum));
  return out;
}

// The lower half of x as f16.
__device__ __forceinline__ float f16_value(u32 x) {
  float out;
  asm("{\n.reg .b16 half;\ncvt.u16.u32 half, %1;\ncvt.f32.f16 %0, half;\n}" : "=f"(out) : "r"(x));
  return out;
}

// Loads 16 bytes that are read once: evicted first.
__device__ __forceinline__ uint4 load_once(const u16* at) {
  uint4 v;
  asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at));
  return v;
}

// Says in the PTX how much dynamic shared memory a block has: BYTES, and PER_GROUP for every 256
// columns of the weight. The host finds the figures in the index that compile.py writes.
template <int BYTES, int PER_GROUP>
__device__ __forceinline__ void needs_shared_memory() {
  asm volatile("// dynamic shared memory: %0 + %1" ::"n"(BYTES), "n"(PER_GROUP));
}

// Dynamic shared memory of the block. Called once in a kernel.
template <int BYTES, int PER_GROUP = 0>
__device__ __forceinline__ void* dynamic_shared_memory() {
  extern __shared__ __align__(128) unsigned char memory[];
  needs_shared_memory<BYTES, PER_GROUP>();
  return memory;
}

__device__ __forceinline__ u32 shared_address(const void* at) { return (u32)__cvta_generic_to_shared(at); }

// Loads four 8 x 8 matrices of bf16 from shared memory: lane l passes the address of row l % 8 of
// matrix l / 8 and gets columns 2 (l % 4) and the next of row l / 4 of each matrix.
__device__ __forceinline__ void load_matrices(u32 out[4], const u16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row)));
}

// The same of the transposed matrices: rows 2 (l % 4) and the next of column l / 4.
__device__ __forceinline__ void load_matrices_transposed(u32 out[4], const u16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row)));
}

// Transposes an 8 x 8 matrix of bf16, of which lane l holds columns 2 (l % 4) and the next of row l
// / 4.
__device__ __forceinline__ u32 transpose(u32 x) {
  u32 out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(x));
  return out;
}

// Starts an async copy of 16 bytes to shared memory; zeros where not `real`.
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

// Waits until at most N of this thread's committed groups are in flight.
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

// Differences of two pairs of bf16, on GPUs that have no such instruction too.
__device__ __forceinline__ u32 subtract_codes(u32 x, u32 y) {
  u32 out;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(x), "r"(0x3f803f80u), "r"(y ^ 0x80008000u));
  return out;
}

// Differences of two pairs of bf16.
__device__ __forceinline__ u32 subtract_pair(u32 x, u32 y) {
  u32 out;
  asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(x), "r"(y));
  return out;
}

// A function of the bits of three words in one instruction, by its table: that of x is 0xf0, of y
// 0xcc, of z 0xaa.
template <int TABLE>
__device__ __forceinline__ u32 logic3(u32 x, u32 y, u32 z) {
  u32 out;
  asm("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(out) : "r"(x), "r"(y), "r"(z), "n"(TABLE));
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

// Loads and stores of what blocks of a launch tell each other. Each word is whole; words of one
// store may be seen one by one.
__device__ __forceinline__ float2 load_relaxed(const float2* at) {
  float2 v;
  asm volatile("ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(at) : "memory");
  return v;
}
__device__ __forceinline__ void store_relaxed(float2* at, float2 v) {
  asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1, %2};" ::"l"(at), "f"(v.x), "f"(v.y) : "memory");
}

// Prefetches a line into L2.
__device__ __forceinline__ void prefetch(const void* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }

#endif

// Sum of a pair of bf16.
__device__ __forceinline__ float sum_pair(u32 x) { return bf16_to_f32((u16)x) + __uint_as_float(x & 0xffff0000u); }

template <int T>
__device__ __forceinline__ float weight_at(const void* w, u64 i) {
  if (T == F32) return ((const float*)w)[i];
  if (T == F16) return f16_value(((const u16*)w)[i]);
  return bf16_to_f32(((const u16*)w)[i]);
}

// Loads eight neighbours from an index on that is a multiple of 8.
template <int T>
__device__ __forceinline__ void weight8(float out[8], const void* w, u64 i) {
  if (T == F32) {
    float4 a = *(const float4*)((const float*)w + i), b = *(const float4*)((const float*)w + i + 4);
    out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
    out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
    return;
  }
  uint4 v = *(const uint4*)((const u16*)w + i);
  u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int k = 0; k < 4; k++) {
    u16 low = (u16)words[k], high = (u16)(words[k] >> 16);
    out[2 * k] = T == F16 ? f16_value(low) : bf16_to_f32(low);
    out[2 * k + 1] = T == F16 ? f16_value(high) : bf16_to_f32(high);
  }
}
