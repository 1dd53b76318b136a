// Small-batch GEMM of decode: 2 to 32 rows of bf16 activations times a bf16 weight. Bound by the
// bytes of the weight, which is read once. CPU twin: `backend::cpu::linear`, followed by `swiglu`
// or `add` and preceded by `rms_norm` where they are fused.
#include "common.cuh"
#include "tensor.cuh"

#define WARPS 8      // of a block
#define TILE_ROWS 8  // of a stage that a block copies at once: 16 bytes a thread
#define SQUARED 16   // neighbours whose squares one block adds up

// An RMS norm between two of these GEMMs, which no kernel of its own computes. The first one, which
// has `weight`, adds its result to the residual stream `out` and writes the sum times `weight` to
// `scaled`, and its squares. The second one, which has `non_finite`, reads `scaled` as its x, and
// scales a token's outputs by 1 / rms of its row.
struct Norm {
  u16* scaled;          // [n, width] in bf16
  const float* weight;  // [width], or null
  float* squares;       // [n, width / SQUARED] sums over neighbours of the residual stream
  int* non_finite;      // lowered to `layer` if a row is not finite; or null
  float eps;
  int layer;
};
static_assert(sizeof(Norm) == 40 && OFFSET_OF(Norm, eps) == 32, "backend::cuda::abi::DecodeNorm has another layout");

// Offset of a 16-byte chunk of a tile row of DEPTH columns. Chunks are XOR-swizzled, so that the
// eight rows of an ldmatrix hit all banks.
template <int DEPTH>
__device__ __forceinline__ int chunk_at(int tile_row, int chunk) {
  return tile_row * DEPTH + (chunk ^ (tile_row & 7)) * 8;
}

