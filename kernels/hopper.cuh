// Hopper's wgmma, TMA and mbarrier instructions, one function each: compute_90a only. The software
// GPU of the tests has functions of its own in their place.
#pragma once
#include "common.cuh"
#include "tensor.cuh"

// A TMA descriptor of a matrix: `cuTensorMapEncodeTiled`.
struct __align__(64) TensorMap {
  u64 words[16];
};
static_assert(sizeof(TensorMap) == 128 && alignof(TensorMap) == 64, "backend::cuda::abi::TensorMap has another layout");

#ifndef SOFTWARE_GPU

// Dynamic shared memory of BYTES, aligned to 1,024 as 128-byte swizzled tiles need it. Called once
// in a kernel.
template <int BYTES>
__device__ __forceinline__ u16* tile_memory() {
  extern __shared__ __align__(1024) unsigned char tiles[];
  needs_shared_memory<BYTES + 1024, 0>();
  return (u16*)(tiles + (0u - (u32)__cvta_generic_to_shared(tiles)) % 1024);
}

// mbarrier: a phase ends after `arrivals` arrivals and all expected bytes.
__device__ __forceinline__ void barrier_init(u64* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// Makes initialized barriers visible to TMA.
__device__ __forceinline__ void barriers_made() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void barrier_arrive(u64* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Arrives and expects bytes.
__device__ __forceinline__ void barrier_expect(u64* barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
// Waits for the end of a phase of that parity: the first has parity 0, and the one before it counts
// as ended.
__device__ __forceinline__ void barrier_wait(u64* barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra DONE;\n"
      "bra AGAIN;\nDONE:\n}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// TMA copy of the tile at (row, column) to shared memory; elements outside the matrix are zero.
// Completes on `barrier`.
__device__ __forceinline__ void copy_tile(void* to, const TensorMap* map, int column, int row, u64* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          shared_address(to)),
      "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier))
      : "memory");
}

// The phase of a barrier does not end before the `copy_async`s that this thread has started.
__device__ __forceinline__ void copy_arrive(u64* barrier) {
  asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Orders plain accesses to shared memory before those of wgmma and TMA.
__device__ __forceinline__ void fence_tiles() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Waits for `threads` threads, whole warps, that wait at the same of the block's barriers 1 to 15.
__device__ __forceinline__ void group_barrier(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Registers of a warpgroup's threads: gives back what is above N, or waits for more. Multiples of
// 8.
template <int N>
__device__ __forceinline__ void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
__device__ __forceinline__ void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

// TMA copy of PAGE_SLOTS rows of 64 channels of a page, from a row and a channel on, to shared
// memory.
__device__ __forceinline__ void copy_page(void* to, const TensorMap* map, int channel, int row, int page, u64* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(
          shared_address(to)),
      "l"(map), "r"(channel), "r"(row), "r"(page), "r"(shared_address(barrier))
      : "memory");
}

// Bulk copy of a multiple of 16 bytes to shared memory, both at multiples of 16.
__device__ __forceinline__ void copy_bulk(void* to, const void* from, u32 bytes, u64* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

// wgmma descriptor of columns 16 k.. of a tile with rows of 64 bf16 (128-byte swizzle, eight rows
// per 1,024 bytes).
__device__ __forceinline__ u64 tile_at(const u16* tile, int k) {
  return (u64)((shared_address(tile) + 32 * k) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

// wgmma descriptor of the first 16 rows of the transposed matrix of tiles of `rows` rows of 64
// bf16, one for each 64 columns.
__device__ __forceinline__ u64 transposed_at(const u16* tiles, int rows) {
  return (u64)(shared_address(tiles) >> 4) | (u64)(rows * 8) << 16 | 64ull << 32 | 1ull << 62;
}

// The descriptor of what lies so many bytes after that of another, within shared memory: one
// addition.
__device__ __forceinline__ u64 after(u64 descriptor, int bytes) {
  return descriptor >> 32 << 32 | ((u32)descriptor + bytes / 16);
}

// Fence before the first wgmma, commit of a group, and wait until at most N groups are in flight.
__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// Keeps what is computed before it out of the wgmmas behind it.
template <int N>
__device__ __forceinline__ void pin(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(x[i])::"memory");
}
template <int N>
__device__ __forceinline__ void pin(u32 (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+r"(x[i])::"memory");
}

#define C8(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), "+f"(c[i + 6]), "+f"(c[i + 7])
#define C32(i) C8(i), C8(i + 8), C8(i + 16), C8(i + 24)
// Names of so many accumulators.
#define N16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define N64                                                                                  \
  N16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "   \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "     \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define N96                                                                                  \
  N64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "   \
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define N128                                                                                       \
  N96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "   \
      "%111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
// The instruction for a [64, 16] by b [COLUMNS, 16]; names of its operands, whether b is
// transposed, and what `add` is called.
#define WGMMA(COLUMNS, SUMS, A, B, TRANSPOSED, ADD)                            \
  "{\n.reg .pred add;\nsetp.ne.b32 add, " ADD ", 0;\n"                        \
  "wgmma.mma_async.sync.aligned.m64n" COLUMNS "k16.f32.bf16.bf16 {" SUMS "}, " \
  A ", " B ", add, 1, 1" TRANSPOSED ";\n}"

// c = a b^T + (add ? c : 0) by a warpgroup: bf16 tiles a [64, 16] and b [BN, 16] in shared memory,
// f32 accumulators c. Warp w has rows 16 w and on; warp lane t of group g (lane = 4 g + t) holds,
// in c[4 j + 2 h + i], row g + 8 h and column 8 j + 2 t + i.
template <int BN>
__device__ __forceinline__ void wgmma(float (&c)[BN / 2], u64 a, u64 b, int add);
template <>
__device__ __forceinline__ void wgmma<128>(float (&c)[64], u64 a, u64 b, int add) {
  asm volatile(WGMMA("128", N64, "%64", "%65", ", 0, 0", "%66") : C32(0), C32(32) : "l"(a), "l"(b), "r"(add));
}
template <>
__device__ __forceinline__ void wgmma<192>(float (&c)[96], u64 a, u64 b, int add) {
  asm volatile(WGMMA("192", N96, "%96", "%97", ", 0, 0", "%98") : C32(0), C32(32), C32(64) : "l"(a), "l"(b), "r"(add));
}
template <>
__device__ __forceinline__ void wgmma<256>(float (&c)[128], u64 a, u64 b, int add) {
  asm volatile(WGMMA("256", N128, "%128", "%129", ", 0, 0", "%130")
               : C32(0), C32(32), C32(64), C32(96)
               : "l"(a), "l"(b), "r"(add));
}

// The same with a [64, 16] in registers, as `mma` holds 16 rows a warp: of 32 columns, and of 128
// with b transposed:
// `transposed_at`.
template <int BN>
__device__ __forceinline__ void wgmma_registers(float (&c)[BN / 2], const u32* a, u64 b, int add) {
  static_assert(BN == 32, "there is no other");
  asm volatile(WGMMA("32", N16, "{%16, %17, %18, %19}", "%20", ", 0", "%21")
               : C8(0), C8(8)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
template <int BN>
__device__ __forceinline__ void wgmma_transposed(float (&c)[BN / 2], const u32* a, u64 b, int add) {
  static_assert(BN == 128, "there is no other");
  asm volatile(WGMMA("128", N64, "{%64, %65, %66, %67}", "%68", ", 1", "%69")
               : C32(0), C32(32)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
#undef C8
#undef C32
#undef N16
#undef N64
#undef N96
#undef N128
#undef WGMMA

#endif

// As `silu`, good to 2^-20: for results stored as bf16.
__device__ __forceinline__ float silu_fast(float x) {
  return x * reciprocal(1.0f + exp2_fast(-LOG2E * x));
}
