// Small-batch GEMM of decode on Hopper: 17 to 32 rows of bf16 activations times a packed weight
// (`codes.cuh`), by wgmma. CPU twin: `backend::cpu::linear`, followed by `swiglu` if fused.
//
// The weight is the A operand, decoded to registers; x is B, from shared memory, in the order in
// which the codes lie (`image.cuh`). Per tile of 16 x 64 weights and warp that is four wgmmas where
// `packed_resident.cu` needs sixteen `mma`.
#include "codes.cuh"
#include "hopper.cuh"
#include "image.cuh"

// Shared memory of a block: for each of WGK stages of K the ring, then the barriers. Partial sums
// take the rings' place.
template <class CODE, int WGM, int WGK, int STAGES>
struct Shape {
  static constexpr int ROWS = 64 * WGM, STRIPS = 4 * WGM, CODE_BYTES = GROUP_TILES * (TILE_BYTES + Layout<CODE>::LOW_TILE);
  static constexpr int UNIT = CODE_BYTES + CODE::MOST_WORD_BYTES;
  static constexpr int X_BYTES = GROUP_TILES * IMAGE_TILE, STAGE = (X_BYTES + STRIPS * UNIT + 1023) / 1024 * 1024;
  static constexpr int RINGS = WGK * STAGES * STAGE, SUMS = WGK * ROWS * (IMAGE_ROWS + 1) * 4;
  static constexpr int BARRIERS_AT = RINGS > SUMS ? RINGS : SUMS, BYTES = BARRIERS_AT + 2 * WGK * STAGES * 8;
};

// Two of eight codes as bf16, less the zero point: exact.
template <class CODE>
__device__ __forceinline__ u32 code_pair(u32 high, u32 low, int i, u32 zero) {
  if constexpr (CODE::HALVES == 2) return code_less_zero<CODE>(high, low, i, zero);
  if (CODE::LOW_BITS == 0) {
    // 16 + code, less 16 + zero
    u32 moved = i == 0 ? high << 3 : high >> (4 * i - 3);
    return subtract_pair(and_or(moved, 0x00780078u, 0x41804180u), zero);
  }
  // 128 + the low 7 bits of the code, less 128 + 128 where the high bit is 0
  u32 code = logic3<0xe4>(i == 0 ? high << 4 : high >> (4 * i - 4), low >> (4 * i), 0x00f000f0u);  // the mask's bits from high
  return subtract_pair(and_or(code, 0x007f007fu, 0x43004300u), and_not_or(code, 0x00800080u, 0x43004300u));
}

// Arguments of the kernels here.
#define GEMM_PARAMS \
  void *out, u8 *image, const u8 *x, const u8 *weight, const float *bias, float *parts, int *arrivals, int rows, int cols, int n, \
      int ld, int swiglu

