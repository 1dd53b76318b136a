// What the kernels of prefill attention share: parameters, and the tile of query rows that a block works on.
#pragma once
#include "codec.cuh"
#include "policy_dms.cuh"

#define FOREVER 0x7fffffff

// Mirrors `backend::cuda::abi::PrefillParams`.
struct PrefillParams {
  Kv kv;
  void* out;               // [n, n_q_heads * head_dim], bf16 or f32
  float* partials;         // [blocks, (D + 8) * TILE_QUERIES] softmax states of the splits
  int* arrivals;           // [tiles, n_kv_heads] splits that are done; 0 before and after
  const float* qkv;        // [n, (n_q_heads + 2 n_kv_heads) * head_dim] rows after qkv_rope; only q is read
  const float* decisions;  // [n, n_kv_heads]
  const Span* spans;       // of the step
  int out_is_bf16, layer;
  float score_scale;       // 1 / sqrt(head_dim)
  int unused;
  u8* unpacked;            // pages of unpacked.cuh; null: none
  int lane_pages, first_staged;  // of them: pages of each lane of the step, and the first of its staged ones
};
static_assert(sizeof(PrefillParams) == 296 && OFFSET_OF(PrefillParams, out) == 216 && OFFSET_OF(PrefillParams, layer) == 268 &&
                  OFFSET_OF(PrefillParams, unpacked) == 280,
              "backend::cuda::abi::PrefillParams has another layout");

// What a block works on.
struct Tile {
  int head, group, base, eviction, live;
  Dms dms;
  int first_row, last_row;  // of the span
  int index;                // tile of the step
  int lane;                 // of the step: one of its spans and a KV head
  Span span;
  const int* table;
};

// The tile of block blockIdx.z, of QUERIES rows: a row is a token and a query head of the group.
template <int QUERIES>
__device__ __forceinline__ Tile tile_of(const Kv& kv, int layer, const Span* spans) {
  Tile t;
  t.head = blockIdx.y;
  t.group = kv.n_q_heads / kv.n_kv_heads;
  // Late rows have most keys, so their tiles start first.
  int tokens = QUERIES / t.group, at = gridDim.z - 1 - blockIdx.z;
  t.index = at;
  t.span = *spans;
  t.lane = t.head;
  while (at >= (t.span.len + tokens - 1) / tokens) {
    at -= (t.span.len + tokens - 1) / tokens;
    t.span = *++spans;
    t.lane += kv.n_kv_heads;
  }
  t.first_row = at * tokens;
  t.last_row = min(t.first_row + tokens, t.span.len) - 1;
  t.base = kv.seq_len[t.span.seq];
  t.eviction = kv.evicts && kv.eviction[t.span.seq];
  t.dms = dms_of(kv, kv.dial[t.span.seq]);
  int lane_row = lane_index(kv, layer, t.span.seq, t.head);
  t.live = kv.live[lane_row];
  t.table = kv.table + (u64)lane_row * kv.max_pages;
  return t;
}
