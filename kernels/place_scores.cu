// Slots of decode tokens under a policy with scores, after attend_choice.cu: the keys' scores, the
// victim, and the slot. CPU twin: `backend::cpu::kv::put_by_scores`.
//
// Sums run in an order that depends on the number of slots alone, so that victims do not depend on
// the other sequences of a step.
#include "decode.cuh"
#include "policy_scored.cuh"

#define SCORE_WARPS 12
#define MOST_GATE_UNITS 2048  // of a second hidden layer of gates; mirrors `kernels::MAX_GATE_UNITS`
#define AT_ONCE 4        // slots of which a thread has loads in flight, and
#define LANES_AT_ONCE 8  // lanes, where scores are shared

// Softmax of a KV head's query heads over the stored slots and the token itself, and what the
// block's warps exchange.
struct LaneSoftmax {
  __align__(8) float max[MAX_GROUP], own[MAX_GROUP];  // an upper bound on the logits, and the token's own, in log2 units
  float by[MAX_GROUP];                   // 1 / sum of exp2(logit - max)
  float sums[SCORE_WARPS][MAX_GROUP];
  u64 least[SCORE_WARPS];
  bool last;
};

// Logits of a key in registers; the query heads beyond the group are not loaded.
struct KeyLogits {
  float2 pairs[MAX_GROUP / 2];

  __device__ __forceinline__ void load(const float* logits, int group) {
#pragma unroll
    for (int i = 0; i < MAX_GROUP / 2; i++)
      if (2 * i < group) pairs[i] = *(const float2*)(logits + 2 * i);
  }

  // exp2(logit - max) of query head h, without a branch that an unrolled loop could not decide.
  __device__ __forceinline__ float weight(const LaneSoftmax& s, int h) const {
    return exp2_fast((h % 2 ? pairs[h / 2].y : pairs[h / 2].x) - s.max[h]);
  }

  // Sum of the key's weights over the query heads.
  __device__ __forceinline__ float score(const LaneSoftmax& s, int group) const {
    float sum = 0.0f;
#pragma unroll
    for (int h = 0; h < MAX_GROUP; h++)
      if (h < group) sum += weight(s, h) * s.by[h];
    return sum;
  }
};

// The normalising factors of a lane's softmax. By a whole block. Reads the logits once.
__device__ __forceinline__ void sum_weights(const DecodeParams& p, LaneSoftmax& s, const float* logits, int live) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32, stride = logit_stride(p.kv);
  int group = p.kv.n_q_heads / p.kv.n_kv_heads;
  float sums[MAX_GROUP];
#pragma unroll
  for (int h = 0; h < MAX_GROUP; h++) sums[h] = 0.0f;
#pragma unroll 1
  for (int first = threadIdx.x; first < live; first += AT_ONCE * blockDim.x) {
    KeyLogits keys[AT_ONCE];
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) {
      int slot = first + u * blockDim.x;
      if (slot < live) keys[u].load(logits + slot * stride, group);
    }
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++)
#pragma unroll
      for (int h = 0; h < MAX_GROUP; h++)
        if (h < group && first + u * (int)blockDim.x < live) sums[h] += keys[u].weight(s, h);
  }
#pragma unroll
  for (int h = 0; h < MAX_GROUP; h++) {
    float sum = warp_sum(sums[h]);
    if (lane == 0) s.sums[warp][h] = sum;
  }
  __syncthreads();
  if ((int)threadIdx.x < group) {
    float sum = exp2_fast(s.own[threadIdx.x] - s.max[threadIdx.x]);
    sum += sink_weight(p.sinks, blockIdx.x * group + threadIdx.x, s.max[threadIdx.x]);
    for (int w = 0; w < warps; w++) sum += s.sums[w][threadIdx.x];
    s.by[threadIdx.x] = 1.0f / sum;
  }
  __syncthreads();
}

// Updates the scores of a lane's slots, and writes the token's own behind them, as slot `live`.
// Returns the least key of those of this thread that may be dropped, where `drops`. By a whole
// block. Reads the logits and the scores once, and where new tokens are kept the slots' metadata.
__device__ __forceinline__ u64 update_scores(const DecodeParams& p, const LaneSoftmax& s, const Lane& l,
                                             const float* logits, int live, int tokens, bool drops) {
  const Kv& kv = p.kv;
  int stride = logit_stride(kv), group = kv.n_q_heads / kv.n_kv_heads, first_kept = protected_from(kv, tokens);
  bool adds = kv.policy & SUMS_SCORES, looks = drops && kv.policy & KEEPS_NEWEST;
  u64 least = NO_SLOT;
#pragma unroll 1
  for (int first = threadIdx.x; first <= live; first += AT_ONCE * blockDim.x) {
    KeyLogits keys[AT_ONCE];
    float before[AT_ONCE];
    int position[AT_ONCE];
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) {
      int slot = first + u * blockDim.x;
      before[u] = adds && slot < live ? l.scores[slot] : 0.0f;
      position[u] = tokens - 1;
      if (looks && slot < live) position[u] = l.pages[slot / PAGE_SLOTS];
      if (slot <= live) keys[u].load(slot < live ? logits + slot * stride : s.own, group);
    }
    if (looks)
#pragma unroll
      for (int u = 0; u < AT_ONCE; u++) {
        int slot = first + u * blockDim.x;
        if (slot < live) position[u] = meta_position(*meta_at(kv, page_at(kv, position[u]), slot % PAGE_SLOTS));
      }
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) {
      int slot = first + u * blockDim.x;
      if (slot > live) continue;
      float score = before[u] + keys[u].score(s, group);
      l.scores[slot] = score;
      u64 key = looks && position[u] >= first_kept ? NO_SLOT : score_key(score, slot);
      least = key < least ? key : least;
    }
  }
  return least;
}

