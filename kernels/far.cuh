// Rows that have left their lanes, and the newest queries, which choose among them: the rule is in
// `policy::far`. A lane has a list of near rows, those that attention reads: whole far pages of
// FAR_ROWS rows, and then the page that is filling. They lie in pages of the pool, in the layout of
// slots. Where a row is appended inside a step, nothing waits: pages of the pool are taken and
// copied as those of slots are. Between steps the host sends full pages to its memory, and brings
// back those that are chosen (far.cu). CPU twin: `backend::cpu::far`.
#pragma once
#include "kv.cuh"
#include "tensor.cuh"

#define FAR_ROWS 32        // rows of a far page, as `policy::Far::ROWS`
// Queries that are kept of each sequence: those that a choice reads, and as many as the rows of a
// step that may not be committed, whose queries are kept too.
#define RECENT_QUERIES 48  // as `backend::cuda::far::RECENT_QUERIES`

// Whether the rows that leave the lanes of a layer are kept.
__device__ __forceinline__ bool keeps_far(const Kv& kv, int layer) { return kv.near && !is_local(kv, layer); }

// Pages of the near rows of a lane; lane_row: see lane_index.
__device__ __forceinline__ int* near_of(const Kv& kv, int lane_row) { return kv.near + (u64)lane_row * kv.max_pages; }

// Appends row r of a page to the near rows of a lane. By a whole warp, the only one that appends to
// this lane.
__device__ __forceinline__ void append_near(const Kv& kv, int lane_row, u8* from, int r, int meta, int lane) {
  int n = kv.near_rows[lane_row], to = n % PAGE_SLOTS, page;
  int* entry = near_of(kv, lane_row) + n / PAGE_SLOTS;
  if (to == 0) {
    page = page_take(kv, lane);
    if (lane == 0) *entry = page;
  } else {
    page = page_own(kv, entry, lane);
  }
  copy_row(kv, page_at(kv, page), to, from, r, lane);
  if (lane == 0) *meta_at(kv, page_at(kv, page), to) = meta, kv.near_rows[lane_row] = n + 1;
  __syncwarp();
}

// Where the queries of the token at `position` are kept, [n_q_heads, head_dim].
__device__ __forceinline__ u16* recent_at(const Kv& kv, int layer, int seq, int position) {
  u64 row = ((u64)layer * kv.n_seqs + seq) * RECENT_QUERIES + position % RECENT_QUERIES;
  return kv.recent + row * kv.n_q_heads * kv.head_dim;
}

// Keeps one query head. By a warp.
__device__ __forceinline__ void keep_query(const Kv& kv, u16* to, const float* x, int lane) {
  for (int i = 2 * lane; i < kv.head_dim; i += 64) *(u32*)(to + i) = round_pair(x[i], x[i + 1]);
}
