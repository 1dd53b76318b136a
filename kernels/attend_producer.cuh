// Producers of attend_wgmma.cu: they find the keys that the rows of a tile see, and load them into
// shared memory.
#pragma once
#include "hopper.cuh"
#include "unpacked.cuh"

#define PRODUCERS 128       // threads
// Capacity for keys that all rows see, and for pages of such keys: the keys of a batch whose V is
// not loaded yet, and the keys found after it. Those are at most BN - 1 + PRODUCERS keys and BN /
// PAGE_SLOTS - 1 + PRODUCERS / PAGE_SLOTS pages. RING is a multiple of BN.
#define RING 512
#define PAGE_RING 32

// Up to BN keys that are attended to together: `unmasked` keys that all rows see, in the ring from
// `begin` on, then keys of the list from `masked` on. begin < 0: BN keys in the ring of pages from
// -1 - begin on. n = 0: no keys are left.
struct Batch {
  int begin, unmasked, masked, n;
};

// A key that some rows see: the address of its K row, and of K's scale if the codec has scales. The
// rows first to last of the span see it.
struct Key {
  const u8 *k, *scale;
  int first, last;
};

template <class Codec_>
struct Config {
  using Codec = Codec_;
  // Channels of a head, keys per batch, consumer warpgroups, batches in shared memory.
  static constexpr int D = 128, BN = 128, GROUPS = 2, STAGES = 2, QUERIES = 64 * GROUPS;
  static constexpr bool PACKED = Codec::PACKED, SCALED = Codec::SCALED;
  // Batches whose scales are kept: a consumer may be at the softmax of one batch while the batch
  // STAGES later is loaded.
  static constexpr int BATCHES = 4;
  static constexpr int MASKED = 2 * QUERIES;  // keys found that some rows see: at most twice the tokens of a tile less one
};

template <class C>
struct Shared {
  // Tiles of 64 channels: rows of 128 bytes, 128-byte swizzle, aligned to 1,024 bytes.
  u16 q[C::QUERIES * C::D], k[C::STAGES][C::BN * C::D], v[C::STAGES][C::BN * C::D];
  u8 codes[2][C::PACKED ? C::BN * C::D : 16];  // in flight
  float scales[C::BATCHES][2][C::SCALED ? C::BN : 4];  // K's, V's
  Batch batches[C::BATCHES];
  u64 codes_full[2];  // K's, V's, of batches of pages
  u64 k_full[C::STAGES], k_empty[C::STAGES], v_full[C::STAGES], v_empty[C::STAGES];
  const u8* ring[RING];
  const u8* ring_scales[C::SCALED ? RING : 2];
  Key masked[C::MASKED];
  int pages[PAGE_RING];  // negative: of the step
  int counts[PRODUCERS / 32];
  bool last;
};

// Index in a ring of stages, and the parity of its phase.
template <int STAGES>
struct Stage {
  int at = 0;
  u32 parity = 0;
  __device__ __forceinline__ void advance() {
    if (++at == STAGES) at = 0, parity ^= 1;
  }
};

// Slots of the pages that `n` slots fill.
__device__ __forceinline__ int whole_pages(int n) { return (n + PAGE_SLOTS - 1) / PAGE_SLOTS * PAGE_SLOTS; }

// A producer thread: finds keys and loads them. Keys of pages that all rows see are copied by page,
// other keys row by row. UNPACKED: keys are read from the step's unpacked copy.
//
// Candidates are numbered so that pages begin at multiples of PAGE_SLOTS: first the stored slots,
// rounded up to whole pages, then near rows, likewise, then the step's rows from the page in which
// the span begins.
template <class C, bool UNPACKED>
struct Producer {
  static constexpr bool PACKED = C::PACKED && !UNPACKED;  // codes are decoded here
  static constexpr int BN = C::BN, D = C::D, PAGES = BN / PAGE_SLOTS;
  Shared<C>& s;
  const Kv& kv;
  const Tile& t;
  const float* decisions;
  const TensorMap *stored_pages, *staged_pages;
  u8* unpacked;                  // pages of UnpackedPage, of which this lane's begin at
  int lane_page, first_staged;   // lane_page and the step's own at first_staged
  int thread;
  int begin, unmasked;    // first key of the ring, and how many
  int first_page, pages;  // the same of the ring of pages
  int masked, done;       // keys of the list, and how many are attended to
  int next, end;          // candidates still to look at
  int lived, padded, lead;  // number of the first near row and of the first row of the step; how many of the latter are before the span
  int page, meta, page_ahead;  // of candidate next + thread, and the page of the one PRODUCERS after it
  float decision;

