// Which pages a decode token reads (`policy::Quest`), in two kernels before attend_pages.cu: `estimate` bounds the logits of
// each page for each query head, `select_pages` lists the pages with the greatest bounds. And the bounds of pages that are
// written by other kernels than decode_epilogue_pages.cu. CPU twin: `backend::cpu::attention::paged`.
#include "decode.cuh"
#include "pages.cuh"

#define ESTIMATE_WARPS 4
#define TILE_PAGES 16       // of a warp of `estimate`: the M of an mma
#define SELECT_THREADS 512  // of a block of `select_pages`
#define KEYS_HELD 16        // keys that a thread of it holds in registers

// Bounds of 16 pages in a warp's registers, as fragments of mma: lane 4 g + t holds channels 32 i + 8 t + 0..7 of pages g and
// g + 8.
template <int D>
struct Tile {
  uint4 low[2][D / 32], high[2][D / 32];

  // Pages from `first` on; `n` are full.
  __device__ __forceinline__ void load(const Kv& kv, const int* pages, int first, int n, int lane) {
    const uint4 none = {0, 0, 0, 0};
#pragma unroll
    for (int half = 0; half < 2; half++) {
      int at = first + lane / 4 + 8 * half;
      const u16* from = bounds_of(kv, page_at(kv, at < n ? pages[at] : 0));
#pragma unroll
      for (int i = 0; i < D / 32; i++) {
        int channel = 32 * i + lane % 4 * 8;
        bool real = at < n && channel < kv.head_dim;
        low[half][i] = real ? *(const uint4*)(from + channel) : none;
        high[half][i] = real ? *(const uint4*)(from + kv.head_dim + channel) : none;
      }
    }
  }
};

// Query heads of a group in a warp's registers, each the sum of two bf16: lane 4 g + t holds channels 32 i + 8 t + 0..7 of head
// g. Two neighbouring channels share a word.
template <int D>
struct Queries {
  u32 first[D / 16][2], second[D / 16][2];

  __device__ __forceinline__ void load(const float (*rows)[ROW_STRIDE], int group, int d, int lane) {
#pragma unroll
    for (int j = 0; j < D / 16; j++)
#pragma unroll
      for (int k = 0; k < 2; k++) {
        int channel = 32 * (j / 2) + lane % 4 * 8 + 4 * (j % 2) + 2 * k;
        bool real = lane / 4 < group && channel < d;
        float x = real ? rows[lane / 4][channel] : 0.0f, y = real ? rows[lane / 4][channel + 1] : 0.0f;
        u32 pair = round_pair(x, y);
        first[j][k] = pair;
        second[j][k] = round_pair(x - bf16_to_f32((u16)pair), y - __uint_as_float(pair & 0xffff0000u));
      }
  }

  // acc += bounds q, of the channels where the query is negative or of the others.
  __device__ __forceinline__ void multiply(float acc[4], const uint4 (*bounds)[D / 32], bool negative) const {
#pragma unroll
    for (int j = 0; j < D / 16; j++) {
      uint4 x = bounds[0][j / 2], y = bounds[1][j / 2];
      u32 a[4] = {j % 2 ? x.z : x.x, j % 2 ? y.z : y.x, j % 2 ? x.w : x.y, j % 2 ? y.w : y.y};
      u32 q[2], rest[2];
#pragma unroll
      for (int k = 0; k < 2; k++) {
        // all bits of the negative ones
        u32 mask = (first[j][k] >> 15 & 0x00010001u) * 0xffffu;
        if (!negative) mask = ~mask;
        q[k] = first[j][k] & mask, rest[k] = second[j][k] & mask;
      }
      mma(acc, a, q);
      mma(acc, a, rest);
    }
  }
};

