// Twins of kernels/hopper.cuh: mbarriers, TMA copies, wgmma.
#pragma once
#include "device.h"

namespace gpu {

// A TMA descriptor here: pages of matrices of 16-bit numbers, and the tile of one copy.
struct TileMap {
  static constexpr uint64_t MARK = 0x7469'6c65'6d61'7073;
  uint64_t mark;
  const unsigned char* at;
  uint64_t columns, rows, pages, row_bytes, page_bytes;
  uint32_t box_columns, box_rows;
};

// An mbarrier: pending arrivals and bytes of this phase.
struct Barrier {
  uint16_t phase, count, pending, chunks;
};
static_assert(sizeof(Barrier) == 8);

inline Barrier& barrier_at(void* at) {
  Barrier& b = *(Barrier*)at;
  if (b.phase > 1) fault("a barrier in shared memory that was not made");
  return b;
}

// `chunks` of 16 bytes are expected and have not arrived.
inline void barrier_step(Barrier& b) {
  if (b.pending || b.chunks) return;
  b.phase ^= 1;
  b.pending = b.count;
  wake_waiting();
}

// Byte offset in a swizzled tile with rows of 128 bytes.
inline unsigned char* swizzled(unsigned char* tile, unsigned line, unsigned chunk) {
  return tile + line * 128 + ((chunk ^ line) & 7) * 16;
}

}  // namespace gpu

template <int BYTES>
inline uint16_t* tile_memory() { return (uint16_t*)gpu::dynamic_shared; }
inline void barrier_init(void* barrier, int arrivals) {
  *(gpu::Barrier*)barrier = {0, (uint16_t)arrivals, (uint16_t)arrivals, 0};
}
inline void barriers_made() {}
inline void barrier_arrive(void* barrier) {
  gpu::Barrier& b = gpu::barrier_at(barrier);
  if (!b.pending) gpu::fault("arrives at a barrier at which all have arrived");
  b.pending--;
  gpu::barrier_step(b);
}
inline void barrier_expect(void* barrier, unsigned bytes) {
  gpu::Barrier& b = gpu::barrier_at(barrier);
  b.chunks += bytes / 16;
  barrier_arrive(barrier);
}
inline void barrier_wait(void* barrier, unsigned parity) {
  while (gpu::barrier_at(barrier).phase == parity) gpu::wait_for_barrier();
}

// Copies at once, which is earlier than a GPU.
inline void copy_page(void* to, const void* map, int column, int row, int page, void* barrier) {
  gpu::TileMap m;
  memcpy(&m, map, sizeof m);
  if (m.mark != gpu::TileMap::MARK) gpu::fault("copies a tile by what is no tensor map");
  if ((uintptr_t)to % 1024) gpu::fault("copies a tile to an address that is no multiple of 1,024");
  for (unsigned line = 0; line < m.box_rows; line++)
    for (unsigned chunk = 0; chunk < m.box_columns / 8; chunk++) {
      int64_t c = column + 8 * (int64_t)chunk, r = row + (int64_t)line;
      unsigned char* at = gpu::swizzled((unsigned char*)to, line, chunk);
      int64_t real = r < 0 || r >= (int64_t)m.rows || c < 0 || page < 0 || page >= (int64_t)m.pages ? 0 : (int64_t)m.columns - c;
      real = real < 0 ? 0 : real > 8 ? 8 : real;
      memset(at, 0, 16);
      if (real) memcpy(at, m.at + page * m.page_bytes + r * m.row_bytes + c * 2, real * 2);
    }
  gpu::Barrier& b = gpu::barrier_at(barrier);
  b.chunks -= m.box_rows * m.box_columns * 2 / 16;
  gpu::barrier_step(b);
}
inline void copy_tile(void* to, const void* map, int column, int row, void* barrier) {
  copy_page(to, map, column, row, 0, barrier);
}
inline void copy_bulk(void* to, const void* from, unsigned bytes, void* barrier) {
  if ((uintptr_t)to % 16 || (uintptr_t)from % 16 || bytes % 16) gpu::fault("a bulk copy that is no multiple of 16 bytes");
  memcpy(to, from, bytes);
  gpu::Barrier& b = gpu::barrier_at(barrier);
  b.chunks -= bytes / 16;
  gpu::barrier_step(b);
}

// Its copies are done.
inline void copy_arrive(void*) {}
inline void fence_tiles() {}
inline void group_barrier(int barrier, int threads) { gpu::group_barrier(barrier, threads); }
template <int N>
inline void fewer_registers() {}
template <int N>
inline void more_registers() {}
template <class T>
inline void pin(T&) {}