// out[n, rows] = x[n, cols] weight[rows, cols]^T + bias[rows], n <= IMAGE_ROWS, x as an image, out
// in f32 with `ld` values from row to row: a GEMM of M = n, N = rows, K = cols. Grid (one block for
// 64 * WGM rows of the weight; blocks that divide the columns), WGK * WGM warpgroups and a warp
// that copies; cols is a multiple of 256. Reads the weight once, and x once a block, from L2.
//
// A warpgroup has 64 rows and some groups of four tiles of columns. The sum over a tile is scaled
// in f32. Sums of warpgroups, then of blocks, are added in a fixed order: a token's result does not
// depend on n or the other tokens. Where blocks divide the columns each puts its sums into `parts`
// [gridDim.y, gridDim.x, ROWS, N], and the last to arrive adds them up; `arrivals` [gridDim.x] is
// zero before and after.
//
// `swiglu`: the weight is [gate | up]; half of a warpgroup's strips are gate's and half up's, and
// out[n, rows / 2] = silu(gate) * up
// in bf16, and as an image too if `image` is not null; rows is a multiple of 32.
template <class CODE, int WGM, int WGK, int STAGES>
__device__ __forceinline__ void gemm(GEMM_PARAMS) {
  using S = Shape<CODE, WGM, WGK, STAGES>;
  typedef typename WordsOf<CODE::HALVES>::Type Words;
  constexpr int N = IMAGE_ROWS, CONSUMERS = 4 * WGM * WGK, HIGH = GROUP_TILES * TILE_BYTES, LOW_TILE = Layout<CODE>::LOW_TILE;
  constexpr int LOW = GROUP_TILES * LOW_TILE, WORDS = CODE::MOST_WORD_BYTES;
  u8* memory = (u8*)tile_memory<S::BYTES>();
  u64 *full = (u64*)(memory + S::BARRIERS_AT), *empty = full + WGK * STAGES;
  Layout<CODE> at(cols);
  // The shuffle tells the compiler that a warp has one.
  int warp = __shfl_sync(FULL, threadIdx.x / 32, 0), lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  int strips = (rows + STRIP_ROWS - 1) / STRIP_ROWS, groups = at.groups, first = blockIdx.y * WGK, step = gridDim.y * WGK;
  next_may_begin();
  if (threadIdx.x < WGK * STAGES) {
    barrier_init(full + threadIdx.x, 2);
    barrier_init(empty + threadIdx.x, 4 * WGM);
  }
  barriers_made();
  __syncthreads();
  float sums[N / 2] = {};

  if (warp == CONSUMERS) {
    // Copies, by lane i those of strip i. Strips beyond the last are computed as the last one and
    // not written.
    int strip = 4 * (int)blockIdx.x * WGM + lane;
    if (swiglu) strip = min(2 * ((int)blockIdx.x * WGM + lane / 4) + lane % 2, strips / 2 - 1) + lane % 4 / 2 * (strips / 2);
    const u8* from = weight + at.strip_bytes * min(strip, strips - 1);
    auto copy_codes = [&](int i, int k) {
      int group = first + k + i * step, stage = k * STAGES + i % STAGES;
      if (group >= groups) return;
      if (lane == 0) barrier_expect(full + stage, S::STRIPS * S::UNIT);
      __syncwarp();
      if (lane >= S::STRIPS) return;
      u8* to = memory + stage * S::STAGE + S::X_BYTES + lane * S::UNIT;
      copy_bulk(to, from + (u64)group * HIGH, HIGH, full + stage);
      if constexpr (LOW > 0) copy_bulk(to + HIGH, from + at.low_at + (u64)group * LOW, LOW, full + stage);
      copy_bulk(to + HIGH + LOW, from + at.words_at + group * WORDS, WORDS, full + stage);
    };
    auto copy_x = [&](int i, int k) {
      int group = first + k + i * step, stage = k * STAGES + i % STAGES;
      if (group >= groups || lane > 0) return;
      barrier_expect(full + stage, S::X_BYTES);
      copy_bulk(memory + stage * S::STAGE, x + (u64)group * S::X_BYTES, S::X_BYTES, full + stage);
    };
    for (int i = 0; i < STAGES; i++)
      for (int k = 0; k < WGK; k++) copy_codes(i, k);
    wait_previous();
    for (int i = 0; i < STAGES; i++)
      for (int k = 0; k < WGK; k++) copy_x(i, k);
    for (int i = STAGES; first + i * step < groups; i++)
      for (int k = 0; k < WGK && first + k + i * step < groups; k++) {
        barrier_wait(empty + k * STAGES + i % STAGES, (i / STAGES - 1) & 1);
        copy_codes(i, k);
        copy_x(i, k);
      }
  } else {
    int group_of = warp / 4, m = group_of % WGM, k_part = group_of / WGM, stage = 0;
    u32 parity = 0, a[2][8];
    // Of two tiles, or of two halves.
    float part[2][N / 2] = {}, scale[2][2] = {};
#pragma unroll 1
    for (int group = first + k_part; group < groups; group += step) {
      u64* ready = full + k_part * STAGES + stage;
      const u8* staged = memory + (k_part * STAGES + stage) * S::STAGE;
      const u8* codes = staged + S::X_BYTES + (4 * m + warp % 4) * S::UNIT;
      barrier_wait(ready, parity);
      Words words[GROUP_TILES];
#pragma unroll
      for (int i = 0; i < GROUP_TILES * (int)sizeof(Words) / 16; i++)
        ((uint4*)words)[i] = ((const uint4*)((const Words*)(codes + HIGH + LOW) + g * GROUP_TILES))[i];
      u64 b = tile_at((const u16*)staged, 0);
#pragma unroll
      for (int h = 0; h < GROUP_TILES; h++) {
        LaneCodes<CODE::LOW_BITS> v(codes + h * TILE_BYTES, codes + HIGH + h * LOW_TILE, lane);
#pragma unroll
        for (int half = 0; half < 2; half++) {
          u32 word = words_of(words[h], half), scales = CODE::scales(word), zero[2];
          if constexpr (CODE::HALVES == 2) {
            zero[0] = zero_pair<CODE>(word), zero[1] = zero_pair<CODE>(word >> 16);
          } else {
            u32 zeros = (word << 2 & 0x007c007cu) | 0x41804180u;
            zero[0] = __byte_perm(zeros, 0, 0x1010), zero[1] = __byte_perm(zeros, 0, 0x3232);
          }
          // All wgmmas but those of the last half have ended: these registers are free, and the
          // sums of the tile before, or of the half before the last, are there.
          wgmma_wait<1>();
          int done = CODE::HALVES == 2 ? half : (h + 1) & 1, next = CODE::HALVES == 2 ? half : h & 1;
          if (CODE::HALVES == 2 || half == 1) {
            pin(part[done]);
#pragma unroll
            for (int i = 0; i < N / 2; i++) sums[i] = fmaf(scale[done][i / 2 % 2], part[done][i], sums[i]);
            scale[next][0] = f16_value(scales), scale[next][1] = f16_value(scales >> 16);
          }
          // codes to bf16
#pragma unroll
          for (int i = 0; i < 8; i++) a[half][i] = code_pair<CODE>(v.high[i % 2][half], v.low[i % 2][half], i / 2, zero[i % 2]);
          pin(a[half]);
          wgmma_begin();
#pragma unroll
          for (int k = 0; k < 2; k++)
            wgmma_registers<N>(part[next], a[half] + 4 * k, after(b, h * IMAGE_TILE + 64 * half + 32 * k),
                               k || (CODE::HALVES == 1 && half));
          wgmma_commit();
        }
      }
      // The assembler makes wgmmas wait for each other if some are in flight from one round to the
      // next.
      wgmma_wait<0>();
      if (lane == 0) barrier_arrive(empty + k_part * STAGES + stage);
      if (++stage == STAGES) stage = 0, parity ^= 1;
    }
    wgmma_wait<0>();
#pragma unroll
    for (int p = CODE::HALVES == 2 ? 0 : 1; p < 2; p++) {
      pin(part[p]);
#pragma unroll
      for (int i = 0; i < N / 2; i++) sums[i] = fmaf(scale[p][i / 2 % 2], part[p][i], sums[i]);
    }
  }
  __syncthreads();

  // sums of the warpgroups, through shared memory
  float(*shared)[S::ROWS][N + 1] = (float(*)[S::ROWS][N + 1])memory;
  if (warp < CONSUMERS) {
    int m = warp / 4 % WGM, k_part = warp / 4 / WGM;
#pragma unroll
    for (int i = 0; i < N / 2; i++)
      shared[k_part][m * 64 + warp % 4 * 16 + g + 8 * (i / 2 % 2)][8 * (i / 4) + 2 * t + i % 2] = sums[i];
  }
  __syncthreads();
  auto sum_of = [&](int r, int token) {
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < WGK; k++) sum += shared[k][r][token];
    return sum;
  };
  int blocks = gridDim.y;
  if (blocks > 1) {
    float* mine = parts + (u64)(blockIdx.y * gridDim.x + blockIdx.x) * S::ROWS * N;
    for (int i = threadIdx.x; i < S::ROWS * N; i += blockDim.x) mine[i] = sum_of(i / N, i % N);
    if (!is_last(arrivals + blockIdx.x, blocks, *(bool*)full)) return;
    // the sums of all blocks, in order
    for (int i = threadIdx.x; i < S::ROWS * N; i += blockDim.x) {
      float sum = 0.0f;
      for (int k = 0; k < blocks; k++)
        sum += *(volatile float*)(parts + (u64)(k * gridDim.x + blockIdx.x) * S::ROWS * N + i);
      shared[0][i / N][i % N] = sum;
#pragma unroll
      for (int k = 1; k < WGK; k++) shared[k][i / N][i % N] = 0.0f;
    }
    __syncthreads();
  }
  auto value = [&](int r, int token, int row) { return bias ? sum_of(r, token) + bias[row] : sum_of(r, token); };
  if (!swiglu) {
    for (int i = threadIdx.x; i < S::ROWS * n; i += blockDim.x) {
      int r = i % S::ROWS, token = i / S::ROWS, row = blockIdx.x * S::ROWS + r;
      if (row < rows) ((float*)out)[(u64)token * ld + row] = value(r, token, row);
    }
    return;
  }
  // two neighbours of the output
  for (int i = threadIdx.x; i < S::ROWS / 4 * n; i += blockDim.x) {
    int r = i % (S::ROWS / 4) * 2, token = i / (S::ROWS / 4), row = blockIdx.x * (S::ROWS / 2) + r, n_out = rows / 2;
    if (row >= n_out) continue;
    float y[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
      int gate = r / 32 * 64 + r % 32 + k;
      y[k] = silu_fast(value(gate, token, row + k)) * value(gate + 32, token, n_out + row + k);
    }
    put2(out, 1, (u64)token * ld + row, y[0], y[1]);
    if (image) put_image2(image, token, row, y[0], y[1]);
  }
}

