// Norms, RoPE, borrowed decisions and the codec, for the query, key and value heads of a prefill chunk's rows. Decode tokens
// go to attend.cu and decode_epilogue.cu. CPU twins: `backend::cpu::rope`, `Codec::round_trip`, bit for bit but for RoPE.
#include "heads.cuh"

// Mirrors `backend::cuda::abi::RopeParams`.
struct RopeParams {
  Kv kv;
  HeadParams heads;
  float* qkv;               // [n, (n_q_heads + 2 n_kv_heads) * head_dim] rows [q heads | k heads | v heads], in place
  float* decisions;         // [n, n_kv_heads]; written where they are borrowed, and in pinned rows
  const Span* spans;        // of the step
  const int* span_of_row;   // [n]
};
static_assert(sizeof(RopeParams) == 280 && OFFSET_OF(RopeParams, heads) == 200 && OFFSET_OF(RopeParams, qkv) == 248,
              "backend::cuda::abi::RopeParams has another layout");

struct Shared {
  float x[MAX_GROUP + 2][ROW_STRIDE];
  __align__(16) u8 codes[2][2 * MAX_HEAD_DIM];
  float decision;
};

// Rows in place: K and V become what the cache gives back, and their codes go to the step's staged pages. Grid (1 to
// n_kv_heads, n): blocks stride over KV heads, one block where a layer has one decision. A warp for each query head of the
// group, for K and for V. Reads and writes each row once.
template <class Codec>
__device__ __forceinline__ void qkv_rope(const RopeParams& p) {
  __shared__ Shared shared;
  next_may_begin();
  const Kv& kv = p.kv;
  const HeadParams& head_params = p.heads;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.y, d = kv.head_dim;
  int heads = kv.n_kv_heads, group = kv.n_q_heads / heads, width = (kv.n_q_heads + 2 * heads) * d;
  Span span = p.spans[p.span_of_row[row]];
  bool is_q = warp < group, is_k = warp == group, is_v = warp == group + 1;
  const float* norm = prefetch_norm(is_q ? head_params.q_norm : is_k ? head_params.k_norm : nullptr, d, lane);
  int pinned = kv.pinned[row];
  RopeAngles angles;
  angles.compute(head_params, kv.seq_len[span.seq] + row - span.start, d, lane);
  wait_previous();
  // KV heads of this block
#pragma unroll 1
  for (int head = blockIdx.x; head < heads; head += gridDim.x) {
    __syncthreads();
    int column = is_q ? head * group + warp : kv.n_q_heads + head + (is_v ? heads : 0);
    float *x = p.qkv + (u64)row * width + column * d, *s = shared.x[warp];
    load_row(s, x, norm, head_params.eps, d, lane);
    bool decides = head_params.borrowed && warp == 0;
    if (decides) {
      if (lane == 0) {
        if (!head_params.per_layer || head == 0) shared.decision = borrowed_decision(head_params, s, d);
        p.decisions[row * heads + head] = shared.decision;
      }
      __syncwarp();
    }
    if (pinned && threadIdx.x == 0) p.decisions[row * heads + head] = NEG_INFINITY;
    if (!is_v) rotate(s, angles, d, decides, lane);
    if (!is_q) {
      u32 side = encode_row<Codec>(is_v, shared.codes[is_v], s, d, lane);
      write_codes(kv, staged_at(kv, row, head), row % PAGE_SLOTS, is_v, shared.codes[is_v], side, lane);
    }
    for (int i = lane; i < d; i += 32) x[i] = s[i];
  }
}

// Few enough registers for 40 warps on an SM.
#define QKV_ROPE(codec, Codec)                                                             \
  KERNEL __launch_bounds__(32 * (MAX_GROUP + 2), 4) qkv_rope_##codec(RopeParams params) {  \
    qkv_rope<Codec>(params);                                                               \
  }
FOR_EACH_CODEC(QKV_ROPE)
