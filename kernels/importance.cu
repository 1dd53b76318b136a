// Importance of tokens: the largest weighted attention that chosen queries of a sequence pay to
// each of its first tokens. Only the training of a predictor needs it. CPU twin:
// `backend::cpu::attention::importance`.
#define MAX_HEAD_DIM 512
#include "growth.cuh"
#include "heads.cuh"
#include "sinks.cuh"

#define WARPS 8
#define TILE 32              // queries and keys of a tile; a thread has 2 x 2 of its scores
#define CHANNELS 64          // of them in shared memory at once
#define STRIDE (CHANNELS + 4)

// Mirrors `backend::cuda::abi::ImportanceParams`.
struct ImportanceParams {
  HeadParams heads;
  float* qkv;                // [end, heads.qkv_width] rows [q heads | k heads | ...], from position 0 on
  const float* factors;      // [end - first] on each query's attention
  u32* out;                  // [n_q_heads, tokens] floats, none of them negative, as bits; zeros at first
  int n_q_heads, n_kv_heads, head_dim;
  int first, end;            // rows of the queries
  int tokens;
  const float* sinks;        // [n_q_heads] see `sink_weight`; null: none
  Growth growth;             // of q
};
static_assert(sizeof(ImportanceParams) == 168 && OFFSET_OF(ImportanceParams, qkv) == 104 &&
                  OFFSET_OF(ImportanceParams, n_q_heads) == 128,
              "backend::cuda::abi::ImportanceParams has another layout");

// Norms and RoPE of query and key heads, growth of queries, in place. Grid (ceil(heads / WARPS),
// end), a warp a head. Reads and writes each row once.
KERNEL __launch_bounds__(32 * WARPS) importance_rows(ImportanceParams p) {
  __shared__ float shared[WARPS][ROW_STRIDE];
  after_previous();
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, d = p.head_dim, row = blockIdx.y, head = blockIdx.x * WARPS + warp;
  if (head >= p.n_q_heads + p.n_kv_heads) return;
  bool is_q = head < p.n_q_heads;
  float *x = p.qkv + (u64)row * p.heads.qkv_width + head * d, *s = shared[warp];
  RopeAngles angles;
  angles.compute(p.heads, row, lane);
  const float* norm = is_q ? p.heads.q_norm : p.heads.k_norm;
  load_row(s, x, norm, norm != nullptr, p.heads.eps, d, lane);
  rotate(s, angles, d, p.heads.rotary, is_q && head % (p.n_q_heads / p.n_kv_heads) < p.heads.borrowed, lane);
  float growth = is_q ? p.growth.at(row) : 1.0f;
  for (int i = lane; i < d; i += 32) x[i] = s[i] * growth;
}

typedef float Rows[2][TILE][STRIDE];

// Products of a thread's rows of a tile of queries and one of keys: those at `y` and y + TILE / 2,
// and at `x` and x + TILE / 2.
__device__ __forceinline__ void tile_scores(float (&s)[2][2], Rows& rows, const float* q, const float* k, int queries, int keys,
                                            int width, int d, int x, int y) {
#pragma unroll
  for (int i = 0; i < 4; i++) s[i / 2][i % 2] = 0.0f;
  for (int at = 0; at < d; at += CHANNELS) {
    __syncthreads();
#pragma unroll 4
    for (int i = threadIdx.x; i < 2 * TILE * CHANNELS; i += 32 * WARPS) {
      int is_k = i / (TILE * CHANNELS), row = i / CHANNELS % TILE, c = i % CHANNELS;
      bool inside = row < (is_k ? keys : queries) && at + c < d;
      rows[is_k][row][c] = inside ? (is_k ? k : q)[(u64)row * width + at + c] : 0.0f;
    }
    __syncthreads();
#pragma unroll 2
    for (int c = 0; c < CHANNELS; c += 4) {
      float4 a[2], b[2];
#pragma unroll
      for (int i = 0; i < 2; i++) {
        a[i] = *(const float4*)&rows[0][y + i * (TILE / 2)][c];
        b[i] = *(const float4*)&rows[1][x + i * (TILE / 2)][c];
      }
#pragma unroll
      for (int i = 0; i < 4; i++) {
        float4 u = a[i / 2], v = b[i % 2];
        s[i / 2][i % 2] += u.x * v.x + u.y * v.y + u.z * v.z + u.w * v.w;
      }
    }
  }
}