  // Page of a candidate. Negative numbers are pages of the step that are not unpacked.
  __device__ __forceinline__ int page_of(int c) const {
    int of_step = (t.span.start - lead + c - padded) / PAGE_SLOTS * kv.n_kv_heads + t.head;
    if (UNPACKED) return c >= padded ? first_staged + of_step : lane_page + c / PAGE_SLOTS;
    if (c >= padded) return -1 - of_step;
    if (c < t.live) return t.table[c / PAGE_SLOTS];
    return is_near(c) ? t.near[(c - lived) / PAGE_SLOTS] : 0;
  }
  // Whether a candidate is a near row.
  __device__ __forceinline__ bool is_near(int c) const { return c >= lived && c - lived < t.n_near; }
  __device__ __forceinline__ u8* address_of(int page) const {
    if (UNPACKED) return unpacked + (u64)page * UnpackedPage::BYTES;
    return page < 0 ? kv.staged + (u64)(-1 - page) * kv.stride : page_at(kv, page);
  }
  // Address of a row of K in a page, address of its scale, and offsets from these to V.
  __device__ __forceinline__ const u8* key_at(u8* page, int r) const {
    return UNPACKED ? page + r * UnpackedPage::ROW : row_at(kv, page, r, 0);
  }
  __device__ __forceinline__ const u8* scale_at(u8* page, int r) const {
    return UNPACKED ? page + UnpackedPage::SCALES_AT + 4 * r : (const u8*)side_at(kv, page, r, 0);
  }
  __device__ __forceinline__ int to_value() const { return UNPACKED ? UnpackedPage::V_AT : kv.v_at; }
  __device__ __forceinline__ int to_value_scale() const {
    return UNPACKED ? UnpackedPage::V_SCALES_AT - UnpackedPage::SCALES_AT : kv.v_sides_at - kv.k_sides_at;
  }

  // Starts loading the marks or decisions of the next candidates, whose pages are known, and the
  // pages of the candidates after them.
  __device__ __forceinline__ void look() {
    int c = next + thread;
    page = page_ahead;
    if (t.dms.eviction && c < end) {
      int decided = t.dms.decided_by(c - padded - lead);
      if (c < t.live) {
        u8* at = address_of(page);
        meta = UNPACKED ? ((int*)(at + UnpackedPage::META_AT))[c % PAGE_SLOTS] : *meta_at(kv, at, c % PAGE_SLOTS);
      }
      else if (c >= padded && decided >= 0 && decided < t.span.len)
        decision = decisions[(t.span.start + decided) * kv.n_kv_heads + t.head];
    }
    page_ahead = c + PRODUCERS < end ? page_of(c + PRODUCERS) : 0;
  }

  // Tests PRODUCERS candidates, one per thread, and appends those that some row sees to the rings
  // or the list.
  __device__ __forceinline__ void scan() {
    int warp = thread / 32, lane = thread % 32, c = next + thread;
    const Dms& dms = t.dms;
    bool stored = c < padded, marked = false;
    int row = stored ? 0 : c - padded - lead, first = row;
    bool real = c < end && (stored ? c < t.live || is_near(c) : row >= 0 && row <= t.last_row);
    if (t.dms.eviction && real) {
      if (stored) marked = meta_marked(meta), row = meta_position(meta) - t.base;
      int decided = dms.decided_by(row);
      if (decided >= 0 && decided < t.span.len) {
        if (stored) decision = decisions[(t.span.start + decided) * kv.n_kv_heads + t.head];
        marked = dms.marks(decision, t.base + row);
      }
    }
    int last = marked ? dms.last_query(row) : FOREVER, slot = stored ? c % PAGE_SLOTS : (t.span.start + row) % PAGE_SLOTS;
    bool some = real && first <= t.last_row && last >= t.first_row;
    bool all = some && first <= t.first_row && last >= t.last_row;
    u32 alls = __ballot_sync(FULL, all), somes = __ballot_sync(FULL, some && !all), below = (1u << lane) - 1;
    // whole pages
    int low = (alls & 0xffff) == 0xffff, high = alls >> 16 == 0xffff;
    alls &= (low ? 0 : 0xffff) | (high ? 0 : 0xffff0000);
    if (lane == 0) s.counts[warp] = __popc(alls) | __popc(somes) << 8 | (low + high) << 16;
    int now = page;
    // The next candidates are loaded while these are compacted.
    next += PRODUCERS;
    look();
    group_barrier(1, PRODUCERS);
    int before = 0, total = 0;
#pragma unroll
    for (int w = 0; w < PRODUCERS / 32; w++) {
      if (w < warp) before += s.counts[w];
      total += s.counts[w];
    }
    if (lane < 16 ? low : high) {
      if (lane % 16 == 0) s.pages[(first_page + pages + (before >> 16) + (lane ? low : 0)) % PAGE_RING] = now;
    } else if (some) {
      u8* at = address_of(now);
      const u8 *k = key_at(at, slot), *scale = C::SCALED ? scale_at(at, slot) : nullptr;
      if (all) {
        int to = (begin + unmasked + (before & 0xff) + __popc(alls & below)) % RING;
        s.ring[to] = k;
        if (C::SCALED) s.ring_scales[to] = scale;
      } else s.masked[masked + (before >> 8 & 0xff) + __popc(somes & below)] = {k, scale, first, last};
    }
    unmasked += total & 0xff;
    masked += total >> 8 & 0xff;
    pages += total >> 16;
    group_barrier(1, PRODUCERS);
  }

