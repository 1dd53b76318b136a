// Attention of many rows at once, on tensor cores: a tile of rows of one span and KV head, all query heads of
// the group, over stored slots and the step's own rows. The same sums as attend.cu, which serves the few rows
// of decodes. CPU twin: `backend::cpu::attention`.
//
// Precision: K and V lie in shared memory as bf16, which holds them exactly: stored bf16 is bf16, an fp8 code
// has 4 bits, and the step's rows have been through the codec, so that divided by their scale they are codes
// again. The scales of fp8 go to the scores and to the weights of V. Queries and weights of V are split into
// two bf16 parts each, good to 2^-17, at the price of every product twice.
//
// Cost: a tile of 64 lines (rows x query heads of the group) reads each key and value once: 4 D bytes of bf16
// slots and 2 D of fp8, mostly from the second-level cache, for 256 D operations, which are 512 D on the tensor cores:
// 128 to a byte of bf16, so arithmetic bounds it, and not by much. Keys that no row of the tile sees are left out
// before they are read. docs/performance.md says what that comes to.
#include "kv.cuh"
#include "tensor.cuh"

#define WARPS 4
#define THREADS (32 * WARPS)
#define LINES (16 * WARPS)  // of a tile: a row and a query head of the group
#define KEYS 64             // that lie in shared memory at once
#define RING 256            // keys found and not yet attended to: at most KEYS - 1 + THREADS
#define FOREVER 0x7fffffff

// A key that some row of the tile sees, and the rows of the span that do: first to last.
struct Found {
  int page, at;  // page and slot in it; page -1: row `at` of the span
  int first, last;
};

template <int D>
struct Shared {
  u16 k[KEYS][D + 8], v[KEYS][D + 8];  // 8 more, so that eight rows of a fragment meet in no bank
  float k_scale[KEYS], v_scale[KEYS];
  Found found[RING];
  int counts[WARPS];
};

// What a block works on.
struct Tile {
  int head, group, base, eviction, live;
  int first_row, last_row;  // of the span
  Span span;
  const int* table;
};

__device__ __forceinline__ Tile tile_of(const Kv& kv, int layer, const Span* spans) {
  Tile t;
  t.head = blockIdx.y;
  t.group = kv.n_q_heads / kv.n_kv_heads;
  // Late rows have most keys: their tiles begin first.
  int rows = LINES / t.group, at = gridDim.z - 1 - blockIdx.z;
  t.span = *spans;
  while (at >= (t.span.len + rows - 1) / rows) {
    at -= (t.span.len + rows - 1) / rows;
    t.span = *++spans;
  }
  t.first_row = at * rows;
  t.last_row = min(t.first_row + rows, t.span.len) - 1;
  t.base = kv.seq_len[t.span.seq];
  t.eviction = kv.policy == DMS && kv.eviction[t.span.seq];
  int lane_row = kv_row(kv, layer, t.span.seq, t.head);
  t.live = kv.live[lane_row];
  t.table = kv.table + (u64)lane_row * kv.max_pages;
  return t;
}

// Candidate c: slots first, then rows of the span. Distance grows with the row, so who sees a marked key is
// every row up to one.
__device__ __forceinline__ Found look_up(const Kv& kv, const Tile& t, const float* decisions, int c) {
  Found f;
  bool marked;
  int position;  // counted as the span's rows are
  if (c < t.live) {
    f.page = t.table[c / kv.page_slots];
    f.at = c % kv.page_slots;
    f.first = 0;
    int meta = *meta_at(kv, page_at(kv, f.page), f.at);
    marked = meta & 1;
    position = (meta >> 1) - t.base;
    if (kv.shift == SHIFT_PREVIOUS && position == -1) marked = decisions[t.span.start * kv.n_kv_heads + t.head] > 0.0f;
  } else {
    f.page = -1;
    f.at = f.first = position = c - t.live;
    int decided = kv.shift == SHIFT_SAME ? position : position + 1;
    marked = decided < t.span.len && decisions[(t.span.start + decided) * kv.n_kv_heads + t.head] > 0.0f;
  }
  f.last = t.eviction && marked ? position + kv.window : FOREVER;
  return f;
}

