// Which pages a decode token reads (`policy::Quest`), in two kernels before attend_pages.cu: `estimate` bounds the logits of
// each page for each query head, `select_pages` lists the pages with the greatest bounds. And the bounds of pages that are
// written by other kernels than decode_epilogue_pages.cu. CPU twin: `backend::cpu::attention::paged`.
#include "decode.cuh"
#include "pages.cuh"

#define ESTIMATE_WARPS 4
#define TILE_PAGES 16       // of a warp of `estimate`: the M of an mma
#define SELECT_THREADS 512  // of a block of `select_pages`
#define KEYS_HELD 20        // keys that a thread of it holds in registers
#define NUMBERS_HELD 4      // page numbers, likewise
#define BINS_PER_THREAD 8   // of the histograms of its block

// Bounds of 16 pages in a warp's registers, as fragments of mma: lane 4 g + t holds channels 32 i + 8 t + 0..7 of pages g and
// g + 8.
template <int D>
struct Tile {
  uint4 low[2][D / 32], high[2][D / 32];
  int numbers[2];

  // Reads the numbers of pages from `first` on, of which there may be fewer.
  __device__ __forceinline__ void look_up(const Kv& kv, const int* pages, int first, int lane) {
#pragma unroll
    for (int half = 0; half < 2; half++) numbers[half] = pages[min(first + lane / 4 + 8 * half, kv.max_pages - 1)];
  }

