// Norms, RoPE, borrowed or predicted decisions and the codec, for the query, key and value heads of
// a prefill chunk's rows. Decode tokens go to attend.cu. CPU twins: `backend::cpu::rope`,
// `Codec::round_trip`, bit for bit but for RoPE.
#pragma once
#include "codec.cuh"
#include "far.cuh"
#include "heads.cuh"

// How K and V are stored, as the host numbers it: `backend::cuda::kernels::Rows`.
enum RowsNumber { BF16_ROWS, BYTE_ROWS, K8V4_ROWS };

// Mirrors `backend::cuda::abi::RopeParams`.
struct RopeParams {
  Kv kv;
  HeadParams heads;
  float* qkv;               // [n, heads.qkv_width] rows [q heads | k heads | v heads | columns], in place; null: no q
  float* decisions;         // [n, n_kv_heads]; written where they are borrowed or predicted, and in pinned rows
  const Span* spans;        // of the step
  const int* span_of_row;   // [n]
  int rows, layer;          // RowsNumber
  Kept kept;                // where rows are staged that are committed later
  // Rows whose K and V this kernel has prepared before, in another layer [n, keys_width]; null:
  // those of qkv. They are staged again and do not change.
  float* keys;
  int keys_width, unused;
};
static_assert(sizeof(RopeParams) == 480 && OFFSET_OF(RopeParams, heads) == 304 && OFFSET_OF(RopeParams, qkv) == 408 &&
                  OFFSET_OF(RopeParams, kept) == 448 && OFFSET_OF(RopeParams, keys) == 464,
              "backend::cuda::abi::RopeParams has another layout");

struct Shared {
  float x[MAX_GROUP + 2][ROW_STRIDE];
  __align__(16) u8 codes[2][2 * MAX_HEAD_DIM];
};

// Rows in place: K and V become what the cache gives back, and their codes go to the step's staged
// pages. Grid (1 to n_kv_heads, n): blocks stride over KV heads, one block where a layer has one
// decision. A warp for each query head of the group, for K and for V. Reads and writes each row
// once.
template <class Codec>
__device__ __forceinline__ void rope_rows(const RopeParams& p, Shared& shared, int d, int rotary) {
  const Kv& kv = p.kv;
  const Codec codec(kv);
  const HeadParams& head_params = p.heads;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.y;
  int heads = kv.n_kv_heads, group = kv.n_q_heads / heads;
  Span span = p.spans[p.span_of_row[row]];
  bool is_q = warp < group, is_k = warp == group, is_v = warp == group + 1;
  bool is_ready = p.keys && !is_q;
  const float* norm = is_ready ? nullptr : is_q ? head_params.q_norm : is_k ? head_params.k_norm : nullptr;
  bool normed = norm || (is_v && !is_ready && head_params.v_norm);
  RowPart weights, x;
  weights.load(norm, d, lane, 1.0f);
  bool pinned = is_pinned(kv, p.layer, row);
  RopeAngles angles;
  angles.compute(head_params, kv.seq_len[span.seq] + row - span.start, lane);
  wait_previous();
  if (is_q && !p.qkv) return;
  // This warp's row of a KV head, and that of the head after it.
  int step = (is_q ? group : 1) * d;
  float* rows = is_ready ? p.keys + (u64)row * p.keys_width : p.qkv + (u64)row * head_params.qkv_width;
  float* at = rows + (is_q ? warp : kv.n_q_heads + (is_v ? heads : 0)) * d + blockIdx.x * step;
  step *= gridDim.x;
  float *s = shared.x[warp], decision = 0.0f;
  x.load(at, d, lane, 0.0f);
#pragma unroll 1
  for (int head = blockIdx.x; head < heads; head += gridDim.x, at += step) {
    __syncwarp();
    norm_row(s, x, weights, normed, head_params.eps, d, lane);
    // The next row is in flight while this one is encoded.
    if (head + gridDim.x < heads) x.load(at + step, d, lane, 0.0f);
    bool decides = (head_params.borrowed || head_params.columns) && warp == 0;
    if (decides) {
      if (head_params.columns)
        decision = predicted_decision(head_params, row, head, warp_sum(hidden_units(head_params, row, head, heads, lane, 32)));
      else if (!head_params.per_layer || head == 0) decision = borrowed_decision(head_params, s, d);
      if (lane == 0) p.decisions[row * heads + head] = decision;
      __syncwarp();
    }
    if (pinned && threadIdx.x == 0) p.decisions[row * heads + head] = NEG_INFINITY;
    int own = lane_index(kv, p.layer, span.seq, head);
    u8* kept = p.kept.page(kv, row, own);
    if (kept && threadIdx.x == 0)
      *(float*)meta_at(kv, kept, own % PAGE_SLOTS) = decides && !pinned ? decision : p.decisions[row * heads + head];
    if (!is_v && !is_ready) rotate(s, angles, d, rotary, warp < head_params.borrowed, lane);
    if (!is_q) {
      u32 side = is_ready ? encode_again(codec, is_v, shared.codes[is_v], s, d, lane) : encode_row(codec, is_v, shared.codes[is_v], s, d, lane);
      write_codes(kv, staged_at(kv, row, head), row % PAGE_SLOTS, is_v, shared.codes[is_v], side, lane);
      if (kept) write_codes(kv, kept, own % PAGE_SLOTS, is_v, shared.codes[is_v], side, lane);
    }
    for (int i = lane; i < d && !is_ready; i += 32) at[i] = s[i];
    // Queries of the newest rows, which choose among far pages.
    if (is_q && keeps_far(kv, p.layer) && row >= span.start + span.len - RECENT_QUERIES)
      keep_query(kv, recent_at(kv, p.layer, span.seq, kv.seq_len[span.seq] + row - span.start) + (head * group + warp) * d, s, lane);
  }
}

// The usual head sizes as constants take half the instructions.
template <class Codec>
__device__ __forceinline__ void rope_rows(const RopeParams& p, Shared& shared) {
  int d = p.kv.head_dim, rotary = p.heads.rotary;
  if (d == 64 && rotary == 64) rope_rows<Codec>(p, shared, 64, 64);
  else if (d == 128 && rotary == 128) rope_rows<Codec>(p, shared, 128, 128);
  else if (d == 256) rope_rows<Codec>(p, shared, 256, rotary);
  else rope_rows<Codec>(p, shared, d, rotary);
}

// A kernel that leaves room for BLOCKS blocks on an SM.
#define QKV_ROPE(name, BLOCKS)                                                          \
  KERNEL __launch_bounds__(32 * (MAX_GROUP + 2), BLOCKS) name(RopeParams params) {      \
    __shared__ Shared shared;                                                           \
    next_may_begin();                                                                   \
    switch (params.rows) {                                                              \
      case BF16_ROWS: return rope_rows<Bf16Codec>(params, shared);                      \
      case BYTE_ROWS: return rope_rows<ByteCodec>(params, shared);                      \
      default: return rope_rows<K8V4Codec>(params, shared);                             \
    }                                                                                   \
  }
