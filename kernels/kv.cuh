// The KV cache in device memory, as `backend::KvTables` describes it: the view that kernels get,
// the layout of a page, and the reference counts of pages. Knows no codec: offsets within a page,
// and what tells codes of one byte apart, are data of the view.
#pragma once
#include "common.cuh"

#define PAGE_SLOTS 16  // as `cache::PAGE_SLOTS`

// Layers whose heads and rows the view describes, where they are not those of all layers. Mirrors
// `backend::cuda::abi::layers`.
enum LayersOf { ALL_LAYERS, LOCAL_LAYERS, OTHER_LAYERS };

// What a policy other than the eviction rule does: bits of `Kv::policy`. Mirrors
// `backend::cuda::abi::policy`.
enum PolicyBits {
  SCORES = 1,        // attention weights choose what is dropped: see policy_scored.cuh
  BY_LAYER = 2,      // the lanes of a layer share their scores, and drop the same tokens
  SUMS_SCORES = 4,   // a score remembers all queries, not only the last
  KEEPS_NEWEST = 8,  // the newest half of the budget is never dropped
  READS_PAGES = 16,  // a decode token reads some of its pages
};

// Mirrors `backend::cuda::abi::View` field by field.
struct Kv {
  u8* pages;       // page p begins at p * stride
  int* table;      // [n_layers, n_lanes, max_pages] page of every PAGE_SLOTS slots of a lane
  int* live;       // [n_layers, n_lanes] stored slots
  int* ring;       // [n_layers, n_lanes, ring_len] slots of the newest tokens
  int* seq_len;    // [n_seqs] tokens before this step
  int* eviction;   // [n_seqs] whether marked tokens are dropped
  int* slots;      // [n_tokens, n_kv_heads] slot of each token of a prefill chunk; -1: none any more
  int* refs;       // [pages of the pool] sequences that hold a page
  int* free_list;  // free pages, the next one last
  int* returned;   // pages freed in this step: they join free_list when it ends
  int* counts;     // [2] lengths of free_list and returned
  u8* staged;      // K and V of a step's tokens as they will be stored: see staged_at and staged_token_at
  u64* reads;      // [n_seqs] slots that decode steps have read
  u32* peak;       // [n_seqs] most slots that lived after a step
  float* dial;     // [n_seqs] what a decision must exceed to mark
  int* pinned;     // [n_tokens] whether the token that a row's decision marks is pinned
  u64 stride;      // bytes from page to page
  // Heads of the layers of `layers_of`. Tables have `table_heads` lanes for each layer and
  // sequence, the most of any layer; those that a layer lacks are empty.
  int n_layers, n_q_heads, n_kv_heads, head_dim, n_seqs, max_pages;
  // Layout of a page in those layers: PAGE_SLOTS rows of K at 0, of V at v_at, of K's and V's side
  // data, a u32 each (0: the codec has none), and of the slots' metadata.
  int k_bytes, v_bytes, v_at, k_sides_at, v_sides_at, meta_at;
  // The eviction rule: see policy_dms.cuh.
  int evicts, window, previous, sinks;
  // Other policies: PolicyBits, and slots that a lane stores or a query reads (below 0: see
  // budget_at). 0 where there is none.
  int policy, budget;
  float* score;  // [n_layers, n_lanes, max_pages * PAGE_SLOTS] scores of the stored slots, or null
  // A bit for each local layer: those see `local_window` tokens, whatever the rule of the others.
  // `ring_len`: of the longest ring.
  u64 local[4];
  int local_window, ring_len;
  // Codes of one byte, of K at least: see codec_bytes.cuh.
  u32 code_factor, code_shift, code_bits;
  int table_heads, layers_of, unused;
  // Rows that have left their lanes, where they are kept: see far.cuh. Null where they are gone.
  int* near;       // [n_layers, n_lanes, max_pages] page of every PAGE_SLOTS far rows that attention reads
  int* near_rows;  // [n_layers, n_lanes] those rows
  u16* recent;     // [n_layers, n_seqs, RECENT_QUERIES, n_q_heads, head_dim] newest queries in bf16, after RoPE
};
static_assert(sizeof(Kv) == 304 && OFFSET_OF(Kv, table) == 8 && OFFSET_OF(Kv, staged) == 88 &&
                  OFFSET_OF(Kv, reads) == 96 && OFFSET_OF(Kv, stride) == 128 && OFFSET_OF(Kv, n_layers) == 136 &&
                  OFFSET_OF(Kv, k_bytes) == 160 && OFFSET_OF(Kv, meta_at) == 180 && OFFSET_OF(Kv, sinks) == 196 &&
                  OFFSET_OF(Kv, score) == 208 && OFFSET_OF(Kv, local) == 216 && OFFSET_OF(Kv, ring_len) == 252 &&
                  OFFSET_OF(Kv, near) == 280,
              "backend::cuda::abi::View has another layout");

// Consecutive rows of one sequence in a step: mirrors `backend::cuda::abi::DeviceSpan`.
struct Span {
  int seq, start, len;
  int before;  // rows of the sequence that the step has fed already: 0 but under policies with scores
};
static_assert(sizeof(Span) == 16 && OFFSET_OF(Span, start) == 4 && OFFSET_OF(Span, len) == 8 &&
                  OFFSET_OF(Span, before) == 12,
              "backend::cuda::abi::DeviceSpan has another layout");

// Index of a lane, one KV head of one sequence in one layer, in [n_layers, n_lanes].
__device__ __forceinline__ int lane_index(const Kv& kv, int layer, int seq, int head) {
  return (layer * kv.n_seqs + seq) * kv.table_heads + head;
}