// bounds [n, n_q_heads, max_pages]: of each full page an upper bound on q k for its keys, the sum over channels of max(q low,
// q high). Does nothing where all pages are read. Grid (any, n_kv_heads, n), 32 * ESTIMATE_WARPS threads. Reads 4 head_dim bytes
// a page.
template <int D>
__device__ __forceinline__ void estimate(const DecodeParams& p, float* bounds) {
  __shared__ __align__(16) float rows[MAX_GROUP][ROW_STRIDE];
  next_may_begin();
  const Kv& kv = p.kv;
  const HeadParams& head_params = p.heads;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.y, d = kv.head_dim;
  int heads = kv.n_kv_heads, group = kv.n_q_heads / heads;
  Span span = p.spans[blockIdx.z];
  int position = kv.seq_len[span.seq];
  Lane slots = lane_of(kv, p.layer, span.seq, head);
  int full = kv.live[slots.row] / PAGE_SLOTS, step = gridDim.x * ESTIMATE_WARPS * TILE_PAGES;
  int page = (blockIdx.x * ESTIMATE_WARPS + warp) * TILE_PAGES;
  if (full < pages_to_read(kv, position + 1) || page - warp * TILE_PAGES >= full) {
    // Where all blocks end here, the next kernel must not take the end of this one for that of those before.
    wait_previous();
    return;
  }
  Tile<D> tile;
  tile.load(kv, slots.pages, page, full, lane);
  const float* norm = prefetch_norm(head_params.q_norm, d, lane);
  RopeAngles angles;
  angles.compute(head_params, position, d, lane);
  wait_previous();

  const float* row = p.qkv + (u64)span.start * (kv.n_q_heads + 2 * heads) * d;
  for (int h = warp; h < group; h += ESTIMATE_WARPS) {
    load_row(rows[h], row + (head * group + h) * d, norm, head_params.eps, d, lane);
    rotate(rows[h], angles, d, h < head_params.borrowed, lane);
  }
  __syncthreads();
  Queries<D> queries;
  queries.load(rows, group, d, lane);
  float* out = bounds + ((u64)blockIdx.z * kv.n_q_heads + head * group) * kv.max_pages;
#pragma unroll 1
  for (; page < full; page += step) {
    float acc[4] = {}, others[4] = {};
    queries.multiply(acc, tile.low, true);
    queries.multiply(others, tile.high, false);
    if (page + step < full) tile.load(kv, slots.pages, page + step, full, lane);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      int h = lane % 4 * 2 + i % 2, at = page + lane / 4 + i / 2 * 8;
      if (h < group && at < full) out[(u64)h * kv.max_pages + at] = acc[i] + others[i];
    }
  }
}
#define ESTIMATE(D)                                                                                 \
  KERNEL __launch_bounds__(32 * ESTIMATE_WARPS) estimate_##D(DecodeParams params, float* bounds) {  \
    estimate<D>(params, bounds);                                                                    \
  }
ESTIMATE(64)
ESTIMATE(128)

// Orders bounds as unsigned numbers from 1 on. CPU twin: `f32::total_cmp`.
__device__ __forceinline__ u32 key_of(float bound) {
  u32 bits = __float_as_uint(bound);
  bits ^= bits >> 31 ? 0xffffffffu : 0x80000000u;
  return min(max(bits, 1u), 0xfffffffeu);
}

// The least key that a query head reads, and the last page of those with exactly that key.
struct Least {
  u32 key;
  int page;
  __device__ __forceinline__ bool admits(u32 key, int page) const {
    return key > this->key || (key == this->key && page <= this->page);
  }
};

// Keys of a query head's full pages, divided among the threads of a block.
struct Keys {
  u32 held[KEYS_HELD];
  const float* bounds;
  int full;

  __device__ __forceinline__ void load(const float* bounds, int full) {
    this->bounds = bounds, this->full = full;
#pragma unroll
    for (int i = 0; i < KEYS_HELD; i++) {
      int page = threadIdx.x + i * SELECT_THREADS;
      held[i] = page < full ? key_of(bounds[page]) : 0;
    }
  }

  // Calls f for each of the thread's pages; those that registers do not hold are read again.
  template <class F>
  __device__ __forceinline__ void each(F f) const {
#pragma unroll
    for (int i = 0; i < KEYS_HELD; i++) f(held[i], (int)threadIdx.x + i * SELECT_THREADS);
#pragma unroll 4
    for (int page = threadIdx.x + KEYS_HELD * SELECT_THREADS; page < full; page += SELECT_THREADS)
      f(key_of(bounds[page]), page);
  }
};

