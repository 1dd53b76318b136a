// Prefill attention on tensor cores. A tile holds the query rows of some tokens of a span, for all
// query heads of one KV head. Each row attends to the slots stored before the step and to the
// span's rows up to its own token, unless the policy hides them. Decode tokens go to attend.cu. CPU
// twin: `backend::cpu::attention`.
//
// Precision: as attend.cu. Only the order of sums differs.
//
// Cost: a tile of 128 query rows (tokens x query heads; 64 for heads of more than 128 channels, 32
// for more than 256) reads once, mostly from L2, each key and value that any of its rows sees: 4 D
// bytes of a bf16 slot for 512 D operations on tensor cores (256 D for wide heads, 192 D for the
// widest, whose scores two warps compute each for itself). Keys that no row sees are skipped before
// they are read. Keys that all rows see are batched apart from keys that only some rows see, so
// that few batches need a mask.
#pragma once
#include "prefill.cuh"

#define WARPS 4
#define THREADS (32 * WARPS)
// Fragments of 16 query rows in a warp's registers, and keys of a batch in shared memory. For wide
// heads, only half as many fit. For the widest, a quarter of the keys fits, and warps share their
// query rows by two: each sums up one of two PARTS of the channels of V.
#if MAX_HEAD_DIM > 256
#define FRAGMENTS 1
#define TILE_KEYS 16
#define PARTS 2
#elif MAX_HEAD_DIM > 128
#define FRAGMENTS 1
#define TILE_KEYS 32
#define PARTS 1
#else
#define FRAGMENTS 2
#define TILE_KEYS 64
#define PARTS 1
#endif
#define TILE_QUERIES (16 * FRAGMENTS * WARPS / PARTS)  // rows of a tile: a token and a query head of the group
#define RING 256                   // keys found that all rows see: at most 2 TILE_KEYS - 1 + THREADS
#define MASKED 256                 // keys found that some rows see: at most twice the tokens of a tile less one
#define MIN_SPLIT_KEYS 256         // fewer are not worth a merge

// A key that rows `first` to `last` of the span see. slot: the address of its page, a multiple of
// PAGE_SLOTS, plus its row in the page.
struct Key {
  const u8* slot;
  int first, last;
};

template <int D, class Codec>
struct Shared {
  // Rows are XOR-swizzled in 16-byte chunks: the eight rows that one ldmatrix reads lie in
  // different banks.
  u16 q[TILE_QUERIES * D], k[TILE_KEYS * D], v[TILE_KEYS * D];
  // packed codes of K and V in flight, which are unpacked to k and v once they arrive
  u8 k_codes[Codec::PACKED ? TILE_KEYS * D / 8 * Codec::K::EIGHT_BYTES : 16];
  u8 v_codes[Codec::PACKED ? TILE_KEYS * D / 8 * Codec::V::EIGHT_BYTES : 16];
  u32 sides[2][2][TILE_KEYS];                     // of this batch and the next: K's, V's; scales once unpacked
  float offsets[Codec::AFFINE ? TILE_KEYS : 4];   // of V: what weights of codes are multiplied by
  const u8* ring[RING];
  Key masked[MASKED];
  int counts[WARPS];
  bool last;
};

// Returns candidate c. Candidates are the stored slots, then the near rows, then the rows of the
// span. The rows that see a key are consecutive: from row 0 (a stored key) or the key's own row, to
// the last query of its window if the key is marked, else to the end.
template <class Codec>
__device__ __forceinline__ Key candidate(const Kv& kv, const Tile& t, const float* decisions, int c) {
  const Dms& dms = t.dms;
  Key key;
  u8* page;
  int r, row;  // slot of the page; row of the span, negative for a token stored before it
  bool marked = false;
  int fed = c - t.live;
  if (fed < t.n_near) {
    int at = fed < 0 ? c : fed;
    page = page_at(kv, (fed < 0 ? t.table : t.near)[at / PAGE_SLOTS]);
    r = at % PAGE_SLOTS;
    row = key.first = 0;
    if (t.dms.eviction) {
      int meta = *meta_at(kv, page, r);
      marked = meta_marked(meta);
      row = meta_position(meta) - t.base;
    }
  } else {
    row = key.first = fed - t.n_near;
    page = staged_at(kv, t.span.start + row, t.head);
    r = (t.span.start + row) % PAGE_SLOTS;
  }
  key.slot = page + r;
  int decided = dms.decided_by(row);
  if (t.dms.eviction && decided >= 0 && decided < t.span.len)
    marked = dms.marks(decisions[(t.span.start + decided) * kv.n_kv_heads + t.head], t.base + row);
  key.last = marked ? dms.last_query(row) : FOREVER;
  return key;
}

