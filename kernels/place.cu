// Slot assignment for prefill chunks, and what happens to whole sequences: the end of a step, fork,
// release, compaction. Slot numbers agree with the CPU's one for one. CPU twin: `backend::cpu::kv`.
#include "policy_scored.cuh"

#define MAX_THREADS 1024  // of a block of `place`

// Assigns slots to one span's tokens in one lane, as if one token after the other. Up to W + 1
// tokens are placed at once: what leaves the window at their arrival was placed before them, so
// each token knows by itself whether it overwrites that slot or appends one, and a prefix sum
// numbers the new slots. With a window of 0 and decisions about the token before, the newest token
// is in the last slot and each token knows from its own decision whether it takes that over, so
// that any number is placed at once: that is how tokens merge. Grid (n_kv_heads, spans), up to
// MAX_THREADS threads in whole warps. Moves a few words a token, and copies pages that are shared.
KERNEL __launch_bounds__(MAX_THREADS) place(Kv kv, const float* decisions, int layer, const Span* spans) {
  after_previous();
  __shared__ int slot_of[MAX_THREADS], appended[MAX_THREADS / 32], left[MAX_THREADS], top, shared, near_top;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, threads = blockDim.x;
  Span span = spans[blockIdx.y];
  Lane l = lane_of(kv, layer, span.seq, blockIdx.x);
  Dms dms = dms_of(kv, layer, span.seq);
  int heads = kv.n_kv_heads, ring_len = dms.ring_len(), size = PAGE_SLOTS;
  int base = kv.seq_len[span.seq], live = kv.live[l.row];
  const float* decision = decisions + span.start * heads + l.head;
  // The first row's decision is about the newest stored token.
  if (base > 0 && dms.decided_by(-1) == 0 && warp == 0)
    set_meta(kv, l, l.ring[dms.ring_at(base - 1)], dms.decided(base - 1, decision[0]), lane);
  bool to_last = dms.evicts && dms.window == 0 && dms.previous, far = keeps_far(kv, layer);
  int chunk = dms.evicts && !to_last && ring_len < threads ? ring_len : threads;
  // Whether row `i` takes over the last slot, if `to_last`.
  auto joins = [&](int i) {
    return to_last && dms.eviction && i < span.len && base + i > 0 && dms.marks(decision[i * heads], base + i - 1);
  };
  // chunks of the span, a token a thread
#pragma unroll 1
  for (int first = 0; first < span.len; first += chunk) {
    __syncthreads();
    int i = first + threadIdx.x, n = base + i, slot = -1;
    bool mine = (int)threadIdx.x < chunk && i < span.len;
    // overwrite the slot that leaves the window, or append
    bool joined = mine && joins(i), superseded = mine && joins(i + 1);
    if (mine && !to_last && dms.leaves_at(n)) {
      int leaving = l.ring[dms.ring_at(n)];
      slot = dms.overwritten(leaving, meta_marked(slot_meta(kv, l, leaving)));
    }
    bool overwrites = slot >= 0 || joined;
    u32 appends = __ballot_sync(FULL, mine && !overwrites);
    if (lane == 0) appended[warp] = __popc(appends);
    if (threadIdx.x == 0) shared = 0;
    __syncthreads();
    // prefix sum of the appended slots
    int before = __popc(appends & ((1u << lane) - 1)), total = 0;
    for (int w = 0; w < threads / 32; w++) {
      before += w < warp ? appended[w] : 0;
      total += appended[w];
    }
    if (mine && !overwrites) slot = live + before;
    if (joined) slot = live + before - 1;
    slot_of[threadIdx.x] = mine ? slot : -1;

    // new pages for appended slots
    int held = (live + size - 1) / size, fresh = (live + total + size - 1) / size - held;
    if (threadIdx.x == 0 && fresh > 0) {
      top = atomicAdd(&kv.counts[0], -fresh);
      if (top < fresh) __trap();
    }
    // Whether a page to be written to is shared. Another block may copy it meanwhile: then it is
    // seen as shared or as owned.
    if (mine && slot / size < held && *(volatile int*)&kv.refs[l.pages[slot / size]] > 1) shared = 1;
    __syncthreads();
    for (int j = threadIdx.x; j < fresh; j += threads) {
      int page = kv.free_list[top - 1 - j];
      kv.refs[page] = 1;
      l.pages[held + j] = page;
    }
    if (shared && warp == 0) {
      // copy on write
      for (int k = 0; k < chunk; k++) {
        int entry = slot_of[k] / size;
        if (slot_of[k] >= 0 && entry < held) page_own(kv, l.pages + entry, lane);
      }
    }
    __syncthreads();

    // Rows that leave are kept in the order in which they leave, before their slots change. Those
    // of this step are staged.
    int leaving = min(chunk, span.len - first) - total;
    if (far && leaving > 0) {
      int n_near = kv.near_rows[l.row], *near = near_of(kv, l.row), entry = (n_near + size - 1) / size;
      int more = (n_near + leaving + size - 1) / size - entry;
      if (mine && overwrites) left[threadIdx.x - before] = threadIdx.x;
      if (n_near % size && warp == 0) page_own(kv, near + entry - 1, lane);
      if (threadIdx.x == 0 && more > 0) {
        near_top = atomicAdd(&kv.counts[0], -more);
        if (near_top < more) __trap();
      }
      __syncthreads();
      for (int j = threadIdx.x; j < more; j += threads) {
        int page = kv.free_list[near_top - 1 - j];
        kv.refs[page] = 1;
        near[entry + j] = page;
      }
      __syncthreads();
#pragma unroll 1
      for (int k = warp; k < leaving; k += threads / 32) {
        int row = first + left[k], from = row - (to_last ? 1 : ring_len), taken = slot_of[left[k]], to = n_near + k;
        u8 *page = page_at(kv, l.pages[taken / size]), *kept = page_at(kv, near[to / size]);
        int meta = *meta_at(kv, page, taken % size);
        if (from < 0) copy_row(kv, kept, to % size, page, taken % size, lane);
        else copy_row(kv, kept, to % size, staged_at(kv, span.start + from, l.head), (span.start + from) % size, lane);
        // Where tokens take over the last slot, only the last of them has written its metadata.
        if (to_last && from >= 0) meta = dms.decided(base + from, decision[row * heads]);
        if (lane == 0) *meta_at(kv, kept, to % size) = meta;
      }
      __syncthreads();
      if (threadIdx.x == 0) kv.near_rows[l.row] = n_near + leaving;
    }

    // metadata, slot and ring entry; the last token of a slot writes them
    if (superseded) kv.slots[(span.start + i) * heads + l.head] = -1;
    if (mine && !superseded) {
      int at = (span.start + i) * heads + l.head;
      int decided = dms.decided_by(i);
      int meta = decided < span.len ? dms.decided(n, decision[decided * heads]) : pack_meta(n, 0, false);
      *meta_at(kv, page_at(kv, l.pages[slot / size]), slot % size) = meta;
      kv.slots[at] = slot;
      if (dms.evicts && (!to_last || i == span.len - 1)) l.ring[dms.ring_at(n)] = slot;
      // A token of this step that had the slot is overwritten before it is stored.
      if (overwrites && !joined && i >= ring_len) kv.slots[at - ring_len * heads] = -1;
    }
    live += total;
  }
  if (threadIdx.x == 0) kv.live[l.row] = live;
}

