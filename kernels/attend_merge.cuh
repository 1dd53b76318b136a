// Final steps of decode attention: attention of a token to itself, and the merge of a head's
// splits. CPU twins: `backend::cpu::attention`, `Codec::round_trip`.
#pragma once
#include "codec.cuh"
#include "decode.cuh"

#define WARPS 8
#define THREADS (32 * WARPS)
#define IN_FLIGHT 8  // splits that a lane loads at once

// Writes two or four consecutive output values of a row. `from`, a multiple of their number, is the
// index of the first.
__device__ __forceinline__ void put_out(const DecodeParams& p, int row, int from, float2 x) {
  put2(p.out, p.out_is_bf16, (u64)row * p.kv.n_q_heads * p.kv.head_dim + from, x.x, x.y);
  if (p.image) put_image2(p.image, row, from, x.x, x.y);
}
__device__ __forceinline__ void put_out(const DecodeParams& p, int row, int from, float4 x) {
  put4(p.out, p.out_is_bf16, (u64)row * p.kv.n_q_heads * p.kv.head_dim + from, x);
  if (!p.image) return;
  put_image2(p.image, row, from, x.x, x.y);
  put_image2(p.image, row, from + 2, x.z, x.w);
}

// The token that a block attends for, in shared memory.
struct OwnToken {
  __align__(16) u8 codes[2][2 * MAX_HEAD_DIM];  // of K, of V
  u32 sides[2];
  float weight[MAX_GROUP];  // of its V in each query head, as its softmax state has it
};

// Encodes K (v = 0) or V (v = 1) of the token into row r of a staged page. x is replaced by the
// decoded values. Called by a whole warp.
template <class Codec>
__device__ __forceinline__ void stage_row(const Codec& codec, const Kv& kv, u8* page, int r, OwnToken& own, float* x, int v, int lane) {
  u32 side = encode_row(codec, v, own.codes[v], x, kv.head_dim, lane);
  if (lane == 0) own.sides[v] = side;
  write_codes(kv, page, r, v, own.codes[v], side, lane);
}

// Returns maximum and sum of the softmax state of the token's own K for query head `h` of its
// group, rounded like the states in attend.cuh. Sets the weight of the token's V. Called by a whole
// warp.
template <class Codec, class Mode>
__device__ __forceinline__ float2 attend_to_itself(Mode mode, const DecodeParams& p, OwnToken& own, const float* q, const float* k,
                                                   int first_head, int h, int lane) {
  float dot = 0.0f;
#pragma unroll
  for (int i = lane; i < MAX_HEAD_DIM; i += 32) dot += i < p.kv.head_dim ? bf16_to_f32(f32_to_bf16(q[i])) * k[i] : 0.0f;
  float score = warp_sum(dot) * (p.score_scale * LOG2E), top = ceilf(score);
  float weight = exp2_fast(score - top), scale = Codec::V::affine(own.sides[1]).x;
  float rounded = bf16_to_f32(f32_to_bf16(weight * scale)) / scale;
  if (lane == 0) own.weight[h] = rounded;
  if (mode.scores && lane == 0) p.peaks[blockIdx.y * p.kv.n_q_heads + first_head + h].y = score;
  return float2{top, Codec::SCALED ? weight : rounded};
}

// Layout of a split's state in memory, from which another block merges it: for each 64 channels of
// a query head, the accumulators, the maximum, the sum and two unused words. A word is zero until
// its value is written, so a reader needs neither a fence nor a counter to see which values have
// arrived. Zero is written as -0.
#define UNIT_WORDS 68  // as `backend::cuda::pool::UNIT_WORDS`
__device__ __forceinline__ float as_sent(float x) { return x == 0.0f ? -0.0f : x; }
__device__ __forceinline__ void send(float* to, float2 x) {
  store_relaxed((float2*)to, float2{as_sent(x.x), as_sent(x.y)});
}
__device__ __forceinline__ bool has_arrived(float2 x) { return __float_as_uint(x.x) != 0 && __float_as_uint(x.y) != 0; }

// Softmax state of two channels of a query head.
struct TwoChannels {
  float2 acc;
  float max, sum;
};

// Writes the state of 64 channels, two per warp lane. Called by a whole warp.
__device__ __forceinline__ void send_state(float* to, TwoChannels x, int lane) {
  send(to + 2 * lane, x.acc);
  if (lane == 0) send(to + 64, float2{x.max, x.sum});
}

// Merges 64 channels of the `count` splits of a query head, two per warp lane, always in the same
// order, so that the result does not depend on the merging block. x is the state of split `own`.
// The other states arrive at `states`, one every `step` floats, and are reset to zero at the end.
// Called by a whole warp.
__device__ __forceinline__ TwoChannels merge_splits(float* states, int step, int count, int own, TwoChannels x, int lane) {
  // `sum` is this lane's part of the sum.
  TwoChannels all = {{0.0f, 0.0f}, NEG_INFINITY, 0.0f};
#pragma unroll 1
  for (int first = 0; first < count; first += IN_FLIGHT) {
    // Lane i reads maximum and sum of the i-th of these splits. Only values that have not arrived
    // are read again: reading all of them again takes an SM longer than a state takes to arrive.
    float2 acc[IN_FLIGHT], state = {0.0f, 0.0f};
    auto at = [&](int i) { return (float2*)(states + (first + i) * step + 2 * lane); };
    float2* state_at = (float2*)(states + (first + lane) * step + 64);
    bool mine = lane < IN_FLIGHT && first + lane < count;
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; i++) acc[i] = first + i == own ? x.acc : float2{0.0f, 0.0f};
    if (first + lane == own) state = float2{x.max, x.sum};
    bool waits;
    do {
      if (mine && first + lane != own && !has_arrived(state)) state = load_relaxed(state_at);
#pragma unroll
      for (int i = 0; i < IN_FLIGHT; i++)
        if (first + i < count && first + i != own && !has_arrived(acc[i])) acc[i] = load_relaxed(at(i));
      waits = mine && first + lane != own && !has_arrived(state);
#pragma unroll
      for (int i = 0; i < IN_FLIGHT; i++) waits |= first + i < count && first + i != own && !has_arrived(acc[i]);
    } while (waits);
    if (mine) *state_at = float2{0.0f, 0.0f};
    else state = float2{NEG_INFINITY, 0.0f};
    float most = fmaxf(all.max, warp_max(state.x)), base = most == NEG_INFINITY ? 0.0f : most;
    float by = exp2_fast(all.max - base), weight = exp2_fast(state.x - base);
    all.acc.x *= by, all.acc.y *= by, all.sum = all.sum * by + weight * state.y, all.max = most;
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; i++) {
      if (first + i < count) *at(i) = float2{0.0f, 0.0f};
      by = __shfl_sync(FULL, weight, i);
      all.acc.x += by * acc[i].x, all.acc.y += by * acc[i].y;
    }
  }
  all.sum = warp_sum(all.sum);
  return all;
}
