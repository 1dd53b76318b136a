// Who lives where: slots for a step's tokens by the policy, and what happens to whole sequences between
// steps. Slot numbers agree with the CPU's one for one. CPU twin: `backend::cpu::kv`.
#include "place.cuh"

#define PLACE_THREADS 256  // most threads of a block of `place`

// Slots for one span's tokens in one lane, as if token after token. A piece of up to W + 1 tokens is placed
// at once: what leaves the window at its tokens was placed before it, so each token knows by itself whether
// it takes the slot that leaves or a new one, and a prefix sum numbers the new ones. Grid (n_kv_heads,
// spans), whole warps: one for single tokens, PLACE_THREADS for chunks. Moves a few words a token, and a
// page where one is shared.
KERNEL place(Kv kv, const float* decisions, int layer, const Span* spans) {
  after_previous();
  __shared__ int slot_of[PLACE_THREADS], grown[PLACE_THREADS / 32], top, shared;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, threads = blockDim.x;
  Span span = spans[blockIdx.y];
  Lane l = lane_of(kv, layer, span.seq, blockIdx.x);
  Dms dms = dms_of(kv);
  int heads = kv.n_kv_heads, ring_len = dms.ring_len(), size = PAGE_SLOTS;
  int base = kv.seq_len[span.seq], eviction = kv.eviction[span.seq], live = kv.live[l.row];
  const float* decision = decisions + span.start * heads + l.head;
  // The first row's decision may mark the newest stored token.
  if (base > 0 && dms.decided_by(-1) == 0 && dms.marks(decision[0], base - 1) && warp == 0)
    set_meta(kv, l, l.ring[dms.ring_at(base - 1)], pack_meta(base - 1, true), lane);
  int piece = dms.evicts && ring_len < threads ? ring_len : threads;
#pragma unroll 1
  for (int first = 0; first < span.len; first += piece) {
    __syncthreads();
    int i = first + threadIdx.x, n = base + i, slot = -1;
    bool mine = (int)threadIdx.x < piece && i < span.len;
    if (mine && dms.leaves_at(n, eviction)) {
      int leaving = l.ring[dms.ring_at(n)];
      slot = dms.overwritten(leaving, meta_marked(slot_meta(kv, l, leaving)));
    }
    bool taken = slot >= 0;
    u32 growing = __ballot_sync(FULL, mine && !taken);
    if (lane == 0) grown[warp] = __popc(growing);
    if (threadIdx.x == 0) shared = 0;
    __syncthreads();
    int before = __popc(growing & ((1u << lane) - 1)), total = 0;
    for (int w = 0; w < threads / 32; w++) {
      before += w < warp ? grown[w] : 0;
      total += grown[w];
    }
    if (mine && !taken) slot = live + before;
    slot_of[threadIdx.x] = mine ? slot : -1;

    int held = (live + size - 1) / size, fresh = (live + total + size - 1) / size - held;
    if (threadIdx.x == 0 && fresh > 0) {
      top = atomicAdd(&kv.counts[0], -fresh);
      if (top < fresh) __trap();
    }
    // Each sees of the others' pages that one is shared, or that its copy is done.
    if (mine && slot / size < held && *(volatile int*)&kv.refs[l.pages[slot / size]] > 1) shared = 1;
    __syncthreads();
    for (int j = threadIdx.x; j < fresh; j += threads) {
      int page = kv.free_list[top - 1 - j];
      kv.refs[page] = 1;
      l.pages[held + j] = page;
    }
    if (shared && warp == 0) {
      for (int k = 0; k < piece; k++) {
        int entry = slot_of[k] / size;
        if (slot_of[k] >= 0 && entry < held) page_own(kv, l.pages + entry, lane);
      }
    }
    __syncthreads();

    if (mine) {
      int at = (span.start + i) * heads + l.head;
      int decided = dms.decided_by(i);
      bool marked = decided < span.len && dms.marks(decision[decided * heads], n);
      *meta_at(kv, page_at(kv, l.pages[slot / size]), slot % size) = pack_meta(n, marked);
      kv.slots[at] = slot;
      if (dms.evicts) l.ring[dms.ring_at(n)] = slot;
      // A token of this very step that held the slot is superseded before it is stored.
      if (taken && i >= ring_len) kv.slots[at - ring_len * heads] = -1;
    }
    live += total;
  }
  if (threadIdx.x == 0) kv.live[l.row] = live;
}

// Freed pages join the free list. By one block of a launch that neither takes nor frees pages.
__device__ __forceinline__ void reclaim(const Kv& kv) {
  int free = kv.counts[0], back = kv.counts[1];
  for (int i = threadIdx.x; i < back; i += blockDim.x) kv.free_list[free + i] = kv.returned[i];
  __syncthreads();
  if (threadIdx.x == 0) {
    kv.counts[0] = free + back;
    kv.counts[1] = 0;
  }
}

