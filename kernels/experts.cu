// Mixtures of experts: the router, pairs of a token and its expert in order of experts, their
// matmuls, and the weighted sum; of a few tokens three kernels, in which each pair reads its
// expert. CPU twin: `backend::cpu::experts`.
#include "e2m1.cuh"
#include "gates.cuh"

// Codes of experts: `CODES` in `backend::cuda::experts`.
enum ExpertsCode { EXPERTS_Q8 = 1, EXPERTS_Q4, EXPERTS_Q4H, EXPERTS_MXFP4 };
#define MOST_EXPERTS 2048  // `bounds::EXPERTS`
#define WARPS 4            // that divide the columns of a strip among them
// Of a few tokens: most experts of a token, and most warps that sum them. Mirror
// `backend::cuda::experts`.
#define MOST_CHOSEN 16
#define SUM_WARPS 24

// Eight neighbours of activations or of a plain weight.
__device__ __forceinline__ void read8(float to[8], const void* from, int dtype, u64 i) {
  if (dtype == F32) weight8<F32>(to, from, i);
  else if (dtype == F16) weight8<F16>(to, from, i);
  else weight8<BF16>(to, from, i);
}

// logits[n, experts] = h[n, cols] router[experts, cols]^T, plus bias[experts] unless it is null.
// Grid (experts / 8, n), 8 warps of an expert each. cols is a multiple of 8.
KERNEL __launch_bounds__(256)
    route(float* logits, const void* h, int bf16, const void* router, const float* bias, int dtype, int experts, int cols) {
  after_previous();
  int lane = threadIdx.x % 32, e = blockIdx.x * 8 + threadIdx.x / 32;
  if (e >= experts) return;
  float sum = 0.0f;
  for (int col = 8 * lane; col < cols; col += 256) {
    float x[8], w[8];
    read8(x, h, bf16 ? BF16 : F32, (u64)blockIdx.y * cols + col);
    read8(w, router, dtype, (u64)e * cols + col);
#pragma unroll
    for (int i = 0; i < 8; i++) sum = fmaf(x[i], w[i], sum);
  }
  sum = warp_sum(sum);
  if (lane == 0) logits[(u64)blockIdx.y * experts + e] = sum + (bias ? bias[e] : 0.0f);
}

// The k most probable experts by the softmax of the logits [experts + shared], of equal ones those
// of lower numbers, and their weights [k + shared], by a warp. If `shared`, the expert after them
// (number `experts`) comes last, weighted by the sigmoid of its logit. Weights are multiplied by
// the experts' `factors` [experts] unless they are null. `keys`: scratch in shared memory.
__device__ __forceinline__ void choose(int* chosen, float* weights, u32* keys, const float* logits, const float* factors, int experts,
                                       int k, int normalized, int shared) {
  int lane = threadIdx.x % 32;
  if (shared && lane == 0) chosen[k] = experts, weights[k] = 1.0f / (1.0f + expf(-logits[experts]));
  float most = NEG_INFINITY, all = 0.0f, taken = 0.0f;
  for (int e = lane; e < experts; e += 32) most = fmaxf(most, logits[e]);
  most = warp_max(most);
  for (int e = lane; e < experts; e += 32) {
    float p = expf(logits[e] - most);
    all += p;
    // Keys of positive values are in their order. 0: the expert is chosen.
    keys[e] = __float_as_uint(p) + 1;
  }
  all = warp_sum(all);
  for (int j = 0; j < k; j++) {
    u32 of_lane = 0, at = ~0u;
    for (int e = lane; e < experts; e += 32)
      if (keys[e] > of_lane) of_lane = keys[e], at = e;
    u32 best = __reduce_max_sync(FULL, of_lane);
    at = __reduce_min_sync(FULL, of_lane == best ? at : ~0u);
    float p = __uint_as_float(best - 1) / all;
    taken += p;
    if (lane == 0) chosen[j] = at, weights[j] = p;
    if (lane == at % 32) keys[at] = 0;
    __syncwarp();
  }
  for (int j = lane; normalized && j < k; j += 32) weights[j] /= taken;
  for (int j = lane; factors && j < k; j += 32) weights[j] *= factors[chosen[j]];
}

