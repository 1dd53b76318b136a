// Shared by all kernels: short type names, programmatic dependent launch, conversions, reductions over warps and blocks.
// Includes no header of the CUDA toolkit, so NVRTC alone builds every file here.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define KERNEL extern "C" __global__ void
#define FULL 0xffffffffu
#define NEG_INFINITY __int_as_float(0xff800000)
#define LOG2E 1.44269504f
#define MAX_HEAD_DIM 128  // channels of a head that kernels have room for

// Offset of a field, for the layouts that `backend::cuda::abi` asserts too.
#ifdef SOFTWARE_GPU
#define OFFSET_OF(type, field) __builtin_offsetof(type, field)
#else
#define OFFSET_OF(type, field) __INTADDR__(&((type*)0)->field)
#endif

// Programmatic dependent launch (PDL): a kernel may start before the one in front of it has ended. Every kernel begins with
// `after_previous`: it lets the next kernel start once all blocks of this one have started, then waits until all work in
// front of this kernel is done and visible. Before `wait_previous` a kernel may read only what no kernel of the step in
// front of it writes, such as weights. The first kernel of a step is launched without PDL (`Driver::separate`), which separates steps.
// Both are no-ops before compute capability 9.0.
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

__device__ __forceinline__ float f16_to_f32(u16 x) {
  // A factor of 2^112 moves the exponent's bias from 15 to 127, for subnormals too.
  float magnitude = __uint_as_float((u32)(x & 0x7fff) << 13) * __uint_as_float(0x77800000u);
  u32 bits = __float_as_uint(magnitude);
  if ((x & 0x7c00) == 0x7c00) bits |= 0x7f800000u;
  return __uint_as_float(bits | ((u32)(x & 0x8000) << 16));
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

template <int T>
__device__ __forceinline__ float weight_at(const void* w, u64 i) {
  if (T == F32) return ((const float*)w)[i];
  if (T == F16) return f16_to_f32(((const u16*)w)[i]);
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
    out[2 * k] = T == F16 ? f16_to_f32(low) : bf16_to_f32(low);
    out[2 * k + 1] = T == F16 ? f16_to_f32(high) : bf16_to_f32(high);
  }
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int m = 16; m > 0; m >>= 1) x += __shfl_xor_sync(FULL, x, m);
  return x;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int m = 16; m > 0; m >>= 1) x = fmaxf(x, __shfl_xor_sync(FULL, x, m));
  return x;
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

// Factor of an RMS norm, 1 / sqrt(mean of the squares + eps), from the sum of the squares of `width` values. Lowers the
// non-finite flag, if it is not null, to `layer` if one of them is an infinity or a NaN.
__device__ __forceinline__ float rms_factor(float squares, int width, float eps, int layer, int* non_finite) {
  float mean = squares / width;
  if (non_finite && !(fabsf(mean) < __int_as_float(0x7f800000))) atomicMin(non_finite, layer);
  return 1.0f / sqrtf(mean + eps);
}

// Sum over a block of up to 32 whole warps, returned to every thread.
__device__ __forceinline__ float block_sum(float x) {
  __shared__ float parts[32];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  x = warp_sum(x);
  __syncthreads();
  if (lane == 0) parts[warp] = x;
  __syncthreads();
  return warp_sum(lane < warps ? parts[lane] : 0.0f);
}

// Whether this block is the last of `count` that arrive at a counter, which then is zero again. `barrier` is that of all threads of
// the block that go on, `last` in shared memory. What the others stored in global memory before they arrived is visible then: the
// barrier orders a block's stores before the fence of its first thread, which is cumulative, and that thread's count is read by
// the last block's before its fence and barrier.
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