// Sums over a block, returned to all of it. `parts` alternate: one barrier a sum.
struct BlockSum {
  int (*parts)[SELECT_THREADS / 32];
  int turn;
  __device__ __forceinline__ int operator()(int x) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    x = __reduce_add_sync(FULL, x);
    if (lane == 0) parts[turn][warp] = x;
    __syncthreads();
    x = __reduce_add_sync(FULL, lane < SELECT_THREADS / 32 ? parts[turn][lane] : 0);
    turn ^= 1;
    return x;
  }
};

// Finds what admits exactly `wanted` pages, fewer than there are, by bisection. By a block of SELECT_THREADS.
__device__ __forceinline__ Least least_of(const Keys& keys, int wanted, int (*parts)[SELECT_THREADS / 32]) {
  __shared__ u32 ends[2][SELECT_THREADS / 32];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  BlockSum sum = {parts, 0};
  auto count = [&](Least least) {
    int n = 0;
    keys.each([&](u32 key, int page) { n += least.admits(key, page); });
    return sum(n);
  };
  // between the least and the greatest key
  u32 low = 0xffffffffu, high = 0;
  keys.each([&](u32 key, int) { low = min(low, key ? key : 0xffffffffu), high = max(high, key); });
  low = __reduce_min_sync(FULL, low), high = __reduce_max_sync(FULL, high);
  if (lane == 0) ends[0][warp] = low, ends[1][warp] = high;
  __syncthreads();
  low = __reduce_min_sync(FULL, ends[0][lane % (SELECT_THREADS / 32)]);
  high = __reduce_max_sync(FULL, ends[1][lane % (SELECT_THREADS / 32)]) + 1;
  // more than `wanted` keys are at least `low`, fewer at least `high`
  Least least = {low, keys.full};
  int n = keys.full;
  while (n != wanted && high - least.key > 1) {
    Least middle = {least.key + (high - least.key) / 2, keys.full};
    int above = count(middle);
    if (above >= wanted) least = middle, n = above;
    else high = middle.key;
  }
  // of equal keys the first pages
  for (int first = 0; n != wanted && first < least.page;) {
    Least middle = {least.key, first + (least.page - first) / 2};
    n = count(middle);
    if (n >= wanted) least = middle;
    else first = middle.page + 1;
  }
  return least;
}

// Lists the pages that the query heads of a group read: of each head the newest page and those with the greatest bounds. All
// pages where `dense` or where there are no more. Adds what is read to kv.reads, the token itself and what it does not see
// included. least [n, n_q_heads], arrivals [n, n_kv_heads], zero between launches. Grid (n_q_heads, n), SELECT_THREADS threads;
// the last block of a group makes the list. Reads the bounds twice.
KERNEL __launch_bounds__(SELECT_THREADS) select_pages(DecodeParams p, const float* bounds, int2* least, int* arrivals,
                                                      int2* pages, int* slots, int dense) {
  __shared__ int parts[2][SELECT_THREADS / 32];
  __shared__ Least of_group[MAX_GROUP];
  __shared__ int arrived;
  next_may_begin();
  const Kv& kv = p.kv;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, heads = kv.n_kv_heads, group = kv.n_q_heads / heads;
  int head = blockIdx.x / group, row = blockIdx.y * heads + head, first_row = row * group;
  Span span = p.spans[blockIdx.y];
  Lane l = lane_of(kv, p.layer, span.seq, head);
  int live = kv.live[l.row], full = live / PAGE_SLOTS, held = (live + PAGE_SLOTS - 1) / PAGE_SLOTS;
  int reads = pages_to_read(kv, kv.seq_len[span.seq] + 1);
  bool all = dense || full < reads;
  wait_previous();
  if (all && blockIdx.x % group) return;

  if (!all) {
    Keys keys;
    int q_head = blockIdx.x % group;
    keys.load(bounds + (u64)(first_row + q_head) * kv.max_pages, full);
    Least found = least_of(keys, reads - 1, parts);
    // the last block of the group goes on
    if (threadIdx.x == 0) {
      least[first_row + q_head] = int2{(int)found.key, found.page};
      __threadfence();
      arrived = atomicAdd(&arrivals[row], 1);
      if (arrived == group - 1) arrivals[row] = 0;
      __threadfence();
    }
    __syncthreads();
    if (arrived < group - 1) return;
    if ((int)threadIdx.x < group) {
      volatile int* at = (volatile int*)(least + first_row + threadIdx.x);
      of_group[threadIdx.x] = Least{(u32)at[0], at[1]};
    }
    __syncthreads();
  }

  // the pages that some head reads, in order
  int2* list = pages + (u64)row * kv.max_pages;
  int n = 0;
  for (int first = 0; first < held; first += SELECT_THREADS) {
    int page = first + threadIdx.x;
    u32 readers = 0;
    if (page < held && (all || page >= full)) readers = (1 << READER_BITS) - 1;
    else if (page < held)
#pragma unroll
      for (int k = 0; k < MAX_GROUP; k++)
        if (k < group)
          readers |= (u32)of_group[k].admits(key_of(bounds[(u64)(first_row + k) * kv.max_pages + page]), page) << k;
    u32 read = __ballot_sync(FULL, readers != 0);
    if (lane == 0) parts[0][warp] = __popc(read);
    __syncthreads();
    int before = lane < warp ? parts[0][lane] : 0, here = lane < SELECT_THREADS / 32 ? parts[0][lane] : 0;
    int at = n + __reduce_add_sync(FULL, before) + __popc(read & ((1u << lane) - 1));
    n += __reduce_add_sync(FULL, here);
    if (readers) list[at] = chosen_page(page, readers, l.pages[page]);
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    slots[row] = n * PAGE_SLOTS;
    // Of the pages read only the last one may have slots that do not live.
    atomicAdd(kv.reads + span.seq, (u64)(n * PAGE_SLOTS - (held * PAGE_SLOTS - live) + 1));
  }
}

