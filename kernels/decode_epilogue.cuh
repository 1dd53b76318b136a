// Decode epilogue: appends K and V of each token to the cache and merges the splits of attend.cuh with what the token sees
// of itself. The token takes its slot by the policy's rule, RoPE and the codec are applied to K and V, and the normalised
// output of attention is written. CPU twins: `backend::cpu::rope`, `Codec::round_trip` and `backend::cpu::kv` (place,
// store), bit for bit but for RoPE; `backend::cpu::attention`.
#pragma once
#include "pages.cuh"
#include "place_by_scores.cuh"

#define MERGE_THREADS 256  // threads that merge, four channels each: enough for a group
#define IN_FLIGHT 8        // splits that a thread loads at once

// Four values of a row from an index on that is a multiple of 4, `from` values after the row's first.
__device__ __forceinline__ void put_out(const DecodeParams& p, int row, int from, float4 x) {
  put4(p.out, p.out_is_bf16, (u64)row * p.kv.n_q_heads * p.kv.head_dim + from, x);
  if (!p.image) return;
  put_image2(p.image, row, from, x.x, x.y);
  put_image2(p.image, row, from + 2, x.z, x.w);
}

struct Shared {
  float x[MAX_GROUP + 2][ROW_STRIDE], scratch[ROW_STRIDE];  // query heads of the group, K, V
  __align__(16) u8 codes[2][2 * MAX_HEAD_DIM];              // of K, of V
  u32 sides[2];
  u8* page;  // where the token is stored
  int r, filled;  // its row there; slots of the page that live then
  bool appends;   // it overwrites none
};

// Online softmax of four channels of a query head: weighted sum of V, maximum of the logits (log2 units), sum of
// exp2(logit - max).
struct OnlineSoftmax {
  float4 acc;
  float max, sum;

  // Makes `top` the maximum.
  __device__ __forceinline__ void rescale(float top) {
    float by = max == NEG_INFINITY ? 0.0f : exp2_fast(max - top);
    max = top, sum *= by, acc.x *= by, acc.y *= by, acc.z *= by, acc.w *= by;
  }

  // Merges a state whose maximum is not larger.
  __device__ __forceinline__ void merge(float4 more_acc, float more_max, float more_sum) {
    float by = exp2_fast(more_max - max);
    sum += by * more_sum;
    acc.x += by * more_acc.x, acc.y += by * more_acc.y, acc.z += by * more_acc.z, acc.w += by * more_acc.w;
  }

  // Merges the state of warp lane `lane ^ m`.
  __device__ __forceinline__ void merge_lanes(int m) {
    rescale(fmaxf(max, __shfl_xor_sync(FULL, max, m)));
    float more = __shfl_xor_sync(FULL, sum, m);
    float4 x = {__shfl_xor_sync(FULL, acc.x, m), __shfl_xor_sync(FULL, acc.y, m), __shfl_xor_sync(FULL, acc.z, m),
                __shfl_xor_sync(FULL, acc.w, m)};
    sum += more, acc.x += x.x, acc.y += x.y, acc.z += x.z, acc.w += x.w;
  }
};

