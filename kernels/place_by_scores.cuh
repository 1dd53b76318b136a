// The end of a token's decode epilogue under a policy with scores: the keys' scores, the victim, and the slot. CPU twin:
// `backend::cpu::kv::put_by_scores`.
//
// Sums run in an order that depends on the number of slots alone, so that victims do not depend on the other sequences of a
// step.
#pragma once
#include "decode.cuh"
#include "policy_scored.cuh"

#define SCORE_WARPS (MAX_GROUP + 3)  // most warps of a block of the epilogue

// Softmax of a KV head's query heads over the stored slots and the token itself, and what the block's warps exchange.
struct LaneSoftmax {
  __align__(8) float max[MAX_GROUP], own[MAX_GROUP];  // an upper bound on the logits, and the token's own, in log2 units
  float by[MAX_GROUP];                   // 1 / sum of exp2(logit - max)
  float sums[SCORE_WARPS][MAX_GROUP];
  u64 least[SCORE_WARPS];
  int decides;
};

// Sum of the weights of a key over the query heads.
__device__ __forceinline__ float weight_of(const LaneSoftmax& s, const float* logits, int group) {
  float weight = 0.0f;
#pragma unroll
  for (int h = 0; h < MAX_GROUP; h += 2) {
    if (h >= group) continue;
    float2 x = *(const float2*)(logits + h);
    weight += exp2_fast(x.x - s.max[h]) * s.by[h];
    if (h + 1 < group) weight += exp2_fast(x.y - s.max[h + 1]) * s.by[h + 1];
  }
  return weight;
}

// Updates the scores of a lane's slots, and writes the token's own behind them. By a whole block. Reads the logits twice.
__device__ __forceinline__ void update_scores(const DecodeParams& p, LaneSoftmax& s, const Lane& l, int live) {
  const Kv& kv = p.kv;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32, stride = logit_stride(kv);
  int group = kv.n_q_heads / kv.n_kv_heads;
  const float* logits = logits_at(p, blockIdx.y, l.head);
  // sums of the softmax
  float sums[MAX_GROUP];
#pragma unroll
  for (int h = 0; h < MAX_GROUP; h++) sums[h] = 0.0f;
#pragma unroll 1
  for (int slot = threadIdx.x; slot < live; slot += blockDim.x)
#pragma unroll
    for (int h = 0; h < MAX_GROUP; h += 2) {
      if (h >= group) continue;
      float2 x = *(const float2*)(logits + slot * stride + h);
      sums[h] += exp2_fast(x.x - s.max[h]);
      if (h + 1 < group) sums[h + 1] += exp2_fast(x.y - s.max[h + 1]);
    }
#pragma unroll
  for (int h = 0; h < MAX_GROUP; h++) {
    float sum = warp_sum(sums[h]);
    if (lane == 0) s.sums[warp][h] = sum;
  }
  __syncthreads();
  if ((int)threadIdx.x < group) {
    float sum = exp2_fast(s.own[threadIdx.x] - s.max[threadIdx.x]);
    for (int w = 0; w < warps; w++) sum += s.sums[w][threadIdx.x];
    s.by[threadIdx.x] = 1.0f / sum;
  }
  __syncthreads();
  // scores
#pragma unroll 1
  for (int slot = threadIdx.x; slot <= live; slot += blockDim.x) {
    float weight = weight_of(s, slot < live ? logits + slot * stride : s.own, group);
    l.scores[slot] = kv.policy & SUMS_SCORES && slot < live ? l.scores[slot] + weight : weight;
  }
}

// The slot to be dropped: the least score among the `live` slots of the lanes from `l` on, which agree, and the token's own,
// as slot `live`; -1 where nothing may be dropped. Lanes that share their scores get the sums here. By a whole block.
__device__ __forceinline__ int least_of(const Kv& kv, LaneSoftmax& s, const Lane& l, int lanes, int live, int tokens) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32, first_kept = protected_from(kv, tokens);
  u64 step = (u64)kv.max_pages * PAGE_SLOTS, least = NO_SLOT;
#pragma unroll 1
  for (int slot = threadIdx.x; slot <= live; slot += blockDim.x) {
    float score = l.scores[slot];
    if (lanes > 1) {
      for (int i = 1; i < lanes; i++) score += l.scores[i * step + slot];
      for (int i = 0; i < lanes; i++) l.scores[i * step + slot] = score;
    }
    bool kept = false;
    if (kv.policy & KEEPS_NEWEST) kept = slot == live || meta_position(slot_meta(kv, l, slot)) >= first_kept;
    u64 key = kept ? NO_SLOT : score_key(score, slot);
    least = key < least ? key : least;
  }
#pragma unroll
  for (int m = 16; m > 0; m /= 2) {
    u64 other = __shfl_xor_sync(FULL, least, m);
    least = other < least ? other : least;
  }
  if (lane == 0) s.least[warp] = least;
  __syncthreads();
  for (int w = 0; w < warps; w++) least = s.least[w] < least ? s.least[w] : least;
  return least == NO_SLOT ? -1 : (int)(u32)least;
}

// Stores the token at `position`, row `row` of the step, in a slot of a lane: one of its `live`, or the next. By a warp.
__device__ __forceinline__ void store_at(const Kv& kv, const Lane& l, int slot, int live, int position, int row, int lane) {
  int entry = slot / PAGE_SLOTS, r = slot % PAGE_SLOTS, page;
  if (slot == live && r == 0) {
    page = page_take(kv, lane);
    if (lane == 0) l.pages[entry] = page;
  } else {
    page = page_own(kv, l.pages + entry, lane);
  }
  u8* to = page_at(kv, page);
  copy_row(kv, to, r, staged_at(kv, row, l.head), row % PAGE_SLOTS, lane);
  if (lane != 0) return;
  *meta_at(kv, to, r) = pack_meta(position, 0, false);
  if (slot == live) kv.live[l.row] = live + 1;
  else l.scores[slot] = l.scores[live];
}

// Scores the keys of a token in a KV head and stores the token, or drops it. Its codes are staged, and `s.max` and `s.own`
// are set. Where a policy drops by layer, the last block of the token does so for all KV heads. By a whole block.
__device__ __forceinline__ void place_by_scores(const DecodeParams& p, LaneSoftmax& s, const Span& span, int position,
                                                int head) {
  const Kv& kv = p.kv;
  Lane l = lane_of(kv, p.layer, span.seq, head);
  int live = kv.live[l.row], lanes = 1, tokens = position + 1;
  bool drops = kv.eviction[span.seq] && live + 1 > budget_at(kv, tokens);
  __syncthreads();
  update_scores(p, s, l, live);
  if (threadIdx.x == 0 && span.len == 1) atomicAdd(&kv.reads[span.seq], (u64)(live + 1));
  if (kv.policy & BY_LAYER) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      s.decides = atomicAdd(&p.arrivals[blockIdx.y], 1) == kv.n_kv_heads - 1;
      if (s.decides) p.arrivals[blockIdx.y] = 0;
    }
    __syncthreads();
    if (!s.decides) return;
    __threadfence();
    lanes = kv.n_kv_heads;
    l = lane_of(kv, p.layer, span.seq, 0);
  } else {
    __syncthreads();
  }
  int slot = drops || lanes > 1 ? least_of(kv, s, l, lanes, live, tokens) : live;
  if (!drops) slot = live;
  else if (slot < 0 || slot == live) return;
  __syncthreads();
  for (int i = threadIdx.x / 32; i < lanes; i += blockDim.x / 32)
    store_at(kv, lane_of(kv, p.layer, span.seq, l.head + i), slot, live, position, span.start, threadIdx.x % 32);
}
