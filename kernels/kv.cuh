// The cache in device memory, as `backend::KvTables` describes it: the view that kernels get, pages,
// slots, codecs, and who holds a page.
#pragma once
#include "common.cuh"

enum Codec { CODEC_BF16 = 0, CODEC_FP8 = 1 };
enum Policy { DENSE = 0, DMS = 1 };
enum Shift { SHIFT_SAME = 0, SHIFT_PREVIOUS = 1 };

#define PAGE_SLOTS 16  // as `cache::PAGE_SLOTS`

// Mirrors `backend::cuda::abi::View` field by field.
struct Kv {
  u8* pages;        // page p begins at p * stride
  int* table;       // [n_layers, n_lanes, max_pages]
  int* live;        // [n_layers, n_lanes]
  int* ring;        // [n_layers, n_lanes, window + 1]
  int* seq_len;     // [n_seqs]
  int* eviction;    // [n_seqs]
  int* slots;       // [n_tokens, n_kv_heads]
  int* refs;        // [max pages of the pool]
  int* free_list;   // free pages, the next one last
  int* returned;    // pages given back in this step; taken up when it ends
  int* counts;      // lengths of free_list and returned
  u8* staged;       // K and V of a chunk's rows as they will be stored: see staged_at
  u64 stride;       // bytes from page to page
  int n_layers, n_q_heads, n_kv_heads, head_dim, n_seqs, max_pages;
  int codec, policy, window, shift;
};
static_assert(sizeof(Kv) == 144 && OFFSET_OF(Kv, table) == 8 && OFFSET_OF(Kv, staged) == 88 &&
                  OFFSET_OF(Kv, stride) == 96 && OFFSET_OF(Kv, n_layers) == 104 &&
                  OFFSET_OF(Kv, codec) == 128 && OFFSET_OF(Kv, shift) == 140,
              "backend::cuda::abi::View has another layout");

// Consecutive rows of one sequence: mirrors `backend::cuda::abi::DeviceSpan`.
struct Span {
  int seq, start, len, unused;
};
static_assert(sizeof(Span) == 16 && OFFSET_OF(Span, start) == 4 && OFFSET_OF(Span, len) == 8,
              "backend::cuda::abi::DeviceSpan has another layout");

__device__ __forceinline__ int kv_row(const Kv& kv, int layer, int seq, int head) {
  return (layer * kv.n_seqs + seq) * kv.n_kv_heads + head;
}

// Page layout: K rows, V rows, K scales and V scales (fp8), position and mark of every slot.
__device__ __forceinline__ int row_bytes(const Kv& kv) { return kv.codec == CODEC_FP8 ? kv.head_dim : 2 * kv.head_dim; }
__device__ __forceinline__ u8* page_at(const Kv& kv, int page) { return kv.pages + (u64)page * kv.stride; }
__device__ __forceinline__ u8* kv_bytes(const Kv& kv, u8* page, int r, int v) {
  return page + (v * PAGE_SLOTS + r) * row_bytes(kv);
}
__device__ __forceinline__ float* scale_at(const Kv& kv, u8* page, int r, int v) {
  return (float*)(page + 2 * PAGE_SLOTS * row_bytes(kv)) + v * PAGE_SLOTS + r;
}
__device__ __forceinline__ int* meta_at(const Kv& kv, u8* page, int r) {
  int scales = kv.codec == CODEC_FP8 ? 8 * PAGE_SLOTS : 0;
  return (int*)(page + 2 * PAGE_SLOTS * row_bytes(kv) + scales) + r;
}

// The step's rows, 16 to a page of a head.
__device__ __forceinline__ u8* staged_at(const Kv& kv, int row, int head) {
  return kv.staged + ((u64)(row / PAGE_SLOTS) * kv.n_kv_heads + head) * kv.stride;
}

// e4m3fn, as `codec::fp8_encode` bit for bit: nearest even, saturating.
__device__ __forceinline__ u8 fp8_encode(float x) {
  u32 bits = __float_as_uint(x);
  u8 sign = (bits >> 24) & 0x80;
  float a = fabsf(x);
  if (a != a) return sign | 0x7f;
  if (a >= 448.0f) return sign | 0x7e;
  if (a < 0.015625f) return sign | (u8)(int)rintf(a * 512.0f);
  bits &= 0x7fffffffu;
  u32 code = ((bits + 0x7ffff + ((bits >> 20) & 1)) >> 20) - (120 << 3);
  return sign | (u8)(code < 0x7e ? code : 0x7e);
}

__device__ __forceinline__ float fp8_decode(u8 code) {
  int exponent = (code >> 3) & 15, mantissa = code & 7;
  float a = exponent == 0 ? mantissa * (1.0f / 512.0f)
                          : __uint_as_float(((u32)(exponent + 120) << 23) | ((u32)mantissa << 20));
  if ((code & 0x7f) == 0x7f) a = __uint_as_float(0x7fc00000u);
  return code & 0x80 ? -a : a;
}

// Scale of a head's row whose largest magnitude is `most`.
__device__ __forceinline__ float fp8_scale(float most) { return most == 0.0f ? 1.0f : __fdiv_rn(most, 448.0f); }

// The lowest free page, held once, to a whole warp. The host has seen to it that there is one.
__device__ __forceinline__ int page_take(const Kv& kv, int lane) {
  int page = 0;
  if (lane == 0) {
    int at = atomicAdd(&kv.counts[0], -1) - 1;
    if (at < 0) __trap();
    page = kv.free_list[at];
    kv.refs[page] = 1;
  }
  return __shfl_sync(FULL, page, 0);
}

// One thread gives up one hold. A page nobody holds is free when the step ends, not before: pops and
// pushes of one list must not run at once.
__device__ __forceinline__ void page_drop(const Kv& kv, int page) {
  if (atomicAdd(&kv.refs[page], -1) == 1) kv.returned[atomicAdd(&kv.counts[1], 1)] = page;
}

// The page of a table's entry, fit to be written: never one that another sequence holds too. By a
// whole warp. Whoever finds one hold left finds the other holders' copies done.
__device__ __forceinline__ int page_own(const Kv& kv, int* entry, int lane) {
  int page = *entry;
  int holders = lane == 0 ? *(volatile int*)&kv.refs[page] : 0;
  if (__shfl_sync(FULL, holders, 0) == 1) return page;
  int copy = page_take(kv, lane);
  const uint4* from = (const uint4*)page_at(kv, page);
  uint4* to = (uint4*)page_at(kv, copy);
  for (int i = lane; i < (int)(kv.stride / 16); i += 32) to[i] = from[i];
  __threadfence();
  __syncwarp();
  if (lane == 0) {
    *entry = copy;
    page_drop(kv, page);
  }
  __syncwarp();
  return copy;
}