// `choose` of each row of logits. Grid n, a warp.
KERNEL __launch_bounds__(32) choose_experts(int* chosen, float* weights, const float* logits, const float* factors, int experts,
                                            int k, int normalized, int shared) {
  __shared__ u32 keys[MOST_EXPERTS];
  after_previous();
  int all = k + shared;
  choose(chosen + blockIdx.x * all, weights + blockIdx.x * all, keys, logits + (u64)blockIdx.x * (experts + shared), factors, experts,
         k, normalized, shared);
}

// Sorts pairs by expert: `order` gets their numbers, `place` the inverse, and starts [experts + 1]
// where each expert's begin. The order of an expert's pairs is not fixed, and nothing depends on
// it. One block of 1,024 threads.
KERNEL __launch_bounds__(1024) sort_experts(int* order, int* place, int* starts, const int* chosen, int experts, int pairs) {
  __shared__ int counts[MOST_EXPERTS];
  after_previous();
  for (int e = threadIdx.x; e < experts; e += 1024) counts[e] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < pairs; i += 1024) atomicAdd(counts + chosen[i], 1);
  __syncthreads();
  if (threadIdx.x < 32) {
    int before = 0, lane = threadIdx.x;
    for (int base = 0; base < experts; base += 32) {
      int e = base + lane, n = e < experts ? counts[e] : 0, upto = warp_prefix_sum(n, lane);
      if (e < experts) counts[e] = starts[e] = before + upto - n;
      before += __shfl_sync(FULL, upto, 31);
    }
    if (lane == 0) starts[experts] = pairs;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < pairs; i += 1024) {
    int at = atomicAdd(counts + chosen[i], 1);
    order[at] = i, place[i] = at;
  }
}

// A tile of up to SIZE pairs of one expert.
template <int SIZE>
struct PairTile {
  int expert, first, end;  // of the expert's pairs; -1: there is no tile of this number
  __device__ __forceinline__ PairTile(const int* starts, int experts, int index) : expert(-1), first(0), end(0) {
    int lane = threadIdx.x % 32, before = 0;
    for (int base = 0; base < experts && expert < 0; base += 32) {
      int e = base + lane, n = e < experts ? starts[e + 1] - starts[e] : 0, tiles = (n + SIZE - 1) / SIZE;
      int upto = warp_prefix_sum(tiles, lane);
      u32 behind = __ballot_sync(FULL, before + upto > index);
      if (behind) {
        int at = __ffs(behind) - 1;
        expert = base + at;
        first = starts[expert] + (index - before - __shfl_sync(FULL, upto - tiles, at)) * SIZE;
        end = starts[expert + 1];
      }
      before += __shfl_sync(FULL, upto, 31);
    }
  }
};

// Columns 16 t to 16 t + 15 of a tile of 64 columns as pairs of bf16; zeros beyond `cols`, a
// multiple of 16.
__device__ __forceinline__ void read_pairs(u32 (&to)[8], const void* from, int dtype, u64 row, int col, int cols) {
#pragma unroll
  for (int half = 0; half < 2; half++) {
    if (col >= cols) {
      to[4 * half] = to[4 * half + 1] = to[4 * half + 2] = to[4 * half + 3] = 0;
    } else if (dtype == BF16) {
      uint4 v = *(const uint4*)((const u16*)from + row * cols + col + 8 * half);
      to[4 * half] = v.x, to[4 * half + 1] = v.y, to[4 * half + 2] = v.z, to[4 * half + 3] = v.w;
    } else {
      float v[8];
      read8(v, from, dtype, row * cols + col + 8 * half);
#pragma unroll
      for (int i = 0; i < 4; i++) to[4 * half + i] = round_pair(v[2 * i], v[2 * i + 1]);
    }
  }
}

// Tiles of columns that a warp multiplies: one in `step`, from `first` on.
struct Share {
  int first, step;
};

