// Prefill attention on tensor cores: a tile of query rows of one span and KV head, all query heads of the group, over the
// slots stored before the step and the step's own rows up to each query, by the policy's rule. Decode tokens go to
// attend.cu. CPU twin: `backend::cpu::attention`.
//
// Precision: as attend.cu, to the bit but for the order of sums.
//
// Cost: a tile of 128 query rows (tokens x query heads) reads each key and value that one of its rows sees once,
// mostly from L2: 4 D bytes of a bf16 slot for 512 D operations on tensor cores. Keys that no row sees are skipped
// before they are read. Keys that all rows see are batched apart from those that only some see, so that few batches need
// a mask.
#include "prefill.cuh"

#define WARPS 4
#define THREADS (32 * WARPS)
#define TILE_QUERIES (32 * WARPS)  // rows of a tile: a token and a query head of the group
#define TILE_KEYS 64               // keys of a batch in shared memory
#define RING 256                   // keys found that all rows see: at most 2 TILE_KEYS - 1 + THREADS
#define MASKED 256                 // keys found that some rows see: at most twice the tokens of a tile less one
#define MIN_SPLIT_KEYS 256         // fewer are not worth a merge

// A key: the address of its page, a multiple of PAGE_SLOTS, plus its row there. Rows first to last of the span see it.
struct Key {
  const u8* slot;
  int first, last;
};

template <int D, class Codec>
struct Shared {
  // Rows are XOR-swizzled in 16-byte chunks: the eight rows that one ldmatrix reads lie in different banks.
  u16 q[TILE_QUERIES * D], k[TILE_KEYS * D], v[TILE_KEYS * D];
  // codes of K and V in flight, unpacked to k and v
  u8 k_codes[Codec::PACKED ? TILE_KEYS * D / 8 * Codec::K::EIGHT_BYTES : 16];
  u8 v_codes[Codec::PACKED ? TILE_KEYS * D / 8 * Codec::V::EIGHT_BYTES : 16];
  u32 sides[2][2][TILE_KEYS];                     // of this batch and the next: K's, V's; scales once unpacked
  float offsets[Codec::AFFINE ? TILE_KEYS : 4];   // of V: what weights of codes are multiplied by
  const u8* ring[RING];
  Key masked[MASKED];
  int counts[WARPS];
  bool last;
};

// Candidate c: stored slots first, then rows of the span. The rows that see a key are consecutive: from the first row, or
// from the key's own, up to the last query of its window if it is marked.
template <class Codec>
__device__ __forceinline__ Key candidate(const Kv& kv, const Tile& t, const float* decisions, int c) {
  const Dms& dms = t.dms;
  Key key;
  u8* page;
  int r, row;  // slot of the page; row of the span, negative for a token stored before it
  bool stored = c < t.live, marked = false;
  if (stored) {
    page = page_at(kv, t.table[c / PAGE_SLOTS]);
    r = c % PAGE_SLOTS;
    row = key.first = 0;
    if (t.eviction) {
      int meta = *meta_at(kv, page, r);
      marked = meta_marked(meta);
      row = meta_position(meta) - t.base;
    }
  } else {
    row = key.first = c - t.live;
    page = staged_at(kv, t.span.start + row, t.head);
    r = (t.span.start + row) % PAGE_SLOTS;
  }
  key.slot = page + r;
  int decided = dms.decided_by(row);
  if (t.eviction && decided >= 0 && decided < t.span.len)
    marked = dms.marks(decisions[(t.span.start + decided) * kv.n_kv_heads + t.head], t.base + row);
  key.last = marked ? dms.last_query(row) : FOREVER;
  return key;
}

// Keys found and not yet attended to: those that all rows see in a ring, the others in a list.
struct KeyQueue {
  int begin, unmasked;  // first key of the ring, and how many
  int masked, done;     // keys of the list, and how many are attended to
  int next, end;        // candidates still to look at
  Key key;              // candidate next + threadIdx.x
};

// Looks at THREADS candidates, one a thread, and compacts those that some row sees into the queue.
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
  // The next candidates are in flight while these keys are attended to.
  if (queue.next + (int)threadIdx.x < queue.end) queue.key = candidate<Codec>(kv, t, decisions, queue.next + threadIdx.x);
  __syncthreads();
}

// Up to TILE_KEYS keys that are attended to together. n = 0: none are left.
struct Batch {
  int begin, n;  // of the ring, or of the list if `masked`
  bool masked;
};

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