// An image of x[n, cols], cols a multiple of 64. Any grid and block. Moves 4 bytes per value.
KERNEL make_image(u8* image, const u16* x, int cols, int n) {
  after_previous();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n * cols / 2; i += gridDim.x * blockDim.x) {
    int row = i / (cols / 2), col = i % (cols / 2) * 2;
    *(u32*)(image + image_at(row, col)) = *(const u32*)(x + (u64)row * cols + col);
  }
}

#define PACKED_WGMMA(name, CODE, WGM, WGK, STAGES)                                                             \
  KERNEL __launch_bounds__(128 * WGM * WGK + 32, 1) name(GEMM_PARAMS) {                                        \
    gemm<CODE, WGM, WGK, STAGES>(out, image, x, weight, bias, parts, arrivals, rows, cols, n, ld, swiglu);     \
  }
// Wide matrices: 192 rows a block. Narrow ones: 64 rows, whose columns four or three warpgroups
// divide.
PACKED_WGMMA(packed_wgmma_q4_wide, Q4, 3, 1, 5)
PACKED_WGMMA(packed_wgmma_q4_narrow, Q4, 1, 4, 2)
PACKED_WGMMA(packed_wgmma_q8_wide, Q8, 3, 1, 3)
PACKED_WGMMA(packed_wgmma_q8_narrow, Q8, 1, 3, 2)
PACKED_WGMMA(packed_wgmma_q4h_wide, Q4H, 3, 1, 5)
PACKED_WGMMA(packed_wgmma_q4h_narrow, Q4H, 1, 4, 2)
PACKED_WGMMA(packed_wgmma_q6h_wide, Q6H, 3, 1, 4)
PACKED_WGMMA(packed_wgmma_q6h_narrow, Q6H, 1, 3, 2)
