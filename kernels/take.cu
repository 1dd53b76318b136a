// Single tokens enter the cache, and attention ends: each takes its slot by the policy, K and V go there, and what
// attend.cu found in parts of the older slots is put together with what the token sees of itself. CPU twins:
// `backend::cpu::rope`, `Codec::round_trip`, `backend::cpu::kv` (place, store), bit for bit but for RoPE, and
// `backend::cpu::attention`.
#include "heads.cuh"
#include "place.cuh"

#define MERGERS 256   // threads that put parts together, four channels each: enough for a group
#define AT_ONCE 8     // parts that a thread has on their way

struct Shared {
  float x[MAX_GROUP + 2][LINE], scratch[LINE];  // query heads, K, V
  __align__(16) u8 codes[2][2 * MAX_HEAD_DIM];
  float scales[2];
  u8* page;
  int at;
};

// Four channels of a head: their sums, maximum of scores and sum of weights.
struct Parts {
  float4 sum;
  float m, l;

  __device__ __forceinline__ void to_maximum(float top) {
    float by = m == NEG_INFINITY ? 0.0f : exp2_fast(m - top);
    m = top, l *= by, sum.x *= by, sum.y *= by, sum.z *= by, sum.w *= by;
  }
};

// out[n, n_q_heads * head_dim]. decisions [n, n_kv_heads]: written where they are borrowed. Grid (n_kv_heads, n). A warp for
// each query head of a group, for K, for V, and the last one to find the slot. Reads `partials` once, as attend.cu
// left them, and writes a row of K and V.
template <class Codec>
__device__ __forceinline__ void take(void* out, int rounded, const float* partials, const int2* shares,
                                     const float* qkv, float* decisions, const Kv& kv, int layer, const Span* spans,
                                     const Turn& turn, float score_scale) {
  __shared__ Shared s;
  next_may_begin();
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.x, d = kv.head_dim;
  int heads = kv.n_kv_heads, group = kv.n_q_heads / heads;
  bool is_q = warp < group, is_k = warp == group, is_v = warp == group + 1, finds = warp == (int)blockDim.x / 32 - 1;
  Span span = spans[blockIdx.y];
  int row = span.start, position = kv.seq_len[span.seq];
  Lane place = lane_of(kv, layer, span.seq, head);
  SlotAssignment single = {};
  if (finds) single.load(kv, place, position, kv.eviction[span.seq]);
  Lanes lanes;
  lanes.weigh(is_q || finds ? turn.q_norm : is_k ? turn.k_norm : nullptr, d, lane);
  if (is_q || is_k) lanes.find(turn, position, d, lane);
  // Neighbours in a warp share an item of four channels, and parts take turns among them.
  int items = group * d / 4, slices = 1;
  while (slices < 32 && 2 * slices * items <= MERGERS) slices *= 2;
  int item = threadIdx.x / slices, slice = threadIdx.x % slices, channel = 4 * item % d;
  bool merges = item < items && threadIdx.x < MERGERS;
  int of = merges ? 4 * item / d : -1, step = slices * group * (d + 4);
  const float* from = partials + slice * group * (d + 4) + of * (d + 4);
  wait_previous();

  const float* qkv_row = qkv + (u64)row * (kv.n_q_heads + 2 * heads) * d;
  int2 share = shares[blockIdx.y * heads + head];
  from += (u64)share.x * group * (d + 4);
  float2 ml[AT_ONCE];
  float4 x[AT_ONCE];
  auto fetch = [&](int first) {
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
      bool real = merges && first + i * slices + slice < share.y;
      ml[i] = real ? *(const float2*)(from + i * step + d) : float2{NEG_INFINITY, 0.0f};
      x[i] = real ? *(const float4*)(from + i * step + channel) : float4{0.0f, 0.0f, 0.0f, 0.0f};
    }
    from += AT_ONCE * step;
  };
  fetch(0);
  float decision = 0.0f;
  if (finds) {
    decision = decision_of(s.scratch, turn, lanes, qkv_row, decisions, head, row, kv, lane);
    if (turn.borrowed && lane == 0) decisions[row * heads + head] = decision;
  } else if (is_q || is_k || is_v) {
    int column = is_q ? head * group + warp : kv.n_q_heads + head + (is_v ? heads : 0);
    float* line = s.x[warp];
    load_row(line, qkv_row + column * d, lanes, turn.eps, d, lane);
    if (!is_v) rotate(line, lanes, d, turn.borrowed && warp == 0, lane);
    if (is_q) {
#pragma unroll
      for (int i = lane; i < MAX_HEAD_DIM; i += 32)
        if (i < d) line[i] = bf16_to_f32(f32_to_bf16(line[i]));
    } else {
      float by = Codec::encode(s.codes[is_v], line, d, lane);
      if (lane == 0) s.scales[is_v] = by;
    }
  }
  __syncthreads();
  if (finds) {
    int slot = single.assign(kv, place, decision, lane);
    if (lane == 0) {
      s.page = page_at(kv, place.pages[slot / PAGE_SLOTS]);
      s.at = slot % PAGE_SLOTS;
    }
  } else {
    // The token itself: weights are rounded as attend.cu rounds them.
    const float *k = s.x[group], *v = s.x[group + 1] + channel;
    float score = 0.0f;
    for (int h = 0; h < group; h++) {
      if (!__any_sync(FULL, of == h)) continue;
      float dot = 0.0f;
#pragma unroll
      for (int i = lane; i < MAX_HEAD_DIM; i += 32) dot += i < d ? s.x[h][i] * k[i] : 0.0f;
      dot = warp_sum(dot);
      if (of == h) score = dot * (score_scale * LOG2E);
    }
    Parts all = {float4{0.0f, 0.0f, 0.0f, 0.0f}, ceilf(score), 0.0f};
    if (slice == 0) {
      float weight = exp2_fast(score - all.m), by = bf16_to_f32(f32_to_bf16(weight * s.scales[1])) / s.scales[1];
      all.l = Codec::SCALED ? weight : by;
      all.sum = float4{by * v[0], by * v[1], by * v[2], by * v[3]};
    }
#pragma unroll 1
    for (int first = 0;;) {
      float top = all.m;
#pragma unroll
      for (int i = 0; i < AT_ONCE; i++) top = fmaxf(top, ml[i].x);
      all.to_maximum(top);
#pragma unroll
      for (int i = 0; i < AT_ONCE; i++) {
        float by = exp2_fast(ml[i].x - top);
        all.l += by * ml[i].y;
        all.sum.x += by * x[i].x, all.sum.y += by * x[i].y, all.sum.z += by * x[i].z, all.sum.w += by * x[i].w;
      }
      first += AT_ONCE * slices;
      if (first >= share.y) break;
      fetch(first);
    }
    for (int m = 1; m < slices; m *= 2) {
      float top = fmaxf(all.m, __shfl_xor_sync(FULL, all.m, m));
      all.to_maximum(top);
      all.l += __shfl_xor_sync(FULL, all.l, m);
      all.sum.x += __shfl_xor_sync(FULL, all.sum.x, m), all.sum.y += __shfl_xor_sync(FULL, all.sum.y, m);
      all.sum.z += __shfl_xor_sync(FULL, all.sum.z, m), all.sum.w += __shfl_xor_sync(FULL, all.sum.w, m);
    }
    float by = reciprocal(all.l);
    if (merges && slice == 0)
      put4(out, rounded, ((u64)row * kv.n_q_heads + head * group) * d + 4 * item,
           float4{all.sum.x * by, all.sum.y * by, all.sum.z * by, all.sum.w * by});
  }
  __syncthreads();
  if (is_k || is_v) write_codes(kv, s.page, s.at, is_v, s.codes[is_v], s.scales[is_v], lane);
}

#define TAKE(codec, Codec)                                                                                          \
  KERNEL __launch_bounds__(32 * (MAX_GROUP + 3))                                                                    \
      take_##codec(void* out, int rounded, const float* partials, const int2* shares, const float* qkv,             \
                   float* decisions, Kv kv, int layer, const Span* spans, const float* q_norm, const float* k_norm, \
                   const float* inv_freq, float eps, float factor, int borrowed, float scale, float offset,         \
                   int per_layer, float score_scale) {                                                              \
    Turn turn = {q_norm, k_norm, inv_freq, eps, factor, borrowed, scale, offset, per_layer};                        \
    take<Codec>(out, rounded, partials, shares, qkv, decisions, kv, layer, spans, turn, score_scale);               \
  }
FOR_EACH_CODEC(TAKE)
