// Copy of the keys and values that a prefill step attends to, decoded from one-byte codes to bf16.
// Prefill attention on Hopper brings its pages to shared memory by TMA. From the cache's own pages,
// every tile of query rows would decode the same codes again.
#pragma once
#include "prefill.cuh"

#define UNPACK_WARPS 8

// A page: PAGE_SLOTS rows of K and of V of 128 channels, their scales, and the metadata of stored
// slots, padded to a multiple of 128 bytes. Lane i of the step, i = span * n_kv_heads + head, has
// its stored slots and then its near rows in lane_pages pages from i * lane_pages on; a lane that
// needs more pages is not unpacked. The pages of the step's own rows begin at first_staged, in the
// order of `staged_at`.
struct UnpackedPage {
  static constexpr int ROW = 128 * 2, V_AT = PAGE_SLOTS * ROW, SCALES_AT = 2 * V_AT, V_SCALES_AT = SCALES_AT + 4 * PAGE_SLOTS;
  static constexpr int META_AT = V_SCALES_AT + 4 * PAGE_SLOTS, BYTES = META_AT + 8 * PAGE_SLOTS;
};
static_assert(UnpackedPage::BYTES == 8448, "backend::cuda::pool::UNPACKED_BYTES");

// Whether the stored slots of a lane, `live` of them, and its near rows are unpacked.
__device__ __forceinline__ bool lane_is_unpacked(const PrefillParams& p, int live, int n_near) {
  return p.unpacked && (live + PAGE_SLOTS - 1) / PAGE_SLOTS + (n_near + PAGE_SLOTS - 1) / PAGE_SLOTS <= p.lane_pages;
}

// Fills the pages of a step. Grid (any, n_kv_heads, spans), UNPACK_WARPS warps; each warp fills one
// page at a time. Reads 4 KiB of codes per page and writes 8 KiB.
__device__ __forceinline__ void unpack_pages(const PrefillParams& p) {
  const int EIGHTS = PAGE_SLOTS * 128 / 8 / 32;  // of K or V, of a warp lane
  after_previous();
  const Kv& kv = p.kv;
  const ByteRows rows(kv);
  Span span = p.spans[blockIdx.z];
  int head = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int lane_row = lane_index(kv, p.layer, span.seq, head), live = kv.live[lane_row];
  int n_near = keeps_far(kv, p.layer) ? kv.near_rows[lane_row] : 0, slots = (live + PAGE_SLOTS - 1) / PAGE_SLOTS;
  const int *table = kv.table + (u64)lane_row * kv.max_pages, *near = near_of(kv, lane_row);
  int stored = lane_is_unpacked(p, live, n_near) ? slots + (n_near + PAGE_SLOTS - 1) / PAGE_SLOTS : 0;
  int first = (blockIdx.z * kv.n_kv_heads + head) * p.lane_pages;
  int staged = span.start / PAGE_SLOTS, end = stored + (span.start + span.len - 1) / PAGE_SLOTS - staged + 1;
  for (int i = blockIdx.x * UNPACK_WARPS + warp; i < end; i += gridDim.x * UNPACK_WARPS) {
    int of_step = staged + i - stored;
    u8* from = i < stored ? page_at(kv, i < slots ? table[i] : near[i - slots]) : staged_at(kv, of_step * PAGE_SLOTS, head);
    int page = i < stored ? first + i : p.first_staged + of_step * kv.n_kv_heads + head;
    u8* to = p.unpacked + (u64)page * UnpackedPage::BYTES;
    ByteRows::Eight k[EIGHTS], v[EIGHTS];
#pragma unroll
    for (int j = 0; j < EIGHTS; j++) k[j] = ByteRows::load(row_at(kv, from, 0, 0), 8 * (lane + 32 * j), true);
#pragma unroll
    for (int j = 0; j < EIGHTS; j++) v[j] = ByteRows::load(row_at(kv, from, 0, 1), 8 * (lane + 32 * j), true);
    u32 scale = *side_at(kv, from, lane % PAGE_SLOTS, lane / PAGE_SLOTS);
    int meta = *meta_at(kv, from, lane % PAGE_SLOTS);
#pragma unroll
    for (int j = 0; j < EIGHTS; j++) ((uint4*)to)[lane + 32 * j] = rows.as_bf16(k[j]);
#pragma unroll
    for (int j = 0; j < EIGHTS; j++) ((uint4*)(to + UnpackedPage::V_AT))[lane + 32 * j] = rows.as_bf16(v[j]);
    ((u32*)(to + UnpackedPage::SCALES_AT))[lane] = scale;
    if (lane < PAGE_SLOTS) ((int*)(to + UnpackedPage::META_AT))[lane] = meta;
  }
}