// Keys that are found and not yet attended to: a ring of the keys that all rows of the tile see,
// and a list of the keys that only some rows see.
struct KeyQueue {
  int begin, unmasked;  // first key of the ring, and how many
  int masked, done;     // keys of the list, and how many are attended to
  int next, end;        // candidates still to look at
  Key key;              // candidate next + threadIdx.x
};

// Tests THREADS candidates, one per thread, and appends every key that some row sees to the queue.
template <int D, class Codec>
__device__ __forceinline__ void scan_candidates(Shared<D, Codec>& s, KeyQueue& queue, const Kv& kv, const Tile& t,
                                                const float* decisions) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Key& key = queue.key;
  bool real = queue.next + (int)threadIdx.x < queue.end;
  bool some = real && key.first <= t.last_row && key.last >= t.first_row;
  bool all = some && key.first <= t.first_row && key.last >= t.last_row;
  u32 alls = __ballot_sync(FULL, all), somes = __ballot_sync(FULL, some && !all), below = (1u << lane) - 1;
  if (lane == 0) s.counts[warp] = __popc(alls) | __popc(somes) << 16;
  __syncthreads();
  int before = 0, total = 0;
#pragma unroll
  for (int w = 0; w < WARPS; w++) {
    if (w < warp) before += s.counts[w];
    total += s.counts[w];
  }
  if (all) s.ring[(queue.begin + queue.unmasked + (before & 0xffff) + __popc(alls & below)) % RING] = key.slot;
  else if (some) s.masked[queue.masked + (before >> 16) + __popc(somes & below)] = key;
  queue.unmasked += total & 0xffff;
  queue.masked += total >> 16;
  queue.next += THREADS;
  // prefetch the next candidates while these keys are attended to
  if (queue.next + (int)threadIdx.x < queue.end) queue.key = candidate<Codec>(kv, t, decisions, queue.next + threadIdx.x);
  __syncthreads();
}

// Up to TILE_KEYS keys that are attended to together. n = 0: no keys are left.
struct Batch {
  int begin, n;  // of the ring, or of the list if `masked`
  bool masked;
};

// Takes the next batch from the queue. Scans candidates until a batch of unmasked keys is full.
// Masked keys come last, when all of them are known, so that their batches are full too.
template <int D, class Codec>
__device__ __forceinline__ Batch next_batch(Shared<D, Codec>& s, KeyQueue& queue, const Kv& kv, const Tile& t,
                                            const float* decisions) {
  while (queue.unmasked < TILE_KEYS && queue.next < queue.end) scan_candidates(s, queue, kv, t, decisions);
  Batch b;
  b.masked = queue.unmasked == 0;
  if (b.masked) {
    b.begin = queue.done;
    b.n = min(queue.masked - queue.done, TILE_KEYS);
    queue.done += b.n;
  } else {
    b.begin = queue.begin;
    b.n = min(queue.unmasked, TILE_KEYS);
    queue.begin = (queue.begin + b.n) % RING;
    queue.unmasked -= b.n;
  }
  return b;
}

// Index of a channel of a tile row in shared memory.
template <int D>
__device__ __forceinline__ int swizzled(int row, int channel) {
  return row * D + ((channel / 8) ^ (row % 8)) * 8;
}