// Replaces the scores of the lanes of a layer, from `l` on, by their sums over the lanes, slot
// `live` included. Returns the least key of this thread's slots. By a whole block. Reads and writes
// the scores once.
__device__ __forceinline__ u64 share_scores(const Kv& kv, const Lane& l, int live) {
  u64 step = (u64)kv.max_pages * PAGE_SLOTS, least = NO_SLOT;
  int lanes = kv.n_kv_heads;
#pragma unroll 1
  for (int first = threadIdx.x; first <= live; first += AT_ONCE * blockDim.x) {
    float sum[AT_ONCE] = {};
#pragma unroll 1
    for (int i = 0; i < lanes; i += LANES_AT_ONCE) {
      float scores[AT_ONCE][LANES_AT_ONCE];
#pragma unroll
      for (int u = 0; u < AT_ONCE; u++)
#pragma unroll
        for (int k = 0; k < LANES_AT_ONCE; k++)
          if (i + k < lanes && first + u * (int)blockDim.x <= live)
            scores[u][k] = l.scores[(i + k) * step + first + u * blockDim.x];
#pragma unroll
      for (int u = 0; u < AT_ONCE; u++)
#pragma unroll
        for (int k = 0; k < LANES_AT_ONCE; k++)
          if (i + k < lanes) sum[u] += scores[u][k];
    }
#pragma unroll
    for (int u = 0; u < AT_ONCE; u++) {
      int slot = first + u * blockDim.x;
      if (slot > live) continue;
      for (int i = 0; i < lanes; i++) l.scores[i * step + slot] = sum[u];
      u64 key = score_key(sum[u], slot);
      least = key < least ? key : least;
    }
  }
  return least;
}

// Retention gates, beside what a predictor has in `HeadParams`. CPU twin:
// `backend::cpu::predictor`.
struct Gates {
  const float *middle, *middle_bias;  // [units, units] and [units] of a second hidden layer; null: none
  int is_silu;                        // the activation; else GELU
  __device__ __forceinline__ float activated(float x) const { return is_silu ? silu(x) : gelu(x); }
};

// Logarithm of the sigmoid.
__device__ __forceinline__ float log_sigmoid(float x) { return fminf(x, 0.0f) - log1pf(expf(-fabsf(x))); }

// The decision of a row's token in a KV head: read, or computed by the gates. By a whole block.
__device__ __forceinline__ float gate_of(const DecodeParams& p, const Gates& gates, LaneSoftmax& s, float* units, int row, int head) {
  const HeadParams& params = p.heads;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  float* decision = p.decisions + row * p.kv.n_kv_heads + head;
  if (!params.columns) return *decision;
  const float* weight = params.mlp_weight + (params.per_layer ? 0 : head) * params.units;
  int first = params.linear ? p.kv.n_kv_heads : 0;
  float hidden = 0.0f;
  for (int u = threadIdx.x; u < params.units; u += blockDim.x) {
    float unit = gates.activated(predictor_column(params, row, first + u));
    if (gates.middle) units[u] = unit;
    else hidden += unit * weight[u];
  }
  hidden = warp_sum(hidden);
  if (gates.middle) {
    __syncthreads();
#pragma unroll 1
    for (int v = warp; v < params.units; v += warps) {
      float sum = 0.0f;
      for (int u = lane; u < params.units; u += 32) sum = fmaf(units[u], gates.middle[(u64)v * params.units + u], sum);
      hidden += gates.activated(warp_sum(sum) + gates.middle_bias[v]) * weight[v];
    }
  }
  if (lane == 0) s.sums[warp][0] = hidden;
  __syncthreads();
  hidden = 0.0f;
  for (int w = 0; w < warps; w++) hidden += s.sums[w][0];
  float decided = predicted_decision(params, row, head, hidden);
  if (threadIdx.x == 0) *decision = decided;
  return decided;
}