// Grid (n_kv_heads, n). A warp for each query head of the group, for K and for V, at least MERGE_THREADS threads, and one
// more warp that assigns the slot. Reads the splits' states once, writes a row of K, of V and of the output. Under a
// mode with pages, widens the bounds of the token's page too, or computes them again where the token overwrites a slot.
template <class Codec, class Mode>
__device__ __forceinline__ void decode_epilogue(const DecodeParams& p) {
  __shared__ Shared s;
  __shared__ LaneSoftmax weights;
  next_may_begin();
  const Kv& kv = p.kv;
  const HeadParams& head_params = p.heads;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.x, d = kv.head_dim;
  int heads = kv.n_kv_heads, group = kv.n_q_heads / heads;
  bool is_q = warp < group, is_k = warp == group, is_v = warp == group + 1, assigns = !Mode::SCORES && warp == (int)blockDim.x / 32 - 1;
  Span span = p.spans[blockIdx.y];
  int row = span.start, position = position_of<Mode>(kv, span);
  Lane slots = lane_of(kv, p.layer, span.seq, head);
  SlotAssignment assignment = {};
  Dms dms = dms_of(kv, assigns ? kv.dial[span.seq] : 0.0f);
  if (assigns) assignment.load(kv, dms, slots, position, kv.eviction[span.seq]);
  const float* norm = prefetch_norm(is_q || assigns ? head_params.q_norm : is_k ? head_params.k_norm : nullptr, d, lane);
  RopeAngles angles;
  if (is_q || is_k) angles.compute(head_params, position, d, lane);
  // bounds of the page that the token joins if it appends
  Bounds bounds;
  if (Mode::PAGES && is_k) {
    int live = kv.live[slots.row];
    bounds.init();
    if (live % PAGE_SLOTS) bounds.load(kv, page_at(kv, slots.pages[live / PAGE_SLOTS]), lane);
  }
  // An item is four channels of a query head. `slices` neighbouring threads share one and take every slices-th split.
  int items = group * d / 4, slices = 1;
  while (slices < 32 && 2 * slices * items <= MERGE_THREADS) slices *= 2;
  int item = threadIdx.x / slices, slice = threadIdx.x % slices, channel = 4 * item % d;
  bool merges = item < items && threadIdx.x < MERGE_THREADS;
  int q_head = merges ? 4 * item / d : -1, step = slices * group * (d + 4);
  const float* from = p.partials + slice * group * (d + 4) + q_head * (d + 4);
  wait_previous();

  // first splits in flight
  const float* qkv_row = p.qkv + (u64)row * (kv.n_q_heads + 2 * heads) * d;
  int2 splits = p.splits[blockIdx.y * heads + head];
  from += (u64)splits.x * group * (d + 4);
  float2 max_sum[IN_FLIGHT];
  float4 acc[IN_FLIGHT];
  auto load_splits = [&](int first) {
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; i++) {
      bool real = merges && first + i * slices + slice < splits.y;
      max_sum[i] = real ? *(const float2*)(from + i * step + d) : float2{NEG_INFINITY, 0.0f};
      acc[i] = real ? *(const float4*)(from + i * step + channel) : float4{0.0f, 0.0f, 0.0f, 0.0f};
    }
    from += IN_FLIGHT * step;
  };
  load_splits(0);

  // the token's own rows: norm, RoPE, codec
  float decision = 0.0f;
  if (assigns) {
    decision = decision_of(s.scratch, head_params, norm, qkv_row, p.decisions, head, row, kv, lane);
    if (head_params.borrowed && lane == 0) p.decisions[row * heads + head] = decision;
  } else if (is_q || is_k || is_v) {
    int column = is_q ? head * group + warp : kv.n_q_heads + head + (is_v ? heads : 0);
    float* x = s.x[warp];
    load_row(x, qkv_row + column * d, norm, head_params.eps, d, lane);
    if (!is_v) rotate(x, angles, d, warp < head_params.borrowed, lane);
    if (is_q) {
      // as attend.cuh rounds it
#pragma unroll
      for (int i = lane; i < MAX_HEAD_DIM; i += 32)
        if (i < d) x[i] = bf16_to_f32(f32_to_bf16(x[i]));
    } else {
      u32 side = encode_row<Codec>(is_v, s.codes[is_v], x, d, lane);
      if (lane == 0) s.sides[is_v] = side;
    }
  }
  __syncthreads();
  float4 out;
  int first = head * group * d;  // channel of the row
  if (assigns) {
    int slot = assignment.assign(kv, dms, slots, decision, lane);
    if (lane == 0) {
      s.page = page_at(kv, slots.pages[slot / PAGE_SLOTS]);
      s.r = slot % PAGE_SLOTS;
      if (Mode::PAGES) {
        s.appends = slot == assignment.live;
        s.filled = min(max(assignment.live, slot + 1) - slot / PAGE_SLOTS * PAGE_SLOTS, PAGE_SLOTS);
        // Where other rows of the step are stored by kv_scatter.cu, this one is not.
        kv.slots[row * heads + head] = -1;
      }
    }
  } else {
    // logit of the token with itself
    const float *k = s.x[group], *v = s.x[group + 1] + channel;
    float score = 0.0f;
    for (int h = 0; h < group; h++) {
      if (!__any_sync(FULL, q_head == h)) continue;
      float dot = 0.0f;
#pragma unroll
      for (int i = lane; i < MAX_HEAD_DIM; i += 32) dot += i < d ? s.x[h][i] * k[i] : 0.0f;
      dot = warp_sum(dot);
      if (q_head == h) score = dot * (p.score_scale * LOG2E);
    }
    // its softmax state, the weight rounded as attend.cuh rounds it
    OnlineSoftmax softmax = {float4{0.0f, 0.0f, 0.0f, 0.0f}, ceilf(score), 0.0f};
    if (slice == 0) {
      float weight = exp2_fast(score - softmax.max), scale = Codec::V::affine(s.sides[1]).x;
      float by = bf16_to_f32(f32_to_bf16(weight * scale)) / scale;
      softmax.sum = Codec::SCALED ? weight : by;
      softmax.acc = float4{by * v[0], by * v[1], by * v[2], by * v[3]};
    }
    // merge the splits
#pragma unroll 1
    for (int split = 0;;) {
      float top = softmax.max;
#pragma unroll
      for (int i = 0; i < IN_FLIGHT; i++) top = fmaxf(top, max_sum[i].x);
      softmax.rescale(top);
#pragma unroll
      for (int i = 0; i < IN_FLIGHT; i++) softmax.merge(acc[i], max_sum[i].x, max_sum[i].y);
      split += IN_FLIGHT * slices;
      if (split >= splits.y) break;
      load_splits(split);
    }
    for (int m = 1; m < slices; m *= 2) softmax.merge_lanes(m);
    if (Mode::SCORES && merges && slice == 0 && channel == 0) weights.max[q_head] = softmax.max, weights.own[q_head] = score;
    // normalise
    float by = reciprocal(softmax.sum);
    out = float4{softmax.acc.x * by, softmax.acc.y * by, softmax.acc.z * by, softmax.acc.w * by};
    if (!Codec::ROTATED && merges && slice == 0) put_out(p, row, first + 4 * item, out);
  }
  __syncthreads();
  if (Codec::ROTATED) {
    // back through shared memory, a warp for each query head
    if (merges && slice == 0) *(float4*)&s.x[q_head][channel] = out;
    __syncthreads();
    if (is_q) {
      unrotate_row(s.x[warp], d, lane);
      if (4 * lane < d) put_out(p, row, first + warp * d + 4 * lane, *(const float4*)&s.x[warp][4 * lane]);
    }
  }
  if (Mode::SCORES) {
    // The block that drops a token stores the rows of all lanes that share its choice.
    if (is_k || is_v) write_codes(kv, staged_at(kv, row, head), row % PAGE_SLOTS, is_v, s.codes[is_v], s.sides[is_v], lane);
    place_by_scores(p, weights, span, position, head);
    return;
  }
  if (is_k || is_v) write_codes(kv, s.page, s.r, is_v, s.codes[is_v], s.sides[is_v], lane);
  if (Mode::PAGES && is_k) {
    if (s.appends) {
      bounds.add<typename Codec::K>(kv, s.codes[0], s.sides[0], lane);
      bounds.store(kv, s.page, lane);
    } else {
      __syncwarp();
      write_bounds<typename Codec::K>(kv, s.page, s.filled, lane);
    }
  }
}