// Starts async copies of K (v = 0) or V (v = 1) of a batch, in the format Rows. D / 8 neighbouring
// threads copy a key. Rows after the last key are zeros.
template <class Rows, int D, class Codec>
__device__ __forceinline__ void load_async(Shared<D, Codec>& s, const Batch& b, int v, int parity, const Kv& kv) {
  const int PER_KEY = D / 8, AT_ONCE = THREADS / PER_KEY;
  int eight = threadIdx.x % PER_KEY, begin = (v ? kv.v_at : 0) + eight * Rows::EIGHT_BYTES, bytes = row_bytes(kv, v);
  bool within = 8 * eight < kv.head_dim;
#pragma unroll
  for (int i = 0; i < TILE_KEYS / AT_ONCE; i++) {
    int key = threadIdx.x / PER_KEY + i * AT_ONCE, at = b.begin + key;
    bool real = key < b.n;
    const u8* slot = real ? (b.masked ? s.masked[at % MASKED].slot : s.ring[at % RING]) : kv.pages;
    int r = (u64)slot % PAGE_SLOTS;
    u8* codes = (v ? s.v_codes : s.k_codes) + (key * PER_KEY + eight) * Rows::EIGHT_BYTES;
    u16* values = (v ? s.v : s.k) + swizzled<D>(key, 8 * eight);
    copy_eight_async<Rows>(Codec::PACKED ? (void*)codes : (void*)values, slot - r + begin + r * bytes, real && within);
  }
  if (Codec::SCALED && threadIdx.x < TILE_KEYS) {
    int key = threadIdx.x, at = b.begin + key;
    bool real = key < b.n;
    const u8* slot = real ? (b.masked ? s.masked[at % MASKED].slot : s.ring[at % RING]) : kv.pages;
    int r = (u64)slot % PAGE_SLOTS;
    copy_async4(&s.sides[parity][v][key], slot - r + (v ? kv.v_sides_at : kv.k_sides_at) + r * 4, real);
  }
  copy_commit();
}

// Unpacks the codes that this thread copied, and V's side data if it is more than a scale.
template <class Rows, int D, class Codec>
__device__ __forceinline__ void unpack(const Rows& rows, Shared<D, Codec>& s, int v, int parity) {
  if (!Codec::PACKED) return;
  const int PER_KEY = D / 8, AT_ONCE = THREADS / PER_KEY;
  int channel = threadIdx.x % PER_KEY * 8;
#pragma unroll
  for (int i = 0; i < TILE_KEYS / AT_ONCE; i++) {
    int key = threadIdx.x / PER_KEY + i * AT_ONCE;
    auto x = Rows::load((v ? s.v_codes : s.k_codes) + key * PER_KEY * Rows::EIGHT_BYTES, channel, true);
    *(uint4*)((v ? s.v : s.k) + swizzled<D>(key, channel)) = rows.as_bf16(x);
  }
  if (Codec::AFFINE && v && threadIdx.x < TILE_KEYS) {
    float2 affine = Rows::affine(s.sides[parity][1][threadIdx.x]);
    s.sides[parity][1][threadIdx.x] = __float_as_uint(affine.x);
    s.offsets[threadIdx.x] = affine.x > 0.0f ? affine.y * reciprocal(affine.x) * (1.0f / Codec::WEIGHT_FACTOR) : 0.0f;
  }
}

// The first of a warp's query rows in the tile, and the first of its channels of V.
__device__ __forceinline__ int first_query() { return 16 * FRAGMENTS * (threadIdx.x / 32 / PARTS); }
template <int D>
__device__ __forceinline__ int first_channel() { return PARTS == 1 ? 0 : threadIdx.x / 32 % PARTS * (D / PARTS); }

// Online softmax of a warp's query rows and channels. offset: sum of weights times V's offsets,
// which `reduce_sums` adds to the accumulators.
template <int D, class Codec>
struct OnlineSoftmax {
  float offset[FRAGMENTS][2];
  RowPair<D / PARTS> rows[FRAGMENTS];

  __device__ __forceinline__ void init() {
#pragma unroll
    for (int f = 0; f < FRAGMENTS; f++) rows[f].init(), offset[f][0] = offset[f][1] = 0.0f;
  }