// Appends the tokens of a decode step: see append_tokens.
KERNEL __launch_bounds__(32 * APPEND_WARPS, 4) append(Kv kv, const Span* spans, int first_layer, Kept kept) {
  append_tokens(kv, spans, first_layer, kept, [](const AppendedSlot&, int) {});
}

// Ends a step: adds every span's length to its sequence's, sets the bits of its tokens in seen
// [n_seqs, words] unless tokens is null, counts the slots that live, and lets freed pages join the
// free list: no other block of the launch takes or frees pages. That alone, for no spans, after
// `release` and the like. A warp for a span; grid covers n_spans. Reads the live counts of every
// lane of the step. CPU twin: `backend::cpu::kv::advance`.
KERNEL advance(Kv kv, const Span* spans, int n_spans, u32* seen, const u32* tokens, int words) {
  after_previous();
  int i = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (i < n_spans) {
    Span span = spans[i];
    for (int row = lane; tokens && row < span.len; row += 32) {
      u32 token = tokens[span.start + row];
      atomicOr(&seen[(u64)span.seq * words + token / 32], 1u << (token % 32));
    }
    u32 live = 0, near = 0;
    for (int j = lane; j < kv.n_layers * kv.table_heads; j += 32) {
      int row = lane_index(kv, j / kv.table_heads, span.seq, j % kv.table_heads);
      live += kv.live[row], near += kv.near ? kv.near_rows[row] : 0;
    }
    live = warp_sum(live), near = warp_sum(near);
    if (lane == 0) {
      kv.seq_len[span.seq] += span.len;
      kv.peak[span.seq] = max(kv.peak[span.seq], live);
      // A decode token attends to exactly the slots that live once it has its own, and to near
      // rows.
      if (span.len == 1 && !attention_counts_reads(kv)) kv.reads[span.seq] += live + near;
    }
  }
  if (blockIdx.x > 0) return;
  int free = kv.counts[0], back = kv.counts[1];
  for (int i = threadIdx.x; i < back; i += blockDim.x) kv.free_list[free + i] = kv.returned[i];
  __syncthreads();
  if (threadIdx.x == 0) kv.counts[0] = free + back, kv.counts[1] = 0;
}