// Starts async copies of K (v = 0) or V (1) of a batch, in the format Rows, D / 8 neighbouring threads a key; zeros after
// the last.
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

// Unpacks the codes, and V's side data where it is more than a scale, that this thread copied.
template <class Rows, int D, class Codec>
__device__ __forceinline__ void unpack(Shared<D, Codec>& s, int v, int parity) {
  if (!Codec::PACKED) return;
  const int PER_KEY = D / 8, AT_ONCE = THREADS / PER_KEY;
  int channel = threadIdx.x % PER_KEY * 8;
#pragma unroll
  for (int i = 0; i < TILE_KEYS / AT_ONCE; i++) {
    int key = threadIdx.x / PER_KEY + i * AT_ONCE;
    typename Rows::Eight x;
    x.load((v ? s.v_codes : s.k_codes) + key * PER_KEY * Rows::EIGHT_BYTES, channel, true);
    *(uint4*)((v ? s.v : s.k) + swizzled<D>(key, channel)) = x.as_bf16();
  }
  if (Codec::AFFINE && v && threadIdx.x < TILE_KEYS) {
    float2 affine = Rows::affine(s.sides[parity][1][threadIdx.x]);
    s.sides[parity][1][threadIdx.x] = __float_as_uint(affine.x);
    s.offsets[threadIdx.x] = affine.x > 0.0f ? affine.y * reciprocal(affine.x) * (1.0f / Codec::WEIGHT_FACTOR) : 0.0f;
  }
}

// Online softmax of a warp's 32 query rows: two fragments of 16, of each of which a lane holds accumulators of rows
// lane / 4 and lane / 4 + 8. max: of the logits, in log2 units; sum: of exp2(logit - max); offset: of weights times V's
// offsets, which `reduce_sums` adds to the accumulators. Nothing seen: max = -inf, sum = 0.
template <int D, class Codec>
struct OnlineSoftmax {
  float acc[2][D / 8][4], max[2][2], sum[2][2], offset[2][2];

  __device__ __forceinline__ void init() {
#pragma unroll
    for (int f = 0; f < 2; f++) {
      max[f][0] = max[f][1] = NEG_INFINITY;
      sum[f][0] = sum[f][1] = offset[f][0] = offset[f][1] = 0.0f;
#pragma unroll
      for (int j = 0; j < D / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) acc[f][j][i] = 0.0f;
    }
  }

  // S = Q K^T of the batch: fragment j of 8 keys, of which a lane holds keys 2 (lane % 4) and the next.
  __device__ __forceinline__ void score(float (*scores)[TILE_KEYS / 8][4], const Shared<D, Codec>& s) const {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int row = 32 * warp + lane % 16, row_channel = lane / 16 * 8;
    int key = lane / 16 * 8 + lane % 8, channel = lane / 8 % 2 * 8;
#pragma unroll
    for (int f = 0; f < 2; f++)
#pragma unroll
      for (int j = 0; j < TILE_KEYS / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) scores[f][j][i] = 0.0f;
#pragma unroll
    for (int c = 0; c < D; c += 16) {
      u32 a[2][4];
      load_matrices(a[0], s.q + swizzled<D>(row, c + row_channel));
      load_matrices(a[1], s.q + swizzled<D>(row + 16, c + row_channel));
#pragma unroll
      for (int j = 0; j < TILE_KEYS / 8; j += 2) {
        u32 b[4];
        load_matrices(b, s.k + swizzled<D>(8 * j + key, c + channel));
        mma(scores[0][j], a[0], b);
        mma(scores[1][j], a[1], b);
        mma(scores[0][j + 1], a[0], b + 2);
        mma(scores[1][j + 1], a[1], b + 2);
      }
    }
  }

