// Shared by all kernels: short type names, programmatic dependent launch, conversions, reductions
// over warps and blocks. Includes no header of the CUDA toolkit, so NVRTC alone builds every file
// here.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define KERNEL extern "C" __global__ void
#define FULL 0xffffffffu
#define NEG_INFINITY __int_as_float(0xff800000)
#define LOG2E 1.44269504f
// Channels of a head that the kernels of a file have room for: more in files whose name says so.
#ifndef MAX_HEAD_DIM
#define MAX_HEAD_DIM 128
#endif

// Offset of a field, for the layouts that `backend::cuda::abi` asserts too.
#ifdef SOFTWARE_GPU
#define OFFSET_OF(type, field) __builtin_offsetof(type, field)
#else
#define OFFSET_OF(type, field) __INTADDR__(&((type*)0)->field)
#endif

// Programmatic dependent launch (PDL): a kernel may start before the one in front of it has ended.
// Every kernel begins with
// `after_previous`: it lets the next kernel start once all blocks of this one have started, then
// waits until all work in
// front of this kernel is done and visible. Before `wait_previous` a kernel may read only what no
// kernel of the step in front of it writes, such as weights. The first kernel of a step is launched
// without PDL (`Driver::separate`), which separates steps. Both are no-ops before compute
// capability 9.0.
__device__ __forceinline__ void next_may_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void after_previous() {
  next_may_begin();
  wait_previous();
}

// Element types of weights, as `backend::cuda::weights` numbers them.
enum DType { F32 = 0, F16 = 1, BF16 = 2 };

__device__ __forceinline__ float bf16_to_f32(u16 x) { return __uint_as_float((u32)x << 16); }

// Rounds to nearest even; NaN stays NaN.
__device__ __forceinline__ u16 f32_to_bf16(float x) {
  u32 bits = __float_as_uint(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (u16)((bits >> 16) | 0x40);
  return (u16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Stores element i of activations in f32 or, if `rounded`, in bf16.
__device__ __forceinline__ void put(void* out, int rounded, u64 i, float x) {
  if (rounded) {
    ((u16*)out)[i] = f32_to_bf16(x);
  } else {
    ((float*)out)[i] = x;
  }
}

// Stores two neighbours from an even index on.
__device__ __forceinline__ void put2(void* out, int rounded, u64 i, float x, float y) {
  if (rounded) {
    *(u32*)((u16*)out + i) = (u32)f32_to_bf16(x) | (u32)f32_to_bf16(y) << 16;
  } else {
    *(float2*)((float*)out + i) = float2{x, y};
  }
}

// Stores four neighbours from an index on that is a multiple of 4.
__device__ __forceinline__ void put4(void* out, int rounded, u64 i, float4 x) {
  if (rounded) {
    *(uint2*)((u16*)out + i) = uint2{(u32)f32_to_bf16(x.x) | (u32)f32_to_bf16(x.y) << 16,
                                     (u32)f32_to_bf16(x.z) | (u32)f32_to_bf16(x.w) << 16};
  } else {
    *(float4*)((float*)out + i) = x;
  }
}

__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }

// A row [d], of which a warp lane holds every 32nd channel; `fill` beyond its end, and everywhere
// if there is none.
struct RowPart {
  float at[MAX_HEAD_DIM / 32];
  __device__ __forceinline__ void load(const float* x, int d, int lane, float fill) {
#pragma unroll
    for (int k = 0; k < MAX_HEAD_DIM / 32; k++) at[k] = x && lane + 32 * k < d ? x[lane + 32 * k] : fill;
  }
};

// `op` over the values of a warp, always in the same order, returned to every lane.
template <class T, class Op>
__device__ __forceinline__ T warp_reduce(T x, Op op) {
#pragma unroll
  for (int m = 16; m > 0; m >>= 1) x = op(x, __shfl_xor_sync(FULL, x, m));
  return x;
}

// The same over a block of up to 32 whole warps; op(x, none) is x.
template <class T, class Op>
__device__ __forceinline__ T block_reduce(T x, T none, Op op) {
  __shared__ T parts[32];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  x = warp_reduce(x, op);
  __syncthreads();
  if (lane == 0) parts[warp] = x;
  __syncthreads();
  return warp_reduce(lane < warps ? parts[lane] : none, op);
}

struct Sum {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const { return a + b; }
};
template <class T>
__device__ __forceinline__ T warp_sum(T x) { return warp_reduce(x, Sum()); }
template <class T>
__device__ __forceinline__ T block_sum(T x) { return block_reduce(x, T(0), Sum()); }
__device__ __forceinline__ float warp_max(float x) {
  return warp_reduce(x, [](float a, float b) { return fmaxf(a, b); });
}

// Inclusive prefix sum over the lanes of a warp.
template <typename T>
__device__ __forceinline__ T warp_prefix_sum(T x, int lane) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    T y = __shfl_up_sync(FULL, x, step);
    if (lane >= step) x += y;
  }
  return x;
}

// Factor of an RMS norm, 1 / sqrt(mean of the squares + eps), from the sum of the squares of
// `width` values. Lowers the non-finite flag, if it is not null, to `layer` if one of them is an
// infinity or a NaN.
__device__ __forceinline__ float rms_factor(float squares, int width, float eps, int layer, int* non_finite) {
  float mean = squares / width;
  if (non_finite && !(fabsf(mean) < __int_as_float(0x7f800000))) atomicMin(non_finite, layer);
  return 1.0f / sqrtf(mean + eps);
}

// Whether this block is the last of `count` that arrive at a counter, which then is zero again.
// `barrier` is that of all threads of the block that go on, `last` in shared memory. What the
// others stored in global memory before they arrived is visible then: the barrier orders a block's
// stores before the fence of its first thread, which is cumulative, and that thread's count is read
// by the last block's before its fence and barrier.
template <class Barrier>
__device__ __forceinline__ bool is_last(int* arrivals, int count, bool& last, Barrier barrier) {
  barrier();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(arrivals, 1) == count - 1;
    if (last) {
      __threadfence();
      // No block of this launch comes after the last one, and the next launch waits for this one.
      *arrivals = 0;
    }
  }
  barrier();
  return last;
}

// The same where all threads of the block go on.
__device__ __forceinline__ bool is_last(int* arrivals, int count, bool& last) {
  return is_last(arrivals, count, last, [] { __syncthreads(); });
}
