// Attention of a step's rows over stored slots as they were before the step, and the step's own rows up
// to each, by the policy's rule. CPU twin: `backend::cpu::attention`.
#include "kv.cuh"

#define WARPS 4

// Softmax over the keys one warp has seen, for all query heads of a group: a lane holds K neighbouring
// channels. Nothing seen: m = -inf, l = 0.
template <int K, int G>
struct Softmax {
  float q[G][K], acc[G][K], m[G], l[G];

  __device__ __forceinline__ void begin(const float* row, int group, int d, int lane) {
#pragma unroll
    for (int g = 0; g < G; g++) {
      m[g] = NEG_INFINITY;
      l[g] = 0.0f;
#pragma unroll
      for (int k = 0; k < K; k++) {
        int channel = lane * K + k;
        q[g][k] = g < group && channel < d ? row[g * d + channel] : 0.0f;
        acc[g][k] = 0.0f;
      }
    }
  }

  __device__ __forceinline__ void add(const float key[K], const float value[K], int group, float scale) {
#pragma unroll
    for (int g = 0; g < G; g++) {
      if (g >= group) break;
      float dot = 0.0f;
#pragma unroll
      for (int k = 0; k < K; k++) dot += q[g][k] * key[k];
      float s = warp_sum(dot) * scale, top = fmaxf(m[g], s);
      float keep = expf(m[g] - top), p = expf(s - top);
      m[g] = top;
      l[g] = l[g] * keep + p;
#pragma unroll
      for (int k = 0; k < K; k++) acc[g][k] = acc[g][k] * keep + p * value[k];
    }
  }
};

// A lane's K channels of an encoded row.
template <int K>
__device__ __forceinline__ void decode(float out[K], const u8* row, int codec, float scale, int d, int lane) {
  bool whole = d == 32 * K;
  if (codec == CODEC_BF16) {
    const u16* from = (const u16*)row + lane * K;
    if (K == 4 && whole) {
      uint2 v = *(const uint2*)from;
      out[0] = bf16_to_f32((u16)v.x), out[1 % K] = bf16_to_f32((u16)(v.x >> 16));
      out[2 % K] = bf16_to_f32((u16)v.y), out[3 % K] = bf16_to_f32((u16)(v.y >> 16));
    } else if (K == 2 && whole) {
      u32 v = *(const u32*)from;
      out[0] = bf16_to_f32((u16)v), out[1 % K] = bf16_to_f32((u16)(v >> 16));
    } else {
#pragma unroll
      for (int k = 0; k < K; k++) out[k] = lane * K + k < d ? bf16_to_f32(from[k]) : 0.0f;
    }
    return;
  }
  const u8* from = row + lane * K;
  if (K == 4 && whole) {
    u32 v = *(const u32*)from;
#pragma unroll
    for (int k = 0; k < K; k++) out[k] = fp8_decode((u8)(v >> (8 * k))) * scale;
  } else {
#pragma unroll
    for (int k = 0; k < K; k++) out[k] = lane * K + k < d ? fp8_decode(from[k]) * scale : 0.0f;
  }
}

template <int K>
__device__ __forceinline__ void channels(float out[K], const float* row, int d, int lane) {
#pragma unroll
  for (int k = 0; k < K; k++) out[k] = lane * K + k < d ? row[lane * K + k] : 0.0f;
}

__device__ __forceinline__ bool visible(const Kv& kv, int query, int key, bool marked, int eviction) {
  return kv.policy == DENSE || !eviction || !marked || query - key <= kv.window;
}