// Sequence `to` becomes a copy of `from` that shares its pages. Grid (table_heads, n_layers), any
// block. Copies page numbers, the ring and the scores of each lane.
KERNEL fork(Kv kv, int from, int to) {
  after_previous();
  Lane a = lane_of(kv, blockIdx.y, from, blockIdx.x), b = lane_of(kv, blockIdx.y, to, blockIdx.x);
  int live = kv.live[a.row], held = (live + PAGE_SLOTS - 1) / PAGE_SLOTS;
  for (int i = threadIdx.x; i < held; i += blockDim.x) {
    b.pages[i] = a.pages[i];
    atomicAdd(&kv.refs[a.pages[i]], 1);
  }
  for (int i = threadIdx.x; i < kv.ring_len; i += blockDim.x) b.ring[i] = a.ring[i];
  if (kv.score)
    for (int i = threadIdx.x; i < live; i += blockDim.x) b.scores[i] = a.scores[i];
  if (kv.near) {
    int rows = kv.near_rows[a.row], *from = near_of(kv, a.row), *near = near_of(kv, b.row);
    for (int i = threadIdx.x; i * PAGE_SLOTS < rows; i += blockDim.x) {
      near[i] = from[i];
      atomicAdd(&kv.refs[from[i]], 1);
    }
    if (threadIdx.x == 0) kv.near_rows[b.row] = rows;
  }
  if (threadIdx.x == 0) kv.live[b.row] = live;
  if (threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.y == 0) {
    kv.seq_len[to] = kv.seq_len[from];
    kv.eviction[to] = kv.eviction[from];
    kv.dial[to] = kv.dial[from];
    kv.reads[to] = kv.reads[from];
    kv.peak[to] = kv.peak[from];
  }
}

// Empties a sequence and drops its pages. Grid (table_heads, n_layers), any block.
KERNEL release(Kv kv, int seq) {
  after_previous();
  Lane l = lane_of(kv, blockIdx.y, seq, blockIdx.x);
  int held = (kv.live[l.row] + PAGE_SLOTS - 1) / PAGE_SLOTS;
  for (int i = threadIdx.x; i < held; i += blockDim.x) {
    page_drop(kv, l.pages[i]);
    l.pages[i] = -1;
  }
  if (kv.near)
    for (int i = threadIdx.x; i * PAGE_SLOTS < kv.near_rows[l.row]; i += blockDim.x) page_drop(kv, near_of(kv, l.row)[i]);
  __syncthreads();
  if (threadIdx.x == 0) {
    kv.live[l.row] = 0;
    if (kv.near) kv.near_rows[l.row] = 0;
  }
  if (threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.y == 0) {
    kv.seq_len[seq] = 0;
    kv.reads[seq] = 0;
    kv.peak[seq] = 0;
  }
}

