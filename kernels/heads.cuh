// One row of a query, key or value head after the projection, held by a warp in shared memory: RMS
// norm, RoPE, eviction decision, and K and V as the cache stores them. CPU twins:
// `backend::cpu::rope`, `Codec::round_trip`.
#pragma once
#include "codec.cuh"
#include "kv.cuh"

#define ROW_STRIDE (MAX_HEAD_DIM + 4)  // floats from row to row in shared memory, padded against bank conflicts
#define MAX_GROUP 8                    // query heads of a KV head

// What heads go through before attention. Mirrors `backend::cuda::abi::HeadParams`.
struct HeadParams {
  const float *q_norm, *k_norm;  // [head_dim] weights of the per-head RMS norms; null: none
  const float* inv_freq;         // [rotary / 2] radians per position
  float eps;                     // of the norms
  float rope_factor;             // on cos and sin (YaRN)
  // First query heads of a KV head whose last channel is borrowed, and zero in attention. That of
  // the first one, or of the layer's first query head where `per_layer`, decides by value * scale -
  // offset.
  int borrowed;
  float scale, offset;
  int per_layer;
  // Columns of a predictor in rows of `columns_width` floats, null: none. `copies` runs of `stride`
  // columns, which are added up: one for each KV head if `linear`, then one for each hidden unit.
  // Their score decides by value * scale - offset.
  const float* columns;
  const float *mlp_weight, *mlp_bias;  // [n_kv_heads, units] and [n_kv_heads] of the hidden units after GELU
  int columns_width, linear, units, stride, copies;
  int qkv_width;  // floats from row to row of the projection
  int rotary;     // channels of a head that RoPE rotates, its first ones; 0: none
  int v_norm;     // whether V has an RMS norm too, without weights
};
static_assert(sizeof(HeadParams) == 104 && OFFSET_OF(HeadParams, eps) == 24 && OFFSET_OF(HeadParams, columns) == 48 &&
                  OFFSET_OF(HeadParams, qkv_width) == 92,
              "backend::cuda::abi::HeadParams has another layout");

// Cos and sin of a token's position, for the channels of one warp lane.
struct RopeAngles {
  float cosine[MAX_HEAD_DIM / 64], sine[MAX_HEAD_DIM / 64];

  __device__ __forceinline__ void compute(const HeadParams& params, int position, int lane) {
#pragma unroll
    for (int k = 0; k < MAX_HEAD_DIM / 64; k++) {
      int i = lane + 32 * k;
      // In half turns, and in f64 until whole turns are gone: at position 40,000 an f32 product is
      // off by a thousandth of a turn.
      double turns = i < params.rotary / 2 ? (double)position * params.inv_freq[i] * 0.31830988618379067 : 0.0;
      sincospif((float)(turns - 2.0 * rint(0.5 * turns)), &sine[k], &cosine[k]);
      cosine[k] *= params.rope_factor, sine[k] *= params.rope_factor;
    }
  }
};

// Starts loading the weights of a norm, if there is one, and returns them.
__device__ __forceinline__ const float* prefetch_norm(const float* norm, int d, int lane) {
  if (norm && 32 * lane < d) prefetch(norm + 32 * lane);
  return norm;
}

// A row to shared memory, normed with the weights `norm` if `normed`.
__device__ __forceinline__ void norm_row(float* s, const RowPart& x, const RowPart& norm, bool normed, float eps, int d,
                                         int lane) {
  float squares = 0.0f;
#pragma unroll
  for (int k = 0; k < MAX_HEAD_DIM / 32; k++) squares += x.at[k] * x.at[k];
  float by = normed ? rsqrtf(warp_sum(squares) * (1.0f / d) + eps) : 1.0f;
#pragma unroll
  for (int k = 0; k < MAX_HEAD_DIM / 32; k++)
    if (lane + 32 * k < d) s[lane + 32 * k] = x.at[k] * by * norm.at[k];
  __syncwarp();
}

// Row x[d] to shared memory, normed if `normed`, with the weights `norm`; null: ones.
__device__ __forceinline__ void load_row(float* s, const float* x, const float* norm, bool normed, float eps, int d, int lane) {
  RowPart row, weights;
  row.load(x, d, lane, 0.0f);
  weights.load(norm, d, lane, 1.0f);
  norm_row(s, row, weights, normed, eps, d, lane);
}