inline uint64_t tile_at(const uint16_t* tile, int k) {
  if ((uintptr_t)tile % 1024) gpu::fault("multiplies a tile at an address that is no multiple of 1,024");
  return (uint64_t)(uintptr_t)tile + 32 * k;
}
// The address, and above it the rows of a tile.
inline uint64_t transposed_at(const uint16_t* tiles, int rows) {
  if ((uintptr_t)tiles % 1024) gpu::fault("multiplies a tile at an address that is no multiple of 1,024");
  return (uint64_t)(uintptr_t)tiles | (uint64_t)rows << 48;
}
inline uint64_t after(uint64_t descriptor, int bytes) { return descriptor + bytes; }
inline void wgmma_begin() { __syncwarp(); }
inline void wgmma_commit() {}
// A warp waits as a whole for its wgmmas.
template <int N>
inline void wgmma_wait() {
  __syncwarp();
}

// Columns of a tile row in one wgmma.
typedef float Sixteen __attribute__((vector_size(64)));

namespace gpu {
inline void sixteen(Sixteen& out, uint64_t at, int line) {
  unsigned char* tile = (unsigned char*)(uintptr_t)(at & ~127ull);
  unsigned chunk = at % 128 / 16;
  uint16_t x[16];
  memcpy(x, swizzled(tile, line, chunk), 16);
  memcpy(x + 8, swizzled(tile, line, chunk + 1), 16);
  for (int i = 0; i < 16; i++) out[i] = bf16(x[i]);
}
}  // namespace gpu

// Accumulators are laid out as in the PTX manual for wgmma.m64nNk16. Runs at once.
template <int BN>
inline void wgmma(float (&c)[BN / 2], uint64_t a, uint64_t b, int add) {
  int warp = threadIdx.x / 32 % 4, g = gpu::self->lane / 4, t = gpu::self->lane % 4;
  Sixteen left[2], right;
  for (int h = 0; h < 2; h++) gpu::sixteen(left[h], a, 16 * warp + g + 8 * h);
  for (int j = 0; j < BN / 8; j++)
    for (int i = 0; i < 2; i++) {
      gpu::sixteen(right, b, 8 * j + 2 * t + i);
      for (int h = 0; h < 2; h++) {
        Sixteen p = left[h] * right;
        float& sum = c[4 * j + 2 * h + i];
        float all = add ? sum : 0.0f;
        for (int k = 0; k < 16; k++) all += p[k];
        sum = all;
      }
    }
}

namespace gpu {
// Rows g and g + 8 of A, of which each warp lane holds a fragment.
struct Rows {
  float of[2][16];
};
inline Rows exchange(const unsigned* a) {
  struct Fragment {
    unsigned a[4];
  } own = {{a[0], a[1], a[2], a[3]}};
  Exchange* e;
  meet(0xffffffffu, Op::MMA, own, &e);
  Rows out;
  for (int h = 0; h < 2; h++)
    for (int k = 0; k < 16; k++) {
      const Fragment* from = (const Fragment*)e->lanes[self->lane / 4 * 4 + k % 8 / 2];
      out.of[h][k] = bf16(from->a[k / 8 * 2 + h] >> (16 * (k % 2)));
    }
  return out;
}
}  // namespace gpu

// A in registers. Runs at once.
template <int BN>
inline void wgmma_registers(float (&c)[BN / 2], const unsigned* a, uint64_t b, int add) {
  gpu::Rows left = gpu::exchange(a);
  int t = gpu::self->lane % 4;
  Sixteen right;
  for (int j = 0; j < BN / 8; j++)
    for (int i = 0; i < 2; i++) {
      gpu::sixteen(right, b, 8 * j + 2 * t + i);
      for (int h = 0; h < 2; h++) {
        float& sum = c[4 * j + 2 * h + i];
        float all = add ? sum : 0.0f;
        for (int k = 0; k < 16; k++) all += left.of[h][k] * right[k];
        sum = all;
      }
    }
}

// A in registers, B transposed. Runs at once.
template <int BN>
inline void wgmma_transposed(float (&c)[BN / 2], const unsigned* a, uint64_t b, int add) {
  gpu::Rows rows = gpu::exchange(a);
  int t = gpu::self->lane % 4;
  unsigned char* tiles = (unsigned char*)(uintptr_t)(b & 0xffffffffffff);
  for (int h = 0; h < 2; h++) {
    const float* left = rows.of[h];
    for (int j = 0; j < BN / 8; j++) {
      float sums[2] = {};
      for (int i = 0; i < 2; i++) sums[i] = add ? c[4 * j + 2 * h + i] : 0.0f;
      for (int k = 0; k < 16; k++) {
        const uint16_t* row = (const uint16_t*)gpu::swizzled(tiles + j / 8 * ((b >> 48) * 128), k, j % 8);
        for (int i = 0; i < 2; i++) sums[i] += left[k] * gpu::bf16(row[2 * t + i]);
      }
      for (int i = 0; i < 2; i++) c[4 * j + 2 * h + i] = sums[i];
    }
  }
}