  // Scores become softmax weights in bf16; accumulators and sums are rescaled to the new maxima.
  __device__ __forceinline__ void weigh(u32 (*weights)[TILE_KEYS / 8][2], float (*scores)[TILE_KEYS / 8][4],
                                        const Shared<D, Codec>& s, const Batch& b, int parity, const Tile& t,
                                        float scale) {
    // Scores times this are logits in log2 units; scaled codecs apply it with the scales of the keys.
    float unit = Codec::SCALED ? 1.0f : scale * LOG2E;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (Codec::SCALED) {
      // scales of K
#pragma unroll
      for (int j = 0; j < TILE_KEYS / 8; j++) {
        float2 by = *(const float2*)&s.sides[parity][0][8 * j + lane % 4 * 2];
        by.x *= scale * (LOG2E * Codec::SCORE_FACTOR), by.y *= scale * (LOG2E * Codec::SCORE_FACTOR);
#pragma unroll
        for (int f = 0; f < 2; f++)
#pragma unroll
          for (int i = 0; i < 4; i++) scores[f][j][i] *= i % 2 ? by.y : by.x;
      }
    }
    if (b.masked || b.n < TILE_KEYS) {
      // mask
      int query = 32 * warp + lane / 4;
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
          for (int i = 0; i < 4; i++) {
            int row = t.first_row + (query + 8 * i) / t.group;
            if (key >= b.n || row < first || row > last) scores[i / 2][j][i % 2 * 2 + k] = NEG_INFINITY;
          }
        }
    }
#pragma unroll
    for (int f = 0; f < 2; f++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        // new maximum of the row
        float top = NEG_INFINITY;
#pragma unroll
        for (int j = 0; j < TILE_KEYS / 8; j++) top = fmaxf(top, fmaxf(scores[f][j][2 * i], scores[f][j][2 * i + 1]));
        top = fmaxf(top, __shfl_xor_sync(FULL, top, 1));
        top = fmaxf(top, __shfl_xor_sync(FULL, top, 2));
        top = fmaxf(max[f][i], ceilf(top * unit));
        float from = top == NEG_INFINITY ? 0.0f : top;
        // rescale, if it grew: maxima soon stay the same
        if (__any_sync(FULL, top > max[f][i])) {
          float by = exp2_fast(max[f][i] - from);
          max[f][i] = top;
          sum[f][i] *= by;
          if (Codec::AFFINE) offset[f][i] *= by;
#pragma unroll
          for (int j = 0; j < D / 8; j++) acc[f][j][2 * i] *= by, acc[f][j][2 * i + 1] *= by;
        }
        // weights
#pragma unroll
        for (int j = 0; j < TILE_KEYS / 8; j++) {
          float x = exp2_fast(scores[f][j][2 * i] * unit - from), y = exp2_fast(scores[f][j][2 * i + 1] * unit - from);
          if (Codec::SCALED) {
            sum[f][i] += x + y;
            float2 by = *(const float2*)&s.sides[parity][1][8 * j + lane % 4 * 2];
            x *= by.x * Codec::WEIGHT_FACTOR, y *= by.y * Codec::WEIGHT_FACTOR;
          }
          weights[f][j][i] = round_pair(x, y);
          if (Codec::AFFINE) {
            // the rounded weights that codes get too
            float2 steps = *(const float2*)&s.offsets[8 * j + lane % 4 * 2];
            float2 w = {bf16_to_f32((u16)weights[f][j][i]), __uint_as_float(weights[f][j][i] & 0xffff0000u)};
            offset[f][i] += w.x * steps.x + w.y * steps.y;
          }
          if (!Codec::SCALED) sum[f][i] += sum_pair(weights[f][j][i]);
        }
      }
  }

  // O += P V of the batch.
  __device__ __forceinline__ void accumulate(const u32 (*weights)[TILE_KEYS / 8][2], const Shared<D, Codec>& s) {
    int lane = threadIdx.x % 32, key = lane / 8 % 2 * 8 + lane % 8, channel = lane / 16 * 8;
#pragma unroll
    for (int j = 0; j < TILE_KEYS / 8; j += 2)
#pragma unroll
      for (int c = 0; c < D / 8; c += 2) {
        u32 b[4];
        load_matrices_transposed(b, s.v + swizzled<D>(8 * j + key, 8 * c + channel));
#pragma unroll
        for (int f = 0; f < 2; f++) {
          u32 a[4] = {weights[f][j][0], weights[f][j][1], weights[f][j + 1][0], weights[f][j + 1][1]};
          mma(acc[f][c], a, b);
          mma(acc[f][c + 1], a, b + 2);
        }
      }
  }

  // Sums of the four lanes that share a row; offsets join the accumulators.
  __device__ __forceinline__ void reduce_sums() {
#pragma unroll
    for (int f = 0; f < 2; f++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        sum[f][i] += __shfl_xor_sync(FULL, sum[f][i], 1);
        sum[f][i] += __shfl_xor_sync(FULL, sum[f][i], 2);
        if (!Codec::AFFINE) continue;
        float plus = offset[f][i] * (1.0f / Codec::SUM_FACTOR);
        plus += __shfl_xor_sync(FULL, plus, 1);
        plus += __shfl_xor_sync(FULL, plus, 2);
#pragma unroll
        for (int j = 0; j < D / 8; j++) acc[f][j][2 * i] += plus, acc[f][j][2 * i + 1] += plus;
      }
  }

  // Writes the normalised output.
  __device__ __forceinline__ void write(void* to, int out_is_bf16, const Tile& t, const Kv& kv) const {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int f = 0; f < 2; f++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        int query = 32 * warp + 16 * f + 8 * i + lane / 4, row = t.first_row + query / t.group;
        float x[D / 8][2], by = Codec::SUM_FACTOR / sum[f][i];
#pragma unroll
        for (int j = 0; j < D / 8; j++) x[j][0] = acc[f][j][2 * i] * by, x[j][1] = acc[f][j][2 * i + 1] * by;
        if (Codec::ROTATED) unrotate_fragment<D>(x, kv.head_dim, lane);
        if (row > t.last_row) continue;
        int q_head = t.head * t.group + query % t.group;
        u64 at = ((u64)(t.span.start + row) * kv.n_q_heads + q_head) * kv.head_dim + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < D / 8; j++)
          if (8 * j < kv.head_dim) put2(to, out_is_bf16, at + 8 * j, x[j][0], x[j][1]);
      }
  }

  // Saves a split's state, in the order in which threads hold it.
  __device__ __forceinline__ void save(float* split) const {
    float4* to = (float4*)split + threadIdx.x;
    to[0] = float4{max[0][0], max[0][1], max[1][0], max[1][1]};
    to[THREADS] = float4{sum[0][0], sum[0][1], sum[1][0], sum[1][1]};
#pragma unroll
    for (int f = 0; f < 2; f++)
#pragma unroll
      for (int j = 0; j < D / 8; j++)
        to[(2 + f * (D / 8) + j) * THREADS] = float4{acc[f][j][0], acc[f][j][1], acc[f][j][2], acc[f][j][3]};
  }

  // Merges a saved state.
  __device__ __forceinline__ void merge(const float* split) {
    const float4* from = (const float4*)split + threadIdx.x;
    float4 a = from[0], b = from[THREADS];
    float more_max[2][2] = {{a.x, a.y}, {a.z, a.w}}, more_sum[2][2] = {{b.x, b.y}, {b.z, b.w}}, rescale[2][2], by[2][2];
#pragma unroll
    for (int f = 0; f < 2; f++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        float top = fmaxf(max[f][i], more_max[f][i]), base = top == NEG_INFINITY ? 0.0f : top;
        rescale[f][i] = exp2_fast(max[f][i] - base);
        by[f][i] = exp2_fast(more_max[f][i] - base);
        max[f][i] = top;
        sum[f][i] = sum[f][i] * rescale[f][i] + more_sum[f][i] * by[f][i];
      }
#pragma unroll
    for (int f = 0; f < 2; f++)
#pragma unroll
      for (int j = 0; j < D / 8; j++) {
        float4 x = from[(2 + f * (D / 8) + j) * THREADS];
        float* to = acc[f][j];
        to[0] = to[0] * rescale[f][0] + x.x * by[f][0], to[1] = to[1] * rescale[f][0] + x.y * by[f][0];
        to[2] = to[2] * rescale[f][1] + x.z * by[f][1], to[3] = to[3] * rescale[f][1] + x.w * by[f][1];
      }
  }
};