// The decision that a normed query row holds in its last channel.
__device__ __forceinline__ float borrowed_decision(const HeadParams& params, const float* s, int d) {
  return __fsub_rn(__fmul_rn(s[d - 1], params.scale), params.offset);
}

// The exact form.
__device__ __forceinline__ float gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678f)); }

// Column c of a predictor's columns of a row.
__device__ __forceinline__ float predictor_column(const HeadParams& params, int row, int c) {
  const float* at = params.columns + (u64)row * params.columns_width + c;
  return params.copies > 1 ? at[0] + at[params.stride] : at[0];
}

// A thread's share of what the hidden units of a predictor add to a row's score in a KV head: every
// `threads`-th unit.
__device__ __forceinline__ float hidden_units(const HeadParams& params, int row, int head, int heads, int thread,
                                              int threads) {
  const float* weight = params.mlp_weight + (params.per_layer ? 0 : head) * params.units;
  int first = params.linear ? heads : 0;
  float score = 0.0f;
#pragma unroll 1
  for (int u = thread; u < params.units; u += threads)
    score += gelu(predictor_column(params, row, first + u)) * weight[u];
  return score;
}

// Starts loading what a predictor has for a KV head beside its columns. By a warp.
__device__ __forceinline__ void prefetch_hidden_units(const HeadParams& params, int head, int lane) {
  const float* weight = params.mlp_weight + (params.per_layer ? 0 : head) * params.units;
  for (int u = 32 * lane; u < params.units; u += 32 * 32) prefetch(weight + u);
}

// The decision of a predictor about a row in a KV head, whose hidden units add `hidden`.
__device__ __forceinline__ float predicted_decision(const HeadParams& params, int row, int head, float hidden) {
  if (params.per_layer) head = 0;
  float score = params.units > 0 ? hidden + params.mlp_bias[head] : 0.0f;
  if (params.linear) score += predictor_column(params, row, head);
  return __fsub_rn(__fmul_rn(score, params.scale), params.offset);
}

// The decision of a row of the step in a KV head: read from `decisions`, predicted, or borrowed
// from the query head, which is normed in `scratch`; minus infinity in a `pinned` row. By a warp.
// Hidden units of a predictor add `hidden`.
__device__ __forceinline__ float decision_of(float* scratch, const HeadParams& params, const float* q_norm,
                                             const float* qkv_row, const float* decisions, int head, int row, bool pinned,
                                             float hidden, const Kv& kv, int lane) {
  if (pinned) return NEG_INFINITY;
  if (params.columns) return predicted_decision(params, row, head, hidden);
  if (!params.borrowed) return decisions[row * kv.n_kv_heads + head];
  int first = params.per_layer ? 0 : head * (kv.n_q_heads / kv.n_kv_heads);
  load_row(scratch, qkv_row + first * kv.head_dim, q_norm, q_norm != nullptr, params.eps, kv.head_dim, lane);
  return borrowed_decision(params, scratch, kv.head_dim);
}

// RoPE of a row's first `rotary` channels in halves; with `zero_last` the last channel of the row
// is zero before and after.
__device__ __forceinline__ void rotate(float* s, const RopeAngles& angles, int d, int rotary, bool zero_last, int lane) {
  int half = rotary / 2;
  if (zero_last && lane == 0) s[d - 1] = 0.0f;
  __syncwarp();
#pragma unroll
  for (int k = 0; k < MAX_HEAD_DIM / 64; k++) {
    int i = lane + 32 * k;
    if (i >= half) continue;
    float c = angles.cosine[k], t = angles.sine[k], a = s[i], b = s[i + half];
    s[i] = a * c - b * t;
    s[i + half] = zero_last && i + half == d - 1 ? 0.0f : b * c + a * t;
  }
  __syncwarp();
}

// Codes and side data to row r of a page, K (v = 0) or V (1). By a warp.
__device__ __forceinline__ void write_codes(const Kv& kv, u8* page, int r, int v, const u8* codes, u32 side,
                                            int lane) {
  uint2* to = (uint2*)row_at(kv, page, r, v);
  for (int i = lane; i < row_bytes(kv, v) / 8; i += 32) to[i] = ((const uint2*)codes)[i];
  if (kv.k_sides_at > 0 && lane == 0) *side_at(kv, page, r, v) = side;
}
