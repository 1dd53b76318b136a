// Attention of single tokens over what their heads stored before them, on tensor cores. The token itself has no slot
// yet: take.cu, which comes next, gives it one and puts it together with what the blocks here found. Until then
// nothing changes the layer's tables and slots, so all of this but the queries is read while the kernels in front
// still run. Every slot that lives is one that the token sees, but for the one that leaves the window at it. Chunks
// are for attend_tiles.cu. CPU twin: `backend::cpu::attention`.
//
// A warp takes a page at a time, straight from memory to registers: scores are k q^T with slots as rows, sums are
// v^T p^T with channels as rows, and the group's heads are columns of both. Channels are contracted, and keys summed, in
// the order in which the loads bring them.
//
// Precision: K and V are exact, queries and weights of V are rounded to bf16, sums are f32. Maxima are whole exponents
// of 2, so that weights are rounded in the same way whatever they are compared with: how keys are divided among warps,
// blocks and tiles changes the order of sums and nothing else.
#include "heads.cuh"
#include "place.cuh"

#define WARPS 8
#define THREADS (32 * WARPS)
#define LEAST_PAGES 4  // of a part: fewer are not worth putting parts together for

// The block's part of the row's work: pages [first, last) of a head. head -1: none.
struct Share {
  int head, live, first, last, part, parts;
};

// a / b where that is less than 2^21, in a third of the time that division takes.
__device__ __forceinline__ int divide(int a, int b) {
  int q = (int)(a * reciprocal((float)b)), left = a - q * b;
  return left < 0 ? q - 1 : left >= b ? q + 1 : q;
}

// Every head gets blocks by the pages it has, at least one. All blocks of a row come to the same division.
__device__ __forceinline__ Share share_of(const int* live, int heads, int lane) {
  int total = 0, block = blockIdx.x;
  for (int h = lane; h < heads; h += 32) total += (live[h] + PAGE_SLOTS - 1) / PAGE_SLOTS;
#pragma unroll
  for (int m = 16; m > 0; m /= 2) total += __shfl_xor_sync(FULL, total, m);
  int spare = gridDim.x - heads, per = spare > 0 ? max(LEAST_PAGES, divide(total + spare - 1, spare)) : 1 << 20;
  Share s = {-1, 0, 0, 0, 0, 0};
  for (int h = lane, before = 0; h - lane < heads; h += 32) {
    int here = h < heads ? live[h] : 0, pages = (here + PAGE_SLOTS - 1) / PAGE_SLOTS;
    int parts = h < heads ? max(1, divide(pages + per - 1, per)) : 0, end = parts;
#pragma unroll
    for (int k = 1; k < 32; k *= 2) {
      int x = __shfl_up_sync(FULL, end, k);
      if (lane >= k) end += x;
    }
    end += before;
    before = __shfl_sync(FULL, end, 31);
    u32 mine = __ballot_sync(FULL, block >= end - parts && block < end);
    if (!mine) continue;
    int from = __ffs(mine) - 1;
    s.head = h - lane + from;
    s.live = __shfl_sync(FULL, here, from);
    s.parts = __shfl_sync(FULL, parts, from);
    s.part = block - (__shfl_sync(FULL, end, from) - s.parts);
    pages = __shfl_sync(FULL, pages, from);
    s.first = divide(s.part * pages, s.parts);
    s.last = divide((s.part + 1) * pages, s.parts);
    break;
  }
  return s;
}

// A page as the lanes of a warp hold it: K's channels 32 i + 8 t + 0..7 of slots g and g + 8, V's channels
// 64 i + 8 g + 0..7 of slots 2 t, 2 t + 1 and 8 more.
template <int D, class Codec>
struct Page {
  typename Codec::Eight k[2][D / 32], v[4][D / 64];
  float k_scale[2], v_scale[2];

  __device__ __forceinline__ void load_keys(const Kv& kv, const u8* page, int lane) {
    int g = lane / 4, t = lane % 4, d = kv.head_dim, bytes = kv.k_bytes;
    const u8* row = page + g * bytes;
#pragma unroll
    for (int half = 0; half < 2; half++, row += 8 * bytes)
#pragma unroll
      for (int i = 0; i < D / 32; i++) {
        int channel = 32 * i + 8 * t;
        k[half][i].load(row, channel, channel < d);
      }
  }

