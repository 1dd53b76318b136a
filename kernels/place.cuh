// A lane's slots, and how a single token takes one.
#pragma once
#include "kv.cuh"

struct Lane {
  int row, head;
  int* pages;
  int* ring;
};

__device__ __forceinline__ Lane lane_of(const Kv& kv, int layer, int seq, int head) {
  Lane l;
  l.row = kv_row(kv, layer, seq, head);
  l.head = head;
  l.pages = kv.table + (u64)l.row * kv.max_pages;
  l.ring = kv.ring + (u64)l.row * (kv.window + 1);
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

// Token n of a lane, by the policy, as `place` does for many. By a whole warp.
struct Single {
  int n, live, newest, leaving;  // slots, -1 where there is none
  bool marked, marks_newest;     // what leaves, who is marked by the token's decision

  // All that the steps before this one left. Nothing before `take` changes it.
  __device__ __forceinline__ void look(const Kv& kv, const Lane& l, int n, int eviction) {
    int ring_len = kv.window + 1;
    this->n = n;
    live = kv.live[l.row];
    newest = leaving = -1;
    marked = false;
    marks_newest = kv.policy == DMS && kv.shift == SHIFT_PREVIOUS;
    if (marks_newest && n > 0) newest = l.ring[(n - 1) % ring_len];
    if (kv.policy == DMS && eviction && n >= ring_len) {
      leaving = l.ring[n % ring_len];
      marked = slot_meta(kv, l, leaving) & 1;
    }
  }

  // Without a window the newest token leaves at once, by the decision that marks it.
  __device__ __forceinline__ bool waits_for_decision() const { return !marked && newest >= 0 && newest == leaving; }

  // The slot that the token overwrites, -1: none.
  __device__ __forceinline__ int overwritten(bool decided) const {
    return marked || (decided && waits_for_decision()) ? leaving : -1;
  }

  // The slot, whose page is the lane's own.
  __device__ __forceinline__ int take(const Kv& kv, const Lane& l, bool decided, int lane) const {
    if (newest >= 0 && decided) set_meta(kv, l, newest, slot_meta(kv, l, newest) | 1, lane);
    bool overwrites = overwritten(decided) >= 0;
    int slot = overwrites ? leaving : live, entry = slot / PAGE_SLOTS, r = slot % PAGE_SLOTS, page;
    if (!overwrites && r == 0) {
      page = page_take(kv, lane);
      if (lane == 0) l.pages[entry] = page;
    } else {
      page = page_own(kv, l.pages + entry, lane);
    }
    if (lane == 0) {
      *meta_at(kv, page_at(kv, page), r) = n << 1 | (kv.policy == DMS && !marks_newest && decided);
      if (kv.policy == DMS) l.ring[n % (kv.window + 1)] = slot;
      if (!overwrites) kv.live[l.row] = live + 1;
    }
    __syncwarp();
    return slot;
  }
};
