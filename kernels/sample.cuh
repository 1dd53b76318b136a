// What the kernels of sampling share: how a row is sampled, its scratch, ranks of tokens, bins of
// weights and searches in them.
#pragma once
#include "kv.cuh"

#define THREADS 512
#define WARPS (THREADS / 32)
// Logits of a thread, of a warp (a run), and of a block (a split).
#define EACH 8
#define RUN (32 * EACH)
#define SPLIT (THREADS * EACH)
// Bins of weights, the highest first, sixteen to an octave; a bin has as many sub-bins.
#define BINS 2048
#define BIN_SHIFT 19
#define SUB_SHIFT 8
#define ONE 0x3f800000u
// A bin is one word: the count of its weights, and the sum of their bits below the bin's. So its
// mass is exact and does not depend on the order of summation.
#define COUNT_SHIFT 40
#define SUM_MASK ((1ull << COUNT_SHIFT) - 1)
// Most candidates in the list, and most that one block sorts.
#define MAX_LISTED 8192
#define MAX_SORTED 256
// Most runs and splits of a row: a vocabulary has at most 2^20 tokens.
#define MAX_RUNS 4096
#define MAX_SPLITS (MAX_RUNS / WARPS)

// How a row is sampled: mirrors `protocol::SamplingState`.
struct Draw {
  // Most adjustments of a row: `SamplingState::MOST_ADJUSTED`.
  static constexpr u32 MOST_ADJUSTED = 8192;

  u32 seed_low, seed_high, seq, ahead, masked, adjusted, top_k;
  float temperature, top_p, min_p, repetition_penalty, top_n_sigma;
};
static_assert(sizeof(Draw) == 48 && OFFSET_OF(Draw, seq) == 8 && OFFSET_OF(Draw, temperature) == 28 &&
                  OFFSET_OF(Draw, top_n_sigma) == 44,
              "backend::cuda::abi asserts another layout");

// Where tokens are put: where the next step reads them, and in page-locked host memory behind the
// non-finite flag and the number of free pages.
struct Results {
  u32* tokens;
  int* host;
  const int *non_finite, *counts;
  // By one thread of the block that has sampled a row's token.
  __device__ __forceinline__ void put(u32 token) const {
    tokens[blockIdx.y] = token, host[2 + blockIdx.y] = (int)token;
    if (blockIdx.y == 0) host[0] = non_finite[0], host[1] = counts[0] + counts[1];
  }
};
static_assert(sizeof(Results) == 32, "backend::cuda::abi asserts another layout");

// A bin, and the count and mass of all weights above it.
struct Bin {
  int bin, above;
  double mass_above;
};

// Number, sum and sum of squares of the finite logits of a split.
struct Moments {
  double count, sum, squares;
};

// Scratch of one row, written and read by the kernels of one step; `backend::cuda::abi` has its
// size.
struct Row {
  u64 best[MAX_SPLITS];  // rank of each split's argmax
  u64 highest;           // and of the row's
  Moments moments[MAX_SPLITS];  // where top-n-sigma is on
  u64 floor;                    // the least rank that top-n-sigma keeps; 0: all
  Bin threshold;         // the bin in which top-k ends or, if that keeps all, top-p; bin -1: neither cuts anything
  double total;          // mass of all weights
  int by_count;          // the threshold is that of top-k
  int from;              // the first bin that is listed, -1: all; the last one is the threshold's
  int sampled;           // the token is sampled
  int listed;
  u64 least;  // rank of the last candidate kept
  u64 bins[BINS], subs[BINS];
  u64 list[MAX_LISTED];
  double masses[MAX_RUNS];  // mass kept of each run
};
static_assert(sizeof(Row) == 139328, "backend::cuda::abi::SAMPLE_ROW_BYTES is another size");

struct Higher {
  __device__ __forceinline__ u64 operator()(u64 a, u64 b) const { return a > b ? a : b; }
};
__device__ __forceinline__ u64 higher(u64 a, u64 b) { return Higher()(a, b); }

// Sorts tokens by logit, then by the lower id; 0 for NaN, which is never sampled.
__device__ __forceinline__ u64 rank_of(float logit, int id) {
  if (logit != logit) return 0;
  u32 bits = __float_as_uint(__fadd_rn(logit, 0.0f));  // one zero
  bits ^= bits >> 31 ? FULL : 0x80000000u;
  return (u64)bits << 32 | (u32)~id;
}
__device__ __forceinline__ int id_of(u64 rank) { return (int)~(u32)rank; }
__device__ __forceinline__ float logit_of(u64 rank) {
  u32 bits = (u32)(rank >> 32);
  return __uint_as_float(bits ^ (bits >> 31 ? 0x80000000u : FULL));
}