// Drops the slots that `drops(slot, meta)` names and closes the gaps. By a warp. Slots only move
// down, in order: pages that this lane alone holds are compacted in place, and a shared one is
// replaced by a fresh page once the slots of that entry have moved. Copies at most the lane's live
// slots.
template <class Drops>
__device__ __forceinline__ void close_gaps(const Kv& kv, const Dms& dms, const Lane& l, int n, int live, int lane,
                                           const Drops& drops) {
  int window_start = max(n - dms.ring_len(), 0), size = PAGE_SLOTS;
  // move the kept slots down
  int to = 0, target = -1;
  for (int slot = 0; slot < live; slot++) {
    u8* from = page_at(kv, l.pages[slot / size]);
    int meta = *meta_at(kv, from, slot % size);
    __syncwarp();
    if (drops(slot, meta)) continue;
    if (to % size == 0) {
      // the page filled before enters the table
      if (target >= 0 && lane == 0 && l.pages[to / size - 1] != target) {
        page_drop(kv, l.pages[to / size - 1]);
        l.pages[to / size - 1] = target;
      }
      target = l.pages[to / size];
      int holders = lane == 0 ? *(volatile int*)&kv.refs[target] : 0;
      if (__shfl_sync(FULL, holders, 0) != 1) target = page_take(kv, lane);
      __syncwarp();
    }
    if (to != slot || page_at(kv, target) != from) {
      copy_row(kv, page_at(kv, target), to % size, from, slot % size, lane);
      if (lane == 0) *meta_at(kv, page_at(kv, target), to % size) = meta;
    }
    if (lane == 0 && dms.evicts && meta_position(meta) >= window_start) l.ring[dms.ring_at(meta_position(meta))] = to;
    if (lane == 0 && kv.score) l.scores[to] = l.scores[slot];
    to++;
    __syncwarp();
  }
  if (lane == 0) {
    int last = (to - 1) / size;
    if (target >= 0 && l.pages[last] != target) {
      page_drop(kv, l.pages[last]);
      l.pages[last] = target;
    }
    for (int i = (to + size - 1) / size; i < (live + size - 1) / size; i++) {
      page_drop(kv, l.pages[i]);
      l.pages[i] = -1;
    }
    kv.live[l.row] = to;
  }
}

// Keeps the rows that `drops` names, in the order of their positions, of which there are n. By a
// warp. Reads the metadata of all slots once for every POSITIONS positions.
#define POSITIONS 2048
template <class Drops>
__device__ __forceinline__ void keep_dropped(const Kv& kv, const Lane& l, int n, int live, int lane, const Drops& drops) {
  __shared__ int slot_at[POSITIONS];
  for (int first = 0; first < n; first += POSITIONS) {
    for (int i = lane; i < POSITIONS; i += 32) slot_at[i] = -1;
    __syncwarp();
    for (int slot = lane; slot < live; slot += 32) {
      int meta = slot_meta(kv, l, slot), at = meta_position(meta) - first;
      if (at >= 0 && at < POSITIONS && drops(slot, meta)) slot_at[at] = slot;
    }
    __syncwarp();
    for (int i = lane; i < POSITIONS; i += 32) {
      int slot = slot_at[i];
      for (u32 rest = __ballot_sync(FULL, slot >= 0); rest; rest &= rest - 1) {
        int leaving = __shfl_sync(FULL, slot, __ffs(rest) - 1);
        append_near(kv, l.row, page_at(kv, l.pages[leaving / PAGE_SLOTS]), leaving % PAGE_SLOTS, slot_meta(kv, l, leaving), lane);
      }
    }
    __syncwarp();
  }
}

