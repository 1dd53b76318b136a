// Lanes and their slots, and how a decode token gets one. CPU twin: `backend::cpu::kv::place`, slot
// for slot.
#pragma once
#include "far.cuh"
#include "policy_dms.cuh"

// One KV head of one sequence in one layer.
struct Lane {
  int row, head;  // index in [n_layers, n_lanes]; KV head
  int* pages;     // [max_pages]
  int* ring;      // [ring_len]
  float* scores;  // [max_pages * PAGE_SLOTS] of the stored slots, where the policy has scores
};

__device__ __forceinline__ Lane lane_of(const Kv& kv, int layer, int seq, int head) {
  Lane l;
  l.row = lane_index(kv, layer, seq, head);
  l.head = head;
  l.pages = kv.table + (u64)l.row * kv.max_pages;
  l.ring = kv.ring + (u64)l.row * kv.ring_len;
  l.scores = kv.score + (u64)l.row * kv.max_pages * PAGE_SLOTS;
  return l;
}

__device__ __forceinline__ int slot_meta(const Kv& kv, const Lane& l, int slot) {
  return *meta_at(kv, page_at(kv, l.pages[slot / PAGE_SLOTS]), slot % PAGE_SLOTS);
}

// By a whole warp.
__device__ __forceinline__ void set_meta(const Kv& kv, const Lane& l, int slot, int meta, int lane) {
  int page = page_own(kv, l.pages + slot / PAGE_SLOTS, lane);
  if (lane == 0) *meta_at(kv, page_at(kv, page), slot % PAGE_SLOTS) = meta;
  __syncwarp();
}

// The slot of a decode token: what `place` does for many tokens, for one. By a whole warp.
struct SlotAssignment {
  int n, live;          // position of the token; slots stored before it
  int newest, leaving;  // slots of the newest token, where this token's decision marks that one, and of the token that
                        // leaves the window; -1 where there is none
  bool marked;          // the leaving one is marked

  // Reads what the steps before this one left. Nothing before `assign` changes it.
  __device__ __forceinline__ void load(const Kv& kv, const Dms& dms, const Lane& l, int n) {
    this->n = n;
    live = kv.live[l.row];
    newest = dms.previous && n > 0 ? l.ring[dms.ring_at(n - 1)] : -1;
    leaving = dms.leaves_at(n) ? l.ring[dms.ring_at(n)] : -1;
    marked = leaving >= 0 && meta_marked(slot_meta(kv, l, leaving));
  }

  // With a window of 0 the newest token leaves at once, by the very decision that marks it.
  __device__ __forceinline__ bool needs_decision() const { return !marked && newest >= 0 && newest == leaving; }

  // The slot that the token overwrites, -1: none.
  __device__ __forceinline__ int overwritten(const Dms& dms, float decision) const {
    return dms.overwritten(leaving, marked || (needs_decision() && dms.marks(decision, n - 1)));
  }

  // Takes the slot and returns it, and its page, which is the lane's own then. If `far`, a row that
  // leaves is kept.
  __device__ __forceinline__ int assign(const Kv& kv, const Dms& dms, const Lane& l, float decision, bool far, int lane,
                                        int& page) const {
    if (newest >= 0) set_meta(kv, l, newest, dms.decided(n - 1, decision), lane);
    int slot = overwritten(dms, decision);
    bool appends = slot < 0;
    if (appends) slot = live;
    int entry = slot / PAGE_SLOTS, r = slot % PAGE_SLOTS;
    if (appends && r == 0) {
      page = page_take(kv, lane);
      if (lane == 0) l.pages[entry] = page;
    } else {
      page = page_own(kv, l.pages + entry, lane);
    }
    if (far && !appends) append_near(kv, l.row, page_at(kv, page), r, *meta_at(kv, page_at(kv, page), r), lane);
    if (lane == 0) {
      *meta_at(kv, page_at(kv, page), r) = dms.decided_by(0) == 0 ? dms.decided(n, decision) : pack_meta(n, 0, false);
      if (dms.evicts) l.ring[dms.ring_at(n)] = slot;
      if (appends) kv.live[l.row] = live + 1;
    }
    __syncwarp();
    return slot;
  }
};

#define APPEND_WARPS 8  // of a block that appends

// A slot that a token was appended to, and where the token was staged.
struct AppendedSlot {
  const Lane& lane;
  const Span& span;
  u8 *page, *staged;  // of the slot, and of the row it was copied from
  int slot, row;      // row in `staged`
  int live;           // slots before it was appended
};

// Appends the tokens of a decode step, which attend.cuh has staged, or rows that were `kept`, one
// after the other, in the layers from
// `first_layer` on. `stored(slot)` is called of each by a whole warp. Of several rows, counts the
// slots that live after each as read.
// Grid (n_kv_heads / APPEND_WARPS, n, layers), APPEND_WARPS warps, one for a lane. Reads and writes
// a slot's bytes. Nothing in a decode step changes what is read before `wait_previous`: no other
// kernel of it stores tokens.
template <class Stored>
__device__ __forceinline__ void append_tokens(const Kv& kv, const Span* spans, int first_layer, Kept kept, const Stored& stored) {
  next_may_begin();
  int lane = threadIdx.x % 32, head = blockIdx.x * APPEND_WARPS + threadIdx.x / 32;
  if (head >= kv.n_kv_heads || !describes(kv, first_layer + blockIdx.z)) return;
  Span span = spans[blockIdx.y];
  Lane l = lane_of(kv, first_layer + blockIdx.z, span.seq, head);
  Dms dms = dms_of(kv, first_layer + blockIdx.z, span.seq);
  SlotAssignment assignment;
  int n = kept.at ? span.len : 1, base = kv.seq_len[span.seq], row = l.row % PAGE_SLOTS, page;
  bool far = keeps_far(kv, first_layer + blockIdx.z);
  u64 lived = 0;
  assignment.load(kv, dms, l, base);
  wait_previous();
#pragma unroll 1
  for (int i = 0; i < n; i++) {
    if (i > 0) assignment.load(kv, dms, l, base + i);
    u8* staged = kept.at ? kept.page(kv, span.start + i, l.row) : staged_token_at(kv, l.row);
    int slot = assignment.assign(kv, dms, l, *(const float*)meta_at(kv, staged, row), far, lane, page);
    u8* to = page_at(kv, page);
    copy_row(kv, to, slot % PAGE_SLOTS, staged, row, lane);
    stored(AppendedSlot{l, span, to, staged, slot, row, assignment.live}, lane);
    lived += max(assignment.live, slot + 1) + (far ? kv.near_rows[l.row] : 0);
    __syncwarp();
  }
  if (n > 1 && lane == 0) atomicAdd(kv.reads + span.seq, lived);
}