  // Only the last batches have masked keys or fewer than BN keys.
  __device__ __forceinline__ Batch next_batch() {
    while (pages < PAGES && unmasked < BN && next < end) scan();
    Batch b = {begin, unmasked, done, BN};
    if (pages >= PAGES) {
      b.begin = -1 - first_page, b.unmasked = BN;
      pages -= PAGES;
      first_page = (first_page + PAGES) % PAGE_RING;
      return b;
    }
    if (unmasked < BN && pages > 0) {
      // keys of the last pages
      if (thread < PAGE_SLOTS * pages) {
        u8* at = address_of(s.pages[(first_page + thread / PAGE_SLOTS) % PAGE_RING]);
        int to = (begin + unmasked + thread) % RING, slot = thread % PAGE_SLOTS;
        s.ring[to] = key_at(at, slot);
        if (C::SCALED) s.ring_scales[to] = scale_at(at, slot);
      }
      unmasked += PAGE_SLOTS * pages;
      pages = 0;
      b.unmasked = unmasked;
      group_barrier(1, PRODUCERS);
    }
    if (unmasked >= BN) {
      b.unmasked = BN;
    } else {
      int more = min(masked - done, BN - unmasked);
      if (more > 0) {
        if (thread < more) {
          const Key& key = s.masked[done + thread];
          s.ring[begin + unmasked + thread] = key.k;
          if (C::SCALED) s.ring_scales[begin + unmasked + thread] = key.scale;
        }
        group_barrier(1, PRODUCERS);
      }
      b.n = unmasked + more;
      done += more;
    }
    unmasked -= b.unmasked;
    begin = (begin + BN) % RING;
    return b;
  }

  // Copies K (which = 0) or V (which = 1) of a batch of pages, and with K the scales of both.
  // Called by one warp.
  __device__ __forceinline__ void copy_pages(u16* to, const Batch& b, int which, int number, u64* barrier) const {
    const int SCALES = PAGE_SLOTS * sizeof(float);
    int lane = thread % 32;
    bool scaled = C::SCALED && !which;
    if (lane == 0) barrier_expect(barrier, BN * D * sizeof(u16) + (scaled ? 2 * PAGES * SCALES : 0));
    __syncwarp();
    if (lane >= PAGES * (D / 64)) return;
    int i = lane % PAGES, half = lane / PAGES, page = s.pages[(-1 - b.begin + i) % PAGE_RING];
    copy_page(to + half * (BN * 64) + i * (PAGE_SLOTS * 64), page < 0 ? staged_pages : stored_pages, 64 * half,
              which * PAGE_SLOTS, page < 0 ? -1 - page : page, barrier);
    if (scaled)
      copy_bulk(&s.scales[number % C::BATCHES][half][i * PAGE_SLOTS], address_of(page) + UnpackedPage::SCALES_AT + half * SCALES,
                SCALES, barrier);
  }

