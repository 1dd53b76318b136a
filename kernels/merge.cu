// Merging of a step's rows under a policy that merges tokens: norms, borrowed decisions and
// weights, the means of slots, RoPE. What comes after gets rows that are ready but for the codec:
// no norms, no RoPE, and decisions of the eviction rule with a window of 0. CPU twins:
// `policy::merge`, `backend::cpu::merge`, bit for bit but for norms, weights and RoPE. Under other
// policies, norms and growth of q, where queries grow.
#include "growth.cuh"
#include "heads.cuh"

#define WARPS 16   // of a block of `merge_rows`
#define TILE 512   // rows that a block of `merge_rows` takes at once

// Mirrors `backend::cuda::abi::MergeParams`.
struct MergeParams {
  HeadParams heads;
  float* qkv;              // [n, (n_q_heads + 2 n_kv_heads) * head_dim] rows [q heads | k heads | v heads], in place
  float* decisions;        // [n, n_kv_heads]
  float* sums;             // [n_layers, n_lanes, 2 head_dim + 2] of each lane's newest slot: weight k, weight v, weights, tokens
  const int* seq_len;      // [n_seqs] tokens before this step
  const int* eviction;     // [n_seqs] whether tokens merge
  const Span* spans;       // of the step
  const int* span_of_row;  // [n]
  int layer, n_q_heads, n_kv_heads, head_dim, n_seqs;
  int every;           // pool: tokens of a slot; 0 where channels of q decide; negative where nothing merges
  int most_members;    // most tokens of a slot
  float weight_scale, weight_offset;  // of the last channel of a KV head's second query head
  Growth growth;       // of q
  int unused;
};
static_assert(sizeof(MergeParams) == 208 && OFFSET_OF(MergeParams, qkv) == 104 && OFFSET_OF(MergeParams, layer) == 160 &&
                  OFFSET_OF(MergeParams, weight_scale) == 188 && OFFSET_OF(MergeParams, growth) == 196,
              "backend::cuda::abi::MergeParams has another layout");

__device__ __forceinline__ float* row_of(const MergeParams& p, int row, int head) {
  return p.qkv + (u64)row * p.heads.qkv_width + head * p.head_dim;
}

// Norms of q and k, RoPE and growth of q. Decisions become the token's weight, negative where it
// does not want to join the newest slot. Where nothing merges, norm and growth of q, but for
// channels that later kernels read decisions from. Grid (n_kv_heads, n), a warp for each query head
// of the group and one for K. Reads and writes rows of q and k once.
KERNEL __launch_bounds__(32 * (MAX_GROUP + 1)) merge_heads(MergeParams p) {
  __shared__ float rows[MAX_GROUP + 1][ROW_STRIDE], weight_channel;
  after_previous();
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.x, row = blockIdx.y, d = p.head_dim;
  int group = p.n_q_heads / p.n_kv_heads;
  bool is_q = warp < group;
  Span span = p.spans[p.span_of_row[row]];
  int position = p.seq_len[span.seq] + row - span.start;
  float *x = row_of(p, row, is_q ? head * group + warp : p.n_q_heads + head), *s = rows[warp], growth = p.growth.at(position);
  if (p.every < 0) {
    // Rows between spans are those of another launch.
    if (!is_q || row < span.start || row >= span.start + span.len) return;
    load_row(s, x, p.heads.q_norm, p.heads.q_norm != nullptr, p.heads.eps, d, lane);
    for (int i = lane; i < d; i += 32) x[i] = i == d - 1 && warp < p.heads.borrowed ? s[i] : s[i] * growth;
    return;
  }
  const float* norm = is_q ? p.heads.q_norm : p.heads.k_norm;
  load_row(s, x, norm, norm != nullptr, p.heads.eps, d, lane);
  if (warp == 1 && lane == 0) weight_channel = s[d - 1];
  __syncthreads();
  if (threadIdx.x == 0) {
    bool joins = p.every > 0 && position % p.every > 0;
    float weight = 1.0f;
    if (p.every == 0) {
      joins = borrowed_decision(p.heads, s, d) > 0.0f;
      float logit = __fadd_rn(__fmul_rn(weight_channel, p.weight_scale), p.weight_offset);
      weight = __fadd_rn(__fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-logit))), 1.0f / 128.0f);
    }
    p.decisions[row * p.n_kv_heads + head] = joins ? weight : -weight;
  }
  if (is_q) {
    RopeAngles angles;
    angles.compute(p.heads, position, lane);
    rotate(s, angles, d, p.heads.rotary, warp < p.heads.borrowed, lane);
  }
  for (int i = lane; i < d; i += 32) x[i] = is_q ? s[i] * growth : s[i];
}