  // And the scales. The first n slots live: what others hold may be no number.
  __device__ __forceinline__ void load_values(const Kv& kv, const u8* page, int n, int lane) {
    int g = lane / 4, t = lane % 4, d = kv.head_dim, bytes = kv.v_bytes;
    const u8* row = page + kv.v_at + 2 * t * bytes;
#pragma unroll
    for (int key = 0; key < 4; key++, row += key == 2 ? 7 * bytes : bytes)
#pragma unroll
      for (int i = 0; i < D / 64; i++) {
        int slot = 2 * t + key % 2 + key / 2 * 8, channel = 64 * i + 8 * g;
        v[key][i].load(row, channel, channel < d && slot < n);
      }
    if (!Codec::SCALED) return;
    const float *k_scales = (const float*)(page + kv.k_scales_at) + g, *v_scales = (const float*)(page + kv.v_scales_at) + g;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      k_scale[half] = k_scales[8 * half];
      v_scale[half] = v_scales[8 * half];
    }
  }
};

// Softmax over the pages of a warp. Lane 4 g + t holds, of head g, the queries' channels 32 i + 8 t + 0..7; of heads
// 2 t and 2 t + 1, the maxima, its slots' part of the weights' sums, and sums of channels 64 i + 8 g + 0..7.
template <int D, class Codec>
struct Softmax {
  u32 q[D / 16][2], weights[2];
  float out[D / 16][4], keep[2], m[2], l[2];

  __device__ __forceinline__ void begin(const float (*rows)[LINE], int group, int d, int lane) {
    const float by = Codec::QUERY_FACTOR;
#pragma unroll
    for (int i = 0; i < D / 32; i++) {
      int channel = 32 * i + lane % 4 * 8;
      float4 a = {0, 0, 0, 0}, b = {0, 0, 0, 0};
      if (lane / 4 < group && channel < d) {
        const float4* from = (const float4*)(rows[lane / 4] + channel);
        a = from[0], b = from[1];
      }
      q[2 * i][0] = round_pair(a.x * by, a.y * by), q[2 * i][1] = round_pair(a.z * by, a.w * by);
      q[2 * i + 1][0] = round_pair(b.x * by, b.y * by), q[2 * i + 1][1] = round_pair(b.z * by, b.w * by);
    }
#pragma unroll
    for (int j = 0; j < D / 16; j++)
#pragma unroll
      for (int k = 0; k < 4; k++) out[j][k] = 0.0f;
#pragma unroll
    for (int k = 0; k < 2; k++) m[k] = NEG_INFINITY, l[k] = 0.0f;
  }

  // What the keys of a page weigh, of which the first n slots live and one, perhaps, is not seen. Scores times `scale`
  // are exponents of 2.
  __device__ __forceinline__ void weigh(const Page<D, Codec>& page, int n, int unseen, float scale, int lane) {
    int g = lane / 4;
    float scores[4] = {}, others[4] = {};
#pragma unroll
    for (int i = 0; i < D / 32; i++) {
      uint4 x = page.k[0][i].as_bf16(), y = page.k[1][i].as_bf16();
      u32 first[4] = {x.x, y.x, x.y, y.y}, second[4] = {x.z, y.z, x.w, y.w};
      mma(scores, first, q[2 * i]);
      mma(others, second, q[2 * i + 1]);
    }
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int k = 0; k < 2; k++) {
        float& x = scores[2 * half + k];
        x = (x + others[2 * half + k]) * (Codec::SCALED ? page.k_scale[half] * scale : scale);
        int slot = g + 8 * half;
        if (slot >= n || slot == unseen) x = NEG_INFINITY;
      }
    float from[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
      float top = fmaxf(scores[k], scores[2 + k]);
#pragma unroll
      for (int mask = 4; mask < 32; mask *= 2) top = fmaxf(top, __shfl_xor_sync(FULL, top, mask));
      top = fmaxf(m[k], ceilf(top));
      // A page of which nothing is seen leaves all as it was.
      from[k] = top == NEG_INFINITY ? 0.0f : top;
      keep[k] = exp2_fast(m[k] - from[k]);
      m[k] = top;
      l[k] *= keep[k];
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float x = exp2_fast(scores[2 * half] - from[0]), y = exp2_fast(scores[2 * half + 1] - from[1]);
      if (Codec::SCALED) {
        l[0] += x, l[1] += y;
        // Slots that do not live have no scales either.
        float by = page.v_scale[half] * Codec::WEIGHT_FACTOR;
        x = x > 0.0f ? x * by : 0.0f;
        y = y > 0.0f ? y * by : 0.0f;
      }
      u32 pair = round_pair(x, y);
      if (!Codec::SCALED) l[0] += bf16_to_f32((u16)pair), l[1] += __uint_as_float(pair & 0xffff0000u);
      weights[half] = turned(pair);
    }
  }

  // The values of the page that was weighed last.
  __device__ __forceinline__ void add(const Page<D, Codec>& page) {
#pragma unroll
    for (int i = 0; i < D / 64; i++) {
      uint4 x[4];
#pragma unroll
      for (int key = 0; key < 4; key++) x[key] = page.v[key][i].as_bf16();
      u32 words[4][4] = {{x[0].x, x[1].x, x[2].x, x[3].x},
                         {x[0].y, x[1].y, x[2].y, x[3].y},
                         {x[0].z, x[1].z, x[2].z, x[3].z},
                         {x[0].w, x[1].w, x[2].w, x[3].w}};
#pragma unroll
      for (int w = 0; w < 4; w++) {
        // Two channels of two keys become two keys of two channels.
        u32 a[4] = {__byte_perm(words[w][0], words[w][1], 0x5410), __byte_perm(words[w][0], words[w][1], 0x7632),
                    __byte_perm(words[w][2], words[w][3], 0x5410), __byte_perm(words[w][2], words[w][3], 0x7632)};
        float* sum = out[4 * i + w];
        sum[0] *= keep[0], sum[1] *= keep[1], sum[2] *= keep[0], sum[3] *= keep[1];
        mma(sum, a, weights);
      }
    }
  }
};