  // Copies packed codes of a batch of pages to `codes`, and with K the scales of both.
  __device__ __forceinline__ void copy_codes(const Batch& b, int which, int number) const {
    const int BYTES = PAGE_SLOTS * D, SCALES = PAGE_SLOTS * sizeof(float);
    int lane = thread % 32;
    u64* barrier = s.codes_full + which;
    if (lane == 0) barrier_expect(barrier, PAGES * (BYTES + (which ? 0 : 2 * SCALES)));
    __syncwarp();
    if (lane >= PAGES) return;
    const u8* at = address_of(s.pages[(-1 - b.begin + lane) % PAGE_RING]);
    copy_bulk(s.codes[which] + lane * BYTES, row_at(kv, (u8*)at, 0, which), BYTES, barrier);
    if (which) return;
    float(*scales)[C::SCALED ? BN : 4] = s.scales[number % C::BATCHES];
    copy_bulk(&scales[0][lane * PAGE_SLOTS], at + kv.k_sides_at, SCALES, barrier);
    copy_bulk(&scales[1][lane * PAGE_SLOTS], at + kv.v_sides_at, SCALES, barrier);
  }

  // Starts copying the scales of a batch of rows.
  __device__ __forceinline__ void copy_row_scales(const Batch& b, int number) const {
    float(*scales)[C::SCALED ? BN : 4] = s.scales[number % C::BATCHES];
    if (thread >= BN) return;
    bool real = thread < b.n;
    const u8* from = real ? s.ring_scales[b.begin + thread] : kv.pages;
    copy_async4(&scales[0][thread], from, real);
    copy_async4(&scales[1][thread], from + (real ? to_value_scale() : 0), real);
  }

  // Starts copying rows of K or V of a batch, and with K the scales of both. Rows after the last
  // key are zeros.
  template <bool WHOLE>
  __device__ __forceinline__ void copy_rows(u16* to, const Batch& b, int which, int number) const {
    const int PER_KEY = D / 8, AT_ONCE = PRODUCERS / PER_KEY;
    int first = thread / PER_KEY, chunk = thread % PER_KEY, offset = (which ? to_value() : 0) + 16 * chunk;
    const u8* const* rows = s.ring + b.begin + first;
    // AT_ONCE is a multiple of eight, so all rows of a thread have the same swizzle.
    to += chunk / 8 * (BN * 64) + first * 64 + ((chunk ^ first) & 7) * 8;
#pragma unroll
    for (int i = 0; i < BN / AT_ONCE; i++) {
      bool real = WHOLE || first + i * AT_ONCE < b.n;
      copy_async(to + i * AT_ONCE * 64, real ? rows[i * AT_ONCE] + offset : kv.pages, real);
    }
    if (C::SCALED && !which) copy_row_scales(b, number);
  }

  // Starts copying packed codes of rows, 16 at a time, to where this thread decodes them, and with
  // K the scales of both.
  template <bool WHOLE>
  __device__ __forceinline__ void copy_row_codes(const Batch& b, int which, int number) const {
    const int PER_KEY = D / 16, AT_ONCE = PRODUCERS / PER_KEY;
    int first = thread / PER_KEY, offset = (which ? kv.v_at : 0) + 16 * (thread % PER_KEY);
    const u8* const* rows = s.ring + b.begin + first;
#pragma unroll
    for (int i = 0; i < BN / AT_ONCE; i++) {
      bool real = WHOLE || first + i * AT_ONCE < b.n;
      copy_async(s.codes[which] + (i * PRODUCERS + thread) * 16, real ? rows[i * AT_ONCE] + offset : kv.pages, real);
    }
    if (!which) copy_row_scales(b, number);
  }

  // Decodes the codes that `copy_codes` or `copy_row_codes` copied.
  __device__ __forceinline__ void decode(u16* to, int which) const {
    const int PER_KEY = D / 16, AT_ONCE = PRODUCERS / PER_KEY;
    typedef typename C::Codec::K Rows;
    const Rows format(kv);
    int first = thread / PER_KEY, part = thread % PER_KEY, odd = part / 4;
    // Threads of the two halves of a row write chunks of different parity, to avoid bank conflicts.
    u16* row = to + part / 4 * (BN * 64) + first * 64;
    u16* low = row + ((2 * part + odd) ^ first) % 8 * 8;
    u16* high = row + ((2 * part + 1 - odd) ^ first) % 8 * 8;
#pragma unroll 4
    for (int i = 0; i < BN / AT_ONCE; i++) {
      const u8* from = s.codes[which] + (i * PRODUCERS + thread) * 16;
      auto a = Rows::load(from, 8 * odd, true), b = Rows::load(from, 8 - 8 * odd, true);
      *(uint4*)(low + i * AT_ONCE * 64) = format.as_bf16(a);
      *(uint4*)(high + i * AT_ONCE * 64) = format.as_bf16(b);
    }
  }

