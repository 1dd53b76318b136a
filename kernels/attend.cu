// Attention of single tokens over their heads' live slots, on tensor cores. The token itself has its slot by
// then, and every slot that lives is one that it sees: what leaves the window at a token was dropped as that took
// its slot. So there is nothing to mask here; chunks are for attend_tiles.cu. CPU twin: `backend::cpu::attention`.
//
// A warp takes a page at a time, straight from memory to registers: scores are q k^T with the group's heads as rows,
// sums are v^T p^T with channels as rows, so the weights of the first product are the second's right side as they
// lie. Channels are contracted, and keys summed, in the order in which 16-byte loads bring them.
//
// Precision: K and V are exact, queries and weights of V are rounded to bf16, sums are f32. Maxima are whole exponents
// of 2, so that weights are rounded in the same way whatever they are compared with: how keys are divided among warps,
// blocks and tiles changes the order of sums and nothing else.
#include "kv.cuh"
#include "tensor.cuh"

#define WARPS 8
#define THREADS (32 * WARPS)
#define HEADS 8  // most query heads of a group
#define LEAST_PAGES 4  // of a part: fewer are not worth putting parts together for
#define SOON 2         // pages of a warp that are sent for early: no more than the second-level cache has room for

// The block's part of the row's work: pages [first, last) of a head. head -1: none.
struct Share {
  int head, live, first, last, part, parts;
};

// Every head gets blocks by the pages it has, at least one. All blocks of a row come to the same division.
__device__ __forceinline__ Share share_of(const int* live, int heads, int lane) {
  int total = 0, block = blockIdx.x;
  for (int h = lane; h < heads; h += 32) total += (live[h] + PAGE_SLOTS - 1) / PAGE_SLOTS;
#pragma unroll
  for (int m = 16; m > 0; m /= 2) total += __shfl_xor_sync(FULL, total, m);
  int spare = gridDim.x - heads, per = spare > 0 ? max(LEAST_PAGES, (total + spare - 1) / spare) : 1 << 30;
  Share s = {-1, 0, 0, 0, 0, 0};
  for (int h = lane, before = 0; h - lane < heads; h += 32) {
    int here = h < heads ? live[h] : 0, pages = (here + PAGE_SLOTS - 1) / PAGE_SLOTS;
    int parts = h < heads ? max(1, (pages + per - 1) / per) : 0, end = parts;
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
    s.first = s.part * pages / s.parts;
    s.last = (s.part + 1) * pages / s.parts;
    break;
  }
  return s;
}

// A page as the lanes of a warp hold it: K's channels 32 i + 8 t + 0..7 of slots g and g + 8, V's channels
// 64 i + 8 g + 0..7 of slots 2 t, 2 t + 1 and 8 more.
template <int D, int CODEC>
struct Page {
  Eight<CODEC> k[2][D / 32], v[4][D / 64];
  float2 k_scale[2], v_scale[2];

  // The first n slots live.
  __device__ __forceinline__ void load(const Kv& kv, const u8* page, int n, int lane) {
    int g = lane / 4, t = lane % 4, d = kv.head_dim, bytes = row_bytes(kv);
    const u8* v_rows = page + PAGE_SLOTS * bytes;
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int i = 0; i < D / 32; i++) {
        int channel = 32 * i + 8 * t;
        k[half][i].load(page + (g + 8 * half) * bytes, channel, channel < d);
      }
#pragma unroll
    for (int half = 0; half < 2; half++) {
      if (CODEC != CODEC_FP8) continue;
      const float* scales = (const float*)(page + 2 * PAGE_SLOTS * bytes) + 8 * half + 2 * t;
      k_scale[half] = *(const float2*)scales;
      v_scale[half] = *(const float2*)(scales + PAGE_SLOTS);
    }
#pragma unroll
    for (int key = 0; key < 4; key++)
#pragma unroll
      for (int i = 0; i < D / 64; i++) {
        int slot = 2 * t + key % 2 + key / 2 * 8, channel = 64 * i + 8 * g;
        // What a slot that does not live holds may be no number.
        v[key][i].load(v_rows + slot * bytes, channel, channel < d && slot < n);
      }
  }
};