// K and V of a token, and the sums of a slot.
struct KvRow {
  RowPart k, v;
  __device__ __forceinline__ void load(const float* k_row, const float* v_row, int d, int lane) {
    k.load(k_row, d, lane, 0.0f), v.load(v_row, d, lane, 0.0f);
  }
};

// K and V of every row become the means of its slot as it stands with the row, and K is rotated at
// the row's position; decisions become 1 where a token joins the slot of the one before it, else
// minus infinity. Grid (n_kv_heads, spans), WARPS warps: each takes slots, row after row. Reads and
// writes rows of k and v once.
KERNEL __launch_bounds__(32 * WARPS) merge_rows(MergeParams p) {
  __shared__ float rows[WARPS][ROW_STRIDE], weights[TILE];
  __shared__ u8 joins[TILE];
  after_previous();
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.x, d = p.head_dim, heads = p.n_kv_heads;
  Span span = p.spans[blockIdx.y];
  int base = p.seq_len[span.seq], merges = p.eviction[span.seq];
  float* sums = p.sums + (u64)((p.layer * p.n_seqs + span.seq) * heads + head) * (2 * d + 2);
  for (int first = 0; first < span.len; first += TILE) {
    int n = min(TILE, span.len - first), start = span.start + first;
    for (int i = threadIdx.x; i < n; i += 32 * WARPS) weights[i] = p.decisions[(start + i) * heads + head];
    // The slot that the tile may go on with, before the tile's last slot takes its place.
    KvRow newest = {};
    float newest_weight = 0.0f, newest_members = 0.0f;
    if (warp == 0 && base + first > 0) {
      newest.load(sums, sums + d, d, lane);
      newest_weight = sums[2 * d], newest_members = sums[2 * d + 1];
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int members = (int)newest_members;
      for (int i = 0; i < n; i++) {
        bool wants = weights[i] > 0.0f && members < p.most_members;
        joins[i] = merges && base + first + i > 0 && wants;
        members = joins[i] ? members + 1 : 1;
      }
    }
    __syncthreads();
    for (int begin = warp; begin < n; begin += WARPS) {
      if (begin > 0 && joins[begin]) continue;
      bool goes_on = joins[begin];
      KvRow sum = {}, next;
      float weight = 0.0f, members = 0.0f;
      if (goes_on) sum = newest, weight = newest_weight, members = newest_members;
      float *k = row_of(p, start + begin, p.n_q_heads + head), *v = k + heads * d, *s = rows[warp];
      next.load(k, v, d, lane);
      int j = begin;
#pragma unroll 1
      do {
        KvRow row = next;
        float *to_k = k, *to_v = v, w = fabsf(weights[j]);
        bool last = j + 1 == n || !joins[j + 1];
        k = row_of(p, start + j + 1, p.n_q_heads + head), v = k + heads * d;
        if (!last) next.load(k, v, d, lane);
        weight = __fadd_rn(weight, w), members += 1.0f;
#pragma unroll
        for (int c = 0; c < MAX_HEAD_DIM / 32; c++) {
          int i = lane + 32 * c;
          float &k_sum = sum.k.at[c], &v_sum = sum.v.at[c];
          k_sum = __fadd_rn(k_sum, __fmul_rn(w, row.k.at[c])), v_sum = __fadd_rn(v_sum, __fmul_rn(w, row.v.at[c]));
          if (i < d) s[i] = __fdiv_rn(k_sum, weight), to_v[i] = __fdiv_rn(v_sum, weight);
        }
        RopeAngles angles;
        angles.compute(p.heads, base + first + j, lane);
        rotate(s, angles, d, p.heads.rotary, false, lane);
        for (int i = lane; i < d; i += 32) to_k[i] = s[i];
        __syncwarp();
        if (lane == 0) p.decisions[(start + j) * heads + head] = joins[j] ? 1.0f : NEG_INFINITY;
        j++;
        if (last) break;
      } while (true);
      if (j < n) continue;
#pragma unroll
      for (int c = 0; c < MAX_HEAD_DIM / 32; c++) {
        int i = lane + 32 * c;
        if (i < d) sums[i] = sum.k.at[c], sums[d + i] = sum.v.at[c];
      }
      if (lane == 0) sums[2 * d] = weight, sums[2 * d + 1] = members;
    }
    __syncthreads();
  }
}