  // S += Q K^T of the batch. Fragment j has 8 keys, of which a warp lane holds keys 2 (lane % 4)
  // and the next.
  __device__ __forceinline__ void score(float (*scores)[TILE_KEYS / 8][4], const Shared<D, Codec>& s) const {
    int lane = threadIdx.x % 32;
    int row = first_query() + lane % 16, row_channel = lane / 16 * 8;
    int key = lane / 16 * 8 + lane % 8, channel = lane / 8 % 2 * 8;
#pragma unroll
    for (int c = 0; c < D; c += 16) {
      u32 a[2][4];
      load_matrices(a[0], s.q + swizzled<D>(row, c + row_channel));
      if (FRAGMENTS > 1) load_matrices(a[1], s.q + swizzled<D>(row + 16, c + row_channel));
#pragma unroll
      for (int j = 0; j < TILE_KEYS / 8; j += 2) {
        u32 b[4];
        load_matrices(b, s.k + swizzled<D>(8 * j + key, c + channel));
        mma(scores[0][j], a[0], b);
        if (FRAGMENTS > 1) mma(scores[FRAGMENTS - 1][j], a[1], b);
        mma(scores[0][j + 1], a[0], b + 2);
        if (FRAGMENTS > 1) mma(scores[FRAGMENTS - 1][j + 1], a[1], b + 2);
      }
    }
  }

  // Converts scores to softmax weights in bf16, and rescales accumulators and sums to the new
  // maxima.
  __device__ __forceinline__ void weigh(u32 (*weights)[TILE_KEYS / 8][2], float (*scores)[TILE_KEYS / 8][4],
                                        const Codec& codec, const Shared<D, Codec>& s, const Batch& b, int parity,
                                        const Tile& t, float scale) {
    // Factor from scores to logits in log2 units; scaled codecs apply it with the scales of the
    // keys.
    float unit = Codec::SCALED ? 1.0f : scale * LOG2E;
    int lane = threadIdx.x % 32;
    if (Codec::SCALED) {
      // scales of K
#pragma unroll
      for (int j = 0; j < TILE_KEYS / 8; j++) {
        float2 by = *(const float2*)&s.sides[parity][0][8 * j + lane % 4 * 2];
        by.x *= scale * (LOG2E * codec.score_factor()), by.y *= scale * (LOG2E * codec.score_factor());
#pragma unroll
        for (int f = 0; f < FRAGMENTS; f++)
#pragma unroll
          for (int i = 0; i < 4; i++) scores[f][j][i] *= i % 2 ? by.y : by.x;
      }
    }
    if (b.masked || b.n < TILE_KEYS) {
      // mask
      int query = first_query() + lane / 4;
#pragma unroll
      for (int j = 0; j < TILE_KEYS / 8; j++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
          int key = 8 * j + lane % 4 * 2 + k, first = 0, last = FOREVER;
          if (b.masked) {
            const Key& found = s.masked[(b.begin + key) % MASKED];
            first = found.first, last = found.last;
          }
#pragma unroll
          for (int i = 0; i < 2 * FRAGMENTS; i++) {
            int row = t.first_row + (query + 8 * i) / t.group;
            if (key >= b.n || row < first || row > last) scores[i / 2][j][i % 2 * 2 + k] = NEG_INFINITY;
          }
        }
    }
#pragma unroll
    for (int f = 0; f < FRAGMENTS; f++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        // new maximum of the row, rounded up so that it soon stays the same
        float top = NEG_INFINITY;
#pragma unroll
        for (int j = 0; j < TILE_KEYS / 8; j++) top = fmaxf(top, fmaxf(scores[f][j][2 * i], scores[f][j][2 * i + 1]));
        top = fmaxf(top, __shfl_xor_sync(FULL, top, 1));
        top = fmaxf(top, __shfl_xor_sync(FULL, top, 2));
        float &max = rows[f].max[i], &sum = rows[f].sum[i], *acc = rows[f].acc;
        top = fmaxf(max, ceilf(top * unit));
        // no key seen so far: avoid inf - inf
        float from = top == NEG_INFINITY ? 0.0f : top;
        // rescale if a maximum grew
        if (__any_sync(FULL, top > max)) {
          float by = exp2_fast(max - from);
          max = top;
          sum *= by;
          if (Codec::AFFINE) offset[f][i] *= by;
#pragma unroll
          for (int j = 0; j < D / PARTS / 8; j++) acc[4 * j + 2 * i] *= by, acc[4 * j + 2 * i + 1] *= by;
        }
        // weights
#pragma unroll
        for (int j = 0; j < TILE_KEYS / 8; j++) {
          float x = exp2_fast(scores[f][j][2 * i] * unit - from), y = exp2_fast(scores[f][j][2 * i + 1] * unit - from);
          if (Codec::SCALED) {
            sum += x + y;
            float2 by = *(const float2*)&s.sides[parity][1][8 * j + lane % 4 * 2];
            x *= by.x * Codec::WEIGHT_FACTOR, y *= by.y * Codec::WEIGHT_FACTOR;
          }
          weights[f][j][i] = round_pair(x, y);
          if (Codec::AFFINE) {
            // offsets use the same rounded weights as codes
            float2 steps = *(const float2*)&s.offsets[8 * j + lane % 4 * 2];
            float2 w = {bf16_to_f32((u16)weights[f][j][i]), __uint_as_float(weights[f][j][i] & 0xffff0000u)};
            offset[f][i] += w.x * steps.x + w.y * steps.y;
          }
          if (!Codec::SCALED) sum += sum_pair(weights[f][j][i]);
        }
      }
  }