// `op` over the 16 threads of a row.
template <class Op>
__device__ __forceinline__ float row_reduce(float x, Op op) {
#pragma unroll
  for (int m = 8; m > 0; m >>= 1) x = op(x, __shfl_xor_sync(FULL, x, m));
  return x;
}

// Scores are computed twice, for a row's largest one and its sum, and then for its weights. Grid
// (tiles of queries, n_q_heads). Reads a head's keys 2 x once for each tile of queries.
KERNEL __launch_bounds__(32 * WARPS) importance(ImportanceParams p) {
  __shared__ __align__(16) Rows rows;
  __shared__ u32 most[TILE];
  after_previous();
  auto larger = [](float a, float b) { return fmaxf(a, b); };
  int x = threadIdx.x % (TILE / 2), y = threadIdx.x / (TILE / 2), d = p.head_dim, width = p.heads.qkv_width, head = blockIdx.y;
  int first = p.first + blockIdx.x * TILE, queries = min(TILE, p.end - first), end = first + queries;
  const float* q = p.qkv + (u64)first * width + head * d;
  const float* k = p.qkv + (p.n_q_heads + head / (p.n_q_heads / p.n_kv_heads)) * d;
  float scale = LOG2E / sqrtf((float)d), s[2][2], peak[2], sum[2] = {0.0f, 0.0f}, factor[2];
  peak[0] = peak[1] = NEG_INFINITY;
  for (int at = 0; at < end; at += TILE) {
    tile_scores(s, rows, q, k + (u64)at * width, queries, min(TILE, end - at), width, d, x, y);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      int row = first + y + r * (TILE / 2);
#pragma unroll
      for (int c = 0; c < 2; c++) s[r][c] = at + x + c * (TILE / 2) <= row ? s[r][c] * scale : NEG_INFINITY;
      // Every query sees the first key, so that no largest score is minus infinity.
      float now = fmaxf(peak[r], row_reduce(fmaxf(s[r][0], s[r][1]), larger));
      sum[r] = sum[r] * exp2f(peak[r] - now) + row_reduce(exp2f(s[r][0] - now) + exp2f(s[r][1] - now), Sum());
      peak[r] = now;
    }
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int query = y + r * (TILE / 2);
    float all = sum[r] + sink_weight(p.sinks, head, peak[r]);
    factor[r] = query < queries ? p.factors[first - p.first + query] / all : 0.0f;
  }
  for (int at = 0; at < min(p.tokens, end); at += TILE) {
    if (threadIdx.x < TILE) most[threadIdx.x] = 0;
    tile_scores(s, rows, q, k + (u64)at * width, queries, min(TILE, end - at), width, d, x, y);
#pragma unroll
    for (int c = 0; c < 2; c++) {
      int column = x + c * (TILE / 2);
      float weight = 0.0f;
#pragma unroll
      for (int r = 0; r < 2; r++)
        if (at + column <= first + y + r * (TILE / 2))
          weight = fmaxf(weight, exp2f(s[r][c] * scale - peak[r]) * factor[r]);
      weight = fmaxf(weight, __shfl_xor_sync(FULL, weight, 16));
      if (threadIdx.x % 32 < 16) atomicMax(&most[column], __float_as_uint(weight));
    }
    __syncthreads();
    if (threadIdx.x < TILE && at + threadIdx.x < p.tokens)
      atomicMax(&p.out[(u64)head * p.tokens + at + threadIdx.x], most[threadIdx.x]);
  }
}