// Drops the slots outside the window that are marked or at least as strong as `threshold`. If
// `far`, their rows are kept.
__device__ __forceinline__ void drop_marked(const Kv& kv, const Dms& dms, const Lane& l, int n, int live, int lane, int threshold,
                                            bool far) {
  // anything to drop?
  int kept = 0;
  for (int slot = 0; slot < live; slot++) kept += !dms.drops(slot_meta(kv, l, slot), n - 1, threshold);
  if (kept == live) return;
  __syncwarp();
  auto drops = [&](int, int meta) { return dms.drops(meta, n - 1, threshold); };
  if (far) keep_dropped(kv, l, n, live, lane, drops);
  close_gaps(kv, dms, l, n, live, lane, drops);
}

// Drops the slots with the least scores that exceed the budget: what dropping one token after the
// other by the present scores leaves. Reads the scores 64 times. CPU twin: `policy::Scored::keep`.
__device__ __forceinline__ void drop_least(const Kv& kv, const Dms& dms, const Lane& l, int n, int live, int lane) {
  int excess = live - budget_at(kv, n), first_kept = protected_from(kv, n);
  if (excess <= 0) return;
  auto key_of = [&](int slot, int meta) {
    int position = meta_position(meta);
    return position < first_kept ? score_key(ranked(kv, l.scores[slot], n, position), slot) : NO_SLOT;
  };
  // the excess-th key in order, one bit after the other; all that may be dropped where they are
  // fewer
  u64 last = 0;
  for (int bit = 63; bit >= 0; bit--) {
    u64 below = last | ((1ull << bit) - 1);
    int n_below = 0;
    for (int slot = lane; slot < live; slot += 32) n_below += key_of(slot, slot_meta(kv, l, slot)) <= below;
    if (warp_sum(n_below) < excess) last |= 1ull << bit;
  }
  close_gaps(kv, dms, l, n, live, lane, [&](int slot, int meta) {
    u64 key = key_of(slot, meta);
    return key != NO_SLOT && key <= last;
  });
}

// Drops what a policy drops when eviction is switched on again, and closes the gaps, in the layers
// from `first_layer` on. If `keep`, rows that can be kept are. Grid (n_kv_heads, layers), 32
// threads.
KERNEL __launch_bounds__(32) compact(Kv kv, int seq, int threshold, int first_layer, int keep) {
  after_previous();
  int layer = first_layer + blockIdx.y;
  if (!describes(kv, layer)) return;
  Lane l = lane_of(kv, layer, seq, blockIdx.x);
  int lane = threadIdx.x, n = kv.seq_len[seq], live = kv.live[l.row];
  Dms dms = dms_of(kv, layer, seq);
  if (kv.policy & SCORES) drop_least(kv, dms, l, n, live, lane);
  else drop_marked(kv, dms, l, n, live, lane, threshold, keep && keeps_far(kv, layer));
}

// Sets strength and mark of the stored tokens at positions from `from` to below `to`; `rating` is
// metadata of position 0. Grid (n_kv_heads, n_layers), 32 threads. Reads the metadata of all slots,
// and copies pages that are shared. Local layers stay as they are: what they see is the model's.
KERNEL rate_slots(Kv kv, int seq, int from, int to, int rating) {
  after_previous();
  if (is_local(kv, blockIdx.y)) return;
  Lane l = lane_of(kv, blockIdx.y, seq, blockIdx.x);
  int lane = threadIdx.x, live = kv.live[l.row];
  for (int slot = 0; slot < live; slot++) {
    int position = meta_position(slot_meta(kv, l, slot));
    __syncwarp();
    if (position >= from && position < to) set_meta(kv, l, slot, pack_meta(position, 0, false) | rating, lane);
  }
}

// Copies the metadata of one lane's slots to out[live], in slot order, or of its near rows from
// row `near` on, if that is not below 0. Grid covers the rows.
KERNEL slot_metas(int* out, Kv kv, int layer, int seq, int head, int near) {
  after_previous();
  Lane l = lane_of(kv, layer, seq, head);
  int slot = blockIdx.x * blockDim.x + threadIdx.x, row = slot + near;
  if (near < 0 && slot < kv.live[l.row]) out[slot] = slot_meta(kv, l, slot);
  if (near >= 0 && row < kv.near_rows[l.row])
    out[slot] = *meta_at(kv, page_at(kv, near_of(kv, l.row)[row / PAGE_SLOTS]), row % PAGE_SLOTS);
}