// Appends those of candidates [c, c + THREADS) to the ring that some row of the tile sees. Returns how many.
template <int D>
__device__ __forceinline__ int find(Shared<D>& s, const Kv& kv, const Tile& t, const float* decisions, int c, int to,
                                    int tail) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Found f;
  bool take = false;
  if (c + (int)threadIdx.x < to) {
    f = look_up(kv, t, decisions, c + threadIdx.x);
    take = f.first <= t.last_row && f.last >= t.first_row;
  }
  u32 taken = __ballot_sync(FULL, take);
  if (lane == 0) s.counts[warp] = __popc(taken);
  __syncthreads();
  int before = __popc(taken & ((1u << lane) - 1)), all = 0;
#pragma unroll
  for (int w = 0; w < WARPS; w++) {
    if (w < warp) before += s.counts[w];
    all += s.counts[w];
  }
  if (take) s.found[(tail + before) % RING] = f;
  __syncthreads();
  return all;
}

__device__ __forceinline__ u32 fp8_pair(u32 codes) {
  return round_pair(fp8_decode((u8)codes), fp8_decode((u8)(codes >> 8)));
}

// Eight channels of a stored row as bf16; in fp8 its codes.
__device__ __forceinline__ uint4 stored8(const u8* row, int codec, int channel) {
  if (codec == CODEC_BF16) return *(const uint4*)(row + 2 * channel);
  uint2 c = *(const uint2*)(row + channel);
  return uint4{fp8_pair(c.x), fp8_pair(c.x >> 16), fp8_pair(c.y), fp8_pair(c.y >> 16)};
}

// K (v = 0) or V (v = 1) of `n` keys of the ring into shared memory, by D / 8 neighbouring threads a key, and
// zeros behind them. The lanes of a warp stay together: those of a key look for its largest value.
template <int D>
__device__ __forceinline__ void fill(u16 (*rows)[D + 8], float* scales, const Found* found, int begin, int n,
                                     const Kv& kv, const Tile& t, const float* qkv, int v) {
  const int PER_KEY = D / 8;
  int channel = threadIdx.x % PER_KEY * 8, width = (kv.n_q_heads + 2 * kv.n_kv_heads) * D;
#pragma unroll 2
  for (int i = threadIdx.x / PER_KEY; i < KEYS; i += THREADS / PER_KEY) {
    uint4 out = {0, 0, 0, 0};
    float x[8], most = 0.0f, scale = 1.0f;
    bool own = false;
    if (i < n) {
      Found f = found[(begin + i) % RING];
      own = f.page < 0;
      if (own) {
        int column = kv.n_q_heads + v * kv.n_kv_heads + t.head;
        const float4* from = (const float4*)(qkv + (u64)(t.span.start + f.at) * width + column * D + channel);
        float4 a = from[0], b = from[1];
        x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
        x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
#pragma unroll
        for (int k = 0; k < 8; k++) most = fmaxf(most, fabsf(x[k]));
      } else {
        u8* page = page_at(kv, f.page);
        out = stored8(kv_bytes(kv, page, f.at, v), kv.codec, channel);
        if (kv.codec == CODEC_FP8) scale = *scale_at(kv, page, f.at, v);
      }
    }
    if (kv.codec == CODEC_FP8) {
#pragma unroll
      for (int m = PER_KEY / 2; m > 0; m /= 2) most = fmaxf(most, __shfl_xor_sync(FULL, most, m));
      if (own && most > 0.0f) scale = __fdiv_rn(most, 448.0f);
    }
    if (own) {
#pragma unroll
      for (int k = 0; k < 8; k++) x[k] = kv.codec == CODEC_FP8 ? __fdiv_rn(x[k], scale) : x[k];
      out = uint4{round_pair(x[0], x[1]), round_pair(x[2], x[3]), round_pair(x[4], x[5]), round_pair(x[6], x[7])};
    }
    *(uint4*)&rows[i][channel] = out;
    if (channel == 0) scales[i] = scale;
  }
}

// A warp's 16 lines: their queries as fragments, and their softmaxes so far. A lane holds parts of the two
// lines lane / 4 and lane / 4 + 8. Nothing seen: m = -inf, l = 0.
template <int D>
struct Lines {
  u32 high[D / 16][4], low[D / 16][4];
  float out[D / 8][4], m[2], l[2];
  int row[2];  // of the span, -1 where there is none