// Softmax over the pages of a warp. Lane 4 g + t holds, of head g, the queries' channels 32 i + 8 t + 0..7 and
// a quarter of the weights' sum; of heads 2 t and 2 t + 1, sums of channels 64 i + 8 g + 0..7.
template <int D, int CODEC>
struct Softmax {
  u32 q[D / 16][2];
  float out[D / 16][4], m, l;

  __device__ __forceinline__ void begin(const float* row, int group, int d, int lane) {
    float by = CODEC == CODEC_FP8 ? QUERY_FACTOR : 1.0f;
#pragma unroll
    for (int i = 0; i < D / 32; i++) {
      int channel = 32 * i + lane % 4 * 8;
      float4 a = {0, 0, 0, 0}, b = {0, 0, 0, 0};
      if (lane / 4 < group && channel < d) {
        const float4* from = (const float4*)(row + lane / 4 * d + channel);
        a = from[0], b = from[1];
      }
      q[2 * i][0] = round_pair(a.x * by, a.y * by), q[2 * i][1] = round_pair(a.z * by, a.w * by);
      q[2 * i + 1][0] = round_pair(b.x * by, b.y * by), q[2 * i + 1][1] = round_pair(b.z * by, b.w * by);
    }
#pragma unroll
    for (int j = 0; j < D / 16; j++)
#pragma unroll
      for (int k = 0; k < 4; k++) out[j][k] = 0.0f;
    m = NEG_INFINITY;
    l = 0.0f;
  }

  // A page of which the first n slots live. Scores times `scale` are exponents of 2.
  __device__ __forceinline__ void add(const Page<D, CODEC>& page, int n, float scale, int lane) {
    int t = lane % 4;
    float scores[2][4] = {};
#pragma unroll
    for (int i = 0; i < D / 32; i++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        uint4 x = page.k[half][i].as_bf16();
        u32 a[4] = {q[2 * i][0], 0, q[2 * i][1], 0}, b[2] = {x.x, x.y};
        mma(scores[half], a, b);
        u32 c[4] = {q[2 * i + 1][0], 0, q[2 * i + 1][1], 0}, e[2] = {x.z, x.w};
        mma(scores[half], c, e);
      }
    float top = NEG_INFINITY;
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int k = 0; k < 2; k++) {
        float& x = scores[half][k];
        x *= CODEC == CODEC_FP8 ? (k ? page.k_scale[half].y : page.k_scale[half].x) * scale : scale;
        if (2 * t + k + 8 * half >= n) x = NEG_INFINITY;
        top = fmaxf(top, x);
      }
    top = fmaxf(top, __shfl_xor_sync(FULL, top, 1));
    top = fmaxf(top, __shfl_xor_sync(FULL, top, 2));
    top = fmaxf(m, ceilf(top));
    float keep = exp2_fast(m - top);
    m = top;
    l *= keep;
    u32 weights[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float x = exp2_fast(scores[half][0] - top), y = exp2_fast(scores[half][1] - top);
      if (CODEC == CODEC_FP8) {
        l += x + y;
        // Slots that do not live have no scales either.
        x = x > 0.0f ? x * (page.v_scale[half].x * WEIGHT_FACTOR) : 0.0f;
        y = y > 0.0f ? y * (page.v_scale[half].y * WEIGHT_FACTOR) : 0.0f;
      }
      weights[half] = round_pair(x, y);
      if (CODEC == CODEC_BF16) l += sum_pair(weights[half]);
    }
    float keep_x = __shfl_sync(FULL, keep, 8 * t), keep_y = __shfl_sync(FULL, keep, 8 * t + 4);
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
        sum[0] *= keep_x, sum[1] *= keep_y, sum[2] *= keep_x, sum[3] *= keep_y;
        mma(sum, a, weights);
      }
    }
  }
};

// What the warps of a block leave each other, and then the block that comes last what it needs of the others.
template <int D>
struct Shared {
  float sums[WARPS * HEADS * D], m[WARPS][HEADS], l[WARPS][HEADS];
  int arrived;
};

#define AT_ONCE 16  // parts of a head that a thread has on their way