// sums += x W^T over a warp's share of the columns: packed rows.
template <class CODE, int NT, class READ>
__device__ __forceinline__ void packed_strip(float (&sums)[NT][4], const u8* weight, u64 strip, int cols, Share share, READ read) {
  typedef typename WordsOf<CODE::HALVES>::Type Words;
  Layout<CODE> at(cols);
  const u8* from = weight + at.strip_bytes * strip;
  int lane = threadIdx.x % 32;
#pragma unroll(NT == 1 ? 4 : 1)
  for (int tile = share.first; tile < at.tiles; tile += share.step) {
    u32 b[NT][8];
    float of_x[NT][2];
#pragma unroll
    for (int j = 0; j < NT; j++) {
      read(b[j], j, tile * TILE_COLS);
      if constexpr (CODE::HALVES == 1) sum_columns(of_x[j], b[j]);
    }
    const Words* words = (const Words*)(from + at.words_at) + (tile / GROUP_TILES * 8 + lane / 4) * GROUP_TILES;
    const u8* codes = from + tile * TILE_BYTES;
    if constexpr (CODE::HALVES == 0) multiply_e2m1(sums, codes, lane, words[tile % GROUP_TILES], b);
    else multiply_tile<CODE, NT>(sums, codes, from + at.low_at + tile * at.LOW_TILE, lane, words[tile % GROUP_TILES], b, of_x);
  }
}

// The same of rows in bf16.
template <int NT, class READ>
__device__ __forceinline__ void plain_strip(float (&sums)[NT][4], const void* weight, u64 strip, int cols, Share share, READ read) {
  int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll(NT == 1 ? 2 : 1)
  for (int first = share.first * TILE_COLS; first < cols; first += share.step * TILE_COLS) {
    u32 b[NT][8], low[8], high[8];
    read_pairs(low, weight, BF16, strip * STRIP_ROWS + g, first + 16 * t, cols);
    read_pairs(high, weight, BF16, strip * STRIP_ROWS + g + 8, first + 16 * t, cols);
#pragma unroll
    for (int j = 0; j < NT; j++) read(b[j], j, first);
#pragma unroll
    for (int k = 0; k < 4; k++) {
      u32 a[4] = {low[2 * k], high[2 * k], low[2 * k + 1], high[2 * k + 1]};
#pragma unroll
      for (int j = 0; j < NT; j++) mma(sums[j], a, b[j] + 2 * k);
    }
  }
}

// The same of rows with a code, an `ExpertsCode`, or 0: bf16.
template <int NT, class READ>
__device__ __forceinline__ void multiply_strip(float (&sums)[NT][4], int code, const void* weight, u64 strip, int cols, Share share,
                                               READ read) {
  if (code == EXPERTS_Q8) packed_strip<Q8, NT>(sums, (const u8*)weight, strip, cols, share, read);
  else if (code == EXPERTS_Q4) packed_strip<Q4, NT>(sums, (const u8*)weight, strip, cols, share, read);
  else if (code == EXPERTS_Q4H) packed_strip<Q4H, NT>(sums, (const u8*)weight, strip, cols, share, read);
  else if (code == EXPERTS_MXFP4) packed_strip<Mxfp4, NT>(sums, (const u8*)weight, strip, cols, share, read);
  else plain_strip<NT>(sums, weight, strip, cols, share, read);
}