// out[n, rows] = x[n, cols] weight[rows, cols]^T + bias[rows], n <= 8 * NT, x in bf16, out in f32:
// a GEMM of M = n, N = rows, K = cols. Grid rows / TILE_N, 32 * WARPS threads, TILE_N 16 or 32;
// cols is a multiple of 8. Reads 2 rows cols bytes of the weight once, and x once a block, from L2.
//
// The weight is the A operand of `mma`. Stages of both inputs are copied to shared memory STAGES -
// 1 ahead, the weight's first ones before the previous kernel has ended: bytes in flight are what
// bounds this. Each warp multiplies 32 columns of every stage (split K), so that no byte is read
// from shared memory twice; a block's WARPS partial sums are added at the end in a fixed order. A
// token's result does not depend on n, STAGES or the other tokens.
//
// SWIGLU: the weight is [gate | up]; of 16 tile rows eight are gate's and eight up's, and out[n,
// rows / 2] = silu(gate) * up in bf16; `norm` has no weight.
template <int NT, int TILE_N, int STAGES, bool SWIGLU>
__device__ __forceinline__ void gemm_decode(void* out, const u16* x, const u16* weight, const float* bias, int rows,
                                            int cols, int n, const Norm& norm) {
  constexpr int DEPTH = 32 * WARPS, CHUNKS = DEPTH / 8;  // columns of a stage, in 16-byte chunks
  constexpr int TOKENS = 8 * NT, STAGE = (TILE_N + TOKENS) * DEPTH, OUT = SWIGLU ? TILE_N / 2 : TILE_N, SIXTEENS = TILE_N / 16;
  // A thread writes row row0 + r of every (THREADS / OUT)th token.
  constexpr int THREADS = 32 * WARPS, OUTPUTS = TOKENS * OUT, EACH = (OUTPUTS + THREADS - 1) / THREADS;
  u16* stages = (u16*)dynamic_shared_memory<STAGES * STAGE * sizeof(u16) + TOKENS * sizeof(float)>();
  float* factors = (float*)(stages + STAGES * STAGE);  // of the norm, one a token
  next_may_begin();
  int n_out = SWIGLU ? rows / 2 : rows, row0 = blockIdx.x * OUT, steps = (cols + DEPTH - 1) / DEPTH;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int copied_row = threadIdx.x / CHUNKS, copied_chunk = threadIdx.x % CHUNKS;
  const u16* w_rows[TILE_N / TILE_ROWS];
#pragma unroll
  for (int i = 0; i < TILE_N / TILE_ROWS; i++) {
    int tile_row = copied_row + TILE_ROWS * i, row = row0 + (SWIGLU ? tile_row / 16 * 8 + tile_row % 8 : tile_row);
    // Rows beyond the last are computed as the last one and not written.
    w_rows[i] = weight + (u64)(min(row, n_out - 1) + (SWIGLU && tile_row % 16 >= 8 ? n_out : 0)) * cols;
  }
  // Chunks outside are filled with zeros; their address is not read, but has to be valid.
  auto fetch_weight = [&](int stage, int step) {
    u16* to = stages + stage * STAGE;
    int col = step * DEPTH + 8 * copied_chunk;
    bool in = col < cols;
#pragma unroll
    for (int i = 0; i < TILE_N / TILE_ROWS; i++)
      copy_async(to + chunk_at<DEPTH>(copied_row + TILE_ROWS * i, copied_chunk), w_rows[i] + (in ? col : 0), in);
  };
  auto fetch_x = [&](int stage, int step) {
    u16* to = stages + stage * STAGE + TILE_N * DEPTH;
    int col = step * DEPTH + 8 * copied_chunk;
#pragma unroll
    for (int tile_row = copied_row; tile_row < TOKENS; tile_row += TILE_ROWS) {
      bool in = tile_row < n && col < cols;
      copy_async(to + chunk_at<DEPTH>(tile_row, copied_chunk), x + (in ? (u64)tile_row * cols + col : 0), in);
    }
  };
  float sums[SIXTEENS][NT][4] = {};
#pragma unroll
  for (int s = 0; s < STAGES - 1; s++)
    if (s < steps) fetch_weight(s, s);
  int r = threadIdx.x % OUT, row = row0 + r;
  bool adds = !SWIGLU && norm.weight;
  float by = adds && row < n_out ? norm.weight[row] : 0.0f;
  wait_previous();
#pragma unroll
  for (int s = 0; s < STAGES - 1; s++) {
    if (s < steps) fetch_x(s, s);
    copy_commit();
  }
  // What is added to.
  float before[EACH];
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    int token = threadIdx.x / OUT + i * (THREADS / OUT);
    before[i] = adds && token < n && row < n_out ? ((const float*)out)[(u64)token * n_out + row] : 0.0f;
  }
  // Factors of the norm, every WARPS-th token a warp.
  if (norm.non_finite) {
    float squares[(TOKENS + WARPS - 1) / WARPS] = {};
    int count = cols / SQUARED;
#pragma unroll 1
    for (int i = 4 * lane; i < count; i += 128)
#pragma unroll
      for (int k = 0; k * WARPS < TOKENS; k++) {
        int token = warp + k * WARPS;
        if (token >= n) continue;
        float4 v = *(const float4*)(norm.squares + token * count + i);
        squares[k] += v.x + v.y + v.z + v.w;
      }
#pragma unroll
    for (int k = 0; k * WARPS < TOKENS; k++) {
      int token = warp + k * WARPS;
      float sum = warp_sum(squares[k]);
      int* reported = blockIdx.x == 0 ? norm.non_finite : nullptr;
      if (lane == 0 && token < n) factors[token] = rms_factor(sum, cols, norm.eps, norm.layer, reported);
    }
  }
  int stage = 0;
  // Main loop over K.
