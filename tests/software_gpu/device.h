// CUDA C++ for g++: what the files of kernels/ use of it, on one host thread. Threads of a block are fibers that run until
// they synchronize; block.cpp switches them.
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <utility>

#define SOFTWARE_GPU 1

#define __global__
#define __device__
#define __host__
#define __constant__ static
// One block runs at a time, so its storage may be static. It holds garbage when a launch begins.
#define __shared__ static
#define __restrict__
#define __forceinline__ inline
#define __noinline__
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __grid_constant__

struct dim3 {
  unsigned x, y, z;
};
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };

namespace gpu {

constexpr int WARP = 32;
constexpr int DEPOSIT = 64;

// A warp-synchronous operation; all lanes of a warp have to wait in the same one.
enum class Op : int { SYNCWARP, SHUFFLE, VOTE, MMA, LDMATRIX, COUNT };

// The values that the lanes of a warp exchange. Double-buffered: the first lane at the next exchange cannot overtake the
// last one that reads this one.
struct Exchange {
  alignas(64) unsigned char lanes[WARP][DEPOSIT];
  alignas(64) unsigned char result[2048];
};

struct Warp {
  // Lanes that exist, that can run, that have arrived.
  uint32_t lanes, ready, arrived;
  Op op;
  int turn;
  Exchange exchange[2];
};

struct Thread {
  dim3 index;
  int lane;
  Warp* warp;
  void* stack_pointer;
};

extern Thread* self;
extern dim3 block_index, block_dim, grid_dim;
extern unsigned char* dynamic_shared;

void block_barrier();
[[noreturn]] void fault(const char* why);
// Runs the other lanes of the warp until they arrive.
void wait_for_warp();
[[noreturn]] void wrong_meeting(unsigned mask, Op op);
// Runs other fibers until `wake_waiting`.
void wait_for_barrier();
void wake_waiting();
// Waits for that many threads at a barrier of the block, 1 to 15.
void group_barrier(int barrier, int threads);

// Exchanges `x` and waits for the whole warp. True for the last lane to arrive.
template <class T>
inline bool meet(unsigned mask, Op op, const T& x, Exchange** out) {
  static_assert(sizeof(T) <= DEPOSIT);
  Thread* me = self;
  Warp& warp = *me->warp;
  if (mask != 0xffffffffu || (warp.arrived && warp.op != op)) wrong_meeting(mask, op);
  warp.op = op;
  Exchange& exchange = warp.exchange[warp.turn];
  *out = &exchange;
  memcpy(exchange.lanes[me->lane], &x, sizeof x);
  warp.arrived |= 1u << me->lane;
  if (warp.arrived != warp.lanes) {
    wait_for_warp();
    return false;
  }
  warp.arrived = 0;
  warp.turn ^= 1;
  warp.ready = warp.lanes;
  return true;
}

// A kernel that is registered.
struct Entry {
  const char* name;
  void (*call)(void* const* args);
  const size_t* sizes;  // of the parameters
  int count;
};
int register_kernel(const Entry& entry);

template <auto F>
struct Kernel;
template <class... A, void (*F)(A...)>
struct Kernel<F> {
  static constexpr size_t sizes[] = {sizeof(A)...};
  template <size_t... I>
  static void unpack(void* const* args, std::index_sequence<I...>) {
    F(read<std::remove_cv_t<A>>(args[I])...);
  }
  // Whatever the alignment.
  template <class T>
  static T read(const void* at) {
    T x;
    memcpy(&x, at, sizeof x);
    return x;
  }
  static void call(void* const* args) { unpack(args, std::index_sequence_for<A...>{}); }
  static int register_kernel(const char* name) { return gpu::register_kernel({name, call, sizes, sizeof...(A)}); }
};

template <class To, class From>
inline To bits(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To y;
  memcpy(&y, &x, sizeof y);
  return y;
}

// Prevents contraction to a fused multiply-add: what the _rn functions guarantee.
inline float apart(float x) {
  asm("" : "+x"(x));
  return x;
}

inline float bf16(uint16_t x) { return bits<float>((uint32_t)x << 16); }

template <class T>
inline T shuffle(unsigned mask, T x, int from, bool own) {
  Exchange* e;
  meet(mask, Op::SHUFFLE, x, &e);
  if (!own) memcpy(&x, e->lanes[from], sizeof x);
  return x;
}

}  // namespace gpu