// out [pairs, rows] = x W^T of each pair's expert, rows of W expert `rows` to `rows (expert + 1) -
// 1`, plus the same elements of `bias` unless it is null. Pairs are in order of experts; pair i has
// row order[i] / k of x, or i if `order` is null.
// Grid (rows / 16, most tiles of 8 NT pairs), WARPS warps: a block has a strip of the weight, whose
// columns its warps divide, and a tile of pairs. rows is a multiple of 16, cols too. `code`: of
// packed weights, an `ExpertsCode`, else 0. Reads an expert's rows once for 8 NT pairs.
template <int NT>
__device__ __forceinline__ void multiply_pairs(float* out, const void* x, int bf16, const void* weight, const float* bias, int code, int dtype,
                                               const int* order, const int* starts, int experts, int k, int rows, int cols) {
  __shared__ float parts[WARPS][NT][4][32];
  after_previous();
  PairTile<8 * NT> tile(starts, experts, blockIdx.y);
  if (tile.expert < 0) return;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  u64 strip = (u64)tile.expert * (rows / STRIP_ROWS) + blockIdx.x;
  auto bias_of = [&](int row) { return bias ? bias[strip * STRIP_ROWS + row] : 0.0f; };
  if (code == 0 && dtype != BF16) {
    // Weights in f32 and f16: dot products in f32.
    for (int at = threadIdx.x; at < 8 * NT * STRIP_ROWS; at += WARPS * 32) {
      int pair = tile.first + at / STRIP_ROWS, row = at % STRIP_ROWS;
      if (pair >= tile.end) return;
      float sum = 0.0f;
      for (int col = 0; col < cols; col += 8) {
        float v[8], w[8];
        read8(v, x, bf16 ? BF16 : F32, (u64)(order ? order[pair] / k : pair) * cols + col);
        read8(w, weight, dtype, (strip * STRIP_ROWS + row) * cols + col);
#pragma unroll
        for (int i = 0; i < 8; i++) sum = fmaf(v[i], w[i], sum);
      }
      out[(u64)pair * rows + blockIdx.x * STRIP_ROWS + row] = sum + bias_of(row);
    }
    return;
  }
  int from[NT];
#pragma unroll
  for (int j = 0; j < NT; j++) {
    // Pairs that do not exist are read as the last one and not written.
    int pair = min(tile.first + 8 * j + lane / 4, tile.end - 1);
    from[j] = order ? order[pair] / k : pair;
  }
  auto read = [&](u32(&to)[8], int j, int first) {
    read_pairs(to, x, bf16 ? BF16 : F32, from[j], first + lane % 4 * 16, cols);
  };
  float sums[NT][4] = {};
  multiply_strip<NT>(sums, code, weight, strip, cols, Share{warp, WARPS}, read);
#pragma unroll
  for (int j = 0; j < NT; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) parts[warp][j][i][lane] = sums[j][i];
  __syncthreads();
  // The warps' sums, in their order.
  for (int at = threadIdx.x; at < NT * 128; at += WARPS * 32) {
    int j = at / 128, i = at / 32 % 4, of = at % 32;
    float sum = parts[0][j][i][of];
#pragma unroll
    for (int w = 1; w < WARPS; w++) sum += parts[w][j][i][of];
    int pair = tile.first + 8 * j + of % 4 * 2 + i % 2, row = of / 4 + i / 2 * 8;
    if (pair < tile.end) out[(u64)pair * rows + blockIdx.x * STRIP_ROWS + row] = sum + bias_of(row);
  }
}

#define EXPERTS_GEMM(SIZE)                                                                                             \
  KERNEL __launch_bounds__(32 * WARPS)                                                                                 \
      experts_gemm_##SIZE(float* out, const void* x, int bf16, const void* weight, const float* bias, int code,        \
                          int dtype, const int* order, const int* starts, int experts, int k, int rows, int cols) {    \
    multiply_pairs<SIZE / 8>(out, x, bf16, weight, bias, code, dtype, order, starts, experts, k, rows, cols);          \
  }
EXPERTS_GEMM(8)
EXPERTS_GEMM(32)

// x [n, width] += sum over j of weights[j] * out[place[j]], from the most probable expert on; if
// `beside`, x is that sum. Grid (width / 256, n), 256 threads.
KERNEL add_experts(float* x, const float* out, const float* weights, const int* place, int k, int width, int beside) {
  after_previous();
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= width) return;
  u64 at = (u64)blockIdx.y * width + i;
  float sum = beside ? 0.0f : x[at];
  for (int j = blockIdx.y * k; j < (blockIdx.y + 1) * k; j++) sum = fmaf(weights[j], out[(u64)place[j] * width + i], sum);
  x[at] = sum;
}

// The outputs of a strip for one row of x, which all columns of the fragments hold: to [16].
__device__ __forceinline__ void multiply_row(float* to, int code, const void* weight, u64 strip, const void* x, int bf16, u64 row,
                                             int cols, Share share) {
  int lane = threadIdx.x % 32;
  float sums[1][4] = {};
  multiply_strip<1>(sums, code, weight, strip, cols, share, [&](u32(&b)[8], int, int first) {
    read_pairs(b, x, bf16 ? BF16 : F32, row, first + lane % 4 * 16, cols);
  });
  if (lane % 4 == 0) to[lane / 4] = sums[0][0], to[lane / 4 + 8] = sums[0][2];
}

