// Pages that a decode token reads where it does not read all: bounds on the keys of a page, and the
// list of chosen pages. CPU twins: `policy::quest`, `backend::PageLayout`.
//
// Bounds lie behind the metadata of a page: the least and then the greatest value of each channel
// over the page's keys as the codec decodes them, head_dim bf16 values each, rounded outward. Keys
// that are NaN are left out.
#pragma once
#include "codec.cuh"
#include "kv.cuh"

#define READER_BITS 8   // one for each query head of a group
#define FEWEST_PAGES 3  // that a query head reads

// Pages that a query head reads once `tokens` tokens were fed. CPU twin: `policy::Quest::pages`.
__device__ __forceinline__ int pages_to_read(const Kv& kv, int tokens) {
  return max(budget_at(kv, tokens) / PAGE_SLOTS, FEWEST_PAGES);
}

// The least values of a page's channels; the greatest follow.
__device__ __forceinline__ u16* bounds_of(const Kv& kv, u8* page) {
  return (u16*)(page + kv.meta_at + PAGE_SLOTS * sizeof(int));
}

// A page that is read: its entry in the lane's table, with the heads of the group that read it as
// bits; and its number.
__device__ __forceinline__ int2 chosen_page(int entry, u32 readers, int number) {
  return int2{(int)((u32)entry << READER_BITS | readers), number};
}
__device__ __forceinline__ int chosen_entry(u32 choice) { return (int)(choice >> READER_BITS); }
__device__ __forceinline__ u32 chosen_readers(u32 choice) { return choice & ((1 << READER_BITS) - 1); }

// The greatest bf16 value that does not exceed x, and the least that is not below it.
__device__ __forceinline__ u32 bf16_down(float x) {
  u32 bits = __float_as_uint(x);
  // Cutting bits off moves towards 0, which is up for negative values.
  return (bits >> 16) + (x < 0.0f && (bits & 0xffff));
}
__device__ __forceinline__ u32 bf16_up(float x) { return bf16_down(-x) ^ 0x8000; }

// Four neighbouring channels of a stored row of K; `side` is its side data.
__device__ __forceinline__ void stored_keys(const ByteRows& rows, float x[4], const u8* row, int channel, u32 side) {
  u32 codes = *(const u32*)(row + channel);
#pragma unroll
  for (int i = 0; i < 4; i++) x[i] = __fmul_rn(rows.value((u8)(codes >> (8 * i))), rows.affine(side).x);
}
__device__ __forceinline__ void stored_keys(const Bf16Rows&, float x[4], const u8* row, int channel, u32) {
  uint2 codes = *(const uint2*)(row + 2 * channel);
  x[0] = __uint_as_float(codes.x << 16), x[1] = __uint_as_float(codes.x & 0xffff0000u);
  x[2] = __uint_as_float(codes.y << 16), x[3] = __uint_as_float(codes.y & 0xffff0000u);
}

// Bounds of a page in a warp's registers: lane l holds channels 4 l .. 4 l + 3.
struct Bounds {
  float low[4], high[4];

  __device__ __forceinline__ void init() {
#pragma unroll
    for (int i = 0; i < 4; i++) low[i] = -NEG_INFINITY, high[i] = NEG_INFINITY;
  }
  __device__ __forceinline__ void load(const Kv& kv, u8* page, int lane) {
    if (4 * lane >= kv.head_dim) return;
    const u16* from = bounds_of(kv, page) + 4 * lane;
    uint2 a = *(const uint2*)from, b = *(const uint2*)(from + kv.head_dim);
    low[0] = bf16_to_f32((u16)a.x), low[1] = __uint_as_float(a.x & 0xffff0000u);
    low[2] = bf16_to_f32((u16)a.y), low[3] = __uint_as_float(a.y & 0xffff0000u);
    high[0] = bf16_to_f32((u16)b.x), high[1] = __uint_as_float(b.x & 0xffff0000u);
    high[2] = bf16_to_f32((u16)b.y), high[3] = __uint_as_float(b.y & 0xffff0000u);
  }
  // Adds a stored row of K.
  template <class Rows>
  __device__ __forceinline__ void add(const Kv& kv, const u8* row, u32 side, int lane) {
    if (4 * lane >= kv.head_dim) return;
    float x[4];
    stored_keys(Rows(kv), x, row, 4 * lane, side);
#pragma unroll
    for (int i = 0; i < 4; i++) low[i] = fminf(low[i], x[i]), high[i] = fmaxf(high[i], x[i]);
  }
  __device__ __forceinline__ void store(const Kv& kv, u8* page, int lane) const {
    if (4 * lane >= kv.head_dim) return;
    u16* to = bounds_of(kv, page) + 4 * lane;
    *(uint2*)to = uint2{bf16_down(low[0]) | bf16_down(low[1]) << 16, bf16_down(low[2]) | bf16_down(low[3]) << 16};
    *(uint2*)(to + kv.head_dim) = uint2{bf16_up(high[0]) | bf16_up(high[1]) << 16, bf16_up(high[2]) | bf16_up(high[3]) << 16};
  }
};

// Writes the bounds on the keys in the first `filled` rows of a page. By a warp.
template <class Rows>
__device__ __forceinline__ void write_bounds(const Kv& kv, u8* page, int filled, int lane) {
  Bounds bounds;
  bounds.init();
#pragma unroll
  for (int r = 0; r < PAGE_SLOTS; r++)
    if (r < filled) bounds.add<Rows>(kv, row_at(kv, page, r, 0), kv.k_sides_at > 0 ? *side_at(kv, page, r, 0) : 0, lane);
  bounds.store(kv, page, lane);
}