// Stored slots [from, to): 32 at a time, each lane looks one up, then the warp takes the visible ones in
// turn.
template <int K, int G>
__device__ __forceinline__ void slots_part(Softmax<K, G>& softmax, const Kv& kv, const int* table, int from, int to,
                                           int query, int base, int eviction, bool newest_marked, int group,
                                           float scale, int warp, int lane) {
  int d = kv.head_dim;
#pragma unroll 1
  for (int j0 = from + warp * 32; j0 < to; j0 += WARPS * 32) {
    int j = j0 + lane, r = 0;
    u8* page = kv.pages;
    bool take = false;
    float k_scale = 1.0f, v_scale = 1.0f;
    if (j < to) {
      page = page_at(kv, table[j / kv.page_slots]);
      r = j % kv.page_slots;
      int meta = *meta_at(kv, page, r), position = meta >> 1;
      bool newest = kv.shift == SHIFT_PREVIOUS && position + 1 == base;
      take = visible(kv, query, position, newest ? newest_marked : meta & 1, eviction);
      if (kv.codec == CODEC_FP8) {
        k_scale = *scale_at(kv, page, r, 0);
        v_scale = *scale_at(kv, page, r, 1);
      }
    }
    u64 k_row = (u64)kv_bytes(kv, page, r, 0), v_row = (u64)kv_bytes(kv, page, r, 1);
    u32 left = __ballot_sync(FULL, take);
#pragma unroll 1
    while (left) {
      int from_lane = __ffs(left) - 1;
      left &= left - 1;
      const u8* k_at = (const u8*)__shfl_sync(FULL, k_row, from_lane);
      const u8* v_at = (const u8*)__shfl_sync(FULL, v_row, from_lane);
      float ks = __shfl_sync(FULL, k_scale, from_lane), vs = __shfl_sync(FULL, v_scale, from_lane);
      float key[K], value[K];
      decode<K>(key, k_at, kv.codec, ks, d, lane);
      decode<K>(value, v_at, kv.codec, vs, d, lane);
      softmax.add(key, value, group, scale);
    }
  }
}

// Rows [from, to) of the step itself.
template <int K, int G>
__device__ __forceinline__ void chunk_part(Softmax<K, G>& softmax, const Kv& kv, const float* qkv,
                                           const float* decisions, const Span& span, int head, int from, int to,
                                           int query_row, int eviction, int group, float scale, int warp, int lane) {
  int d = kv.head_dim, heads = kv.n_kv_heads, width = (kv.n_q_heads + 2 * heads) * d;
  if (to > query_row + 1) to = query_row + 1;
#pragma unroll 1
  for (int j0 = from + warp * 32; j0 < to; j0 += WARPS * 32) {
    int j = j0 + lane;
    bool take = false;
    if (j < to) {
      int decided = kv.shift == SHIFT_SAME ? j : j + 1;
      bool marked = decided < span.len && decisions[(span.start + decided) * heads + head] > 0.0f;
      take = visible(kv, query_row, j, marked, eviction);
    }
    u32 left = __ballot_sync(FULL, take);
#pragma unroll 1
    while (left) {
      int row = span.start + j0 + __ffs(left) - 1;
      left &= left - 1;
      const float* at = qkv + (u64)row * width + (kv.n_q_heads + head) * d;
      float key[K], value[K];
      channels<K>(key, at, d, lane);
      channels<K>(value, at + heads * d, d, lane);
      softmax.add(key, value, group, scale);
    }
  }
}

// The warps' parts as one: written out where there is one split, else left for `attend_merge`.
template <int K, int G>
__device__ __forceinline__ void merge_warps(const Softmax<K, G>& softmax, void* out, int rounded, u64 at, float* partial,
                                            int group, int d, int n_splits, int warp, int lane) {
  __shared__ float ms[WARPS][G], ls[WARPS][G], accs[WARPS][G][32 * K];
#pragma unroll
  for (int g = 0; g < G; g++) {
    if (lane == 0) {
      ms[warp][g] = softmax.m[g];
      ls[warp][g] = softmax.l[g];
    }
#pragma unroll
    for (int k = 0; k < K; k++) accs[warp][g][lane * K + k] = softmax.acc[g][k];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < group * d; i += blockDim.x) {
    int g = i / d, channel = i % d;
    float m = NEG_INFINITY, l = 0.0f, acc = 0.0f;
    for (int w = 0; w < WARPS; w++) m = fmaxf(m, ms[w][g]);
    for (int w = 0; w < WARPS; w++) {
      float by = ms[w][g] == NEG_INFINITY ? 0.0f : expf(ms[w][g] - m);
      l += by * ls[w][g];
      acc += by * accs[w][g][channel];
    }
    if (n_splits == 1) {
      put(out, rounded, at + i, acc / l);
    } else {
      float* to = partial + g * (d + 2);
      to[channel] = acc;
      if (channel == 0) {
        to[d] = m;
        to[d + 1] = l;
      }
    }
  }
}