  // Loads K or V of a batch that is not packed. Warp 0 copies pages of K, warp 1 pages of V.
  __device__ __forceinline__ void load(u16* to, const Batch& b, int which, int number, u64* full, u64* empty,
                                       u32 parity) const {
    bool own = thread / 32 == which, first = thread == 32 * which;
    if (b.begin >= 0 || own) barrier_wait(empty, parity);
    if (first && !which) s.batches[number % C::BATCHES] = b;
    if (b.begin < 0) {
      if (own) copy_pages(to, b, which, number, full);
      return;
    }
    if (b.n == BN) copy_rows<true>(to, b, which, number);
    else copy_rows<false>(to, b, which, number);
    copy_arrive(full);
    group_barrier(1, PRODUCERS);
    if (first) barrier_arrive(full);
  }

  // Starts copying the codes of K or V of a batch.
  __device__ __forceinline__ void load_codes(const Batch& b, int which, int number) const {
    if (b.begin >= 0) {
      if (b.n == BN) copy_row_codes<true>(b, which, number);
      else if (b.n > 0) copy_row_codes<false>(b, which, number);
    } else if (thread / 32 == which) copy_codes(b, which, number);
    copy_commit();
  }
  // Waits for the codes, decodes them, and releases `codes` for the next copy. `parity` is the
  // phase of the batches of pages.
  __device__ __forceinline__ void decode_codes(u16* to, const Batch& b, int which, int number, u32 parity, u64* full,
                                               u64* empty, u32 empty_parity) const {
    if (b.begin < 0) barrier_wait(s.codes_full + which, parity);
    copy_wait<1>();
    barrier_wait(empty, empty_parity);
    if (thread == 0 && !which) s.batches[number % C::BATCHES] = b;
    decode(to, which);
    fence_tiles();
    // Consumers read list entries that any producer thread wrote. The barrier below orders this
    // too, but compute-sanitizer's racecheck only tracks threads that arrive themselves.
    if (!which && b.unmasked < b.n) copy_arrive(full);
    group_barrier(1, PRODUCERS);
    if (thread == 0) barrier_arrive(full);
  }

  __device__ __forceinline__ void run() {
    begin = unmasked = masked = done = first_page = pages = meta = 0;
    decision = 0.0f;
    lived = whole_pages(t.live), padded = lived + whole_pages(t.n_near);
    lead = t.span.start % PAGE_SLOTS;
    page_ahead = next + thread < end ? page_of(next + thread) : 0;
    look();
    if (PACKED) run_packed();
    else run_unpacked();
  }

  // Signals to the consumers that there is no batch `number`, nor any after it.
  __device__ __forceinline__ void finish(const Stage<C::STAGES>& stage, int number) const {
    barrier_wait(s.k_empty + stage.at, stage.parity ^ 1);
    if (thread > 0) return;
    s.batches[number % C::BATCHES] = Batch{0, 0, 0, 0};
    barrier_arrive(s.k_full + stage.at);
  }

  // K is loaded one batch ahead of V, as consumers read it. The scan for further keys runs between
  // K and V of different batches and delays neither.
  __device__ __forceinline__ void run_unpacked() {
    Batch of_k = next_batch(), of_v = {0, 0, 0, 0};
    Stage<C::STAGES> k, v;
    int number = 0;
#pragma unroll 1
    for (;; number++) {
      if (of_k.n > 0) load(s.k[k.at], of_k, 0, number, s.k_full + k.at, s.k_empty + k.at, k.parity ^ 1);
      if (of_v.n > 0) load(s.v[v.at], of_v, 1, number, s.v_full + v.at, s.v_empty + v.at, v.parity ^ 1);
      if (of_k.n == 0) break;
      of_v = of_k, v = k;
      k.advance();
      of_k = next_batch();
    }
    finish(k, number);
  }

  // Codes of the next tile are copied while the current ones are decoded.
  __device__ __forceinline__ void run_packed() {
    Stage<C::STAGES> stage;
    Batch b = next_batch();
    int number = 0;
    u32 parity = 0;
    load_codes(b, 0, 0);
#pragma unroll 1
    for (; b.n > 0; number++, stage.advance()) {
      u32 empty = stage.parity ^ 1;
      load_codes(b, 1, number);
      decode_codes(s.k[stage.at], b, 0, number, parity, s.k_full + stage.at, s.k_empty + stage.at, empty);
      Batch now = b;
      b = next_batch();
      load_codes(b, 0, number + 1);
      decode_codes(s.v[stage.at], now, 1, number, parity, s.v_full + stage.at, s.v_empty + stage.at, empty);
      parity ^= now.begin < 0;
    }
    finish(stage, number);
  }
};