#define threadIdx (gpu::self->index)
#define blockIdx gpu::block_index
#define blockDim gpu::block_dim
#define gridDim gpu::grid_dim
#define warpSize 32

inline void __syncthreads() { gpu::block_barrier(); }
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  gpu::Exchange* e;
  gpu::meet(mask, gpu::Op::SYNCWARP, 0, &e);
}
inline void __threadfence() {}
inline void __threadfence_block() {}
[[noreturn]] inline void __trap() { gpu::fault("__trap()"); }

template <class T>
inline T __shfl_sync(unsigned mask, T x, int from, int width = 32) {
  return gpu::shuffle(mask, x, (gpu::self->lane & ~(width - 1)) | (from & (width - 1)), false);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T x, int by) {
  return gpu::shuffle(mask, x, (gpu::self->lane ^ by) & 31, false);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T x, unsigned by) {
  int from = gpu::self->lane - (int)by;
  return gpu::shuffle(mask, x, from, from < 0);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T x, unsigned by) {
  int from = gpu::self->lane + (int)by;
  return gpu::shuffle(mask, x, from, from > 31);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  gpu::Exchange* e;
  unsigned char vote = predicate != 0;
  gpu::meet(mask, gpu::Op::VOTE, vote, &e);
  unsigned votes = 0;
  for (int i = 0; i < 32; i++) votes |= (unsigned)e->lanes[i][0] << i;
  return votes;
}
template <class T, class F>
inline T reduce(T x, F f) {
  for (int by = 16; by > 0; by /= 2) x = f(x, __shfl_xor_sync(0xffffffffu, x, by));
  return x;
}
inline int __reduce_add_sync(unsigned, int x) {
  return reduce(x, [](int a, int b) { return a + b; });
}
inline unsigned __reduce_min_sync(unsigned, unsigned x) {
  return reduce(x, [](unsigned a, unsigned b) { return a < b ? a : b; });
}
inline unsigned __reduce_max_sync(unsigned, unsigned x) {
  return reduce(x, [](unsigned a, unsigned b) { return a > b ? a : b; });
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == mask; }

// Fibers switch only where they synchronize, so plain arithmetic is atomic.
template <class T>
inline T atomicAdd(T* at, T x) {
  T old = *at;
  *at = old + x;
  return old;
}
template <class T>
inline T atomicOr(T* at, T x) {
  T old = *at;
  *at = old | x;
  return old;
}
template <class T>
inline T atomicMin(T* at, T x) {
  T old = *at;
  if (x < old) *at = x;
  return old;
}
template <class T>
inline T atomicMax(T* at, T x) {
  T old = *at;
  if (x > old) *at = x;
  return old;
}
template <class T>
inline T atomicExch(T* at, T x) {
  T old = *at;
  *at = x;
  return old;
}
template <class T>
inline T atomicCAS(T* at, T compare, T x) {
  T old = *at;
  if (old == compare) *at = x;
  return old;
}

template <class T>
inline T __ldg(const T* at) { return *at; }