  __device__ __forceinline__ void begin(const Tile& t, const float* qkv, int n_q_heads, int n_kv_heads) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, width = (n_q_heads + 2 * n_kv_heads) * D;
    const float* from[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      int line = 16 * warp + lane / 4 + 8 * i;
      row[i] = t.first_row + line / t.group;
      if (row[i] > t.last_row) row[i] = -1;
      from[i] = qkv + (u64)(t.span.start + row[i]) * width + (t.head * t.group + line % t.group) * D;
      m[i] = NEG_INFINITY;
      l[i] = 0.0f;
    }
#pragma unroll
    for (int c = 0; c < D / 16; c++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        int channel = 16 * c + i / 2 * 8 + lane % 4 * 2;
        float2 q = row[i % 2] >= 0 ? *(const float2*)(from[i % 2] + channel) : float2{0.0f, 0.0f};
        split(q.x, q.y, &high[c][i], &low[c][i]);
      }
#pragma unroll
    for (int j = 0; j < D / 8; j++)
#pragma unroll
      for (int i = 0; i < 4; i++) out[j][i] = 0.0f;
  }

  // Scores of all keys in shared memory: tile j of 8 keys, a lane's keys 2 (lane % 4) and the next.
  __device__ __forceinline__ void score(float (*scores)[4], const Shared<D>& s) const {
    int lane = threadIdx.x % 32, key = lane / 16 * 8 + lane % 8, channel = lane / 8 % 2 * 8;
#pragma unroll
    for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
      for (int i = 0; i < 4; i++) scores[j][i] = 0.0f;
#pragma unroll
    for (int c = 0; c < D / 16; c++)
#pragma unroll
      for (int j = 0; j < KEYS / 8; j += 2) {
        u32 b[4];
        load_matrices(b, &s.k[8 * j + key][16 * c + channel]);
        mma(scores[j], low[c], b);
        mma(scores[j], high[c], b);
        mma(scores[j + 1], low[c], b + 2);
        mma(scores[j + 1], high[c], b + 2);
      }
  }

  // Scores become weights, and what was summed before is brought to the new maximum. Keys [begin, begin + n)
  // of the ring.
  __device__ __forceinline__ void weigh(float (*scores)[4], const Shared<D>& s, int begin, int n, float scale) {
    int lane = threadIdx.x % 32;
    float top[2] = {m[0], m[1]};
#pragma unroll
    for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
      for (int k = 0; k < 2; k++) {
        int key = 8 * j + lane % 4 * 2 + k;
        Found f = s.found[(begin + key) % RING];
#pragma unroll
        for (int i = 0; i < 2; i++) {
          float& x = scores[j][2 * i + k];
          bool seen = key < n && row[i] >= f.first && row[i] <= f.last;
          x = seen ? x * (scale * s.k_scale[key]) : NEG_INFINITY;
          top[i] = fmaxf(top[i], x);
        }
      }
#pragma unroll
    for (int i = 0; i < 2; i++) {
      top[i] = fmaxf(top[i], __shfl_xor_sync(FULL, top[i], 1));
      top[i] = fmaxf(top[i], __shfl_xor_sync(FULL, top[i], 2));
      float keep = top[i] == NEG_INFINITY ? 1.0f : expf(m[i] - top[i]);
      m[i] = top[i];
      l[i] *= keep;
#pragma unroll
      for (int j = 0; j < D / 8; j++) out[j][2 * i] *= keep, out[j][2 * i + 1] *= keep;
    }
#pragma unroll
    for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        float p = scores[j][i] == NEG_INFINITY ? 0.0f : expf(scores[j][i] - m[i / 2]);
        l[i / 2] += p;
        scores[j][i] = p * s.v_scale[8 * j + lane % 4 * 2 + i % 2];
      }
  }

  __device__ __forceinline__ void add_values(const float (*weights)[4], const Shared<D>& s) {
    int lane = threadIdx.x % 32, key = lane / 8 % 2 * 8 + lane % 8, channel = lane / 16 * 8;
#pragma unroll
    for (int j = 0; j < KEYS / 8; j += 2) {
      u32 a[4], rest[4];
      split(weights[j][0], weights[j][1], &a[0], &rest[0]);
      split(weights[j][2], weights[j][3], &a[1], &rest[1]);
      split(weights[j + 1][0], weights[j + 1][1], &a[2], &rest[2]);
      split(weights[j + 1][2], weights[j + 1][3], &a[3], &rest[3]);
#pragma unroll
      for (int c = 0; c < D / 8; c += 2) {
        u32 b[4];
        load_matrices_turned(b, &s.v[8 * j + key][8 * c + channel]);
        mma(out[c], rest, b);
        mma(out[c], a, b);
        mma(out[c + 1], rest, b + 2);
        mma(out[c + 1], a, b + 2);
      }
    }
  }

  // The result where there is one split, else a part that `attend_merge` puts together with the others.
  __device__ __forceinline__ void end(void* to, int rounded, float* partials, const Tile& t, int n_q_heads) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, split = blockIdx.x, n_splits = gridDim.x;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      l[i] += __shfl_xor_sync(FULL, l[i], 1);
      l[i] += __shfl_xor_sync(FULL, l[i], 2);
      if (row[i] < 0) continue;
      u64 at = t.span.start + row[i];
      int q_head = t.head * t.group + (16 * warp + lane / 4 + 8 * i) % t.group;
      if (n_splits == 1) {
        float by = 1.0f / l[i];
        u64 first = (at * n_q_heads + q_head) * D + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < D / 8; j++)
          put2(to, rounded, first + 8 * j, out[j][2 * i] * by, out[j][2 * i + 1] * by);
        continue;
      }
      float* line = partials + ((at * n_splits + split) * n_q_heads + q_head) * (D + 2);
