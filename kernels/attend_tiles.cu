// Attention of chunks, on tensor cores: a tile of rows of one span and KV head, all query heads of the group, over
// stored slots as they were before the step and the step's own rows up to each, by the policy's rule. Single tokens
// are for attend.cu. CPU twin: `backend::cpu::attention`.
//
// Precision: as attend.cu, to the bit but for the order of sums.
//
// Cost: a tile of 128 lines (rows x query heads of the group) reads each key and value that one of its rows sees
// once, mostly from the second-level cache: 4 D bytes of bf16 slots for 512 D operations on tensor cores. Keys that no row sees
// are left out before they are read; those that all rows see are gathered apart from those that some see, so that
// only a few batches need a mask.
#include "codec.cuh"
#include "policy_dms.cuh"

#define WARPS 4
#define THREADS (32 * WARPS)
#define LINES (32 * WARPS)  // of a tile: a row and a query head of the group
#define KEYS 64             // that lie in shared memory at once
#define RING 256            // keys that all see, found and not yet attended to: at most 2 KEYS - 1 + THREADS
#define PARTLY 256          // keys that some see: at most twice the rows of a tile less one
#define LEAST_KEYS 256      // of a part: fewer are not worth putting parts together for
#define FOREVER 0x7fffffff

// A key: the addresses of its K and of K's scale. It is seen by rows first to last of the span.
struct Found {
  const u8* at;
  const u8* scale;
  int first, last;
};

template <int D, class Codec>
struct Shared {
  // Lines of 16-byte pieces that change places by the line, so that eight lines of a fragment meet in no bank.
  u16 q[LINES * D], k[KEYS * D], v[KEYS * D];
  u8 codes[2][Codec::PACKED ? KEYS * D : 16];  // on their way to k and v
  float scales[2][2][KEYS];                          // of this batch and the next: K's, V's
  const u8* ring[RING];
  const u8* ring_scales[Codec::SCALED ? RING : 2];
  Found partly[PARTLY];
  int counts[WARPS], arrived;
};

// What a block works on.
struct Tile {
  int head, group, base, eviction, live;
  int first_row, last_row;  // of the span
  int at;                   // tile of the step
  Span span;
  const int* table;
};

__device__ __forceinline__ Tile tile_of(const Kv& kv, int layer, const Span* spans) {
  Tile t;
  t.head = blockIdx.y;
  t.group = kv.n_q_heads / kv.n_kv_heads;
  // Late rows have most keys: their tiles begin first.
  int rows = LINES / t.group, at = gridDim.z - 1 - blockIdx.z;
  t.at = at;
  t.span = *spans;
  while (at >= (t.span.len + rows - 1) / rows) {
    at -= (t.span.len + rows - 1) / rows;
    t.span = *++spans;
  }
  t.first_row = at * rows;
  t.last_row = min(t.first_row + rows, t.span.len) - 1;
  t.base = kv.seq_len[t.span.seq];
  t.eviction = kv.evicts && kv.eviction[t.span.seq];
  int lane_row = lane_index(kv, layer, t.span.seq, t.head);
  t.live = kv.live[lane_row];
  t.table = kv.table + (u64)lane_row * kv.max_pages;
  return t;
}

// Candidate c: stored slots first, then rows of the span. Rows of the span that see a key are consecutive: a stored key
// or row c is seen from the first row or its own on, and a marked one up to the last query of its window.
__device__ __forceinline__ Found look_up(const Kv& kv, const Tile& t, const float* decisions, int c) {
  Dms dms = dms_of(kv);
  Found f;
  u8* page;
  int r, row;  // slot of the page; row of the span, negative for what was stored before it
  bool stored = c < t.live, marked = false;
  if (stored) {
    page = page_at(kv, t.table[c / PAGE_SLOTS]);
    r = c % PAGE_SLOTS;
    row = f.first = 0;
    if (t.eviction) {
      int meta = *meta_at(kv, page, r);
      marked = meta_marked(meta);
      row = meta_position(meta) - t.base;
    }
  } else {
    row = f.first = c - t.live;
    page = staged_at(kv, t.span.start + row, t.head);
    r = (t.span.start + row) % PAGE_SLOTS;
  }
  f.at = row_at(kv, page, r, 0);
  f.scale = (const u8*)scale_at(kv, page, r, 0);
  int decided = dms.decided_by(row);
  if (t.eviction && decided >= 0 && decided < t.span.len)
    marked = dms.marks(decisions[(t.span.start + decided) * kv.n_kv_heads + t.head], t.base + row);
  f.last = marked ? dms.last_query(row) : FOREVER;
  return f;
}

