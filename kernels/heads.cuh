// Rows of query, key and value heads after their projection, a warp to a row in shared memory: norms, RoPE, eviction
// decisions, and K and V as the cache keeps them. CPU twins: `backend::cpu::rope`, `Codec::round_trip`.
#pragma once
#include "codec.cuh"
#include "kv.cuh"

#define LINE (MAX_HEAD_DIM + 4)  // floats from row to row in shared memory: rows begin in different banks
#define MAX_GROUP 8         // most query heads of a group

// What becomes of a head's row. Norm weights may be null. A decision comes from the last channel of a group's first
// query head where it is `borrowed`, and that channel is zero from then on; or from the layer's first query head
// for all of its heads.
struct Turn {
  const float *q_norm, *k_norm, *inv_freq;
  float eps, factor;
  int borrowed;
  float scale, offset;
  int per_layer;
};

// What a warp needs to know before there is a row: its norm, if it has one, and a lane's angles.
struct Lanes {
  const float* norm;
  float cosine[MAX_HEAD_DIM / 64], sine[MAX_HEAD_DIM / 64];

  // The weights will be asked for with the row.
  __device__ __forceinline__ void weigh(const float* weights, int d, int lane) {
    norm = weights;
    if (norm && 32 * lane < d) prefetch(norm + 32 * lane);
  }

  // Of a token at a position.
  __device__ __forceinline__ void find(const Turn& turn, int position, int d, int lane) {
#pragma unroll
    for (int k = 0; k < MAX_HEAD_DIM / 64; k++) {
      int i = lane + 32 * k;
      // In half turns, in f64 until whole turns are gone: at position 40,000 an f32 product is off by a thousandth of one.
      double turns = i < d / 2 ? (double)position * turn.inv_freq[i] * 0.31830988618379067 : 0.0;
      sincospif((float)(turns - 2.0 * rint(0.5 * turns)), &sine[k], &cosine[k]);
      cosine[k] *= turn.factor, sine[k] *= turn.factor;
    }
  }
};

// A row, normed where it has a norm.
__device__ __forceinline__ void load_row(float* s, const float* x, const Lanes& lanes, float eps, int d, int lane) {
  float v[MAX_HEAD_DIM / 32], w[MAX_HEAD_DIM / 32], squares = 0.0f;
#pragma unroll
  for (int k = 0; k < MAX_HEAD_DIM / 32; k++) {
    int i = lane + 32 * k;
    v[k] = i < d ? x[i] : 0.0f;
    w[k] = lanes.norm && i < d ? lanes.norm[i] : 1.0f;
    squares += v[k] * v[k];
  }
  float by = lanes.norm ? rsqrtf(warp_sum(squares) * (1.0f / d) + eps) : 1.0f;
#pragma unroll
  for (int k = 0; k < MAX_HEAD_DIM / 32; k++)
    if (lane + 32 * k < d) s[lane + 32 * k] = v[k] * by * w[k];
  __syncwarp();
}

__device__ __forceinline__ float decide(const Turn& turn, const float* s, int d) {
  return __fsub_rn(__fmul_rn(s[d - 1], turn.scale), turn.offset);
}

// The decision of a row of the step in a head's cache, by way of a line in shared memory where it is borrowed; `lanes`
// know the norm of queries.
__device__ __forceinline__ float decision_of(float* line, const Turn& turn, const Lanes& lanes, const float* qkv_row,
                                             const float* decisions, int head, int row, const Kv& kv, int lane) {
  if (!turn.borrowed) return decisions[row * kv.n_kv_heads + head];
  int first = turn.per_layer ? 0 : head * (kv.n_q_heads / kv.n_kv_heads);
  load_row(line, qkv_row + first * kv.head_dim, lanes, turn.eps, kv.head_dim, lane);
  return decide(turn, line, kv.head_dim);
}

__device__ __forceinline__ void rotate(float* s, const Lanes& lanes, int d, bool zero_last, int lane) {
  int half = d / 2;
  if (zero_last && lane == 0) s[d - 1] = 0.0f;
  __syncwarp();
#pragma unroll
  for (int k = 0; k < MAX_HEAD_DIM / 64; k++) {
    int i = lane + 32 * k;
    if (i >= half) continue;
    float c = lanes.cosine[k], t = lanes.sine[k], a = s[i], b = s[i + half];
    s[i] = a * c - b * t;
    s[i + half] = zero_last && i + half == d - 1 ? 0.0f : b * c + a * t;
  }
  __syncwarp();
}

// Codes and scale to row r of a page, K (v = 0) or V (1).
__device__ __forceinline__ void write_codes(const Kv& kv, u8* page, int r, int v, const u8* codes, float scale,
                                            int lane) {
  uint2* to = (uint2*)row_at(kv, page, r, v);
  for (int i = lane; i < row_bytes(kv, v) / 8; i += 32) to[i] = ((const uint2*)codes)[i];
  if (kv.k_scales_at > 0 && lane == 0) *scale_at(kv, page, r, v) = scale;
}
