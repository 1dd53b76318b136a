// The ends of decode attention: what a token sees of itself, and the merge of a head's splits. CPU twins:
// `backend::cpu::attention`, `Codec::round_trip`.
#pragma once
#include "codec.cuh"
#include "decode.cuh"

#define WARPS 8
#define THREADS (32 * WARPS)
#define MAX_SPLITS 512  // of a head: as `backend::cuda::kv::MAX_SPLITS`
#define IN_FLIGHT 16    // splits of which a thread loads four channels at once

// Two or four values of a row from an index on that is a multiple of as many, `from` values after the row's first.
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

// Encodes K (v = 0) or V (1) of the token to row r of a staged page; x becomes what the cache gives back. By a warp.
template <class Codec>
__device__ __forceinline__ void stage_row(const Kv& kv, u8* page, int r, OwnToken& own, float* x, int v, int lane) {
  u32 side = encode_row<Codec>(v, own.codes[v], x, kv.head_dim, lane);
  if (lane == 0) own.sides[v] = side;
  write_codes(kv, page, r, v, own.codes[v], side, lane);
}

// Maximum and sum of the softmax state that the token's own K is for query head `h` of its group, rounded as attend.cuh rounds
// states. Sets the weight of its V. By a warp.
template <class Codec, class Mode>
__device__ __forceinline__ float2 attend_to_itself(const DecodeParams& p, OwnToken& own, const float* q, const float* k,
                                                   int first_head, int h, int lane) {
  float dot = 0.0f;
#pragma unroll
  for (int i = lane; i < MAX_HEAD_DIM; i += 32) dot += i < p.kv.head_dim ? bf16_to_f32(f32_to_bf16(q[i])) * k[i] : 0.0f;
  float score = warp_sum(dot) * (p.score_scale * LOG2E), top = ceilf(score);
  float weight = exp2_fast(score - top), scale = Codec::V::affine(own.sides[1]).x;
  float rounded = bf16_to_f32(f32_to_bf16(weight * scale)) / scale;
  if (lane == 0) own.weight[h] = rounded;
  if (Mode::SCORES && lane == 0) p.peaks[blockIdx.y * p.kv.n_q_heads + first_head + h].y = score;
  return float2{top, Codec::SCALED ? weight : rounded};
}

// Merges the `count` splits of a token's KV head, whose states lie from `states` on, always in the same order: which block is the
// last one makes no difference. The output goes to `out`, under a codec that rotates values to `rows` instead. weights: room
// for MAX_GROUP * MAX_SPLITS. By a whole block. Reads the states once.
template <class Codec, class Mode>
__device__ __forceinline__ void merge_splits(const DecodeParams& p, const float* states, int count, int row, int first_head,
                                             float* weights, float (*rows)[ROW_STRIDE]) {
  const Kv& kv = p.kv;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, d = kv.head_dim, group = kv.n_q_heads / kv.n_kv_heads;
  // An item is four channels of a query head. `slices` neighbouring threads share one and take every slices-th split.
  int items = group * d / 4, slices = 1, step = group * (d + 4);
  while (slices < 32 && 2 * slices * items <= THREADS) slices *= 2;
  int item = threadIdx.x / slices, slice = threadIdx.x % slices, q_head = 4 * item / d, channel = 4 * item % d;
  bool merges = item < items;
  float4 acc[IN_FLIGHT];
  auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; i++) {
      int split = first + i * slices + slice;
      acc[i] = float4{0.0f, 0.0f, 0.0f, 0.0f};
      if (merges && split < count) acc[i] = load_fresh((const float4*)(states + split * step + q_head * (d + 4) + channel));
    }
  };
  load(0);
  // the weight of each split in the output, a warp for a query head
  if (warp < group) {
    const float* from = states + warp * (d + 4) + d;
    float *to = weights + warp * count, top = NEG_INFINITY, sum = 0.0f;
    for (int i = lane; i < count; i += 32) {
      float2 state = load_fresh((const float2*)(from + i * step));
      float now = fmaxf(top, state.x), base = now == NEG_INFINITY ? 0.0f : now;
      sum = sum * exp2_fast(top - base) + state.y * exp2_fast(state.x - base);
      top = now, to[i] = state.x;
    }
    // The first split sees the token itself.
    float most = warp_max(top), by = reciprocal(warp_sum(sum * exp2_fast(top - most)));
    for (int i = lane; i < count; i += 32) to[i] = exp2_fast(to[i] - most) * by;
    if (Mode::SCORES && lane == 0) p.peaks[blockIdx.y * kv.n_q_heads + first_head + warp].x = most;
  }
  __syncthreads();
  float4 out = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 1
  for (int first = 0;;) {
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; i++) {
      int split = first + i * slices + slice;
      float by = merges && split < count ? weights[q_head * count + split] : 0.0f;
      out.x += by * acc[i].x, out.y += by * acc[i].y, out.z += by * acc[i].z, out.w += by * acc[i].w;
    }
    first += IN_FLIGHT * slices;
    if (first >= count) break;
    load(first);
  }
  for (int m = 1; m < slices; m *= 2) {
    float4 more = {__shfl_xor_sync(FULL, out.x, m), __shfl_xor_sync(FULL, out.y, m), __shfl_xor_sync(FULL, out.z, m),
                   __shfl_xor_sync(FULL, out.w, m)};
    out.x += more.x, out.y += more.y, out.z += more.z, out.w += more.w;
  }
  if (!merges || slice > 0) return;
  if (Codec::ROTATED) *(float4*)&rows[q_head][channel] = out;
  else put_out(p, row, first_head * d + 4 * item, out);
}