// The keys found and not yet attended to.
struct Keys {
  int begin, whole, partly;  // first of the ring, how many there, how many that some see
  int next, to;              // candidates still to look at
  Found seen;                // candidate next + threadIdx.x
};

template <int D, class Codec>
__device__ __forceinline__ void find(Shared<D, Codec>& s, Keys& keys, const Kv& kv, const Tile& t,
                                     const float* decisions) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Found& f = keys.seen;
  bool real = keys.next + (int)threadIdx.x < keys.to, some = real && f.first <= t.last_row && f.last >= t.first_row;
  bool all = some && f.first <= t.first_row && f.last >= t.last_row;
  u32 alls = __ballot_sync(FULL, all), somes = __ballot_sync(FULL, some && !all), below = (1u << lane) - 1;
  if (lane == 0) s.counts[warp] = __popc(alls) | __popc(somes) << 16;
  __syncthreads();
  int before = 0, total = 0;
#pragma unroll
  for (int w = 0; w < WARPS; w++) {
    if (w < warp) before += s.counts[w];
    total += s.counts[w];
  }
  if (all) {
    int at = (keys.begin + keys.whole + (before & 0xffff) + __popc(alls & below)) % RING;
    s.ring[at] = f.at;
    if (Codec::SCALED) s.ring_scales[at] = f.scale;
  } else if (some) s.partly[keys.partly + (before >> 16) + __popc(somes & below)] = f;
  keys.whole += total & 0xffff;
  keys.partly += total >> 16;
  keys.next += THREADS;
  // The next ones are on their way while these are attended to.
  if (keys.next + (int)threadIdx.x < keys.to) keys.seen = look_up(kv, t, decisions, keys.next + threadIdx.x);
  __syncthreads();
}

// Keys that are attended to together: the ring's from `begin`, or of those that some see. n = 0: none are left.
struct Batch {
  int begin, n;
  bool whole;
};

template <int D, class Codec>
__device__ __forceinline__ Batch next_batch(Shared<D, Codec>& s, Keys& keys, int& done, const Kv& kv, const Tile& t,
                                            const float* decisions) {
  while (keys.whole < KEYS && keys.next < keys.to) find(s, keys, kv, t, decisions);
  Batch b;
  b.whole = keys.whole > 0;
  if (b.whole) {
    b.begin = keys.begin;
    b.n = min(keys.whole, KEYS);
    keys.begin = (keys.begin + b.n) % RING;
    keys.whole -= b.n;
  } else {
    b.begin = done;
    b.n = min(keys.partly - done, KEYS);
    done += b.n;
  }
  return b;
}

template <int D>
__device__ __forceinline__ int piece(int line, int channel) {
  return line * D + ((channel / 8) ^ (line % 8)) * 8;
}

