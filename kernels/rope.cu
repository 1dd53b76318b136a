// Query and key heads after their projection: per-head norms, eviction decisions, RoPE.
// CPU twin: `backend::cpu::rope`.
#include "kv.cuh"

#define WARPS 4
#define MAX_DIM 256

// Rows [q heads | k heads | v heads] in place; one warp a head. Grid (n, heads / 4), 128 threads. Reads
// and writes q and k once. Norm weights may be null; `borrowed` takes decisions [n, n_kv_heads] from
// the last channel of each group's first query head and zeroes it around the turn.
KERNEL qkv_rope(float* qkv, float* decisions, const int* seq_len, const Span* spans, const int* span_of_row,
                const float* q_norm, const float* k_norm, const float* inv_freq, int n_q_heads, int n_kv_heads,
                int head_dim, float eps, float factor, int borrowed, float scale, float offset, int per_layer) {
  after_previous();
  __shared__ float shared[WARPS][MAX_DIM];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.x, head = blockIdx.y * WARPS + warp;
  if (head >= n_q_heads + n_kv_heads) return;
  int group = n_q_heads / n_kv_heads, half = head_dim / 2;
  float* x = qkv + ((u64)row * (n_q_heads + 2 * n_kv_heads) + head) * head_dim;
  float* s = shared[warp];
  float squares = 0.0f;
  for (int i = lane; i < head_dim; i += 32) {
    s[i] = x[i];
    squares += s[i] * s[i];
  }
  if (q_norm) {
    const float* weight = head < n_q_heads ? q_norm : k_norm;
    float by = 1.0f / sqrtf(warp_sum(squares) / head_dim + eps);
    for (int i = lane; i < head_dim; i += 32) s[i] = s[i] * by * weight[i];
  }
  __syncwarp();
  bool lends = borrowed && head < n_q_heads && head % group == 0;
  if (lends) {
    float decision = __fsub_rn(__fmul_rn(s[head_dim - 1], scale), offset);
    int kv_head = head / group;
    float* to = decisions + (u64)row * n_kv_heads;
    if (!per_layer && lane == 0) to[kv_head] = decision;
    if (per_layer && head == 0)
      for (int i = lane; i < n_kv_heads; i += 32) to[i] = decision;
    __syncwarp();
    if (lane == 0) s[head_dim - 1] = 0.0f;
    __syncwarp();
  }
  Span span = spans[span_of_row[row]];
  double position = seq_len[span.seq] + row - span.start;
  for (int i = lane; i < half; i += 32) {
    // In f64: at position 40,000 an f32 product is off by a thousandth of a turn.
    double sine, cosine;
    sincos(position * inv_freq[i], &sine, &cosine);
    float c = (float)cosine * factor, t = (float)sine * factor;
    float a = s[i], b = s[i + half];
    x[i] = a * c - b * t;
    x[i + half] = lends && i + half == head_dim - 1 ? 0.0f : b * c + a * t;
  }
}