// Ends a step: adds every span's length to its sequence's, counts the slots that live, and reclaims freed pages. A warp
// for a span; grid covers n_spans. Reads the live counts of every lane of the step. CPU twin: `backend::cpu::kv::advance`.
KERNEL advance(Kv kv, const Span* spans, int n_spans) {
  after_previous();
  int i = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (i < n_spans) {
    Span span = spans[i];
    u32 live = 0;
    for (int j = lane; j < kv.n_layers * kv.n_kv_heads; j += 32)
      live += kv.live[lane_index(kv, j / kv.n_kv_heads, span.seq, j % kv.n_kv_heads)];
#pragma unroll
    for (int m = 16; m > 0; m /= 2) live += __shfl_xor_sync(FULL, live, m);
    if (lane == 0) {
      kv.seq_len[span.seq] += span.len;
      kv.peak[span.seq] = max(kv.peak[span.seq], live);
      // A decode token attends to exactly the slots that live once it has its own.
      if (span.len == 1) kv.reads[span.seq] += live;
    }
  }
  if (blockIdx.x == 0) reclaim(kv);
}

// Grid 1: after `release` and `compact`.
KERNEL settle(Kv kv) {
  after_previous();
  reclaim(kv);
}

// Sequence `to` shares all that `from` holds. Grid (n_kv_heads, n_layers), any block. Moves a lane's
// page numbers and ring.
KERNEL fork(Kv kv, int from, int to) {
  after_previous();
  Lane a = lane_of(kv, blockIdx.y, from, blockIdx.x), b = lane_of(kv, blockIdx.y, to, blockIdx.x);
  int live = kv.live[a.row], held = (live + PAGE_SLOTS - 1) / PAGE_SLOTS;
  for (int i = threadIdx.x; i < held; i += blockDim.x) {
    b.pages[i] = a.pages[i];
    atomicAdd(&kv.refs[a.pages[i]], 1);
  }
  if (kv.evicts)
    for (int i = threadIdx.x; i <= kv.window; i += blockDim.x) b.ring[i] = a.ring[i];
  if (threadIdx.x == 0) kv.live[b.row] = live;
  if (threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.y == 0) {
    kv.seq_len[to] = kv.seq_len[from];
    kv.eviction[to] = kv.eviction[from];
    kv.reads[to] = kv.reads[from];
    kv.peak[to] = kv.peak[from];
  }
}

// Empties a sequence. Grid (n_kv_heads, n_layers), any block.
KERNEL release(Kv kv, int seq) {
  after_previous();
  Lane l = lane_of(kv, blockIdx.y, seq, blockIdx.x);
  int held = (kv.live[l.row] + PAGE_SLOTS - 1) / PAGE_SLOTS;
  for (int i = threadIdx.x; i < held; i += blockDim.x) {
    page_drop(kv, l.pages[i]);
    l.pages[i] = -1;
  }
  __syncthreads();
  if (threadIdx.x == 0) kv.live[l.row] = 0;
  if (threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.y == 0) {
    kv.seq_len[seq] = 0;
    kv.reads[seq] = 0;
    kv.peak[seq] = 0;
  }
}

// Drops every marked slot outside the window and closes the gaps. Grid (n_kv_heads, n_layers), 32
// threads. Slots only move down, in order, so pages that this lane alone holds are rewritten where they
// are; a shared one is replaced by a fresh one once all that moves into its place has moved. Moves at
// most the lane's live slots.
KERNEL compact(Kv kv, int seq) {
  after_previous();
  Lane l = lane_of(kv, blockIdx.y, seq, blockIdx.x);
  int lane = threadIdx.x, n = kv.seq_len[seq], live = kv.live[l.row], size = PAGE_SLOTS;
  Dms dms = dms_of(kv);
  int window_start = max(n - dms.ring_len(), 0);
  int kept = 0;
  for (int slot = 0; slot < live; slot++) {
    kept += !dms.is_out(slot_meta(kv, l, slot), n - 1);
  }
  if (kept == live) return;
  __syncwarp();
  int to = 0, target = -1;
  for (int slot = 0; slot < live; slot++) {
    u8* from = page_at(kv, l.pages[slot / size]);
    int meta = *meta_at(kv, from, slot % size);
    __syncwarp();
    if (dms.is_out(meta, n - 1)) continue;
    if (to % size == 0) {
      // The page that was filled before takes its place in the table.
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
    if (lane == 0 && meta_position(meta) >= window_start) l.ring[dms.ring_at(meta_position(meta))] = to;
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

// Positions and marks of one lane's slots, in slot order. Grid covers the lane's slots at most.
KERNEL slot_metas(int* out, Kv kv, int layer, int seq, int head) {
  after_previous();
  Lane l = lane_of(kv, layer, seq, head);
  int slot = blockIdx.x * blockDim.x + threadIdx.x;
  if (slot < kv.live[l.row]) out[slot] = slot_meta(kv, l, slot);
}
