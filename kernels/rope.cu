// Query, key and value heads of a chunk's rows after their projection: in place, and K and V as the cache will keep
// them. Single tokens are for attend.cu and take.cu. CPU twins: `backend::cpu::rope`, `Codec::round_trip`, bit for bit
// but for RoPE.
#include "heads.cuh"

struct Rows {
  float x[MAX_GROUP + 2][LINE];
  __align__(16) u8 codes[2][2 * MAX_HEAD_DIM];
  float decision;
};

// Rows [q heads | k heads | v heads] in place: K and V as the cache will give them back, and their codes to the step's
// staged pages. Decisions [n, n_kv_heads]. Grid (1 or n_kv_heads, n): one block where a layer has one decision. A warp
// for each query head of a group, for K and for V. Reads and writes a row once.
template <class Codec>
__device__ __forceinline__ void qkv_rope(float* qkv, float* decisions, const Kv& kv, const Span* spans,
                                         const int* span_of_row, const Turn& turn) {
  __shared__ Rows rows;
  next_may_begin();
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.y, d = kv.head_dim;
  int heads = kv.n_kv_heads, group = kv.n_q_heads / heads, width = (kv.n_q_heads + 2 * heads) * d;
  Span span = spans[span_of_row[row]];
  bool is_q = warp < group, is_k = warp == group, is_v = warp == group + 1;
  Lanes lanes;
  lanes.weigh(is_q ? turn.q_norm : is_k ? turn.k_norm : nullptr, d, lane);
  lanes.find(turn, kv.seq_len[span.seq] + row - span.start, d, lane);
  wait_previous();
#pragma unroll 1
  for (int head = blockIdx.x; head < heads; head += gridDim.x) {
    __syncthreads();
    int column = is_q ? head * group + warp : kv.n_q_heads + head + (is_v ? heads : 0);
    float *x = qkv + (u64)row * width + column * d, *s = rows.x[warp];
    load_row(s, x, lanes, turn.eps, d, lane);
    bool lends = turn.borrowed && warp == 0;
    if (lends) {
      if (lane == 0) {
        if (!turn.per_layer || head == 0) rows.decision = decide(turn, s, d);
        decisions[row * heads + head] = rows.decision;
      }
      __syncwarp();
    }
    if (!is_v) rotate(s, lanes, d, lends, lane);
    if (!is_q) {
      float by = Codec::encode(rows.codes[is_v], s, d, lane);
      write_codes(kv, staged_at(kv, row, head), row % PAGE_SLOTS, is_v, rows.codes[is_v], by, lane);
    }
    for (int i = lane; i < d; i += 32) x[i] = s[i];
  }
}

#define QKV_ROPE(codec, Codec)                                                                                      \
  KERNEL __launch_bounds__(32 * (MAX_GROUP + 2), 3)                                                                 \
      qkv_rope_##codec(float* qkv, float* decisions, Kv kv, const Span* spans, const int* span_of_row,              \
                       const float* q_norm, const float* k_norm, const float* inv_freq, float eps, float factor,    \
                       int borrowed, float scale, float offset, int per_layer) {                                    \
    Turn turn = {q_norm, k_norm, inv_freq, eps, factor, borrowed, scale, offset, per_layer};                        \
    qkv_rope<Codec>(qkv, decisions, kv, spans, span_of_row, turn);                                                  \
  }
FOR_EACH_CODEC(QKV_ROPE)