  // O += P V of the batch.
  __device__ __forceinline__ void accumulate(const u32 (*weights)[TILE_KEYS / 8][2], const Shared<D, Codec>& s) {
    int lane = threadIdx.x % 32, key = lane / 8 % 2 * 8 + lane % 8, channel = first_channel<D>() + lane / 16 * 8;
#pragma unroll
    for (int j = 0; j < TILE_KEYS / 8; j += 2)
#pragma unroll
      for (int c = 0; c < D / PARTS / 8; c += 2) {
        u32 b[4];
        load_matrices_transposed(b, s.v + swizzled<D>(8 * j + key, 8 * c + channel));
#pragma unroll
        for (int f = 0; f < FRAGMENTS; f++) {
          u32 a[4] = {weights[f][j][0], weights[f][j][1], weights[f][j + 1][0], weights[f][j + 1][1]};
          mma(rows[f].acc + 4 * c, a, b);
          mma(rows[f].acc + 4 * c + 4, a, b + 2);
        }
      }
  }

  // Sums over the four warp lanes that share a row, and adds the offsets to the accumulators.
  __device__ __forceinline__ void reduce_sums(const Codec& codec) {
#pragma unroll
    for (int f = 0; f < FRAGMENTS; f++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        float& sum = rows[f].sum[i];
        sum += __shfl_xor_sync(FULL, sum, 1);
        sum += __shfl_xor_sync(FULL, sum, 2);
        if (!Codec::AFFINE) continue;
        float plus = offset[f][i] * (1.0f / codec.sum_factor());
        plus += __shfl_xor_sync(FULL, plus, 1);
        plus += __shfl_xor_sync(FULL, plus, 2);
#pragma unroll
        for (int j = 0; j < D / PARTS / 8; j++) rows[f].acc[4 * j + 2 * i] += plus, rows[f].acc[4 * j + 2 * i + 1] += plus;
      }
  }
};