// Writes the token's own score behind those of a lane's slots, as slot `live`: the share that a
// step leaves of it, as a logarithm. Returns the least key of this thread's slots, where `drops`.
// By a whole block. Reads the slots' scores and metadata once.
__device__ __forceinline__ u64 rank_decisions(const Kv& kv, const Lane& l, float decision, int live, int tokens, bool drops) {
  float own = log_sigmoid(decision);
  u64 least = NO_SLOT;
  if (threadIdx.x == 0) l.scores[live] = own;
  for (int slot = threadIdx.x; drops && slot <= live; slot += blockDim.x) {
    int position = slot < live ? meta_position(slot_meta(kv, l, slot)) : tokens - 1;
    u64 key = score_key(ranked(kv, slot < live ? l.scores[slot] : own, tokens, position), slot);
    least = key < least ? key : least;
  }
  return least;
}

// The slot of the least key of a block's threads; -1 where there is none. By a whole block.
__device__ __forceinline__ int least_of(LaneSoftmax& s, u64 least) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  least = warp_reduce(least, [](u64 a, u64 b) { return b < a ? b : a; });
  if (lane == 0) s.least[warp] = least;
  __syncthreads();
  for (int w = 0; w < warps; w++) least = s.least[w] < least ? s.least[w] : least;
  return least == NO_SLOT ? -1 : (int)(u32)least;
}

// Stores the staged token of a lane, at `position`, in a slot: one of its `live`, or the next. By a
// warp.
__device__ __forceinline__ void store_at(const Kv& kv, const Lane& l, int slot, int live, int position, int lane) {
  int entry = slot / PAGE_SLOTS, r = slot % PAGE_SLOTS, page;
  if (slot == live && r == 0) {
    page = page_take(kv, lane);
    if (lane == 0) l.pages[entry] = page;
  } else {
    page = page_own(kv, l.pages + entry, lane);
  }
  u8* to = page_at(kv, page);
  copy_row(kv, to, r, staged_token_at(kv, l.row), l.row % PAGE_SLOTS, lane);
  if (lane != 0) return;
  *meta_at(kv, to, r) = pack_meta(position, 0, false);
  if (slot == live) kv.live[l.row] = live + 1;
  else l.scores[slot] = l.scores[live];
}

// Scores the keys of a token in a KV head and stores the token, or drops it. Scores come from
// attention weights, or from decisions: `middle`, `middle_bias` and `is_silu` are of `Gates`. Where
// a policy drops by layer, the last block of the token does so for all KV heads. Grid (n_kv_heads,
// n), SCORE_WARPS warps; one block to an SM: ptxas would spill registers for a second one. Reads
// the logits twice and the scores once, and writes these.
KERNEL __launch_bounds__(32 * SCORE_WARPS, 1)
    place_scores(DecodeParams p, const float* middle, const float* middle_bias, int is_silu) {
  __shared__ LaneSoftmax s;
  __shared__ float units[MOST_GATE_UNITS];
  after_previous();
  const Kv& kv = p.kv;
  int head = blockIdx.x, group = kv.n_q_heads / kv.n_kv_heads;
  Span span = p.spans[blockIdx.y];
  int position = kv.seq_len[span.seq] + span.before;
  if ((int)threadIdx.x < group) {
    float2 peak = p.peaks[blockIdx.y * kv.n_q_heads + head * group + threadIdx.x];
    s.max[threadIdx.x] = peak.x, s.own[threadIdx.x] = peak.y;
  }
  Lane l = lane_of(kv, p.layer, span.seq, head);
  int live = kv.live[l.row], lanes = 1, tokens = position + 1;
  bool drops = kv.eviction[span.seq] && live + 1 > budget_at(kv, tokens);
  const float* logits = logits_at(p, blockIdx.y, head);
  __syncthreads();
  u64 least;
  if (kv.policy & BY_DECISION) {
    float decision = gate_of(p, Gates{middle, middle_bias, is_silu}, s, units, span.start, head);
    least = rank_decisions(kv, l, decision, live, tokens, drops);
  } else {
    sum_weights(p, s, logits, live);
    least = update_scores(p, s, l, logits, live, tokens, drops);
  }
  if (threadIdx.x == 0 && span.len == 1) atomicAdd(&kv.reads[span.seq], (u64)(live + 1));
  if (kv.policy & BY_LAYER) {
    if (!is_last(p.arrivals + blockIdx.y, kv.n_kv_heads, s.last)) return;
    lanes = kv.n_kv_heads;
    l = lane_of(kv, p.layer, span.seq, 0);
    least = share_scores(kv, l, live);
  }
  int slot = least_of(s, least);
  if (!drops) slot = live;
  else if (slot < 0 || slot == live) return;
  for (int i = threadIdx.x / 32; i < lanes; i += blockDim.x / 32)
    store_at(kv, lane_of(kv, p.layer, span.seq, l.head + i), slot, live, position, threadIdx.x % 32);
}