// Sends for K (which = 0) or V (1) of a batch, D / 8 neighbouring threads a key; zeros behind the last.
template <int D, class Codec>
__device__ __forceinline__ void fetch(Shared<D, Codec>& s, const Batch& b, int which, int parity, const Kv& kv) {
  const int PER_KEY = D / 8, AT_ONCE = THREADS / PER_KEY;
  int channel = threadIdx.x % PER_KEY * 8, offset = which ? kv.v_at : 0;
  offset += Codec::PACKED ? channel : 2 * channel;
  bool within = channel < kv.head_dim;
#pragma unroll
  for (int i = 0; i < KEYS / AT_ONCE; i++) {
    int key = threadIdx.x / PER_KEY + i * AT_ONCE, at = b.begin + key;
    bool real = key < b.n;
    const u8* from = real ? (b.whole ? s.ring[at % RING] : s.partly[at % PARTLY].at) + offset : kv.pages;
    if (Codec::PACKED) copy_async8(&s.codes[which][key * D + channel], from, real && within);
    else copy_async((which ? s.v : s.k) + piece<D>(key, channel), from, real && within);
  }
  if (Codec::SCALED && threadIdx.x < KEYS) {
    int key = threadIdx.x, at = b.begin + key;
    bool real = key < b.n;
    const u8* from = real ? (b.whole ? s.ring_scales[at % RING] : s.partly[at % PARTLY].scale) : kv.pages;
    copy_async4(&s.scales[parity][which][key], from + (real && which ? kv.v_scales_at - kv.k_scales_at : 0), real);
  }
  copy_commit();
}

// Codes that this thread sent for become bf16.
template <int D, class Codec>
__device__ __forceinline__ void unpack(Shared<D, Codec>& s, int which) {
  if (!Codec::PACKED) return;
  const int PER_KEY = D / 8, AT_ONCE = THREADS / PER_KEY;
  int channel = threadIdx.x % PER_KEY * 8;
#pragma unroll
  for (int i = 0; i < KEYS / AT_ONCE; i++) {
    int key = threadIdx.x / PER_KEY + i * AT_ONCE;
    typename Codec::Eight x;
    x.load(&s.codes[which][key * D], channel, true);
    *(uint4*)((which ? s.v : s.k) + piece<D>(key, channel)) = x.as_bf16();
  }
}

// A warp's 32 lines: two fragments of 16, of each of which a lane holds parts of lines lane / 4 and lane / 4 + 8.
// Nothing seen: m = -inf, l = 0.
template <int D, class Codec>
struct Lines {
  float out[2][D / 8][4], m[2][2], l[2][2];

  // Queries into shared memory, zeros where a line has no row.
  __device__ __forceinline__ void begin(Shared<D, Codec>& s, const Tile& t, const float* qkv, const Kv& kv) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, d = kv.head_dim;
    const float by = Codec::QUERY_FACTOR;
    u64 width = (kv.n_q_heads + 2 * kv.n_kv_heads) * d;
#pragma unroll 4
    for (int i = lane; i < 32 * D / 8; i += 32) {
      int line = 32 * warp + i / (D / 8), channel = i % (D / 8) * 8, row = t.first_row + line / t.group;
      float4 a = {0, 0, 0, 0}, b = {0, 0, 0, 0};
      if (row <= t.last_row && channel < d) {
        const float* from = qkv + (t.span.start + row) * width + (t.head * t.group + line % t.group) * d + channel;
        a = *(const float4*)from, b = *(const float4*)(from + 4);
      }
      *(uint4*)(s.q + piece<D>(line, channel)) = uint4{round_pair(a.x * by, a.y * by), round_pair(a.z * by, a.w * by),
                                                       round_pair(b.x * by, b.y * by), round_pair(b.z * by, b.w * by)};
    }
    __syncwarp();
#pragma unroll
    for (int f = 0; f < 2; f++) {
      m[f][0] = m[f][1] = NEG_INFINITY;
      l[f][0] = l[f][1] = 0.0f;
#pragma unroll
      for (int j = 0; j < D / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) out[f][j][i] = 0.0f;
    }
  }

  // Scores of all keys in shared memory: tile j of 8 keys, a lane's keys 2 (lane % 4) and the next.
  __device__ __forceinline__ void score(float (*scores)[KEYS / 8][4], const Shared<D, Codec>& s) const {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int line = 32 * warp + lane % 16, line_channel = lane / 16 * 8;
    int key = lane / 16 * 8 + lane % 8, channel = lane / 8 % 2 * 8;
#pragma unroll
    for (int f = 0; f < 2; f++)
#pragma unroll
      for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) scores[f][j][i] = 0.0f;