// Puts the parts of a head together: each is `group` rows of sums, maximum and weights' sum. Four channels to a thread,
// and parts in turn where there are more threads.
template <int D>
__device__ __forceinline__ void merge(Shared<D>& s, void* out, int rounded, u64 row,
                                      const float* partials, int parts, int group, int d) {
  int items = group * d / 4, slices = THREADS / items, item = threadIdx.x % items, slice = threadIdx.x / items;
  int head = 4 * item / d, channel = 4 * item % d, step = group * (d + 4);
  float m = NEG_INFINITY, l = 0.0f;
  float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 1
  for (int first = slice; slice < slices && first < parts; first += AT_ONCE * slices) {
    const float* from = partials + first * step + head * (d + 4);
    float2 ml[AT_ONCE];
    float4 x[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
      bool real = first + i * slices < parts;
      ml[i] = real ? *(const float2*)(from + i * slices * step + d) : float2{NEG_INFINITY, 0.0f};
      x[i] = real ? *(const float4*)(from + i * slices * step + channel) : float4{0.0f, 0.0f, 0.0f, 0.0f};
    }
    float top = m;
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) top = fmaxf(top, ml[i].x);
    float keep = exp2_fast(m - top);
    m = top, l *= keep, sum.x *= keep, sum.y *= keep, sum.z *= keep, sum.w *= keep;
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
      float by = exp2_fast(ml[i].x - top);
      l += by * ml[i].y, sum.x += by * x[i].x, sum.y += by * x[i].y, sum.z += by * x[i].z, sum.w += by * x[i].w;
    }
  }
  float4* sums = (float4*)s.sums;
  float2* stats = (float2*)(s.sums + 4 * THREADS);
  sums[threadIdx.x] = sum;
  stats[threadIdx.x] = float2{m, l};
  __syncthreads();
  if (slice > 0) return;
  for (int i = 1; i < min(slices, parts); i++) {
    float2 more = stats[i * items + item];
    float4 x = sums[i * items + item];
    float top = fmaxf(m, more.x), keep = exp2_fast(m - top), by = exp2_fast(more.x - top);
    m = top, l = l * keep + more.y * by;
    sum.x = sum.x * keep + x.x * by, sum.y = sum.y * keep + x.y * by;
    sum.z = sum.z * keep + x.z * by, sum.w = sum.w * keep + x.w * by;
  }
  float by = 1.0f / l;
  put4(out, rounded, row + 4 * item, float4{sum.x * by, sum.y * by, sum.z * by, sum.w * by});
}