__device__ __forceinline__ bool is_local(const Kv& kv, int layer) { return kv.local[layer / 64] >> layer % 64 & 1; }

// Whether the view has the heads and rows of a layer. A launch over all layers skips the others,
// which another launch covers.
__device__ __forceinline__ bool describes(const Kv& kv, int layer) {
  return kv.layers_of == ALL_LAYERS || is_local(kv, layer) == (kv.layers_of == LOCAL_LAYERS);
}

// Whether the token that a row's decision marks is pinned: never where the model's window decides.
__device__ __forceinline__ bool is_pinned(const Kv& kv, int layer, int row) { return kv.pinned[row] && !is_local(kv, layer); }

__device__ __forceinline__ u8* page_at(const Kv& kv, int page) { return kv.pages + (u64)page * kv.stride; }

// Row r of a page: the code bytes and side data of K (v = 0) or V (1), and the metadata.
__device__ __forceinline__ int row_bytes(const Kv& kv, int v) { return v ? kv.v_bytes : kv.k_bytes; }
__device__ __forceinline__ u8* row_at(const Kv& kv, u8* page, int r, int v) {
  return page + (v ? kv.v_at + r * kv.v_bytes : r * kv.k_bytes);
}
__device__ __forceinline__ u32* side_at(const Kv& kv, u8* page, int r, int v) {
  return (u32*)(page + (v ? kv.v_sides_at : kv.k_sides_at)) + r;
}
__device__ __forceinline__ int* meta_at(const Kv& kv, u8* page, int r) { return (int*)(page + kv.meta_at) + r; }

// Whether attention counts what decode tokens read; elsewhere that is what lives after the step.
__device__ __forceinline__ bool attention_counts_reads(const Kv& kv) { return kv.policy & (SCORES | READS_PAGES); }

// Slots under the budget once `tokens` tokens were fed. CPU twin: `policy::Budget::at`.
__device__ __forceinline__ int budget_at(const Kv& kv, int tokens) {
  const u32 UNIT = 256, FEWEST = 64;
  if (kv.budget >= 0) return kv.budget;
  u32 ratio = (u32)-kv.budget;
  return (int)max(((u32)tokens * UNIT + ratio - 1) / ratio, FEWEST);
}

// Metadata of a slot: 20 bits of the token's position, 11 of its decision's strength, 1 of its
// mark.
__device__ __forceinline__ int pack_meta(int position, int strength, bool marked) {
  return (int)((u32)position << 12 | strength << 1 | marked);
}
__device__ __forceinline__ int meta_position(int meta) { return (int)((u32)meta >> 12); }
__device__ __forceinline__ int meta_strength(int meta) { return meta >> 1 & 0x7ff; }
__device__ __forceinline__ bool meta_marked(int meta) { return meta & 1; }

// Page of a prefill chunk's row in `staged`: 16 rows of one head to a page, row i at i %
// PAGE_SLOTS.
__device__ __forceinline__ u8* staged_at(const Kv& kv, int row, int head) {
  return kv.staged + ((u64)(row / PAGE_SLOTS) * kv.n_kv_heads + head) * kv.stride;
}

// Page in `staged` that holds the token of a decode step in a lane, at row `lane_row % PAGE_SLOTS`;
// lane_row: see lane_index. The word of its metadata holds the token's decision until it has a
// slot.
__device__ __forceinline__ u8* staged_token_at(const Kv& kv, int lane_row) {
  return kv.staged + (u64)(lane_row / PAGE_SLOTS) * kv.stride;
}

// Where each row of a step is staged as the token of a decode step is, until it is committed: the
// pages of a row lie `bytes` behind those of the row before it. Mirrors `backend::cuda::abi::Kept`.
struct Kept {
  u8* at;  // null: nowhere
  u64 bytes;

  // As staged_token_at; null where rows are not kept.
  __device__ __forceinline__ u8* page(const Kv& kv, int row, int lane_row) const {
    return at ? at + row * bytes + (u64)(lane_row / PAGE_SLOTS) * kv.stride : nullptr;
  }
};

// Copies K, V and their side data of one slot by a warp. Rows are multiples of 8 bytes.
__device__ __forceinline__ void copy_row(const Kv& kv, u8* to, int to_r, u8* from, int from_r, int lane) {
  int k_words = kv.k_bytes / 8, words = k_words + kv.v_bytes / 8;
  for (int i = lane; i < words; i += 32) {
    int v = i >= k_words, at = i - v * k_words;
    ((uint2*)row_at(kv, to, to_r, v))[at] = ((const uint2*)row_at(kv, from, from_r, v))[at];
  }
  if (kv.k_sides_at > 0 && lane < 2) *side_at(kv, to, to_r, lane) = *side_at(kv, from, from_r, lane);
}

// Takes the lowest free page, with a reference count of 1. By a whole warp. The host has reserved
// enough.
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

// Drops one reference to a page. By one thread. A page without references is free from the end of
// the step on, not before: the free list must not be pushed to and popped from at once.
__device__ __forceinline__ void page_drop(const Kv& kv, int page) {
  if (atomicAdd(&kv.refs[page], -1) == 1) kv.returned[atomicAdd(&kv.counts[1], 1)] = page;
}

// Makes the page of a table entry writable, by copying it if another sequence holds it too, and
// returns it. By a whole warp. Whoever reads a reference count of 1 finds the copies of the other
// holders done.
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