// What the warps of a block leave each other.
template <int D>
struct Shared {
  float q[MAX_GROUP][LINE], m[WARPS][MAX_GROUP], l[WARPS][MAX_GROUP];
  union {
    float sums[MAX_GROUP * D];
    uint4 page[(2 * PAGE_SLOTS * D + 2 * PAGE_SLOTS * 4) / 16];  // the second one, as codes
  } of[WARPS];
  float line[LINE];
  int unseen;  // slot that leaves, -1: none
};

// Of steps with one row to a span. partials: `group` lines of head_dim sums, their maximum and their weights' sum for
// each block. shares [n, n_kv_heads]: the first of a head's blocks, and how many. Grid (blocks of a row, at least
// n_kv_heads, spans). Reads every live slot once.
template <int D, class Codec>
__device__ __forceinline__ void attend(float* partials, int2* shares, const float* qkv, const float* decisions,
                                       const Kv& kv, int layer, const Span* spans, const Turn& turn, float scale) {
  __shared__ __align__(16) Shared<D> s;
  next_may_begin();
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  int d = kv.head_dim, heads = kv.n_kv_heads, group = kv.n_q_heads / heads;
  Span span = spans[blockIdx.y];
  int position = kv.seq_len[span.seq];
  Share share = share_of(kv.live + lane_index(kv, layer, span.seq, 0), heads, lane);
  // The others wait, and the kernel ends with the last of them.
  if (share.head < 0) return;
  Lane place = lane_of(kv, layer, span.seq, share.head);
  int p = share.first + warp, number = p < share.last ? place.pages[p] : 0;
  Page<D, Codec> page;
  if (p < share.last) {
    const u8* at = page_at(kv, number);
    page.load_keys(kv, at, lane);
    page.load_values(kv, at, share.live - p * PAGE_SLOTS, lane);
  }
  if (p + WARPS < share.last) {
    number = place.pages[p + WARPS];
    const u8* at = page_at(kv, number);
    if (Codec::PACKED) {
      for (int i = lane; i < kv.meta_at / 16; i += 32) copy_async(s.of[warp].page + i, at + 16 * i, true);
    } else {
      for (int j = 128 * lane; j < (int)kv.stride; j += 128 * 32) prefetch(at + j);
    }
  }
  copy_commit();
  Lanes lanes;
  if (warp < group) {
    lanes.weigh(turn.q_norm, d, lane);
    lanes.find(turn, position, d, lane);
  }
  // By a warp that has no query where there is one.
  SlotAssignment single = {};
  bool looks = warp == WARPS - 1;
  if (looks) single.load(kv, place, position, kv.eviction[span.seq]);
  wait_previous();
  const float* row = qkv + (u64)span.start * (kv.n_q_heads + 2 * heads) * d;
  if (warp < group) {
    load_row(s.q[warp], row + (share.head * group + warp) * d, lanes, turn.eps, d, lane);
    rotate(s.q[warp], lanes, d, turn.borrowed && warp == 0, lane);
  }
  if (looks) {
    float decision = 0.0f;
    if (single.needs_decision()) {
      lanes.weigh(turn.q_norm, d, lane);
      decision = decision_of(s.line, turn, lanes, row, decisions, share.head, span.start, kv, lane);
    }
    s.unseen = single.overwritten(dms_of(kv), decision);
  }
  __syncthreads();
  int unseen = s.unseen;
  copy_wait<0>();
  __syncwarp();
  Softmax<D, Codec> softmax;
  softmax.begin(s.q, group, d, lane);
  float by = scale * LOG2E * Codec::SCORE_FACTOR;
#pragma unroll 1
  for (bool staged = Codec::PACKED; p < share.last; staged = false) {
    int first = p * PAGE_SLOTS;
    softmax.weigh(page, share.live - first, unseen - first, by, lane);
    p += WARPS;
    // What is done with makes room for the next.
    const u8* at = staged ? (const u8*)s.of[warp].page : page_at(kv, number);
    if (p < share.last) page.load_keys(kv, at, lane);
    softmax.add(page);
    if (p < share.last) page.load_values(kv, at, share.live - p * PAGE_SLOTS, lane);
    if (p + WARPS < share.last) number = place.pages[p + WARPS];
  }
#pragma unroll
  for (int k = 0; k < 2; k++) {
    float l = softmax.l[k];
#pragma unroll
    for (int mask = 4; mask < 32; mask *= 2) l += __shfl_xor_sync(FULL, l, mask);
    if (g == 0) s.m[warp][2 * t + k] = softmax.m[k], s.l[warp][2 * t + k] = l;
  }
#pragma unroll
  for (int k = 0; k < 2; k++)
    if (2 * t + k < group)
#pragma unroll
      for (int j = 0; j < D / 16; j++)
        *(float2*)&s.of[warp].sums[(2 * t + k) * D + j / 4 * 64 + 8 * g + j % 4 * 2] =
            float2{softmax.out[j][k], softmax.out[j][2 + k]};
  __syncthreads();

  if (share.part == 0 && threadIdx.x == 0)
    shares[blockIdx.y * heads + share.head] = int2{(int)(blockIdx.y * gridDim.x + blockIdx.x), share.parts};
  float* mine = partials + (u64)(blockIdx.y * gridDim.x + blockIdx.x) * group * (d + 4);
  for (int i = threadIdx.x; i < group * D / 2; i += THREADS) {
    int head = i / (D / 2), channel = i % (D / 2) * 2;
    if (channel >= d) continue;
    float m = NEG_INFINITY, l = 0.0f;
    float2 sum = {0.0f, 0.0f};
#pragma unroll
    for (int w = 0; w < WARPS; w++) m = fmaxf(m, s.m[w][head]);
    float from = m == NEG_INFINITY ? 0.0f : m;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      float by = exp2_fast(s.m[w][head] - from);
      float2 x = *(const float2*)&s.of[w].sums[head * D + channel];
      l += by * s.l[w][head];
      sum.x += by * x.x;
      sum.y += by * x.y;
    }
    float* line = mine + head * (d + 4);
    const float by = Codec::SUM_FACTOR;
    *(float2*)(line + channel) = float2{sum.x * by, sum.y * by};
    if (channel == 0) *(float2*)(line + d) = float2{m, l};
  }
}

// By head size (up to 64 and up to 128 channels) and codec. An SM has room for two blocks, but for one of the widest rows.
#define ATTEND(name, D, Codec)                                                                                       \
  KERNEL __launch_bounds__(THREADS, D == 128 && !Codec::PACKED ? 1 : 2)                                              \
      name(float* partials, int2* shares, const float* qkv, const float* decisions, Kv kv, int layer,               \
           const Span* spans, const float* q_norm, const float* k_norm, const float* inv_freq, float eps,           \
           float factor, int borrowed, float scale, float offset, int per_layer, float score_scale) {               \
    Turn turn = {q_norm, k_norm, inv_freq, eps, factor, borrowed, scale, offset, per_layer};                        \
    attend<D, Codec>(partials, shares, qkv, decisions, kv, layer, spans, turn, score_scale);                        \
  }
#define ATTEND_BY_HEAD_DIM(codec, Codec) \
  ATTEND(attend_64_##codec, 64, Codec)   \
  ATTEND(attend_128_##codec, 128, Codec)
FOR_EACH_CODEC(ATTEND_BY_HEAD_DIM)