// Of a few tokens: act [pairs, ffn] = the gated product of x W^T of each pair of a token and its
// expert, which every block chooses for itself; those of column 0 store the choice in `chosen` and
// `weights`. Pairs are in order of tokens, k + shared <= MOST_CHOSEN of each. Weights are packed or
// bf16. Grid (ffn / 16, pairs), 2 WARPS warps: half of them has a strip of gates, the other one of
// ups. Reads an expert's rows once for each of its pairs.
KERNEL __launch_bounds__(64 * WARPS)
    gate_experts(void* act, int act_bf16, int* chosen, float* weights, const void* x, int bf16, const float* logits,
                 const float* factors, const void* weight, const float* bias, int code, int kind, int experts, int k, int normalized,
                 int shared, int ffn, int cols) {
  __shared__ u32 keys[MOST_EXPERTS];
  __shared__ int of_token[MOST_CHOSEN];
  __shared__ float weight_of[MOST_CHOSEN], parts[2 * WARPS][STRIP_ROWS];
  after_previous();
  int warp = threadIdx.x / 32, pair = blockIdx.y, token = pair / (k + shared), j = pair % (k + shared), strips = ffn / STRIP_ROWS;
  if (warp == 0) choose(of_token, weight_of, keys, logits + (u64)token * (experts + shared), factors, experts, k, normalized, shared);
  __syncthreads();
  if (blockIdx.x == 0 && threadIdx.x == 0) chosen[pair] = of_token[j], weights[pair] = weight_of[j];
  u64 gates = (u64)of_token[j] * 2 * strips + blockIdx.x, ups = gates + strips;
  multiply_row(parts[warp], code, weight, warp < WARPS ? gates : ups, x, bf16, token, cols, Share{warp % WARPS, WARPS});
  __syncthreads();
  int row = threadIdx.x;
  if (row >= STRIP_ROWS) return;
  float gate = parts[0][row], up = parts[WARPS][row];
#pragma unroll
  for (int w = 1; w < WARPS; w++) gate += parts[w][row], up += parts[WARPS + w][row];
  if (bias) gate += bias[gates * STRIP_ROWS + row], up += bias[ups * STRIP_ROWS + row];
  put(act, act_bf16, (u64)pair * ffn + blockIdx.x * STRIP_ROWS + row, gated(kind, gate, up));
}

// Of a few tokens: x [n, width] += sum over j of weights[j] * act W^T of the token's j-th pair,
// from the most probable expert on; if `beside`, x is that sum. Grid (width / 16, n); k `split`
// warps, at most SUM_WARPS: `split` of each pair, which divide the columns.
KERNEL __launch_bounds__(32 * SUM_WARPS)
    sum_experts(float* x, const void* act, int bf16, const int* chosen, const float* weights, const void* weight, const float* bias,
                int code, int k, int split, int width, int ffn, int beside) {
  __shared__ float parts[SUM_WARPS][STRIP_ROWS];
  after_previous();
  int warp = threadIdx.x / 32, strips = width / STRIP_ROWS, first = blockIdx.y * k, own = first + warp / split;
  multiply_row(parts[warp], code, weight, (u64)chosen[own] * strips + blockIdx.x, act, bf16, own, ffn, Share{warp % split, split});
  __syncthreads();
  int row = threadIdx.x;
  if (row >= STRIP_ROWS) return;
  u64 at = (u64)blockIdx.y * width + blockIdx.x * STRIP_ROWS + row;
  float sum = beside ? 0.0f : x[at];
  for (int j = 0; j < k; j++) {
    float out = bias ? bias[(u64)chosen[first + j] * width + blockIdx.x * STRIP_ROWS + row] : 0.0f;
    for (int w = j * split; w < (j + 1) * split; w++) out += parts[w][row];
    sum = fmaf(weights[first + j], out, sum);
  }
  x[at] = sum;
}