inline float __uint_as_float(unsigned x) { return gpu::bits<float>(x); }
inline float __int_as_float(int x) { return gpu::bits<float>(x); }
inline unsigned __float_as_uint(float x) { return gpu::bits<unsigned>(x); }
inline int __float_as_int(float x) { return gpu::bits<int>(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline void sincospif(float x, float* sine, float* cosine) {
  *sine = (float)sin(x * M_PI), *cosine = (float)cos(x * M_PI);
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline float __fmul_rn(float a, float b) { return gpu::apart(a * b); }
inline float __fadd_rn(float a, float b) { return gpu::apart(gpu::apart(a) + gpu::apart(b)); }
inline float __fsub_rn(float a, float b) { return gpu::apart(gpu::apart(a) - gpu::apart(b)); }
inline float __fdiv_rn(float a, float b) { return gpu::apart(a / b); }
inline int __float2int_rn(float x) { return (int)std::rint(x); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __expf(float x) { return expf(x); }
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }

inline unsigned __byte_perm(unsigned x, unsigned y, unsigned which) {
  unsigned long long both = x | (unsigned long long)y << 32;
  unsigned out = 0;
  for (int i = 0; i < 4; i++) out |= (unsigned)(both >> (which >> (4 * i) & 7) * 8 & 0xff) << (8 * i);
  return out;
}

// Twins of kernels/tensor.cuh.

inline float exp2_fast(float x) { return exp2f(x); }
inline void prefetch(const void*) {}
inline float2 load_relaxed(const float2* at) { return *at; }
inline void store_relaxed(float2* at, float2 x) { *at = x; }
template <int BYTES, int PER_GROUP = 0>
inline void* dynamic_shared_memory() { return gpu::dynamic_shared; }

namespace gpu {
inline void ldmatrix(unsigned out[4], const uint16_t* row, bool transposed) {
  if ((uintptr_t)row % 16) fault("ldmatrix from an address that is no multiple of 16");
  Exchange* e;
  meet(0xffffffffu, Op::LDMATRIX, row, &e);
  int g = self->lane / 4, t = self->lane % 4;
  auto at = [&](int matrix, int row, int column) {
    const uint16_t* from;
    memcpy(&from, e->lanes[8 * matrix + row], sizeof from);
    return (unsigned)from[column];
  };
  for (int i = 0; i < 4; i++)
    out[i] = transposed ? at(i, 2 * t, g) | at(i, 2 * t + 1, g) << 16 : at(i, g, 2 * t) | at(i, g, 2 * t + 1) << 16;
}
}  // namespace gpu

inline void load_matrices(unsigned out[4], const uint16_t* line) { gpu::ldmatrix(out, line, false); }
inline void load_matrices_transposed(unsigned out[4], const uint16_t* line) { gpu::ldmatrix(out, line, true); }

// Fragments are as the PTX manual lays them out for mma.m16n8k16.
inline void mma(float c[4], const unsigned a[4], const unsigned b[2]) {
  struct Parts {
    unsigned a[4], b[2];
  } parts = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  gpu::Exchange* e;
  typedef float Row __attribute__((vector_size(32)));
  if (gpu::meet(0xffffffffu, gpu::Op::MMA, parts, &e)) {
    float left[16][16];
    Row right[16], product[16] = {};
    for (int lane = 0; lane < 32; lane++) {
      const Parts* p = (const Parts*)e->lanes[lane];
      int g = lane / 4, t = lane % 4;
      for (int i = 0; i < 4; i++)
        for (int k = 0; k < 2; k++) left[g + i % 2 * 8][2 * t + i / 2 * 8 + k] = gpu::bf16(p->a[i] >> (16 * k));
      for (int i = 0; i < 2; i++)
        for (int k = 0; k < 2; k++) right[2 * t + 8 * i + k][g] = gpu::bf16(p->b[i] >> (16 * k));
    }
    for (int i = 0; i < 16; i++)
      for (int k = 0; k < 16; k++) product[i] += left[i][k] * right[k];
    memcpy(e->result, product, sizeof product);
  }
  const float(*product)[8] = (const float(*)[8])e->result;
  int g = gpu::self->lane / 4, t = gpu::self->lane % 4;
  for (int i = 0; i < 4; i++) c[i] += product[g + i / 2 * 8][2 * t + i % 2];
}

// The same of bytes, for mma.m16n8k32 with unsigned a and signed b.
inline void mma_bytes(int c[4], const unsigned a[4], unsigned b0, unsigned b1) {
  struct Parts {
    unsigned a[4], b[2];
  } parts = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
  gpu::Exchange* e;
  typedef int Row __attribute__((vector_size(32)));
  if (gpu::meet(0xffffffffu, gpu::Op::MMA, parts, &e)) {
    int left[16][32];
    Row right[32], product[16] = {};
    for (int lane = 0; lane < 32; lane++) {
      const Parts* p = (const Parts*)e->lanes[lane];
      int g = lane / 4, t = lane % 4;
      for (int i = 0; i < 4; i++)
        for (int k = 0; k < 4; k++) left[g + i % 2 * 8][4 * t + i / 2 * 16 + k] = (uint8_t)(p->a[i] >> (8 * k));
      for (int i = 0; i < 2; i++)
        for (int k = 0; k < 4; k++) right[4 * t + 16 * i + k][g] = (int8_t)(p->b[i] >> (8 * k));
    }
    for (int i = 0; i < 16; i++)
      for (int k = 0; k < 32; k++) product[i] += left[i][k] * right[k];
    memcpy(e->result, product, sizeof product);
  }
  const int(*product)[8] = (const int(*)[8])e->result;
  int g = gpu::self->lane / 4, t = gpu::self->lane % 4;
  for (int i = 0; i < 4; i++) c[i] += product[g + i / 2 * 8][2 * t + i % 2];
}
inline int sum_bytes(unsigned x, int sum) {
  for (int k = 0; k < 4; k++) sum += (int8_t)(x >> (8 * k));
  return sum;
}
inline float f16_value(unsigned x) {
  _Float16 value;
  memcpy(&value, &x, sizeof value);
  return (float)value;
}

inline uint4 load_once(const uint16_t* at) { return *(const uint4*)at; }

// Copies at once, which is earlier than a GPU.
inline void copy_async(void* to, const void* from, bool real) {
  if ((uintptr_t)to % 16 || (uintptr_t)from % 16) gpu::fault("cp.async at an address that is no multiple of 16");
  if (real) memcpy(to, from, 16);
  else memset(to, 0, 16);
}
inline void copy_async8(void* to, const void* from, bool real) {
  if ((uintptr_t)to % 8 || (uintptr_t)from % 8) gpu::fault("cp.async of 8 bytes at an address that is no multiple of 8");
  if (real) memcpy(to, from, 8);
  else memset(to, 0, 8);
}
inline void copy_async4(void* to, const void* from, bool real) {
  if ((uintptr_t)to % 4 || (uintptr_t)from % 4) gpu::fault("cp.async of 4 bytes at an address that is no multiple of 4");
  if (real) memcpy(to, from, 4);
  else memset(to, 0, 4);
}
inline void copy_commit() {}
template <int N>
inline void copy_wait() {}
inline unsigned transpose(unsigned x) {
  int g = gpu::self->lane / 4, t = gpu::self->lane % 4;
  unsigned first = __shfl_sync(0xffffffffu, x, 8 * t + g / 2), second = __shfl_sync(0xffffffffu, x, 8 * t + 4 + g / 2);
  int shift = 16 * (g % 2);
  return (first >> shift & 0xffff) | (second >> shift & 0xffff) << 16;
}
inline float reciprocal(float x) { return 1.0f / x; }
inline unsigned round_pair(float x, float y) {
  auto round = [](float v) -> unsigned {
    unsigned bits = gpu::bits<unsigned>(v);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  };
  return round(x) | round(y) << 16;
}
template <int TABLE>
inline unsigned logic3(unsigned x, unsigned y, unsigned z) {
  unsigned out = 0;
  for (int i = 0; i < 8; i++)
    if (TABLE >> i & 1) out |= (i & 4 ? x : ~x) & (i & 2 ? y : ~y) & (i & 1 ? z : ~z);
  return out;
}
inline unsigned subtract_codes(unsigned x, unsigned y) {
  return round_pair(gpu::bf16((uint16_t)x) - gpu::bf16((uint16_t)y), gpu::bf16(x >> 16) - gpu::bf16(y >> 16));
}
inline unsigned multiply_pair(unsigned x, unsigned y) {
  return round_pair(gpu::bf16((uint16_t)x) * gpu::bf16((uint16_t)y), gpu::bf16(x >> 16) * gpu::bf16(y >> 16));
}
inline unsigned subtract_pair(unsigned x, unsigned y) {
  return round_pair(gpu::bf16((uint16_t)x) - gpu::bf16((uint16_t)y), gpu::bf16(x >> 16) - gpu::bf16(y >> 16));
}

#include "hopper.h"
