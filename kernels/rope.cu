// Query, key and value heads after their projection: per-head norms, eviction decisions, RoPE, and K and V as the
// cache keeps them. CPU twins: `backend::cpu::rope`, `Codec::round_trip`, and of single tokens
// `backend::cpu::kv` (place, store), bit for bit but for RoPE.
#include "place.cuh"

#define MAX_DIM 128
#define MAX_WARPS 10  // of up to 8 query heads, K and V

// Where a warp's row goes, and what it becomes.
struct Rows {
  float x[MAX_WARPS][MAX_DIM];
  float cosine[MAX_DIM / 2], sine[MAX_DIM / 2];
  __align__(16) u8 codes[2][2 * MAX_DIM];
  float scales[2];
  float decision;
  u8* page;
  int at;
};

// A row of K or V by a warp: codes and their scale, and the row as they give it back.
__device__ __forceinline__ float encode(u8* codes, float* x, int d, int codec, int lane) {
  if (codec == CODEC_BF16) {
    for (int i = lane; i < d; i += 32) {
      u16 code = f32_to_bf16(x[i]);
      ((u16*)codes)[i] = code;
      x[i] = bf16_to_f32(code);
    }
    return 1.0f;
  }
  float scale = fp8_scale(x, d, lane);
  bool bad = false;
  for (int i = lane; i < d; i += 32) {
    bad |= x[i] != x[i];
    codes[i] = fp8_encode(__fdiv_rn(x[i], scale));
    x[i] = __fmul_rn(fp8_decode(codes[i]), scale);
  }
  // Attention takes the code of what is no number for a number: the scale tells it.
  return __any_sync(FULL, bad) ? __uint_as_float(0x7fc00000u) : scale;
}

// Rows [q heads | k heads | v heads] in place: K and V as the cache will give them back. Decisions [n, n_kv_heads]
// come from the last channel of each group's first query head where it is `borrowed`, which is zeroed around the
// turn. Norm weights may be null. Grid (1 or n_kv_heads, n): one block where a layer has one decision. A warp for
// each query head of a group, for K and for V. TAKE: rows are single tokens, each takes its slot, K and V go there, and
// another warp finds it; else they go to the step's staged pages. Reads and writes a row once.
template <bool TAKE>
__device__ __forceinline__ void turn(float* qkv, float* decisions, const Kv& kv, int layer, const Span* spans,
                                     const int* span_of_row, const float* q_norm, const float* k_norm,
                                     const float* inv_freq, float eps, float factor, int borrowed, float scale,
                                     float offset, int per_layer) {
  __shared__ Rows rows;
  next_may_begin();
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.y, d = kv.head_dim, half = d / 2;
  int heads = kv.n_kv_heads, group = kv.n_q_heads / heads, width = (kv.n_q_heads + 2 * heads) * d;
  Span span = spans[span_of_row[row]];
  int at = kv.seq_len[span.seq] + row - span.start;
  for (int i = threadIdx.x; i < half; i += blockDim.x) {
    // In f64: at position 40,000 an f32 product is off by a thousandth of a turn.
    double sine, cosine;
    sincos((double)at * inv_freq[i], &sine, &cosine);
    rows.cosine[i] = (float)cosine * factor;
    rows.sine[i] = (float)sine * factor;
  }
  bool is_q = warp < group, is_k = warp == group, is_v = warp == group + 1, waited = false;
#pragma unroll 1
  for (int head = blockIdx.x; head < heads; head += gridDim.x) {
    Lane place = lane_of(kv, layer, span.seq, head);
    Single single = {};
    if (TAKE && warp == group + 2) single.look(kv, place, at, kv.eviction[span.seq]);
    if (!waited) wait_previous();
    waited = true;
    __syncthreads();
    int column = is_q ? head * group + warp : kv.n_q_heads + head + (is_v ? heads : 0);
    float* x = qkv + (u64)row * width + column * d;
    float* s = rows.x[min(warp, MAX_WARPS - 1)];
    if (is_q || is_k || is_v) {
      float squares = 0.0f;
      for (int i = lane; i < d; i += 32) {
        s[i] = x[i];
        squares += s[i] * s[i];
      }
      if (q_norm && !is_v) {
        const float* weight = is_q ? q_norm : k_norm;
        float by = 1.0f / sqrtf(warp_sum(squares) / d + eps);
        for (int i = lane; i < d; i += 32) s[i] = s[i] * by * weight[i];
      }
      __syncwarp();
    }
    if (borrowed && warp == 0) {
      if (!per_layer || head == 0) rows.decision = __fsub_rn(__fmul_rn(s[d - 1], scale), offset);
      __syncwarp();
      if (lane == 0) {
        decisions[row * heads + head] = rows.decision;
        s[d - 1] = 0.0f;
      }
      __syncwarp();
    }
    if (TAKE) {
      __syncthreads();
      if (warp == group + 2) {
        float decision = borrowed ? rows.decision : decisions[row * heads + head];
        int slot = single.take(kv, place, decision > 0.0f, lane);
        if (lane == 0) {
          rows.page = page_at(kv, place.pages[slot / PAGE_SLOTS]);
          rows.at = slot % PAGE_SLOTS;
        }
      }
    }
    if (is_q || is_k) {
      for (int i = lane; i < half; i += 32) {
        float c = rows.cosine[i], t = rows.sine[i], a = s[i], b = s[i + half];
        s[i] = a * c - b * t;
        s[i + half] = borrowed && warp == 0 && i + half == d - 1 ? 0.0f : b * c + a * t;
      }
      __syncwarp();
    }
    if (is_k || is_v) {
      float by = encode(rows.codes[is_v], s, d, kv.codec, lane);
      if (lane == 0) rows.scales[is_v] = by;
      __syncwarp();
    }
    if (is_q || is_k || is_v)
      for (int i = lane; i < d; i += 32) x[i] = s[i];
    if (TAKE) __syncthreads();
    if (is_k || is_v) {
      u8* page = TAKE ? rows.page : staged_at(kv, row, head);
      int r = TAKE ? rows.at : row % PAGE_SLOTS;
      uint2* to = (uint2*)kv_bytes(kv, page, r, is_v);
      for (int i = lane; i < row_bytes(kv) / 8; i += 32) to[i] = ((const uint2*)rows.codes[is_v])[i];
      if (kv.codec == CODEC_FP8 && lane == 0) *scale_at(kv, page, r, is_v) = rows.scales[is_v];
    }
  }
}

#define TURN(name, TAKE)                                                                                           \
  KERNEL __launch_bounds__(32 * (MAX_WARPS + 1))                                                                   \
      name(float* qkv, float* decisions, Kv kv, int layer, const Span* spans, const int* span_of_row,              \
           const float* q_norm, const float* k_norm, const float* inv_freq, float eps, float factor, int borrowed, \
           float scale, float offset, int per_layer) {                                                             \
    turn<TAKE>(qkv, decisions, kv, layer, spans, span_of_row, q_norm, k_norm, inv_freq, eps, factor, borrowed,     \
               scale, offset, per_layer);                                                                          \
  }
TURN(qkv_rope, false)
TURN(qkv_rope_take, true)
