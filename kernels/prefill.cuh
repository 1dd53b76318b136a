// What the kernels of prefill attention share: parameters, and the tile of query rows that a block
// works on.
#pragma once
#include "codec.cuh"
#include "far.cuh"
#include "policy_dms.cuh"
#include "sinks.cuh"

#define FOREVER 0x7fffffff

// Mirrors `backend::cuda::abi::PrefillParams`.
struct PrefillParams {
  Kv kv;
  void* out;               // [n, n_q_heads * head_dim], bf16 or f32
  float* partials;         // [blocks, threads, 4 + D / PARTS / 2] softmax states of the splits, of each fragment
  int* arrivals;           // [tiles, n_kv_heads] splits that are done; 0 before and after
  const float* qkv;        // [n, qkv_width] rows after qkv_rope; only q is read
  const float* decisions;  // [n, n_kv_heads]
  const Span* spans;       // of the step
  int out_is_bf16, layer;
  float score_scale;       // 1 / sqrt(head_dim)
  int qkv_width;           // floats from row to row
  u8* unpacked;            // pages of unpacked.cuh; null: none
  int lane_pages, first_staged;  // of them: pages of each lane of the step, and the first of its staged ones
  const float* sinks;      // [n_q_heads] see `sink_weight`; null: none
};
static_assert(sizeof(PrefillParams) == 392 && OFFSET_OF(PrefillParams, out) == 304 && OFFSET_OF(PrefillParams, layer) == 356 &&
                  OFFSET_OF(PrefillParams, unpacked) == 368,
              "backend::cuda::abi::PrefillParams has another layout");

// What a block works on.
struct Tile {
  int head, group, base, live;
  Dms dms;
  int first_row, last_row;  // of the span
  int index;                // tile of the step
  int lane;                 // of the step: one of its spans and a KV head
  Span span;
  const int *table, *near;  // pages of the slots, and of the near rows that are read after them
  int n_near;
};

// The softmax state of two rows of a tile, 8 apart, of which a warp lane holds channels 8 j + 2
// (lane % 4) and the next, as fragments of mma and of wgmma have them: channel 8 j + 2 (lane % 4) +
// i of row h is acc[4 j + 2 h + i]. max: of the logits, in log2 units; sum: of exp2(logit - max), a
// lane's share until the keys have ended. Nothing seen: max = -inf, sum = 0.
template <int D>
struct RowPair {
  float acc[D / 2], max[2], sum[2];

  __device__ __forceinline__ void init() {
    max[0] = max[1] = NEG_INFINITY, sum[0] = sum[1] = 0.0f;
#pragma unroll
    for (int i = 0; i < D / 2; i++) acc[i] = 0.0f;
  }

  // Saves a split's state to `to` and every `step`-th element after it; merges a saved one.
  __device__ __forceinline__ void save(float4* to, int step) const {
    to[0] = float4{max[0], max[1], sum[0], sum[1]};
#pragma unroll
    for (int j = 0; j < D / 8; j++)
      to[(1 + j) * step] = float4{acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3]};
  }
  __device__ __forceinline__ void merge(const float4* from, int step) {
    float4 a = from[0];
    float more_max[2] = {a.x, a.y}, more_sum[2] = {a.z, a.w}, rescale[2], by[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float top = fmaxf(max[h], more_max[h]), base = top == NEG_INFINITY ? 0.0f : top;
      rescale[h] = exp2_fast(max[h] - base);
      by[h] = exp2_fast(more_max[h] - base);
      max[h] = top;
      sum[h] = sum[h] * rescale[h] + more_sum[h] * by[h];
    }
#pragma unroll
    for (int j = 0; j < D / 8; j++) {
      float4 x = from[(1 + j) * step];
      float* to = acc + 4 * j;
      to[0] = to[0] * rescale[0] + x.x * by[0], to[1] = to[1] * rescale[0] + x.y * by[0];
      to[2] = to[2] * rescale[1] + x.z * by[1], to[3] = to[3] * rescale[1] + x.w * by[1];
    }
  }

  // Writes the normalised output of rows `query` and query + 8 of the tile, whose heads have d
  // channels, of which these are those from `first` on, a multiple of 128. By a whole warp.
  template <class Codec>
  __device__ __forceinline__ void write(const Codec& codec, const PrefillParams& p, const Tile& t, int query, int d, int first) const {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; h++, query += 8) {
      int row = t.first_row + query / t.group, q_head = t.head * t.group + query % t.group;
      float x[D / 8][2], by = codec.sum_factor() / (sum[h] + sink_weight(p.sinks, q_head, max[h]));
#pragma unroll
      for (int j = 0; j < D / 8; j++) x[j][0] = acc[4 * j + 2 * h] * by, x[j][1] = acc[4 * j + 2 * h + 1] * by;
      if (Codec::ROTATED) unrotate_fragment<D>(x, d, lane);
      if (row > t.last_row) continue;
      u64 at = ((u64)(t.span.start + row) * p.kv.n_q_heads + q_head) * d + first + lane % 4 * 2;
#pragma unroll
      for (int j = 0; j < D / 8; j++)
        if (first + 8 * j < d) put2(p.out, p.out_is_bf16, at + 8 * j, x[j][0], x[j][1]);
    }
  }
};

// Queries of ROWS rows of a tile from `first` on as bf16 to shared memory, eight channels at a time
// to at(row, chunk); zeros where a row has no token. By THREADS threads.
template <int D, class Codec, int ROWS, int THREADS, class At>
__device__ __forceinline__ void load_queries(const PrefillParams& p, const Tile& t, int first, int thread, int d, const At& at) {
  const float by = Codec::QUERY_FACTOR;
#pragma unroll 4
  for (int i = thread; i < ROWS * D / 8; i += THREADS) {
    int query = first + i / (D / 8), chunk = i % (D / 8), row = t.first_row + query / t.group;
    float4 a = {0, 0, 0, 0}, b = {0, 0, 0, 0};
    if (row <= t.last_row && 8 * chunk < d) {
      const float* from = p.qkv + (u64)(t.span.start + row) * p.qkv_width + (t.head * t.group + query % t.group) * d + 8 * chunk;
      a = *(const float4*)from, b = *(const float4*)(from + 4);
    }
    *(uint4*)at(query, chunk) = uint4{round_pair(a.x * by, a.y * by), round_pair(a.z * by, a.w * by),
                                      round_pair(b.x * by, b.y * by), round_pair(b.z * by, b.w * by)};
  }
}

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
  t.dms = dms_of(kv, layer, t.span.seq);
  int lane_row = lane_index(kv, layer, t.span.seq, t.head);
  t.live = kv.live[lane_row];
  t.table = kv.table + (u64)lane_row * kv.max_pages;
  t.near = nullptr, t.n_near = 0;
  if (keeps_far(kv, layer)) {
    t.near = near_of(kv, lane_row), t.n_near = kv.near_rows[lane_row];
    // What leaves is kept and stays visible.
    t.dms.eviction = 0;
  }
  return t;
}
