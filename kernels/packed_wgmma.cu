// Small-batch GEMM of decode with `wgmma` (compute_90a, Hopper): 17 to 32 rows of bf16 activations times a packed weight
// (`codes.cuh`). CPU twin: `backend::cpu::linear`, followed by `swiglu` if fused. Other GPUs: `packed_resident.cu`.
#include "codes.cuh"
#include "hopper.cuh"

#define WARPGROUP 128
#define GROUP_CODES (GROUP_TILES * TILE_BYTES)  // bytes of a group of tiles in a plane

// What a tile's word of rows g and g + 8 says, and its codes less their zero point as pairs of bf16, which is exact.
template <class CODE>
struct Tile;

template <>
struct Tile<Q4> {
  float scale[2];
  u32 zero[2];  // twice, as 16 + zero

  __device__ __forceinline__ void read(u32 word) {
    u32 zeros = ((word << 2) & 0x007c007cu) | 0x41804180u, scales = (word >> 4) & 0x0ffe0ffeu;
    zero[0] = __byte_perm(zeros, 0, 0x1010), zero[1] = __byte_perm(zeros, 0, 0x3232);
    // bf16 has the exponent of f16 with another bias: 2^112.
    const float by = __uint_as_float(0x77800000u);
    scale[0] = __uint_as_float(scales << 16) * by, scale[1] = __uint_as_float(scales & 0xffff0000u) * by;
  }

  // Columns 2 i and 2 i + 1 of eight of row g + 8 h. A nibble becomes bf16 as 16 + code.
  __device__ __forceinline__ u32 pair(const u32 (&words)[1], int i, int h) const {
    u32 at_bit_3 = i == 0 ? words[0] << 3 : words[0] >> (4 * i - 3);
    return subtract_pairs((at_bit_3 & 0x00780078u) | 0x41804180u, zero[h]);
  }
};

template <>
struct Tile<Q8> {
  float scale[2];

  __device__ __forceinline__ void read(u32 word) { scale[0] = f16_value(word), scale[1] = f16_value(word >> 16); }

  // 128 + the lower seven bits, less 256 or, where the highest bit is set, less 128.
  __device__ __forceinline__ u32 pair(const u32 (&words)[2], int i, int) const {
    u32 high = i == 0 ? words[0] << 4 : words[0] >> (4 * i - 4), low = words[1] >> (4 * i);
    u32 codes = (high & 0x00f000f0u) | (low & ~0x00f000f0u);
    return subtract_pairs((codes & 0x007f007fu) | 0x43004300u, (~codes & 0x00800080u) | 0x43004300u);
  }
};

