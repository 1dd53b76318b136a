// Which pages a decode token reads (`policy::Quest`), in two kernels before attend_choice.cu:
// `estimate` bounds the logits of each page for each query head, `select_pages` lists the pages
// with the greatest bounds. And the kernels that write the bounds of pages. CPU twin:
// `backend::cpu::attention::paged`.
#include "decode.cuh"
#include "pages.cuh"
#include "select.cuh"

#define ESTIMATE_WARPS 4
#define TILE_PAGES 16        // of a warp of `estimate`: the M of an mma
#define NUMBERS_HELD 9       // page numbers that a thread of `select_pages` reads at once
#define LISTED_PAGES (32 * SELECT_THREADS)

// Bounds of 16 pages in a warp's registers, as fragments of mma: lane 4 g + t holds channels 32 i +
// 8 t + 0..7 of pages g and g + 8.
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

// Query heads of a group in a warp's registers, each the sum of two bf16: lane 4 g + t holds
// channels 32 i + 8 t + 0..7 of head g. Two neighbouring channels share a word.
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

// bounds [n, n_q_heads, max_pages]: of each full page an upper bound on q k for its keys, the sum
// over channels of max(q low, q high). Does nothing where all pages are read. Grid (any,
// n_kv_heads, n), 32 * ESTIMATE_WARPS threads. Reads 4 head_dim bytes a page.
template <int D>
__device__ __forceinline__ void estimate_pages(const DecodeParams& p, float (*rows)[ROW_STRIDE], float* bounds) {
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
    // Where all blocks end here, the next kernel must not take the end of this one for that of
    // those before.
    wait_previous();
    return;
  }
  tile.load(kv, page, full, lane);
  tile.look_up(kv, slots.pages, page + step, lane);
  const float* norm = prefetch_norm(head_params.q_norm, d, lane);
  RopeAngles angles;
  angles.compute(head_params, position, lane);
  wait_previous();

  const float* row = p.qkv + (u64)span.start * head_params.qkv_width;
  for (int h = warp; h < group; h += ESTIMATE_WARPS) {
    load_row(rows[h], row + (head * group + h) * d, norm, norm != nullptr, head_params.eps, d, lane);
    rotate(rows[h], angles, d, head_params.rotary, h < head_params.borrowed, lane);
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
KERNEL __launch_bounds__(32 * ESTIMATE_WARPS) estimate(DecodeParams params, float* bounds) {
  __shared__ __align__(16) float rows[MAX_GROUP][ROW_STRIDE];
  next_may_begin();
  if (params.kv.head_dim <= 64) estimate_pages<64>(params, rows, bounds);
  else estimate_pages<128>(params, rows, bounds);
}

// Words of bits for the pages of a lane. Mirrors `backend::cuda::pages`.
__device__ __forceinline__ int words_of(int max_pages) { return (max_pages + SELECT_THREADS - 1) / SELECT_THREADS * SELECT_WARPS; }

// Shared memory of the list of a group's pages, LISTED_PAGES at a time.
struct Listing {
  u32 read[MAX_GROUP][SELECT_THREADS];  // a bit for each page that a head reads
  u32 some[SELECT_THREADS];             // that some head reads
  int before[SELECT_THREADS];           // pages read before those of a word
  int sums[SELECT_WARPS];
};

// Lists the pages that the query heads of a group read: of each head the newest page and those with
// the greatest bounds. All pages where `dense` or where there are no more. Adds what is read to
// kv.reads, the token itself and what it does not see included. chosen [n, n_q_heads,
// words_of(max_pages)] bits, arrivals [n, n_kv_heads], zero between launches. Grid (n_q_heads, n),
// SELECT_THREADS threads; the last block of a group makes the list. Reads the bounds once.
//
// The next kernel starts when this one has waited for those before it: it may read what they wrote,
// but the list.
KERNEL __launch_bounds__(SELECT_THREADS) select_pages(DecodeParams p, const float* bounds, u32* chosen, int* arrivals, int dense) {
  __shared__ union {
    Search search;
    Listing listing;
  } s;
  __shared__ bool last;
  const Kv& kv = p.kv;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, heads = kv.n_kv_heads, group = kv.n_q_heads / heads;
  int head = blockIdx.x / group, row = blockIdx.y * heads + head, first_row = row * group, q_head = blockIdx.x - head * group;
  Span span = p.spans[blockIdx.y];
  Lane l = lane_of(kv, p.layer, span.seq, head);
  // numbers of pages in flight
  int numbers[NUMBERS_HELD];
  auto load_numbers = [&](int first) {
#pragma unroll
    for (int i = 0; i < NUMBERS_HELD; i++)
      numbers[i] = l.pages[min(first + i * SELECT_THREADS + (int)threadIdx.x, kv.max_pages - 1)];
  };
  load_numbers(0);
  int live = kv.live[l.row], full = live / PAGE_SLOTS, held = (live + PAGE_SLOTS - 1) / PAGE_SLOTS;
  int reads = pages_to_read(kv, kv.seq_len[span.seq] + 1);
  bool all = dense || full < reads;
  if (!all) s.search.init();
  wait_previous();
  next_may_begin();
  if (all && q_head) return;

  int words = words_of(kv.max_pages);
  if (!all) {
    Keys keys;
    keys.load(bounds + (u64)(first_row + q_head) * kv.max_pages, full);
    Least least = least_of(s.search, keys, reads - 1);
    u32* bits = chosen + (u64)(first_row + q_head) * words;
    keys.each([&](u32 key, int page) {
      u32 word = __ballot_sync(FULL, least.admits(key, page));
      if (lane == 0 && page < full) bits[page / 32] = word;
    });
    // the last block of the group goes on
    if (!is_last(arrivals + row, group, last)) return;
  }

  // the pages that some head reads, in order
  int2* list = p.chosen + (u64)row * kv.max_pages;
  int n = 0;
  for (int first = 0; first < held; first += LISTED_PAGES) {
    // a word of each head; the page that is not full in any case
    int at = first + threadIdx.x * 32, rest = held - at;
    u32 some = 0, forced = full != held && full >= at && full - at < 32 ? 1u << (full - at) : 0;
    if (all) forced = rest <= 0 ? 0 : rest < 32 ? (1u << rest) - 1 : FULL;
#pragma unroll
    for (int h = 0; h < MAX_GROUP; h++) {
      if (h >= group) continue;
      u32 word = forced | (!all && at < full ? *(volatile const u32*)(chosen + (u64)(first_row + h) * words + at / 32) : 0);
      s.listing.read[h][threadIdx.x] = word, some |= word;
    }
    // prefix sums of pages
    int here = __popc(some), before = warp_prefix_sum(here, lane);
    if (lane == 31) s.listing.sums[warp] = before;
    __syncthreads();
    int sum = lane < SELECT_WARPS ? s.listing.sums[lane] : 0;
    s.listing.some[threadIdx.x] = some;
    s.listing.before[threadIdx.x] = n + before - here + __reduce_add_sync(FULL, lane < warp ? sum : 0);
    n += __reduce_add_sync(FULL, sum);
    __syncthreads();
    for (int from = first; from < min(held, first + LISTED_PAGES); from += NUMBERS_HELD * SELECT_THREADS) {
      if (from) load_numbers(from);
#pragma unroll
      for (int i = 0; i < NUMBERS_HELD; i++) {
        int page = from + i * SELECT_THREADS + threadIdx.x, word = (page - first) / 32;
        if (word >= SELECT_THREADS || !(s.listing.some[word] >> lane & 1)) continue;
        u32 readers = 0;
#pragma unroll
        for (int h = 0; h < MAX_GROUP; h++)
          if (h < group) readers |= (s.listing.read[h][word] >> lane & 1) << h;
        int earlier = __popc(s.listing.some[word] & ((1u << lane) - 1));
        list[s.listing.before[word] + earlier] = chosen_page(page, readers, numbers[i]);
      }
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    p.chosen_slots[row] = n * PAGE_SLOTS;
    // Of the pages read only the last one may have slots that do not live.
    atomicAdd(kv.reads + span.seq, (u64)(n * PAGE_SLOTS - (held * PAGE_SLOTS - live) + 1));
  }
}

// Writes the bounds of the pages that kv_scatter.cu wrote to. A warp for a row and KV head; of
// neighbouring rows in one page the last one does it. Grid covers n * n_kv_heads warps. Reads the
// keys of those pages.
template <class Rows>
__device__ __forceinline__ void bounds_of_rows(const Kv& kv, int layer, const Span* spans, const int* span_of_row, int n) {
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

// Writes the bounds of all pages of a sequence. Grid (n_kv_heads, n_layers), any whole warps. Reads
// all its keys.
template <class Rows>
__device__ __forceinline__ void bounds_of_lanes(const Kv& kv, int seq) {
  after_previous();
  Lane l = lane_of(kv, blockIdx.y, seq, blockIdx.x);
  int live = kv.live[l.row];
  for (int entry = threadIdx.x / 32; entry * PAGE_SLOTS < live; entry += blockDim.x / 32)
    write_bounds<Rows>(kv, page_at(kv, l.pages[entry]), min(live - entry * PAGE_SLOTS, PAGE_SLOTS),
                       threadIdx.x % 32);
}

// Appends the tokens of a decode step as `append` does (place.cuh), and widens the bounds of their
// pages, or computes them again where a token overwrites a slot.
template <class Rows>
__device__ __forceinline__ void append_with_bounds(const Kv& kv, const Span* spans, int first_layer) {
  append_tokens(kv, spans, first_layer, Kept{}, [&](const AppendedSlot& to, int lane) {
    int in_page = to.slot % PAGE_SLOTS;
    if (to.slot == to.live) {
      Bounds bounds;
      bounds.init();
      if (in_page > 0) bounds.load(kv, to.page, lane);
      u32 side = kv.k_sides_at > 0 ? *side_at(kv, to.staged, to.row, 0) : 0;
      bounds.add<Rows>(kv, row_at(kv, to.staged, to.row, 0), side, lane);
      bounds.store(kv, to.page, lane);
    } else {
      __syncwarp();
      write_bounds<Rows>(kv, to.page, min(to.live - to.slot + in_page, PAGE_SLOTS), lane);
    }
    // Where other rows of the step are stored by kv_scatter.cu, this one is not.
    if (lane == 0) kv.slots[to.span.start * kv.n_kv_heads + to.lane.head] = -1;
  });
}

// By the format of keys.
#define BY_KEYS(kv, function, ...)                          \
  if (kv.code_bits) function<ByteRows>(__VA_ARGS__);        \
  else function<Bf16Rows>(__VA_ARGS__);
KERNEL scatter_bounds(Kv kv, int layer, const Span* spans, const int* span_of_row, int n) {
  BY_KEYS(kv, bounds_of_rows, kv, layer, spans, span_of_row, n)
}
KERNEL lane_bounds(Kv kv, int seq) { BY_KEYS(kv, bounds_of_lanes, kv, seq) }
KERNEL __launch_bounds__(32 * APPEND_WARPS, 4) append_bounds(Kv kv, const Span* spans, int first_layer) {
  BY_KEYS(kv, append_with_bounds, kv, spans, first_layer)
}