// Queries of a warp's rows as bf16 to shared memory, zeros where a row of the tile has no token.
template <int D, class Codec>
__device__ __forceinline__ void load_queries(Shared<D, Codec>& s, const Tile& t, const float* qkv, const Kv& kv) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, d = kv.head_dim;
  const float by = Codec::QUERY_FACTOR;
  u64 width = (kv.n_q_heads + 2 * kv.n_kv_heads) * d;
#pragma unroll 4
  for (int i = lane; i < 32 * D / 8; i += 32) {
    int query = 32 * warp + i / (D / 8), channel = i % (D / 8) * 8, row = t.first_row + query / t.group;
    float4 a = {0, 0, 0, 0}, b = {0, 0, 0, 0};
    if (row <= t.last_row && channel < d) {
      const float* from = qkv + (t.span.start + row) * width + (t.head * t.group + query % t.group) * d + channel;
      a = *(const float4*)from, b = *(const float4*)(from + 4);
    }
    *(uint4*)(s.q + swizzled<D>(query, channel)) = uint4{round_pair(a.x * by, a.y * by), round_pair(a.z * by, a.w * by),
                                                         round_pair(b.x * by, b.y * by), round_pair(b.z * by, b.w * by)};
  }
  __syncwarp();
}

// Grid (splits, n_kv_heads, tiles), THREADS threads; a span of len rows has len / (TILE_QUERIES / group) tiles, rounded up.
// Splits beyond those that a tile's keys are worth end at once; the last one to arrive merges all.
template <int D, class Codec>
__device__ __forceinline__ void attend_tiles(const PrefillParams& p) {
  Shared<D, Codec>& s = *(Shared<D, Codec>*)dynamic_shared_memory<sizeof(Shared<D, Codec>)>();
  after_previous();
  const Kv& kv = p.kv;
  Tile t = tile_of<TILE_QUERIES>(kv, p.layer, p.spans);
  int total = t.live + t.last_row + 1;
  int per = max(((total + (int)gridDim.x - 1) / (int)gridDim.x + TILE_KEYS - 1) / TILE_KEYS * TILE_KEYS, MIN_SPLIT_KEYS);
  int splits = (total + per - 1) / per, split = blockIdx.x;
  if (split >= splits) return;
  KeyQueue queue;
  queue.begin = queue.unmasked = queue.masked = queue.done = 0;
  queue.next = split * per;
  queue.end = min(queue.next + per, total);
  if (queue.next + (int)threadIdx.x < queue.end) queue.key = candidate<Codec>(kv, t, p.decisions, queue.next + threadIdx.x);
  load_queries(s, t, p.qkv, kv);
  OnlineSoftmax<D, Codec> softmax;
  softmax.init();
  int parity = 0;
  Batch now = next_batch(s, queue, kv, t, p.decisions);
  if (now.n > 0) {
    load_async<typename Codec::K>(s, now, 0, parity, kv);
    load_async<typename Codec::V>(s, now, 1, parity, kv);
  }
  // batches of keys: K of the next one is in flight from the scores of this one on, V from its accumulation on
#pragma unroll 1
  while (now.n > 0) {
    copy_wait<1>();
    unpack<typename Codec::K>(s, 0, parity);
    __syncthreads();
    float scores[2][TILE_KEYS / 8][4];
    softmax.score(scores, s);
    __syncthreads();
    Batch next = next_batch(s, queue, kv, t, p.decisions);
    if (next.n > 0) load_async<typename Codec::K>(s, next, 0, parity ^ 1, kv);
    else copy_commit();
    // Packed V is waited for before the weights, which need its scales, bf16 V after them.
    if (Codec::PACKED) {
      copy_wait<1>();
      unpack<typename Codec::V>(s, 1, parity);
      __syncthreads();
    }
    u32 weights[2][TILE_KEYS / 8][2];
    softmax.weigh(weights, scores, s, now, parity, t, p.score_scale);
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
  softmax.reduce_sums();
  if (splits > 1) {
    const int SIZE = (D + 8) * TILE_QUERIES;
    int tile = t.index * kv.n_kv_heads + t.head;
    float* saved = p.partials + (u64)tile * gridDim.x * SIZE;
    softmax.save(saved + split * SIZE);
    if (!is_last(p.arrivals + tile, splits, s.last)) return;
    // merge in order, so that the result does not depend on which split arrives last
#pragma unroll
    for (int f = 0; f < 2; f++)
#pragma unroll
      for (int i = 0; i < 2; i++) softmax.max[f][i] = NEG_INFINITY, softmax.sum[f][i] = 0.0f;
#pragma unroll 1
    for (int i = 0; i < splits; i++) softmax.merge(saved + i * SIZE);
  }
  softmax.write(p.out, p.out_is_bf16, t, kv);
}

#define ATTEND_TILES(name, D, Codec)                                     \
  KERNEL __launch_bounds__(THREADS, 2) name(PrefillParams params) {      \
    attend_tiles<D, Codec>(params);                                      \
  }
#define ATTEND_TILES_BY_HEAD_DIM(codec, Codec)     \
  ATTEND_TILES(attend_tiles_64_##codec, 64, Codec) \
  ATTEND_TILES(attend_tiles_128_##codec, 128, Codec)
FOR_EACH_CODEC(ATTEND_TILES_BY_HEAD_DIM)