// out[n, rows] = x[n, cols] weight[rows, cols]^T + bias[rows], n <= TOKENS, x in bf16, out in f32: a GEMM of M = n, N = rows,
// K = cols. A block computes 64 * ROW_GROUPS rows of the weight, with ROW_GROUPS * K_GROUPS warpgroups; cols is a multiple of
// 64. Reads the weight once, and x once a block, from L2.
//
// The weight is the A operand of `wgmma`, in registers: a warpgroup multiplies four strips, one for each of its warps. The
// columns are divided among K_GROUPS groups of warps, four tiles at a time. A warp's codes come through a ring of STAGES units
// of four tiles, the first ones before the previous kernel has ended. x is the B operand, in shared memory, in the order of
// columns in which a warp lane has the codes: a group of warps copies it through registers, the next tiles while these are
// multiplied. A tile's sums are scaled and added in f32 while the next tile is multiplied, and those of the groups in a fixed
// order: a token's result does not depend on n or the other tokens.
//
// SWIGLU: the weight is [gate | up]; of a warpgroup's four strips two are gate's and two up's, and out[n, rows / 2] =
// silu(gate) * up in bf16; rows is a multiple of 32.
template <class CODE, int TOKENS, int ROW_GROUPS, int K_GROUPS, int STAGES, bool SWIGLU>
__device__ __forceinline__ void gemm(void* out, const u16* x, const u8* weight, const float* bias, int rows, int cols,
                                     int n) {
  constexpr int PLANES = CODE::PLANES, UNIT = PLANES * GROUP_CODES + WORD_BYTES, ROWS = 64 * ROW_GROUPS;
  constexpr int THREADS = WARPGROUP * ROW_GROUPS, WARPS = 4 * ROW_GROUPS * K_GROUPS;
  // An item of x is 32 columns of a token: a warp lane's share, in four chunks of 8 columns that are 16 apart.
  constexpr int X_TILE = TOKENS * TILE_COLS, ITEMS = 2 * GROUP_TILES * TOKENS, PER = (ITEMS + THREADS - 1) / THREADS;
  constexpr int OUT = SWIGLU ? ROWS / 2 : ROWS, WIDTH = TOKENS + 1;
  __shared__ u64 arrived[WARPS][STAGES];
  u16* memory = tile_memory();
  next_may_begin();
  Layout<CODE> at(cols);
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  int row_group = warp / 4 % ROW_GROUPS, k_group = warp / 4 / ROW_GROUPS, thread = threadIdx.x % THREADS;
  u16* xs = memory + k_group * 2 * GROUP_TILES * X_TILE;
  u8* ring = (u8*)(memory + K_GROUPS * 2 * GROUP_TILES * X_TILE) + warp * STAGES * UNIT;
  if (lane < STAGES) barrier_init(arrived[warp] + lane, 1);
  barriers_made();
  __syncwarp();

  // Strips beyond the last are computed as the last one and not written.
  int strips = (rows + STRIP_ROWS - 1) / STRIP_ROWS, four = blockIdx.x * ROW_GROUPS + row_group, strip = four * 4 + warp % 4;
  if (SWIGLU) strip = min(four * 2 + warp % 2, strips / 2 - 1) + warp % 4 / 2 * (strips / 2);
  const u8* from = weight + at.strip_bytes * min(strip, strips - 1);
  auto fetch = [&](int stage, int group) {
    if (lane || group >= at.groups) return;
    u8* to = ring + stage * UNIT;
    u32 bytes = min(GROUP_TILES, at.tiles - group * GROUP_TILES) * TILE_BYTES;
    barrier_expect(arrived[warp] + stage, PLANES * bytes + WORD_BYTES);
#pragma unroll
    for (int p = 0; p < PLANES; p++)
      copy_bulk(to + p * GROUP_CODES, from + p * at.plane_bytes + group * GROUP_CODES, bytes, arrived[warp] + stage);
    copy_bulk(to + PLANES * GROUP_CODES, from + PLANES * at.plane_bytes + group * WORD_BYTES, WORD_BYTES,
              arrived[warp] + stage);
  };
#pragma unroll
  for (int s = 0; s < STAGES; s++) fetch(s, k_group + s * K_GROUPS);
  wait_previous();

  // Tokens beyond the last are copies of it and not written.
  const u16* x_from[PER];
  int x_to[PER], x_tile[PER];
#pragma unroll
  for (int i = 0; i < PER; i++) {
    // Eight threads have two halves of four tokens: one sector of a line each, and all banks.
    int item = thread + i * THREADS, half = item % 2, token = item / 32 * 4 + item / 2 % 4;
    x_tile[i] = item / 8 % GROUP_TILES;
    x_from[i] = x + (u64)min(token, n - 1) * cols + half * 8;
    x_to[i] = x_tile[i] * X_TILE + token * TILE_COLS + ((4 * half) ^ (token & 7)) * 8;
  }
  uint4 held[PER][4];
  auto load_x = [&](int group) {
#pragma unroll
    for (int i = 0; i < PER; i++) {
      if (ITEMS % THREADS && thread + i * THREADS >= ITEMS) break;
      // Tiles beyond the last have scales of zero.
      const u16* tile = x_from[i] + min(group * GROUP_TILES + x_tile[i], at.tiles - 1) * TILE_COLS;
#pragma unroll
      for (int k = 0; k < 4; k++) held[i][k] = *(const uint4*)(tile + 16 * k);
    }
  };
  // Position 16 j + 2 t + i of a tile row is column 16 t + 4 j + i, position 16 j + 8 + 2 t + i column 16 t + 4 j + 2 + i.
  auto store_x = [&](u16* to) {
#pragma unroll
    for (int i = 0; i < PER; i++) {
      if (ITEMS % THREADS && thread + i * THREADS >= ITEMS) break;
      const uint4* h = held[i];
      *(uint4*)(to + x_to[i]) = uint4{h[0].x, h[1].x, h[2].x, h[3].x};
      *(uint4*)(to + (x_to[i] ^ 8)) = uint4{h[0].y, h[1].y, h[2].y, h[3].y};
      *(uint4*)(to + (x_to[i] ^ 16)) = uint4{h[0].z, h[1].z, h[2].z, h[3].z};
      *(uint4*)(to + (x_to[i] ^ 24)) = uint4{h[0].w, h[1].w, h[2].w, h[3].w};
    }
  };

  float sums[TOKENS / 2], part[2][TOKENS / 2], scale[2] = {0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < TOKENS / 2; i++) sums[i] = part[0][i] = part[1][i] = 0.0f;
  auto add = [&](float (&of_tile)[TOKENS / 2]) {
    pin(of_tile);
#pragma unroll
    for (int i = 0; i < TOKENS / 2; i++) sums[i] = fmaf(scale[i / 2 % 2], of_tile[i], sums[i]);
  };
  if (k_group < at.groups) load_x(k_group);
  int stage = 0;
  u32 parity = 0;
  u32 a[2][2][4];
  // Main loop over K.
#pragma unroll 1
  for (int group = k_group, buffer = 0; group < at.groups; group += K_GROUPS, buffer ^= 1) {
    u16* tiles = xs + buffer * GROUP_TILES * X_TILE;
    store_x(tiles);
    wgmma_wait<0>();
    fence_tiles();
    group_barrier(1 + k_group, THREADS);
    if (group + K_GROUPS < at.groups) load_x(group + K_GROUPS);
    barrier_wait(arrived[warp] + stage, parity);
    const u8* unit = ring + stage * UNIT;
    uint4 four_words = *(const uint4*)(unit + PLANES * GROUP_CODES + g * 16);
    const u32 words[4] = {four_words.x, four_words.y, four_words.z, four_words.w};
#pragma unroll
    for (int i = 0; i < GROUP_TILES; i++) {
      // This warp lane's codes: eight columns of row g, the next eight, then the same of row g + 8.
      u32 codes[4][PLANES];
#pragma unroll
      for (int p = 0; p < PLANES; p++) {
        uint4 v = *(const uint4*)(unit + p * GROUP_CODES + i * TILE_BYTES + lane * 16);
        codes[0][p] = v.x, codes[1][p] = v.y, codes[2][p] = v.z, codes[3][p] = v.w;
      }
      Tile<CODE> tile;
      tile.read(words[i]);
#pragma unroll
      for (int half = 0; half < 2; half++) {
        // The fragments of two wgmmas ago are free, and at the second half the sums of the tile before are complete.
        wgmma_wait<1>();
        pin(codes[half]), pin(codes[half + 2]);
        if (half == 1) add(part[(i + 1) % 2]);
#pragma unroll
        for (int k = 0; k < 2; k++)
#pragma unroll
          for (int j = 0; j < 4; j++) a[half][k][j] = tile.pair(codes[half + j % 2 * 2], 2 * k + j / 2, j % 2);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < 2; k++)
          wgmma_registers<TOKENS>(part[i % 2], a[half][k], tile_at(tiles + i * X_TILE, 2 * half + k), half || k);
        wgmma_commit();
      }
      scale[0] = tile.scale[0], scale[1] = tile.scale[1];
    }
    __syncwarp();
    fetch(stage, group + STAGES * K_GROUPS);
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
  wgmma_wait<0>();
  add(part[1]);
  __syncthreads();

  // Partial sums reuse the memory of x: [K_GROUPS][ROWS][WIDTH].
  float* partials = (float*)memory;
#pragma unroll
  for (int i = 0; i < TOKENS / 2; i++) {
    int row = row_group * 64 + warp % 4 * 16 + i / 2 % 2 * 8 + g, token = i / 4 * 8 + 2 * t + i % 2;
    partials[(k_group * ROWS + row) * WIDTH + token] = sums[i];
  }
  __syncthreads();
  // Reduce over groups of columns and write.
  int n_out = SWIGLU ? rows / 2 : rows;
  for (int i = threadIdx.x; i < TOKENS * OUT; i += K_GROUPS * THREADS) {
    int token = i / OUT, r = i % OUT, row = blockIdx.x * OUT + r;
    if (token >= n || row >= n_out) continue;
    auto total = [&](int r, int row) {
      float sum = bias ? bias[row] : 0.0f;
#pragma unroll
      for (int k = 0; k < K_GROUPS; k++) sum += partials[(k * ROWS + r) * WIDTH + token];
      return sum;
    };
    float sum = total(SWIGLU ? r / 32 * 64 + r % 32 : r, row);
    if (SWIGLU) sum = silu(sum) * total(r / 32 * 64 + 32 + r % 32, n_out + row);
    put(out, SWIGLU, (u64)token * n_out + row, sum);
  }
}

// Shared memory: `packed::Wgmma::shared_bytes`.
#define PACKED_WGMMA(name, CODE, TOKENS, ROW_GROUPS, K_GROUPS, STAGES) \
  KERNEL __launch_bounds__(WARPGROUP * ROW_GROUPS * K_GROUPS, 1) \
      name(void* out, const u16* x, const u8* weight, const float* bias, int rows, int cols, int n) { \
    gemm<CODE, TOKENS, ROW_GROUPS, K_GROUPS, STAGES, false>(out, x, weight, bias, rows, cols, n); \
  } \
  KERNEL __launch_bounds__(WARPGROUP * ROW_GROUPS * K_GROUPS, 1) \
      name##_swiglu(void* out, const u16* x, const u8* weight, const float* bias, int rows, int cols, int n) { \
    gemm<CODE, TOKENS, ROW_GROUPS, K_GROUPS, STAGES, true>(out, x, weight, bias, rows, cols, n); \
  }
PACKED_WGMMA(packed_wgmma_q4_32, Q4, 32, 3, 1, 5)
PACKED_WGMMA(packed_wgmma_q8_32, Q8, 32, 3, 1, 3)