#pragma unroll 1
  for (int step = 0; step < steps; step++) {
    copy_wait<STAGES - 2>();
    __syncthreads();
    // Prefetch into the stage that all warps have left at this barrier.
    int ahead = step + STAGES - 1, free = stage == 0 ? STAGES - 1 : stage - 1;
    if (ahead < steps) {
      fetch_weight(free, ahead);
      fetch_x(free, ahead);
    }
    copy_commit();
    const u16 *ws = stages + stage * STAGE, *xs = ws + TILE_N * DEPTH;
    stage = stage + 1 == STAGES ? 0 : stage + 1;
    u32 a[SIXTEENS][2][4];
#pragma unroll
    for (int i = 0; i < SIXTEENS; i++)
#pragma unroll
      for (int k = 0; k < 2; k++)
        load_matrices(a[i][k], ws + chunk_at<DEPTH>(16 * i + lane % 16, 4 * warp + 2 * k + lane / 16));
#pragma unroll
    for (int j = 0; j < NT; j++) {
      u32 b[4];
      load_matrices(b, xs + chunk_at<DEPTH>(8 * j + lane % 8, 4 * warp + lane / 8));
#pragma unroll
      for (int i = 0; i < SIXTEENS; i++) {
        mma(sums[i][j], a[i][0], b);
        mma(sums[i][j], a[i][1], b + 2);
      }
    }
  }
  copy_wait<0>();
  __syncthreads();

  // Partial sums reuse the stages' memory: [WARPS][TOKENS][TILE_N + 1].
  float* partials = (float*)stages;
  int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int i = 0; i < SIXTEENS; i++)
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
      for (int k = 0; k < 4; k++) {
        int token = 8 * j + 2 * t + k % 2, tile_row = 16 * i + 8 * (k / 2) + g;
        partials[(warp * TOKENS + token) * (TILE_N + 1) + tile_row] = sums[i][j][k];
      }
  __syncthreads();
  auto total = [&](int token, int tile_row, int row) {
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < WARPS; k++) sum += partials[(k * TOKENS + token) * (TILE_N + 1) + tile_row];
    if (norm.non_finite) sum *= factors[token];
    return sum + (bias ? bias[row] : 0.0f);
  };
  // Reduce over warps and write.
  int tile_row = SWIGLU ? r / 8 * 16 + r % 8 : r;
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    int token = threadIdx.x / OUT + i * (THREADS / OUT);
    if (token >= TOKENS) break;  // whole warps
    u64 at = (u64)token * n_out + row;
    bool real = token < n && row < n_out;
    float sum = real ? total(token, tile_row, row) : 0.0f;
    if (SWIGLU && real) sum = silu(sum) * total(token, tile_row + 8, n_out + row);
    sum += before[i];
    if (real) put(out, SWIGLU, at, sum);
    if (!adds) continue;
    // The next norm's input.
    if (real) norm.scaled[at] = f32_to_bf16(sum * by);
    float square = sum * sum;
#pragma unroll
    for (int m = SQUARED / 2; m > 0; m /= 2) square += __shfl_xor_sync(FULL, square, m);
    if (real && r % SQUARED == 0) norm.squares[at / SQUARED] = square;
  }
}

// Tiles of 16 rows give narrow matrices more blocks, but with 32 tokens x from L2 would be twice
// the weight.
#define GEMM_DECODE(name, NT, TILE_N, STAGES, SWIGLU, BLOCKS) \
  KERNEL __launch_bounds__(32 * WARPS, BLOCKS) \
      name(void* out, const u16* x, const u16* weight, const float* bias, int rows, int cols, int n, Norm norm) { \
    gemm_decode<NT, TILE_N, STAGES, SWIGLU>(out, x, weight, bias, rows, cols, n, norm); \
  }
GEMM_DECODE(gemm_decode_8, 1, 16, 6, false, 2)
GEMM_DECODE(gemm_decode_16, 2, 16, 4, false, 2)
GEMM_DECODE(gemm_decode_32, 4, 32, 3, false, 2)
GEMM_DECODE(gemm_decode_8_swiglu, 1, 16, 6, true, 2)
GEMM_DECODE(gemm_decode_16_swiglu, 2, 16, 4, true, 2)
GEMM_DECODE(gemm_decode_32_swiglu, 4, 32, 3, true, 2)
// For weights of so few rows that an SM has one block: as many bytes in flight as two blocks have.
GEMM_DECODE(gemm_decode_16_tall, 2, 32, 6, false, 1)
GEMM_DECODE(gemm_decode_32_deep, 4, 32, 6, false, 1)
// For weights of many columns and so few rows that an SM has two blocks.
GEMM_DECODE(gemm_decode_8_long, 1, 16, 8, false, 2)