#pragma unroll
      for (int j = 0; j < D / 8; j++) *(float2*)(line + 8 * j + lane % 4 * 2) = float2{out[j][2 * i], out[j][2 * i + 1]};
      if (lane % 4 == 0) {
        line[D] = m[i];
        line[D + 1] = l[i];
      }
    }
  }
};

// out[n, n_q_heads * D]; partials [n, n_splits, n_q_heads, D + 2]. Grid (n_splits, n_kv_heads, tiles), where a
// span of len rows has len / (LINES / group) tiles, rounded up; 128 threads.
template <int D>
__device__ __forceinline__ void attend_tiles(void* out, int rounded, float* partials, const float* qkv,
                                             const float* decisions, const Kv& kv, int layer, const Span* spans,
                                             float scale) {
  __shared__ __align__(16) Shared<D> s;
  Tile t = tile_of(kv, layer, spans);
  Lines<D> lines;
  lines.begin(t, qkv, kv.n_q_heads, kv.n_kv_heads);
  int total = t.live + t.last_row + 1, n_splits = gridDim.x;
  int per = ((total + n_splits - 1) / n_splits + 31) / 32 * 32;
  int next = blockIdx.x * per, to = min(next + per, total), begin = 0, filled = 0;
  while (true) {
    while (filled < KEYS && next < to) {
      filled += find<D>(s, kv, t, decisions, next, to, begin + filled);
      next += THREADS;
    }
    if (filled == 0) break;
    int n = min(filled, KEYS);
    fill<D>(s.k, s.k_scale, s.found, begin, n, kv, t, qkv, 0);
    fill<D>(s.v, s.v_scale, s.found, begin, n, kv, t, qkv, 1);
    __syncthreads();
    float scores[KEYS / 8][4];
    lines.score(scores, s);
    lines.weigh(scores, s, begin, n, scale);
    lines.add_values(scores, s);
    __syncthreads();
    begin = (begin + n) % RING;
    filled -= n;
  }
  lines.end(out, rounded, partials, t, kv.n_q_heads);
}

#define ATTEND_TILES(name, D)                                                                                     \
  KERNEL __launch_bounds__(THREADS)                                                                               \
      name(void* out, int rounded, float* partials, const float* qkv, const float* decisions, Kv kv, int layer,   \
           const Span* spans, float scale) {                                                                      \
    after_previous();                                                                                             \
    attend_tiles<D>(out, rounded, partials, qkv, decisions, kv, layer, spans, scale);                             \
  }
ATTEND_TILES(attend_tiles_32, 32)
ATTEND_TILES(attend_tiles_64, 64)
ATTEND_TILES(attend_tiles_128, 128)
