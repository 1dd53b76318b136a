// Products of two to 32 rows of activations with bf16 weights: bound by the bytes of the weight, which are read once.
// CPU twin: `backend::cpu::linear`, and `swiglu` after it where the kernel is gated.
#include "common.cuh"
#include "tensor.cuh"

#define WARPS 8
#define LINES 32            // rows of the weight for a block
#define DEPTH (32 * WARPS)  // columns of a stage, 32 to a warp

// Where 8 columns of a line stand in a stage: shifted so that the eight lines that one ldmatrix reads meet all banks.
__device__ __forceinline__ int chunk_at(int line, int chunk) { return line * DEPTH + (chunk ^ (line & 7)) * 8; }

// out[n, rows] = x[n, cols] weight[rows, cols]^T + bias, n <= 8 * NT, x in bf16. The weight is the left factor of the
// tensor cores' products. Stages of both factors travel to shared memory STAGES - 1 ahead, the weight's first ones
// before the kernels in front have ended: what bounds this is how many bytes are on their way. Each warp has a part
// of every stage's columns, so that no byte is read from shared memory twice and a block's sums are WARPS parts, added up at
// the end in their order. A token's sums are the same whatever n, STAGES and the other tokens are. Grid (rows / LINES),
// 256 threads. cols is a multiple of 8.
//
// GATED: the weight is [gate | up], of 16 lines eight are gate's and eight up's, and silu(gate) * up goes to
// out[n, rows / 2] in bf16.
template <int NT, int STAGES, bool GATED>
__device__ __forceinline__ void gemm_few(void* out, const u16* x, const u16* weight, const float* bias, int rows,
                                         int cols, int n) {
  constexpr int TOKENS = 8 * NT, STAGE = (LINES + TOKENS) * DEPTH, OUT = GATED ? LINES / 2 : LINES;
  u16* stages = (u16*)dynamic_shared_memory();
  next_may_begin();
  int wide = GATED ? rows / 2 : rows, row0 = blockIdx.x * OUT, steps = (cols + DEPTH - 1) / DEPTH;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const u16* lines[LINES / WARPS];
#pragma unroll
  for (int i = 0; i < LINES / WARPS; i++) {
    int line = warp + WARPS * i, row = row0 + (GATED ? line / 16 * 8 + line % 8 : line);
    // Rows that are not there are computed as the last one and not written.
    lines[i] = weight + (u64)(min(row, wide - 1) + (GATED && line % 16 >= 8 ? wide : 0)) * cols;
  }
  // What lies outside is filled with zeros; its address is not read, but has to be one.
  auto fetch_weight = [&](int stage, int step) {
    u16* to = stages + stage * STAGE;
    int col = step * DEPTH + 8 * lane;
    bool in = col < cols;
#pragma unroll
    for (int i = 0; i < LINES / WARPS; i++)
      copy_async(to + chunk_at(warp + WARPS * i, lane), lines[i] + (in ? col : 0), in);
  };
  auto fetch_x = [&](int stage, int step) {
    u16* to = stages + stage * STAGE + LINES * DEPTH;
    int col = step * DEPTH + 8 * lane;
#pragma unroll
    for (int line = warp; line < TOKENS; line += WARPS) {
      bool in = line < n && col < cols;
      copy_async(to + chunk_at(line, lane), x + (in ? (u64)line * cols + col : 0), in);
    }
  };
  float sums[2][NT][4];
#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
      for (int k = 0; k < 4; k++) sums[i][j][k] = 0.0f;

#pragma unroll
  for (int s = 0; s < STAGES - 1; s++)
    if (s < steps) fetch_weight(s, s);
  wait_previous();
#pragma unroll
  for (int s = 0; s < STAGES - 1; s++) {
    if (s < steps) fetch_x(s, s);
    copy_commit();
  }
  int stage = 0;
#pragma unroll 1
  for (int step = 0; step < steps; step++) {
    copy_wait<STAGES - 2>();
    __syncthreads();
    // Into the stage that all warps were done with at this barrier.
    int ahead = step + STAGES - 1, free = stage == 0 ? STAGES - 1 : stage - 1;
    if (ahead < steps) {
      fetch_weight(free, ahead);
      fetch_x(free, ahead);
    }
    copy_commit();
    const u16 *ws = stages + stage * STAGE, *xs = ws + LINES * DEPTH;
    stage = stage + 1 == STAGES ? 0 : stage + 1;
    u32 a[2][2][4];
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int k = 0; k < 2; k++)
        load_matrices(a[i][k], ws + chunk_at(16 * i + lane % 16, 4 * warp + 2 * k + lane / 16));
#pragma unroll
    for (int j = 0; j < NT; j++) {
      u32 b[4];
      load_matrices(b, xs + chunk_at(8 * j + lane % 8, 4 * warp + lane / 8));
#pragma unroll
      for (int i = 0; i < 2; i++) {
        mma(sums[i][j], a[i][0], b);
        mma(sums[i][j], a[i][1], b + 2);
      }
    }
  }
  copy_wait<0>();
  __syncthreads();

  // In the place of the stages: [WARPS][TOKENS][LINES + 1].
  float* parts = (float*)stages;
  int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
      for (int k = 0; k < 4; k++) {
        int token = 8 * j + 2 * t + k % 2, line = 16 * i + 8 * (k / 2) + g;
        parts[(warp * TOKENS + token) * (LINES + 1) + line] = sums[i][j][k];
      }
  __syncthreads();
  auto total = [&](int token, int line, int row) {
    float sum = bias ? bias[row] : 0.0f;
#pragma unroll
    for (int k = 0; k < WARPS; k++) sum += parts[(k * TOKENS + token) * (LINES + 1) + line];
    return sum;
  };
  for (int at = threadIdx.x; at < TOKENS * OUT; at += 32 * WARPS) {
    int token = at / OUT, r = at % OUT, row = row0 + r, line = GATED ? r / 8 * 16 + r % 8 : r;
    if (token >= n || row >= wide) continue;
    float sum = total(token, line, row);
    if (GATED) sum = silu(sum) * total(token, line + 8, wide + row);
    put(out, GATED, (u64)token * wide + row, sum);
  }
}

// STAGES * (LINES + 8 * NT) * DEPTH * 2 bytes of shared memory: `Kernel::shared_bytes`.
#define GEMM_FEW(name, NT, STAGES, GATED, BLOCKS)                                                                 \
  KERNEL __launch_bounds__(32 * WARPS, BLOCKS)                                                                    \
      name(void* out, const u16* x, const u16* weight, const float* bias, int rows, int cols, int n) {            \
    gemm_few<NT, STAGES, GATED>(out, x, weight, bias, rows, cols, n);                                             \
  }
GEMM_FEW(gemm_few_8, 1, 4, false, 2)
GEMM_FEW(gemm_few_16, 2, 4, false, 2)
GEMM_FEW(gemm_few_32, 4, 3, false, 2)
GEMM_FEW(gemm_few_8_gated, 1, 4, true, 2)
GEMM_FEW(gemm_few_16_gated, 2, 4, true, 2)
GEMM_FEW(gemm_few_32_gated, 4, 3, true, 2)
// For weights of so few rows that a multiprocessor has one block: as many bytes on their way as two have.
GEMM_FEW(gemm_few_32_deep, 4, 6, false, 1)
