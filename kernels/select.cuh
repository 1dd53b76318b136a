// The pages with the greatest bounds or scores; ties go to the lowest page. By a block of
// SELECT_THREADS threads. CPU twin: `policy::quest::choose`.
#pragma once
#include "common.cuh"

#define SELECT_THREADS 256  // of a block that selects
#define SELECT_WARPS (SELECT_THREADS / 32)
#define KEYS_HELD 16        // keys that a thread of it holds in registers
#define READ_AGAIN 8        // of the others, keys that it reads at once
#define BINS_PER_THREAD 8   // of the histogram of its block

// Orders bounds as unsigned numbers from 1 on. CPU twin: `f32::total_cmp`.
__device__ __forceinline__ u32 key_of(float bound) {
  u32 bits = __float_as_uint(bound);
  return max(bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u), 1u);
}

// The pages that are chosen: those with greater keys, and of those with exactly this key
// the ones up to `page`.
struct Least {
  u32 key;
  int page;
  __device__ __forceinline__ bool admits(u32 key, int page) const {
    return key > this->key || (key == this->key && page <= this->page);
  }
};

// Keys of full pages, divided among the threads of a block.
struct Keys {
  u32 held[KEYS_HELD];  // 0: no page
  const float* bounds;
  int full;

  __device__ __forceinline__ void load(const float* bounds, int full) {
    this->bounds = bounds, this->full = full;
#pragma unroll
    for (int i = 0; i < KEYS_HELD; i++) {
      int page = threadIdx.x + i * SELECT_THREADS;
      held[i] = page < full ? __float_as_uint(bounds[page]) : 0;
    }
#pragma unroll
    for (int i = 0; i < KEYS_HELD; i++)
      held[i] = (int)threadIdx.x + i * SELECT_THREADS < full ? key_of(__uint_as_float(held[i])) : 0;
  }

  // Calls f(key, page) for the thread's pages, with key 0 for some that are none. Threads of a warp
  // get neighbouring pages. Those that registers do not hold are read again.
  template <class F>
  __device__ __forceinline__ void each(F f) const {
#pragma unroll
    for (int i = 0; i < KEYS_HELD; i++) {
      if (i % 4 == 0 && i * SELECT_THREADS >= full) return;
      f(held[i], (int)threadIdx.x + i * SELECT_THREADS);
    }
    for (int first = KEYS_HELD * SELECT_THREADS; first < full; first += READ_AGAIN * SELECT_THREADS) {
      float read[READ_AGAIN];
#pragma unroll
      for (int i = 0; i < READ_AGAIN; i++) {
        int page = first + i * SELECT_THREADS + threadIdx.x;
        read[i] = page < full ? bounds[page] : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < READ_AGAIN; i++) {
        int page = first + i * SELECT_THREADS + threadIdx.x;
        f(page < full ? key_of(read[i]) : 0, page);
      }
    }
  }
};

// Shared memory of the search for a `Least`.
struct Search {
  __align__(16) u32 bins[SELECT_THREADS * BINS_PER_THREAD];
  u32 ends[2][SELECT_WARPS];  // least and greatest key of each warp
  int sums[SELECT_WARPS];     // keys in the bins of each warp
  // The bin in which the last page lies that is chosen, the pages in bins before it, and whether
  // all of that bin is chosen.
  int bin, before, whole;

  __device__ __forceinline__ void init() {
#pragma unroll
    for (int i = 0; i < BINS_PER_THREAD; i++) bins[threadIdx.x + i * SELECT_THREADS] = 0;
  }
};

// Finds what admits exactly `wanted` pages, fewer than there are: a radix select by histograms, by
// a block. The first digit begins at the highest bit in which keys differ; the pages of equal keys
// go on the same way. Two or three passes as a rule.
__device__ __forceinline__ Least least_of(Search& s, const Keys& keys, int wanted) {
  const int BITS = 31 - __clz(SELECT_THREADS * BINS_PER_THREAD);
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint4* mine = (uint4*)(s.bins + threadIdx.x * BINS_PER_THREAD);

  // least and greatest key
  u32 low = 0xffffffffu, high = 0;
  keys.each([&](u32 key, int) { low = min(low, key - 1), high = max(high, key); });
  low = __reduce_min_sync(FULL, low), high = __reduce_max_sync(FULL, high);
  if (lane == 0) s.ends[0][warp] = low, s.ends[1][warp] = high;
  __syncthreads();
  low = __reduce_min_sync(FULL, s.ends[0][lane % SELECT_WARPS]) + 1;
  high = __reduce_max_sync(FULL, s.ends[1][lane % SELECT_WARPS]);

  // The page looked for is the `wanted`-th by its distance below the greatest key, and that
  // distance lies within `first` and first + span; in the passes over equal keys, the same of its
  // number.
  u32 first = 0, span = high - low, tied = 0;
  for (bool ties = false;;) {
    int shift = max(32 - __clz((int)span) - BITS, 0);
    keys.each([&](u32 key, int page) {
      // Key 0, no page, is further from the greatest key than any that there is.
      u32 at = (ties ? (u32)page : high - key) - first;
      if (at <= span && (!ties || key == tied)) atomicAdd(s.bins + (at >> shift), 1u);
    });
    __syncthreads();

    // prefix sums over the bins
    uint4 counts[BINS_PER_THREAD / 4];
    int total = 0;
#pragma unroll
    for (int i = 0; i < BINS_PER_THREAD / 4; i++) {
      counts[i] = mine[i], mine[i] = uint4{0, 0, 0, 0};
      total += (int)(counts[i].x + counts[i].y + counts[i].z + counts[i].w);
    }
    int before = warp_prefix_sum(total, lane);
    if (lane == 31) s.sums[warp] = before;
    __syncthreads();
    before += __reduce_add_sync(FULL, lane < warp ? s.sums[lane] : 0) - total;
    // the thread that has the page's bin
    if (wanted > before && wanted <= before + total) {
      const u32* counted = &counts[0].x;
#pragma unroll
      for (int i = 0; i < BINS_PER_THREAD; i++) {
        int n = (int)counted[i];
        if (wanted > before && wanted <= before + n)
          s.bin = threadIdx.x * BINS_PER_THREAD + i, s.before = before, s.whole = wanted == before + n;
        before += n;
      }
    }
    __syncthreads();
    u32 skipped = (u32)s.bin << shift;
    first += skipped, span = min((1u << shift) - 1, span - skipped), wanted -= s.before;
    if (s.whole) {
      // Where keys are not tied, all pages with the last key.
      if (ties) return Least{tied, (int)(first + span)};
      return Least{high - (first + span), 0x7fffffff};
    }
    if (shift == 0) ties = true, tied = high - first, first = 0, span = keys.full - 1;
  }
}