// out[n, n_q_heads * head_dim] of steps with one row to a span. partials: head_dim + 4 floats for each block and query
// head of a group. arrivals [n, n_kv_heads], zero before and after. Grid (blocks of a row, at least n_kv_heads,
// spans). Reads every live slot once.
template <int D, int CODEC>
__device__ __forceinline__ void attend(void* out, int rounded, float* partials, int* arrivals, const float* qkv,
                                       const Kv& kv, int layer, const Span* spans, float scale) {
  __shared__ __align__(16) Shared<D> s;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  int d = kv.head_dim, heads = kv.n_kv_heads, group = kv.n_q_heads / heads;
  Span span = spans[blockIdx.y];
  int first_lane = kv_row(kv, layer, span.seq, 0);
  next_may_begin();
#if __CUDA_ARCH__ >= 900
  // The step before left nearly all of it as it will be: on its way while the kernels before this one run.
  Share likely = share_of(kv.live + first_lane, heads, lane);
  if (likely.head >= 0) {
    const int* table = kv.table + (u64)(first_lane + likely.head) * kv.max_pages;
    for (int i = 0, p = likely.first + warp; i < SOON && p < likely.last; i++, p += WARPS) {
      int page = table[p];
      for (int j = 128 * lane; page >= 0 && j < (int)kv.stride; j += 128 * 32) prefetch(page_at(kv, page) + j);
    }
  }
#endif
  wait_previous();
  Share share = share_of(kv.live + first_lane, heads, lane);
  if (share.head < 0) return;
  const int* table = kv.table + (u64)(first_lane + share.head) * kv.max_pages;
  int p = share.first + warp;
  Softmax<D, CODEC> softmax;
  Page<D, CODEC> page;
  float by = scale * LOG2E * (CODEC == CODEC_FP8 ? SCORE_FACTOR : 1.0f);
  int number = p < share.last ? table[p] : 0;
  softmax.begin(qkv + (u64)span.start * (kv.n_q_heads + 2 * heads) * d + share.head * group * d, group, d, lane);
#pragma unroll 1
  for (; p < share.last; p += WARPS) {
    page.load(kv, page_at(kv, number), share.live - p * PAGE_SLOTS, lane);
    if (p + WARPS < share.last) number = table[p + WARPS];
    softmax.add(page, share.live - p * PAGE_SLOTS, by, lane);
  }
  float l = softmax.l;
  l += __shfl_xor_sync(FULL, l, 1);
  l += __shfl_xor_sync(FULL, l, 2);
  if (t == 0) {
    s.m[warp][g] = softmax.m;
    s.l[warp][g] = l;
  }
#pragma unroll
  for (int k = 0; k < 2; k++)
    if (2 * t + k < group)
#pragma unroll
      for (int j = 0; j < D / 16; j++)
        *(float2*)&s.sums[(warp * HEADS + 2 * t + k) * D + j / 4 * 64 + 8 * g + j % 4 * 2] =
            float2{softmax.out[j][k], softmax.out[j][2 + k]};
  __syncthreads();

  u64 row = ((u64)span.start * kv.n_q_heads + share.head * group) * d;
  float* parts = partials + ((u64)blockIdx.y * gridDim.x + blockIdx.x - share.part) * group * (d + 4);
  float* mine = parts + share.part * group * (d + 4);
  int warps = min(WARPS, share.last - share.first);
  for (int i = threadIdx.x; i < group * d / 2; i += THREADS) {
    int head = 2 * i / d, channel = 2 * i % d;
    float m = NEG_INFINITY, l = 0.0f;
    float2 sum = {0.0f, 0.0f};
    for (int w = 0; w < warps; w++) m = fmaxf(m, s.m[w][head]);
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      if (w >= warps) break;
      float by = exp2_fast(s.m[w][head] - m);
      float2 x = *(const float2*)&s.sums[(w * HEADS + head) * D + channel];
      l += by * s.l[w][head];
      sum.x += by * x.x;
      sum.y += by * x.y;
    }
    float by = (CODEC == CODEC_FP8 ? SUM_FACTOR : 1.0f) * (share.parts == 1 ? 1.0f / l : 1.0f);
    if (share.parts == 1) {
      put2(out, rounded, row + 2 * i, sum.x * by, sum.y * by);
      continue;
    }
    float* line = mine + head * (d + 4);
    *(float2*)(line + channel) = float2{sum.x * by, sum.y * by};
    if (channel == 0) *(float2*)(line + d) = float2{m, l};
  }
  if (share.parts == 1) return;
  __threadfence();
  __syncthreads();
  int* arrival = arrivals + blockIdx.y * heads + share.head;
  if (threadIdx.x == 0) s.arrived = atomicAdd(arrival, 1);
  __syncthreads();
  if (s.arrived != share.parts - 1) return;
  __threadfence();
  if (threadIdx.x == 0) *arrival = 0;
  merge<D>(s, out, rounded, row, parts, share.parts, group, d);
}

// By channels (head sizes up to 64 and 128) and codec.
#define ATTEND(name, D, CODEC)                                                                                      \
  KERNEL __launch_bounds__(THREADS, 1)                                                                                   \
      name(void* out, int rounded, float* partials, int* arrivals, const float* qkv, Kv kv, int layer,              \
           const Span* spans, float scale) {                                                                        \
    attend<D, CODEC>(out, rounded, partials, arrivals, qkv, kv, layer, spans, scale);                               \
  }
ATTEND(attend_64_bf16, 64, CODEC_BF16)
ATTEND(attend_64_fp8, 64, CODEC_FP8)
ATTEND(attend_128_bf16, 128, CODEC_BF16)
ATTEND(attend_128_fp8, 128, CODEC_FP8)