// One row, one KV head, one part of its keys. out[n, n_q_heads * head_dim]; partials [n, n_splits,
// n_q_heads, head_dim + 2]. Grid (n_splits, n_kv_heads, n), 128 threads. Each key and value is read
// once for all query heads of its group; rows of one step read the same ones through the caches.
template <int K, int G>
__device__ __forceinline__ void attend(void* out, int rounded, float* partials, const float* qkv, const float* decisions,
                                       const Kv& kv, int layer, const Span* spans, const int* span_of_row,
                                       float scale) {
  int split = blockIdx.x, n_splits = gridDim.x, head = blockIdx.y, row = blockIdx.z;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int d = kv.head_dim, heads = kv.n_kv_heads, group = kv.n_q_heads / heads;
  Span span = spans[span_of_row[row]];
  int base = kv.seq_len[span.seq], eviction = kv.eviction[span.seq];
  int lane_row = kv_row(kv, layer, span.seq, head), live = kv.live[lane_row];
  const float* q = qkv + (u64)row * (kv.n_q_heads + 2 * heads) * d + (u64)head * group * d;
  Softmax<K, G> softmax;
  softmax.begin(q, group, d, lane);
  // Whole batches of 32 keys to a split.
  int total = live + row - span.start + 1;
  int per = ((total + n_splits - 1) / n_splits + 31) / 32 * 32;
  int from = split * per, to = min(from + per, total);
  bool newest_marked = decisions[span.start * heads + head] > 0.0f;
  slots_part<K, G>(softmax, kv, kv.table + (u64)lane_row * kv.max_pages, from, min(to, live), base + row - span.start,
                   base, eviction, newest_marked, group, scale, warp, lane);
  chunk_part<K, G>(softmax, kv, qkv, decisions, span, head, max(from - live, 0), to - live, row - span.start, eviction,
                   group, scale, warp, lane);
  u64 at = ((u64)row * kv.n_q_heads + head * group) * d;
  float* partial = partials + (((u64)row * n_splits + split) * kv.n_q_heads + head * group) * (d + 2);
  merge_warps<K, G>(softmax, out, rounded, at, partial, group, d, n_splits, warp, lane);
}

// By channels a lane holds (head sizes up to 32, 64, 128) and query heads of a group (up to).
#define ATTEND(name, K, G)                                                                                        \
  KERNEL __launch_bounds__(32 * WARPS)                                                                            \
      name(void* out, int rounded, float* partials, const float* qkv, const float* decisions, Kv kv, int layer,               \
           const Span* spans, const int* span_of_row, float scale) {                                              \
    after_previous();                                                                                             \
    attend<K, G>(out, rounded, partials, qkv, decisions, kv, layer, spans, span_of_row, scale);                   \
  }
ATTEND(attend_1_1, 1, 1)
ATTEND(attend_1_2, 1, 2)
ATTEND(attend_1_4, 1, 4)
ATTEND(attend_1_8, 1, 8)
ATTEND(attend_2_1, 2, 1)
ATTEND(attend_2_2, 2, 2)
ATTEND(attend_2_4, 2, 4)
ATTEND(attend_2_8, 2, 8)
ATTEND(attend_4_1, 4, 1)
ATTEND(attend_4_2, 4, 2)
ATTEND(attend_4_4, 4, 4)
ATTEND(attend_4_8, 4, 8)

// Puts the splits of `attend` together; one that saw nothing weighs 0. Grid (n_q_heads, n), any block.
KERNEL attend_merge(void* out, int rounded, const float* partials, int n_splits, int d) {
  after_previous();
  int head = blockIdx.x, heads = gridDim.x, row = blockIdx.y;
  const float* from = partials + ((u64)row * n_splits * heads + head) * (d + 2);
  u64 step = (u64)heads * (d + 2);
  float m = NEG_INFINITY;
  for (int s = 0; s < n_splits; s++) m = fmaxf(m, from[s * step + d]);
  for (int i = threadIdx.x; i < d; i += blockDim.x) {
    float l = 0.0f, acc = 0.0f;
    for (int s = 0; s < n_splits; s++) {
      float part = from[s * step + d], by = part == NEG_INFINITY ? 0.0f : expf(part - m);
      l += by * from[s * step + d + 1];
      acc += by * from[s * step + i];
    }
    put(out, rounded, ((u64)row * heads + head) * d + i, acc / l);
  }
}