// Attention of one tile over one split of its keys. Grid (splits, n_kv_heads, tiles), THREADS
// threads. A span of len rows has len / (TILE_QUERIES / group) tiles, rounded up. A tile with few
// keys uses fewer splits, and the blocks of the others return at once. The last split of a tile to
// arrive merges all its splits.
template <int D, class Codec>
__device__ __forceinline__ void attend_tiles(const PrefillParams& p) {
  Shared<D, Codec>& s = *(Shared<D, Codec>*)dynamic_shared_memory<sizeof(Shared<D, Codec>)>();
  after_previous();
  const Kv& kv = p.kv;
  const Codec codec(kv);
  Tile t = tile_of<TILE_QUERIES>(kv, p.layer, p.spans);
  int total = t.live + t.n_near + t.last_row + 1;
  int per = max(((total + (int)gridDim.x - 1) / (int)gridDim.x + TILE_KEYS - 1) / TILE_KEYS * TILE_KEYS, MIN_SPLIT_KEYS);
  int splits = (total + per - 1) / per, split = blockIdx.x;
  if (split >= splits) return;
  KeyQueue queue;
  queue.begin = queue.unmasked = queue.masked = queue.done = 0;
  queue.next = split * per;
  queue.end = min(queue.next + per, total);
  if (queue.next + (int)threadIdx.x < queue.end) queue.key = candidate<Codec>(kv, t, p.decisions, queue.next + threadIdx.x);
  int lane = threadIdx.x % 32;
  auto query_at = [&](int query, int chunk) { return s.q + swizzled<D>(query, 8 * chunk); };
  // Warps that share rows write the same values.
  load_queries<D, Codec, 16 * FRAGMENTS, 32>(p, t, first_query(), lane, kv.head_dim, query_at);
  __syncwarp();
  OnlineSoftmax<D, Codec> softmax;
  softmax.init();
  int parity = 0;
  Batch now = next_batch(s, queue, kv, t, p.decisions);
  if (now.n > 0) {
    load_async<typename Codec::K>(s, now, 0, parity, kv);
    load_async<typename Codec::V>(s, now, 1, parity, kv);
  }
  // batches of keys: the copy of the next K starts when this batch's scores are computed, that of
  // the next V when its values are accumulated, because their buffers are free from then on
#pragma unroll 1
  while (now.n > 0) {
    copy_wait<1>();
    unpack(codec.k, s, 0, parity);
    __syncthreads();
    float scores[FRAGMENTS][TILE_KEYS / 8][4] = {};
    softmax.score(scores, s);
    __syncthreads();
    Batch next = next_batch(s, queue, kv, t, p.decisions);
    if (next.n > 0) load_async<typename Codec::K>(s, next, 0, parity ^ 1, kv);
    else copy_commit();
    // The weights need the scales of packed V, so wait for it first. They do not need bf16 V, so
    // its copy overlaps the softmax.
    if (Codec::PACKED) {
      copy_wait<1>();
      unpack(codec.v, s, 1, parity);
      __syncthreads();
    }
    u32 weights[FRAGMENTS][TILE_KEYS / 8][2];
    softmax.weigh(weights, scores, codec, s, now, parity, t, p.score_scale);
    if (!Codec::PACKED) {
      copy_wait<1>();
      __syncthreads();
    }
    softmax.accumulate(weights, s);
    __syncthreads();
    if (next.n > 0) load_async<typename Codec::V>(s, next, 1, parity ^ 1, kv);
    now = next;
    parity ^= 1;
  }
  softmax.reduce_sums(codec);
  if (splits > 1) {
    const int SIZE = FRAGMENTS * (4 + D / PARTS / 2) * THREADS;
    int tile = t.index * kv.n_kv_heads + t.head;
    float* saved = p.partials + (u64)tile * gridDim.x * SIZE;
    auto state_at = [&](int split, int f) { return (float4*)(saved + split * SIZE) + f * (1 + D / PARTS / 8) * THREADS + threadIdx.x; };
#pragma unroll
    for (int f = 0; f < FRAGMENTS; f++) softmax.rows[f].save(state_at(split, f), THREADS);
    if (!is_last(p.arrivals + tile, splits, s.last)) return;
    // merge in order, so that the result does not depend on which split arrives last
#pragma unroll
    for (int f = 0; f < FRAGMENTS; f++) {
      RowPair<D / PARTS>& rows = softmax.rows[f];
      rows.max[0] = rows.max[1] = NEG_INFINITY, rows.sum[0] = rows.sum[1] = 0.0f;
#pragma unroll 1
      for (int i = 0; i < splits; i++) rows.merge(state_at(i, f), THREADS);
    }
  }
#pragma unroll
  for (int f = 0; f < FRAGMENTS; f++)
    softmax.rows[f].write(codec, p, t, first_query() + 16 * f + lane / 4, kv.head_dim, first_channel<D>());
}

#define ATTEND_TILES(name, D, Codec)                                     \
  KERNEL __launch_bounds__(THREADS, 2) name(PrefillParams params) {      \
    attend_tiles<D, Codec>(params);                                      \
  }