  // Loads the bounds of these pages; `n` are full.
  __device__ __forceinline__ void load(const Kv& kv, int first, int n, int lane) {
    const uint4 none = {0, 0, 0, 0};
#pragma unroll
    for (int half = 0; half < 2; half++) {
      int at = first + lane / 4 + 8 * half;
      const u16* from = bounds_of(kv, page_at(kv, at < n ? numbers[half] : 0));
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
  int step = gridDim.x * ESTIMATE_WARPS * TILE_PAGES, page = (blockIdx.x * ESTIMATE_WARPS + warp) * TILE_PAGES;
  // Numbers of pages and how many are full: neither load waits for the other.
  Tile<D> tile;
  tile.look_up(kv, slots.pages, page, lane);
  int full = kv.live[slots.row] / PAGE_SLOTS;
  if (full < pages_to_read(kv, position + 1) || page - warp * TILE_PAGES >= full) {
    // Where all blocks end here, the next kernel must not take the end of this one for that of those before.
    wait_previous();
    return;
  }
  tile.load(kv, page, full, lane);
  tile.look_up(kv, slots.pages, page + step, lane);
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
    if (page + step < full) {
      tile.load(kv, page + step, full, lane);
      tile.look_up(kv, slots.pages, page + 2 * step, lane);
    }
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

// Orders bounds as unsigned numbers. CPU twin: `f32::total_cmp`.
__device__ __forceinline__ u32 key_of(float bound) {
  u32 bits = __float_as_uint(bound);
  return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

// The pages that a query head reads: those with greater keys, and of those with exactly this key the ones up to `page`.
struct Least {
  u32 key;
  int page;
  __device__ __forceinline__ bool admits(u32 key, int page) const {
    return key > this->key || (key == this->key && page <= this->page);
  }
};

// The threads of a block of `select_pages` that work for one query head: whole warps.
struct Team {
  int head, n, thread;  // head of the group; threads, a power of two; this one
  int first_warp;       // of the block

  __device__ __forceinline__ void init(int group) {
    n = SELECT_THREADS;
    for (int heads = 1; heads < group; heads *= 2) n /= 2;
    head = threadIdx.x / n, thread = threadIdx.x % n, first_warp = head * n / 32;
  }
};

// Keys of a query head's full pages, divided among the threads of its team.
struct Keys {
  u32 held[KEYS_HELD];
  const float* bounds;
  int full;

  __device__ __forceinline__ void load(const Team& team, const float* bounds, int full) {
    this->bounds = bounds, this->full = full;
#pragma unroll
    for (int i = 0; i < KEYS_HELD; i++) {
      int page = team.thread + i * team.n;
      held[i] = page < full ? key_of(bounds[page]) : 0;
    }
  }

  // Calls f(key, page) for the thread's pages; those that registers do not hold are read again.
  template <class F>
  __device__ __forceinline__ void each(const Team& team, F f) const {
#pragma unroll
    for (int i = 0; i < KEYS_HELD; i++) {
      int page = team.thread + i * team.n;
      if (page < full) f(held[i], page);
    }
#pragma unroll 4
    for (int page = team.thread + KEYS_HELD * team.n; page < full; page += team.n) f(key_of(bounds[page]), page);
  }
};

// Shared memory of the search for each head's `Least`.
struct Search {
  __align__(16) u32 bins[SELECT_THREADS * BINS_PER_THREAD];
  u32 ends[2][SELECT_THREADS / 32];  // least and greatest key of each warp
  int sums[SELECT_THREADS / 32];     // keys in the bins of each warp
  // Of each head: the bin in which the last page lies that it reads, the pages in bins before it and in it.
  struct {
    int bin, before, count, ends;  // ends: the search is over
  } found[MAX_GROUP];
};

// Finds what admits exactly `wanted` pages of each head, fewer than there are: a radix select by histograms. A digit is as many
// bits as the team has bins for, below the highest bit in which keys differ; then the pages of equal keys go on the same way.
// By the whole block: two or three passes over the keys, as a rule. Teams of heads from `group` on only keep step.
__device__ __forceinline__ Least least_of(Search& s, const Team& team, const Keys& keys, int wanted, int group) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = team.n / 32;
  int bits = 31 - __clz(team.n * BINS_PER_THREAD), teams = SELECT_THREADS / team.n;
  u32* bins = s.bins + team.head * team.n * BINS_PER_THREAD;
  uint4* mine = (uint4*)(bins + team.thread * BINS_PER_THREAD);
  bool idle = team.head >= group;

  // least and greatest key
  u32 low = 0xffffffffu, high = 0;
  keys.each(team, [&](u32 key, int) { low = min(low, key), high = max(high, key); });
  low = __reduce_min_sync(FULL, low), high = __reduce_max_sync(FULL, high);
  if (lane == 0) s.ends[0][warp] = low, s.ends[1][warp] = high;
#pragma unroll
  for (int i = 0; i < BINS_PER_THREAD / 4; i++) mine[i] = uint4{0, 0, 0, 0};
  __syncthreads();
  low = __reduce_min_sync(FULL, s.ends[0][team.first_warp + lane % warps]);
  high = __reduce_max_sync(FULL, s.ends[1][team.first_warp + lane % warps]);

  // The page looked for is the `wanted`-th by its distance below the greatest key, and that distance lies within `first` and
  // first + span; in the passes over equal keys, the same of its number.
  u32 first = 0, span = high - low, tied = 0;
  for (bool ties = false;;) {
    int shift = max(32 - __clz((int)span) - bits, 0);
    auto count = [&](u32 key, int page) {
      u32 at = (ties ? (u32)page : high - key) - first;
      if (at <= span && (!ties || key == tied)) atomicAdd(bins + (at >> shift), 1u);
    };
    if (!idle) keys.each(team, count);
    __syncthreads();

    // prefix sums over the bins of the team; the thread in whose bins the page lies says which
    u32 counts[BINS_PER_THREAD];
    int total = 0;
#pragma unroll
    for (int i = 0; i < BINS_PER_THREAD / 4; i++) {
      uint4 x = mine[i];
      mine[i] = uint4{0, 0, 0, 0};
      counts[4 * i] = x.x, counts[4 * i + 1] = x.y, counts[4 * i + 2] = x.z, counts[4 * i + 3] = x.w;
      total += (int)(x.x + x.y + x.z + x.w);
    }
    int before = total;
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
      int x = __shfl_up_sync(FULL, before, by);
      if (lane >= by) before += x;
    }
    if (lane == 31) s.sums[warp] = before;
    __syncthreads();
    bool earlier = lane < warp - team.first_warp;
    before += __reduce_add_sync(FULL, earlier ? s.sums[team.first_warp + lane] : 0) - total;
    if (idle && team.thread == 0) s.found[team.head].ends = 1;
    if (!idle && wanted > before && wanted <= before + total) {
      auto& found = s.found[team.head];
#pragma unroll
      for (int i = 0; i < BINS_PER_THREAD; i++) {
        int n = (int)counts[i];
        if (wanted > before && wanted <= before + n) {
          found.bin = team.thread * BINS_PER_THREAD + i, found.before = before, found.count = n;
          found.ends = wanted == before + n;
        }
        before += n;
      }
    }
    __syncthreads();
    bool others = __any_sync(FULL, lane < teams && !s.found[lane].ends);
    if (!idle) {
      auto found = s.found[team.head];
      first += (u32)found.bin << shift, span = (1u << shift) - 1, wanted -= found.before;
      if (found.ends) {
        idle = true;
        tied = ties ? tied : high - min(first + span, high - low);
        // Where keys are not tied, all pages with the last key.
        first = ties ? first + span : 0x7fffffff;
      } else if (shift == 0) {
        ties = true, tied = high - first, first = 0, span = keys.full - 1;
      }
    }
    if (!others) return Least{tied, (int)first};
  }
}

// Lists the pages that the query heads of a group read: of each head the newest page and those with the greatest bounds. All
// pages where `dense` or where there are no more. Adds what is read to kv.reads, the token itself and what it does not see
// included. pages [n, n_kv_heads, max_pages], slots [n, n_kv_heads]. Grid (n_kv_heads, n), SELECT_THREADS threads, divided among
// the query heads of the group. Reads the bounds once.
//
// The next kernel starts when this one has waited for those before it: it may read what they wrote, but `pages` and `slots`.
KERNEL __launch_bounds__(SELECT_THREADS) select_pages(DecodeParams p, const float* bounds, int2* pages, int* slots,
                                                      int dense) {
  __shared__ Search search;
  __shared__ u32 read[KEYS_HELD * SELECT_THREADS / 32];
  const Kv& kv = p.kv;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, heads = kv.n_kv_heads, group = kv.n_q_heads / heads;
  int row = blockIdx.y * heads + blockIdx.x;
  Team team;
  team.init(group);
  Span span = p.spans[blockIdx.y];
  Lane l = lane_of(kv, p.layer, span.seq, blockIdx.x);
  int live = kv.live[l.row], full = live / PAGE_SLOTS, held = (live + PAGE_SLOTS - 1) / PAGE_SLOTS;
  int reads = pages_to_read(kv, kv.seq_len[span.seq] + 1);
  bool all = dense || full < reads;
  // numbers of the first pages in flight
  int numbers[NUMBERS_HELD];
  auto load_numbers = [&](int first) {
#pragma unroll
    for (int i = 0; i < NUMBERS_HELD; i++) {
      int page = first + i * SELECT_THREADS + threadIdx.x;
      numbers[i] = page < held ? l.pages[page] : 0;
    }
  };
  load_numbers(0);
  wait_previous();
  next_may_begin();

  Keys keys;
  keys.full = 0;
  Least least = {0, 0};
  if (!all) {
    if (team.head < group) keys.load(team, bounds + (u64)(row * group + team.head) * kv.max_pages, full);
    least = least_of(search, team, keys, reads - 1, group);
  }

  // the pages that some head reads, in order
  int2* list = pages + (u64)row * kv.max_pages;
  int n = 0, chunk = KEYS_HELD * team.n, words = chunk / 32;
  for (int first = 0; first < held; first += chunk) {
    // a bit for each page and head
    if (first) __syncthreads();
#pragma unroll
    for (int i = 0; i < KEYS_HELD; i++) {
      int page = first + team.thread + i * team.n;
      if (team.head >= group || page - team.thread >= held) break;
      u32 key = page >= full || all ? 0xffffffffu : first ? key_of(keys.bounds[page]) : keys.held[i];
      bool reads = page < held && (all || page >= full || least.admits(key, page));
      u32 word = __ballot_sync(FULL, reads);
      if (lane == 0) read[team.head * words + (page - first) / 32] = word;
    }
    __syncthreads();
    for (int from = 0; from < chunk && first + from < held; from += NUMBERS_HELD * SELECT_THREADS) {
      if (first + from) load_numbers(first + from);
#pragma unroll
      for (int i = 0; i < NUMBERS_HELD; i++) {
        int word = from / 32 + i * (SELECT_THREADS / 32), page = first + word * 32 + threadIdx.x;
        if (word * 32 >= chunk || page - (int)threadIdx.x >= held) break;
        // pages of each warp that some head reads
        u32 some = 0;
        if (lane < SELECT_THREADS / 32 && word + lane < words && first + (word + lane) * 32 < held)
          for (int h = 0; h < group; h++) some |= read[h * words + word + lane];
        int before = __reduce_add_sync(FULL, lane < warp ? __popc(some) : 0), here = __reduce_add_sync(FULL, __popc(some));
        some = __shfl_sync(FULL, some, warp);
        if (some >> lane & 1) {
          u32 readers = 0;
          for (int h = 0; h < group; h++) readers |= (read[h * words + word + warp] >> lane & 1) << h;
          list[n + before + __popc(some & ((1u << lane) - 1))] = chosen_page(page, readers, numbers[i]);
        }
        n += here;
      }
    }
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
