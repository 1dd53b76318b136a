// GEMM of prefill with `wgmma` and TMA (compute_90a, Hopper): many rows of bf16 activations times a
// bf16 weight. CPU twin:
// `backend::cpu::linear`, followed by `swiglu` if fused. Other GPUs: `gemm.cu`.
#include "common.cuh"
#include "hopper.cuh"

#define DEPTH 64     // columns of a stage: 128 bytes, the width of the swizzle
#define TOKENS 128   // rows of activations of a tile
#define CONSUMERS 8  // consumer warps: two warpgroups

// out[n, rows] = x[n, cols] weight[rows, cols]^T + bias[rows], x in bf16, out in f32: a GEMM of M =
// n, N = rows, K = cols, in tiles of 128 x BN. Rows of out are `ld` values apart. Grid: at most one
// block per SM, 288 threads; cols is a multiple of 8. Neighbouring blocks share a tile of the
// weight, which is read from memory about once, while x stays in L2.
//
// Warp-specialized: one thread of the last warp (the producer) issues the TMA copies of both inputs
// while a stage is free; two warpgroups (the consumers) multiply 64 tokens each and release the
// stages. Blocks are persistent: the next tile's copies are in flight while this tile's sums are
// written.
//
// SWIGLU: the weight is [gate | up]; a tile has BN / 2 rows of either, and out[n, rows / 2] =
// silu(gate) * up in bf16.
template <int BN, int STAGES, bool SWIGLU>
__device__ __forceinline__ void gemm_tiles(void* out, const TensorMap* x, const TensorMap* weight, const float* bias,
                                         int rows, int cols, int n, int ld) {
  constexpr int OUT_N = SWIGLU ? BN / 2 : BN;  // rows of out in a tile
  __shared__ u64 full[STAGES], empty[STAGES];
  u16 *xs = tile_memory<STAGES * (TOKENS + BN) * DEPTH * sizeof(u16)>(), *ws = xs + STAGES * TOKENS * DEPTH;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; s++) barrier_init(full + s, 1), barrier_init(empty + s, CONSUMERS);
    barriers_made();
  }
  after_previous();
  __syncthreads();
  // Rows of out, and where the second half of the weight begins.
  int n_out = SWIGLU ? rows / 2 : rows;
  int token_tiles = (n + TOKENS - 1) / TOKENS, tiles = token_tiles * ((n_out + OUT_N - 1) / OUT_N);
  int steps = (cols + DEPTH - 1) / DEPTH;
  int stage = 0;
  u32 round = 0;  // its lowest bit is the parity of the phase of this stage
  auto advance = [&] {
    if (++stage == STAGES) stage = 0, round ^= 1;
  };

  // Producer.
  if (warp == CONSUMERS) {
    if (lane) return;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      int token0 = tile % token_tiles * TOKENS, row0 = tile / token_tiles * OUT_N;
      int second = row0 + (SWIGLU ? n_out : BN / 2);
      for (int step = 0; step < steps; step++, advance()) {
        barrier_wait(empty + stage, round ^ 1);
        barrier_expect(full + stage, (TOKENS + BN) * DEPTH * sizeof(u16));
        u16* w = ws + stage * BN * DEPTH;
        copy_tile(xs + stage * TOKENS * DEPTH, x, step * DEPTH, token0, full + stage);
        copy_tile(w, weight, step * DEPTH, row0, full + stage);
        copy_tile(w + BN / 2 * DEPTH, weight, step * DEPTH, second, full + stage);
      }
    }
    return;
  }

  // Consumers.
  int group = warp / 4, g = lane / 4, t = lane % 4;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    float sums[BN / 2] = {};
    u64* used = empty;
    // Main loop over K. Unrolled, the compiler would wait for every wgmma.
#pragma unroll 1
    for (int step = 0; step < steps; step++, advance()) {
      barrier_wait(full + stage, round);
      const u16 *a = xs + (stage * TOKENS + group * 64) * DEPTH, *b = ws + stage * BN * DEPTH;
      wgmma_begin();
#pragma unroll
      for (int k = 0; k < DEPTH / 16; k++) wgmma<BN>(sums, tile_at(a, k), tile_at(b, k), 1);
      wgmma_commit();
      // The wgmmas of the previous stage have ended; these are in flight.
      wgmma_wait<1>();
      if (lane == 0 && step > 0) barrier_arrive(used);
      used = empty + stage;
    }
    wgmma_wait<0>();
    if (lane == 0) barrier_arrive(used);

    int token0 = tile % token_tiles * TOKENS + group * 64 + warp % 4 * 16 + g, row0 = tile / token_tiles * OUT_N;
    // Epilogue: the output of token 8 half and of row 8 j + 2 t + i.
    auto value = [&](int j, int half, int i) {
      int row = row0 + 8 * j + 2 * t + i;
      float v = sums[4 * j + 2 * half + i];
      if (bias) v += bias[row];
      if (SWIGLU) {
        // Gate and up of an output are BN / 2 columns apart: sums of one thread.
        float up = sums[(BN / 4 + 4 * j + 2 * half + i) % (BN / 2)];
        if (bias) up += bias[n_out + row];
        v = silu_fast(v) * up;
      }
      return v;
    };
    if (ld % 4 == 0 && row0 + OUT_N <= n_out) {
      bool odd = t % 2;
#pragma unroll
      for (int j = 0; j < OUT_N / 8; j += 2)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          // Two warp lanes swap pairs, so that each has four neighbours to write.
          float a[2] = {value(j, half, 0), value(j, half, 1)}, b[2] = {value(j + 1, half, 0), value(j + 1, half, 1)};
          int token = token0 + 8 * half, row = row0 + 8 * (j + odd) + 2 * (t - odd);
          u64 at = (u64)token * ld + row;
          if (SWIGLU) {
            u32 own = round_pair(a[0], a[1]), next = round_pair(b[0], b[1]);
            u32 got = __shfl_xor_sync(FULL, odd ? own : next, 1);
            if (token < n) *(uint2*)((u16*)out + at) = odd ? uint2{got, next} : uint2{own, got};
          } else {
            float x = __shfl_xor_sync(FULL, odd ? a[0] : b[0], 1), y = __shfl_xor_sync(FULL, odd ? a[1] : b[1], 1);
            if (token < n) *(float4*)((float*)out + at) = odd ? float4{x, y, b[0], b[1]} : float4{a[0], a[1], x, y};
          }
        }
      continue;
    }
#pragma unroll
    for (int j = 0; j < OUT_N / 8; j++)
#pragma unroll
      for (int half = 0; half < 2; half++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
          int token = token0 + 8 * half, row = row0 + 8 * j + 2 * t + i;
          if (token < n && row < n_out) put(out, SWIGLU, (u64)token * ld + row, value(j, half, i));
        }
  }
}

#define GEMM_WGMMA(name, BN, STAGES, SWIGLU) \
  KERNEL __launch_bounds__((CONSUMERS + 1) * 32, 1) \
      name(void* out, const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap weight, \
           const float* bias, int rows, int cols, int n, int ld) { \
    gemm_tiles<BN, STAGES, SWIGLU>(out, &x, &weight, bias, rows, cols, n, ld); \
  }
GEMM_WGMMA(gemm_wgmma_256, 256, 4, false)
GEMM_WGMMA(gemm_wgmma_128, 128, 6, false)
GEMM_WGMMA(gemm_wgmma_192_swiglu, 192, 5, true)
GEMM_WGMMA(gemm_wgmma_128_swiglu, 128, 6, true)