// Writes the bounds of the pages that kv_scatter.cu wrote to. A warp for a row and KV head; of neighbouring rows in one page the
// last one does it. Grid covers n * n_kv_heads warps. Reads the keys of those pages.
template <class Rows>
__device__ __forceinline__ void scatter_bounds(const Kv& kv, int layer, const Span* spans, const int* span_of_row, int n) {
  after_previous();
  int i = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
  int row = i / kv.n_kv_heads, head = i % kv.n_kv_heads;
  int slot = row < n ? kv.slots[i] : -1;
  if (slot < 0) return;
  Span span = spans[span_of_row[row]];
  int next = row + 1 < span.start + span.len ? kv.slots[i + kv.n_kv_heads] : -1;
  if (next >= 0 && next / PAGE_SLOTS == slot / PAGE_SLOTS) return;
  Lane l = lane_of(kv, layer, span.seq, head);
  int entry = slot / PAGE_SLOTS, filled = min(kv.live[l.row] - entry * PAGE_SLOTS, PAGE_SLOTS);
  write_bounds<Rows>(kv, page_at(kv, l.pages[entry]), filled, lane);
}

// Writes the bounds of all pages of a sequence. Grid (n_kv_heads, n_layers), any whole warps. Reads all its keys.
template <class Rows>
__device__ __forceinline__ void lane_bounds(const Kv& kv, int seq) {
  after_previous();
  Lane l = lane_of(kv, blockIdx.y, seq, blockIdx.x);
  int live = kv.live[l.row];
  for (int entry = threadIdx.x / 32; entry * PAGE_SLOTS < live; entry += blockDim.x / 32)
    write_bounds<Rows>(kv, page_at(kv, l.pages[entry]), min(live - entry * PAGE_SLOTS, PAGE_SLOTS),
                       threadIdx.x % 32);
}

#define BOUNDS(rows, Rows)                                                                           \
  KERNEL scatter_bounds_##rows(Kv kv, int layer, const Span* spans, const int* span_of_row, int n) { \
    scatter_bounds<Rows>(kv, layer, spans, span_of_row, n);                                          \
  }                                                                                                  \
  KERNEL lane_bounds_##rows(Kv kv, int seq) { lane_bounds<Rows>(kv, seq); }
BOUNDS(bf16, Bf16Codec)
BOUNDS(fp8, Fp8Codec)
BOUNDS(int8, Int8Codec)