#pragma unroll
    for (int c = 0; c < D; c += 16) {
      u32 a[2][4];
      load_matrices(a[0], s.q + piece<D>(line, c + line_channel));
      load_matrices(a[1], s.q + piece<D>(line + 16, c + line_channel));
#pragma unroll
      for (int j = 0; j < KEYS / 8; j += 2) {
        u32 b[4];
        load_matrices(b, s.k + piece<D>(8 * j + key, c + channel));
        mma(scores[0][j], a[0], b);
        mma(scores[1][j], a[1], b);
        mma(scores[0][j + 1], a[0], b + 2);
        mma(scores[1][j + 1], a[1], b + 2);
      }
    }
  }

  // Scores become weights in bf16, and what was summed before is brought to the new maximum.
  __device__ __forceinline__ void weigh(u32 (*weights)[KEYS / 8][2], float (*scores)[KEYS / 8][4],
                                        const Shared<D, Codec>& s, const Batch& b, int parity, const Tile& t,
                                        float scale) {
    // Scores times this are exponents of 2; scaled codecs apply it with the scales of the keys.
    float unit = Codec::SCALED ? 1.0f : scale * LOG2E;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (Codec::SCALED) {
#pragma unroll
      for (int j = 0; j < KEYS / 8; j++) {
        float2 by = *(const float2*)&s.scales[parity][0][8 * j + lane % 4 * 2];
        by.x *= scale * (LOG2E * Codec::SCORE_FACTOR), by.y *= scale * (LOG2E * Codec::SCORE_FACTOR);
#pragma unroll
        for (int f = 0; f < 2; f++)
#pragma unroll
          for (int i = 0; i < 4; i++) scores[f][j][i] *= i % 2 ? by.y : by.x;
      }
    }
    if (!b.whole || b.n < KEYS) {
      int line = 32 * warp + lane / 4;
#pragma unroll
      for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
          int key = 8 * j + lane % 4 * 2 + k, first = 0, last = FOREVER;
          if (!b.whole) {
            const Found& found = s.partly[(b.begin + key) % PARTLY];
            first = found.first, last = found.last;
          }
#pragma unroll
          for (int i = 0; i < 4; i++) {
            int row = t.first_row + (line + 8 * i) / t.group;
            if (key >= b.n || row < first || row > last) scores[i / 2][j][i % 2 * 2 + k] = NEG_INFINITY;
          }
        }
    }