// Exclusive prefix sum over the threads of a block, in an order that is always the same; `total` is
// the sum of all.
template <typename T>
__device__ __forceinline__ T prefix_sum(T x, T* total) {
  __shared__ T parts[WARPS];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  x = warp_prefix_sum(x, lane);
  __syncthreads();
  if (lane == 31) parts[warp] = x;
  __syncthreads();
  T sum = 0, before = 0;
#pragma unroll
  for (int w = 0; w < WARPS; w++) {
    if (w == warp) before = sum;
    sum += parts[w];
  }
  *total = sum;
  x = __shfl_up_sync(FULL, x, 1);
  return lane ? before + x : before;
}

__device__ __forceinline__ u64 mix64(u64 z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

// As `sampler::uniform`.
__device__ __forceinline__ double uniform(const Draw& draw, u64 position) {
  const u64 golden = 0x9E3779B97F4A7C15ull;
  u64 key = mix64(((u64)draw.seed_high << 32 | draw.seed_low) + golden);
  return (double)(mix64(key + (position + 1) * golden) >> 40) * (1.0 / 16777216.0);
}

// e^x for x <= 0 in f32, within 0.6 of its last bit (0.1 % differ from glibc's) and never rising as
// x falls; 0 for NaN.
__device__ __forceinline__ float exp_down(float x) {
  if (!(x > -104.0f)) return 0.0f;
  float n = rintf(__fmul_rn(x, 1.44269504f));
  // ln 2 as a sum of two, the first with so few bits that its products are exact.
  float whole = __fmaf_rn(n, -0.693145752f, x), small = __fmul_rn(n, -1.42860682e-6f);
  float r = __fadd_rn(whole, small), s = __fadd_rn(__fsub_rn(whole, r), small);
  float p = __fmaf_rn(r, 2.48015873e-5f, 1.98412698e-4f);
  p = __fmaf_rn(p, r, 1.38888889e-3f);
  p = __fmaf_rn(p, r, 8.33333333e-3f);
  p = __fmaf_rn(p, r, 4.16666667e-2f);
  p = __fmaf_rn(p, r, 0.166666667f);
  p = __fmaf_rn(p, r, 0.5f);
  // 1 + r + s + r^2 p, with the rounding error of the first sum.
  float rest = __fmaf_rn(__fmul_rn(r, r), p, __fmaf_rn(r, s, s));
  float sum = __fadd_rn(1.0f, r), lost = __fsub_rn(r, __fsub_rn(sum, 1.0f));
  sum = __fadd_rn(sum, __fadd_rn(lost, rest));
  int power = (int)n;
  if (power >= -126) return __fmul_rn(sum, __uint_as_float((u32)(power + 127) << 23));
  return __fmul_rn(__fmul_rn(sum, __uint_as_float((u32)(power + 191) << 23)), __uint_as_float(63u << 23));
}

// A row of logits and its sampling options.
struct Job {
  const float* logits;
  int vocab, best, k;  // k: 0 where top-k is off
  float max, inv_temperature, top_p, min_p;
  bool greedy;

  __device__ __forceinline__ Job(u64 highest, const float* all_logits, const Draw& draw, int vocab)
      : logits(all_logits + (u64)blockIdx.y * vocab), vocab(vocab), top_p(draw.top_p), min_p(draw.min_p) {
    best = highest ? id_of(highest) : 0;
    max = highest ? logit_of(highest) : NEG_INFINITY;
    k = draw.top_k < (u32)vocab ? (int)draw.top_k : 0;
    greedy = !(draw.temperature > 0.0f) || draw.top_k == 1 || !(fabsf(max) < __int_as_float(0x7f800000));
    inv_temperature = __fdiv_rn(1.0f, draw.temperature);
  }
  __device__ __forceinline__ bool nucleus() const { return top_p < 1.0f; }
  __device__ __forceinline__ double share() const { return fmax((double)top_p, 0.0); }
  __device__ __forceinline__ bool cuts() const { return !greedy && (k > 0 || nucleus()); }
  __device__ __forceinline__ float weight(float logit) const {
    return exp_down(__fmul_rn(__fsub_rn(logit, max), inv_temperature));
  }
  // Whether min-p keeps it.
  __device__ __forceinline__ bool likely(float w, int id) const {
    return w >= min_p || (id == best && (k > 0 || nucleus()));
  }
  // The logits of a thread in a split; a warp's are neighbours.
  __device__ __forceinline__ static int id(int split, int j) {
    return split * SPLIT + (threadIdx.x / 32) * RUN + j * 32 + threadIdx.x % 32;
  }
  __device__ __forceinline__ void load_split(int split, float x[EACH]) const {
#pragma unroll
    for (int j = 0; j < EACH; j++) x[j] = id(split, j) < vocab ? logits[id(split, j)] : NEG_INFINITY;
  }
};

__device__ __forceinline__ u64 row_argmax(const Row& row, int splits) {
  u64 highest = 0;
  for (int i = threadIdx.x % 32; i < splits; i += 32) highest = higher(highest, row.best[i]);
  return warp_reduce(highest, Higher());
}

// The bin of a weight above 0. The weights of a bin are multiples of one power of two.
__device__ __forceinline__ int bin_of(float w) {
  return (int)(ONE >> BIN_SHIFT) - (int)(__float_as_uint(w) >> BIN_SHIFT);
}
__device__ __forceinline__ u32 below_bin(float w) { return __float_as_uint(w) & ((1u << BIN_SHIFT) - 1); }
__device__ __forceinline__ int count_of(u64 entry) { return (int)(entry >> COUNT_SHIFT); }
__device__ __forceinline__ double mass_of(u64 entry, int bin) {
  u32 least = ((ONE >> BIN_SHIFT) - bin) << BIN_SHIFT, exponent = least >> 23;
  u64 mantissa = (least & 0x7fffff) | (exponent ? 0x800000 : 0);
  int power = (int)(exponent ? exponent : 1) - 150;
  float unit = __uint_as_float(power >= -126 ? (u32)(power + 127) << 23 : 1u << (power + 149));
  u64 sum = count_of(entry) * mantissa + (entry & SUM_MASK);
  return (double)sum * (double)unit;
}

__device__ __forceinline__ int sub_of(float w) { return (BINS - 1) - (int)(below_bin(w) >> SUB_SHIFT); }

// What a threshold is found by: the number of candidates above it or, if that is 0, their mass.
struct Goal {
  int count;
  double mass;
  bool share;  // the mass is a share of the total
};

// Returns the first of `bins` at which the count or mass, together with that of `above`, reaches
// `target`; bin -1 if none does. They are bins of weights or, if `bin` is not -1, the sub-bins of
// that bin. Called by whole blocks.
__device__ __forceinline__ Bin find_bin(const u64* bins, int bin, Bin above, Goal target, double* total) {
  __shared__ Bin found;
  __shared__ int first, last;
  const int run = BINS / THREADS;
  int from = threadIdx.x * run, count = 0, counts;
  u64 own[run];
  double masses[run], mass = 0.0;
#pragma unroll
  for (int i = 0; i < run; i++) own[i] = bins[from + i];
#pragma unroll
  for (int i = 0; i < run; i++) {
    masses[i] = mass_of(own[i], bin < 0 ? from + i : bin);
    count += count_of(own[i]);
    mass += masses[i];
  }
  count = above.above + prefix_sum(count, &counts);
  mass = above.mass_above + prefix_sum(mass, total);
  if (target.share) target.mass *= *total;
  if (threadIdx.x == 0) first = BINS, last = -1, found = Bin{-1, 0, 0.0};
  __syncthreads();
  Bin mine = {-1, 0, 0.0}, end = mine;
#pragma unroll
  for (int i = 0; i < run; i++) {
    if (count_of(own[i]) > 0) {
      end = Bin{from + i, count, mass};
      count += count_of(own[i]);
      mass += masses[i];
      if (mine.bin < 0 && (target.count > 0 ? count >= target.count : mass >= target.mass)) mine = end;
    }
  }
  if (mine.bin >= 0) atomicMin(&first, mine.bin);
  if (end.bin >= 0) atomicMax(&last, end.bin);
  __syncthreads();
  if (mine.bin >= 0 && mine.bin == first) found = mine;
  // A mass that only rounding has put out of reach is the total.
  if (first == BINS && target.count == 0 && end.bin >= 0 && end.bin == last) found = end;
  __syncthreads();
  return found;
}

// Sorts up to MAX_SORTED `items`, the highest first. Called by whole blocks, which see the result.
__device__ __forceinline__ void sort(u64* items, int n) {
  __syncthreads();
  int t = threadIdx.x, place = 0;
  u64 item = t < n ? items[t] : 0;
  if (t < n)
    for (int i = 0; i < n; i++) place += items[i] > item || (items[i] == item && i < t);
  __syncthreads();
  if (t < n) items[place] = item;
  __syncthreads();
}

// Calls `each` with the weight and rank of every candidate of a bin, or of its sub-bin `sub`. One
// block reads the row.
template <typename Each>
__device__ __forceinline__ void for_each_candidate(const Job& job, int bin, int sub, Each each) {
  const int batch = 4;  // loads in flight
  for (int from = threadIdx.x; from < job.vocab; from += batch * THREADS) {
    float x[batch];
#pragma unroll
    for (int j = 0; j < batch; j++) {
      int id = from + j * THREADS;
      x[j] = id < job.vocab ? job.logits[id] : NEG_INFINITY;
    }
#pragma unroll
    for (int j = 0; j < batch; j++) {
      float w = job.weight(x[j]);
      if (w > 0.0f && bin_of(w) == bin && (sub < 0 || sub_of(w) == sub)) each(w, rank_of(x[j], from + j * THREADS));
    }
  }
}

// Lists, unsorted, at most MAX_SORTED candidates of a bin, or of its sub-bin `sub`, among which
// `target` is reached. For bins that are crowded or tied; reads the row three times or more.
// Returns how many, and in `threshold` what is above them.
__device__ __noinline__ int refine(const Job& job, u64* items, u64* bins, int sub, Bin* threshold, Goal target) {
  __shared__ int listed;
  int bin = threshold->bin;
  u64 high = 0, low_inverted = 0;
  for_each_candidate(job, bin, sub, [&](float, u64 rank) {
    high = higher(high, rank), low_inverted = higher(low_inverted, ~rank);
  });
  high = block_reduce(high, 0ull, Higher());
  u64 low = ~block_reduce(low_inverted, 0ull, Higher());
  for (int count = MAX_SORTED + 1; count > MAX_SORTED;) {
    int shift = 0;
    while ((high - low) >> shift >= BINS) shift++;
    for (int i = threadIdx.x; i < BINS; i += THREADS) bins[i] = 0;
    __syncthreads();
    for_each_candidate(job, bin, sub, [&](float w, u64 rank) {
      if (rank <= high && rank >= low) atomicAdd(&bins[(high - rank) >> shift], (1ull << COUNT_SHIFT) + below_bin(w));
    });
    __syncthreads();
    double total;
    *threshold = find_bin(bins, bin, *threshold, target, &total);
    count = count_of(bins[threshold->bin]);
    high -= (u64)threshold->bin << shift;
    u64 least = high - ((1ull << shift) - 1);
    low = least > low && least <= high ? least : low;
    __syncthreads();
  }
  if (threadIdx.x == 0) listed = 0;
  __syncthreads();
  for_each_candidate(job, bin, sub, [&](float, u64 rank) {
    if (rank <= high && rank >= low) items[atomicAdd(&listed, 1)] = rank;
  });
  __syncthreads();
  threshold->bin = bin;
  return listed;
}

// Returns the first of n sorted items at which the running mass, starting at `above`, exceeds
// `goal` (or equals it, if
// `or_equal`); else the last one with a weight above 0; -1 if there is none. A goal that is a
// `share` of the total becomes a
// mass, and `above` the mass before the item returned. Called by whole blocks.
template <typename Weight>
__device__ __forceinline__ int find_item(int n, double* above, double* goal, bool share, bool or_equal, Weight weight) {
  __shared__ int first, last;
  __shared__ double passed;
  int run = (n + THREADS - 1) / THREADS, from = min((int)threadIdx.x * run, n), to = min(from + run, n);
  double mass = 0.0, total, before = 0.0;
  for (int i = from; i < to; i++) mass += (double)weight(i);
  mass = *above + prefix_sum(mass, &total);
  double least = share ? *goal * (*above + total) : *goal;
  if (threadIdx.x == 0) first = n, last = -1;
  __syncthreads();
  int mine = n, end = -1;
  for (int i = from; i < to; i++) {
    double w = (double)weight(i), with = mass + w;
    if (w > 0.0) end = i;
    if (mine == n && (with > least || (or_equal && with == least))) mine = i, before = mass;
    mass = with;
  }
  if (mine < n) atomicMin(&first, mine);
  if (end >= 0) atomicMax(&last, end);
  __syncthreads();
  int found = first < n ? first : last;
  if (mine == found) passed = before;
  __syncthreads();
  *above = passed, *goal = least;
  return found;
}