#pragma unroll
    for (int f = 0; f < 2; f++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        float top = NEG_INFINITY;
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++) top = fmaxf(top, fmaxf(scores[f][j][2 * i], scores[f][j][2 * i + 1]));
        top = fmaxf(top, __shfl_xor_sync(FULL, top, 1));
        top = fmaxf(top, __shfl_xor_sync(FULL, top, 2));
        top = fmaxf(m[f][i], ceilf(top * unit));
        float from = top == NEG_INFINITY ? 0.0f : top;
        // Maxima soon stay as they are.
        if (__any_sync(FULL, top > m[f][i])) {
          float keep = exp2_fast(m[f][i] - from);
          m[f][i] = top;
          l[f][i] *= keep;
#pragma unroll
          for (int j = 0; j < D / 8; j++) out[f][j][2 * i] *= keep, out[f][j][2 * i + 1] *= keep;
        }
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++) {
          float x = exp2_fast(scores[f][j][2 * i] * unit - from), y = exp2_fast(scores[f][j][2 * i + 1] * unit - from);
          if (Codec::SCALED) {
            l[f][i] += x + y;
            float2 by = *(const float2*)&s.scales[parity][1][8 * j + lane % 4 * 2];
            x *= by.x * Codec::WEIGHT_FACTOR, y *= by.y * Codec::WEIGHT_FACTOR;
          }
          weights[f][j][i] = round_pair(x, y);
          if (!Codec::SCALED) l[f][i] += sum_pair(weights[f][j][i]);
        }
      }
  }

  __device__ __forceinline__ void add_values(const u32 (*weights)[KEYS / 8][2], const Shared<D, Codec>& s) {
    int lane = threadIdx.x % 32, key = lane / 8 % 2 * 8 + lane % 8, channel = lane / 16 * 8;
#pragma unroll
    for (int j = 0; j < KEYS / 8; j += 2)
#pragma unroll
      for (int c = 0; c < D / 8; c += 2) {
        u32 b[4];
        load_matrices_turned(b, s.v + piece<D>(8 * j + key, 8 * c + channel));
#pragma unroll
        for (int f = 0; f < 2; f++) {
          u32 a[4] = {weights[f][j][0], weights[f][j][1], weights[f][j + 1][0], weights[f][j + 1][1]};
          mma(out[f][c], a, b);
          mma(out[f][c + 1], a, b + 2);
        }
      }
  }

  __device__ __forceinline__ void end(void* to, int rounded, const Tile& t, const Kv& kv) const {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int f = 0; f < 2; f++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        int line = 32 * warp + 16 * f + 8 * i + lane / 4, row = t.first_row + line / t.group;
        if (row > t.last_row) continue;
        int q_head = t.head * t.group + line % t.group;
        u64 at = ((u64)(t.span.start + row) * kv.n_q_heads + q_head) * kv.head_dim + lane % 4 * 2;
        float by = Codec::SUM_FACTOR / l[f][i];
#pragma unroll
        for (int j = 0; j < D / 8; j++)
          if (8 * j < kv.head_dim)
            put2(to, rounded, at + 8 * j, out[f][j][2 * i] * by, out[f][j][2 * i + 1] * by);
      }
  }

  // Parts of a tile's keys are left in the order in which threads hold them.
  __device__ __forceinline__ void leave(float* part) const {
    float4* to = (float4*)part + threadIdx.x;
    to[0] = float4{m[0][0], m[0][1], m[1][0], m[1][1]};
    to[THREADS] = float4{l[0][0], l[0][1], l[1][0], l[1][1]};
#pragma unroll
    for (int f = 0; f < 2; f++)
#pragma unroll
      for (int j = 0; j < D / 8; j++)
        to[(2 + f * (D / 8) + j) * THREADS] = float4{out[f][j][0], out[f][j][1], out[f][j][2], out[f][j][3]};
  }

  __device__ __forceinline__ void take_up(const float* part) {
    const float4* from = (const float4*)part + threadIdx.x;
    float4 a = from[0], b = from[THREADS];
    float more_m[2][2] = {{a.x, a.y}, {a.z, a.w}}, more_l[2][2] = {{b.x, b.y}, {b.z, b.w}}, keep[2][2], by[2][2];
#pragma unroll
    for (int f = 0; f < 2; f++)
#pragma unroll
      for (int i = 0; i < 2; i++) {
        float top = fmaxf(m[f][i], more_m[f][i]), base = top == NEG_INFINITY ? 0.0f : top;
        keep[f][i] = exp2_fast(m[f][i] - base);
        by[f][i] = exp2_fast(more_m[f][i] - base);
        m[f][i] = top;
        l[f][i] = l[f][i] * keep[f][i] + more_l[f][i] * by[f][i];
      }
#pragma unroll
    for (int f = 0; f < 2; f++)
#pragma unroll
      for (int j = 0; j < D / 8; j++) {
        float4 x = from[(2 + f * (D / 8) + j) * THREADS];
        float* sum = out[f][j];
        sum[0] = sum[0] * keep[f][0] + x.x * by[f][0], sum[1] = sum[1] * keep[f][0] + x.y * by[f][0];
        sum[2] = sum[2] * keep[f][1] + x.z * by[f][1], sum[3] = sum[3] * keep[f][1] + x.w * by[f][1];
      }
  }
};

// out[n, n_q_heads * head_dim]. partials: (D + 8) LINES floats for each block. arrivals [tiles, n_kv_heads], zero before and
// after. Grid (parts, n_kv_heads, tiles), where a span of len rows has len / (LINES / group) tiles, rounded up.
template <int D, class Codec>
__device__ __forceinline__ void attend_tiles(void* out, int rounded, float* partials, int* arrivals,
                                             const float* qkv, const float* decisions, const Kv& kv, int layer,
                                             const Span* spans, float scale) {
  Shared<D, Codec>& s = *(Shared<D, Codec>*)dynamic_shared_memory();
  after_previous();
  Tile t = tile_of(kv, layer, spans);
  int total = t.live + t.last_row + 1;
  int per = max(((total + (int)gridDim.x - 1) / (int)gridDim.x + KEYS - 1) / KEYS * KEYS, LEAST_KEYS);
  int parts = (total + per - 1) / per, part = blockIdx.x;
  if (part >= parts) return;
  Keys keys;
  keys.begin = keys.whole = keys.partly = 0;
  keys.next = part * per;
  keys.to = min(keys.next + per, total);
  if (keys.next + (int)threadIdx.x < keys.to) keys.seen = look_up(kv, t, decisions, keys.next + threadIdx.x);
  Lines<D, Codec> lines;
  lines.begin(s, t, qkv, kv);
  int done = 0, parity = 0;
  Batch now = next_batch(s, keys, done, kv, t, decisions);
  if (now.n > 0) {
    fetch(s, now, 0, parity, kv);
    fetch(s, now, 1, parity, kv);
  }
#pragma unroll 1
  while (now.n > 0) {
    copy_wait<1>();
    unpack(s, 0);
    __syncthreads();
    float scores[2][KEYS / 8][4];
    lines.score(scores, s);
    __syncthreads();
    Batch next = next_batch(s, keys, done, kv, t, decisions);
    if (next.n > 0) fetch(s, next, 0, parity ^ 1, kv);
    else copy_commit();
    // V's scales come with V.
    if (Codec::PACKED) {
      copy_wait<1>();
      unpack(s, 1);
      __syncthreads();
    }
    u32 weights[2][KEYS / 8][2];
    lines.weigh(weights, scores, s, now, parity, t, scale);
    if (!Codec::PACKED) {
      copy_wait<1>();
      __syncthreads();
    }
    lines.add_values(weights, s);
    __syncthreads();
    if (next.n > 0) fetch(s, next, 1, parity ^ 1, kv);
    now = next;
    parity ^= 1;
  }
#pragma unroll
  for (int f = 0; f < 2; f++)
#pragma unroll
    for (int i = 0; i < 2; i++) {
      lines.l[f][i] += __shfl_xor_sync(FULL, lines.l[f][i], 1);
      lines.l[f][i] += __shfl_xor_sync(FULL, lines.l[f][i], 2);
    }
  if (parts > 1) {
    const int SIZE = (D + 8) * LINES;
    int tile = t.at * kv.n_kv_heads + t.head;
    float* first = partials + (u64)tile * gridDim.x * SIZE;
    lines.leave(first + part * SIZE);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) s.arrived = atomicAdd(arrivals + tile, 1);
    __syncthreads();
    if (s.arrived != parts - 1) return;
    __threadfence();
    if (threadIdx.x == 0) arrivals[tile] = 0;
    // In their order, whoever comes last.
#pragma unroll
    for (int f = 0; f < 2; f++)
#pragma unroll
      for (int i = 0; i < 2; i++) lines.m[f][i] = NEG_INFINITY, lines.l[f][i] = 0.0f;
#pragma unroll 1
    for (int i = 0; i < parts; i++) lines.take_up(first + i * SIZE);
  }
  lines.end(out, rounded, t, kv);
}

#define ATTEND_TILES(name, D, Codec)                                                                                \
  KERNEL __launch_bounds__(THREADS, 2)                                                                              \
      name(void* out, int rounded, float* partials, int* arrivals, const float* qkv, const float* decisions, Kv kv, \
           int layer, const Span* spans, float scale) {                                                             \
    attend_tiles<D, Codec>(out, rounded, partials, arrivals, qkv, decisions, kv, layer, spans, scale);              \
  }
#define ATTEND_TILES_BY_HEAD_DIM(codec, Codec)     \
  ATTEND_TILES(attend_tiles_64_##codec, 64, Codec) \
  ATTEND_TILES(attend_tiles_128_##codec, 128, Codec)
FOR_EACH_CODEC(ATTEND_TILES_BY_HEAD_DIM)
