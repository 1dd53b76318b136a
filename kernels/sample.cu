// Sampling: logits [n, vocab] to tokens [n], the same tokens as `sampler::sample` from the same logits. Seven kernels in
// order: `argmax`, `histogram`, `threshold_bin`, `candidates`, `nucleus_cut`, `mask_mass`, `draw_token`; two where all rows are
// greedy: `argmax`, `greedy_token`. `argmax`, `histogram`, `candidates` and `mask_mass` split a row over blocks of 4,096
// logits; the others are one block per row. Each kernel returns at once for rows that do not need it. Every one that reads
// logits reads 4 vocab bytes per row. CPU twin: `crate::sampler`.
//
// Top-k and top-p are a radix select on the softmax weights e^((logit - max) / temperature): a histogram finds the bin in
// which the threshold lies, and only candidates of that bin are sorted.
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
// A bin is one word: the count of its weights, and the sum of their bits below the bin's. So its mass is exact and does not
// depend on the order of summation.
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
  u32 seed_low, seed_high, seq, top_k;
  float temperature, top_p, min_p, repetition_penalty, top_n_sigma;
};
static_assert(sizeof(Draw) == 36 && OFFSET_OF(Draw, seq) == 8 && OFFSET_OF(Draw, temperature) == 16 &&
                  OFFSET_OF(Draw, top_n_sigma) == 32,
              "backend::cuda::abi asserts another layout");

// A bin, and the count and mass of all weights above it.
struct Bin {
  int bin, above;
  double mass_above;
};

// Number, sum and sum of squares of the finite logits of a split.
struct Moments {
  double count, sum, squares;
};

// Scratch of one row, written and read by the kernels of one step; `backend::cuda::abi` has its size.
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

// Sets the bits of a step's n tokens in seen [n_seqs, words], the tokens that each sequence has been fed. One thread per
// token. CPU twin: `mark_seen`.
KERNEL mark_seen(u32* seen, const u32* tokens, const Span* spans, const int* span_of_row, int words, int n) {
  after_previous();
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= n) return;
  atomicOr(&seen[(u64)spans[span_of_row[row]].seq * words + tokens[row] / 32], 1u << (tokens[row] % 32));
}

// Copies a step's results to page-locked host memory: the non-finite flag, the number of free pages, n tokens. Grid 1.
KERNEL copy_to_host(int* out, const u32* sampled, const int* non_finite, const int* counts, int n) {
  after_previous();
  for (int i = threadIdx.x; i < n; i += blockDim.x) out[2 + i] = (int)sampled[i];
  if (threadIdx.x == 0) {
    out[0] = non_finite[0];
    out[1] = counts[0] + counts[1];
  }
}

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

// Exclusive prefix sum over the threads of a block, in an order that is always the same; `total` is the sum of all.
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

// e^x for x <= 0 in f32, within 0.6 of its last bit (0.1 % differ from glibc's) and never rising as x falls; 0 for NaN.
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

// Tokens where all rows are greedy: the argmax of each row's splits. Grid (1, n), a warp.
KERNEL greedy_token(u32* sampled, const Row* rows, int splits) {
  after_previous();
  u64 highest = row_argmax(rows[blockIdx.y], splits);
  if (threadIdx.x == 0) sampled[blockIdx.y] = highest ? id_of(highest) : 0;
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

// Returns the first of `bins` at which the count or mass, together with that of `above`, reaches `target`; bin -1 if none does.
// They are bins of weights or, if `bin` is not -1, the sub-bins of that bin. Called by whole blocks.
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

// Calls `each` with the weight and rank of every candidate of a bin, or of its sub-bin `sub`. One block reads the row.
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

// Lists, unsorted, at most MAX_SORTED candidates of a bin, or of its sub-bin `sub`, among which `target` is reached. For bins
// that are crowded or tied; reads the row three times or more. Returns how many, and in `threshold` what is above them.
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

// Returns the first of n sorted items at which the running mass, starting at `above`, exceeds `goal` (or equals it, if
// `or_equal`); else the last one with a weight above 0; -1 if there is none. A goal that is a `share` of the total becomes a
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

// Applies the repetition penalty, and finds the argmax of every split. Grid (splits, n).
KERNEL __launch_bounds__(THREADS)
    argmax(Row* rows, float* logits, const Draw* draws, const u32* seen, int vocab, int words) {
  after_previous();
  Row& row = rows[blockIdx.y];
  int t = blockIdx.x * THREADS + threadIdx.x;
  for (int i = t; i < BINS; i += gridDim.x * THREADS) row.bins[i] = row.subs[i] = 0;
  Draw draw = draws[blockIdx.y];
  float penalty = draw.repetition_penalty, x[EACH];
  Job job(0, logits, draw, vocab);
  job.load_split(blockIdx.x, x);
  if (penalty != 1.0f && penalty > 0.0f) {
    logits += (u64)blockIdx.y * vocab;
    seen += (u64)draw.seq * words;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
      int id = job.id(blockIdx.x, j);
      if (id >= vocab || !(seen[id / 32] >> (id % 32) & 1)) continue;
      x[j] = x[j] > 0.0f ? __fdiv_rn(x[j], penalty) : __fmul_rn(x[j], penalty);
      logits[id] = x[j];
    }
  }
  if (draw.top_n_sigma > 0.0f) {
    Moments own = {0.0, 0.0, 0.0};
#pragma unroll
    for (int j = 0; j < EACH; j++) {
      if (!(fabsf(x[j]) < __int_as_float(0x7f800000))) continue;
      own.count += 1.0, own.sum += (double)x[j], own.squares += (double)x[j] * (double)x[j];
    }
    own = Moments{block_sum(own.count), block_sum(own.sum), block_sum(own.squares)};
    if (threadIdx.x == 0) row.moments[blockIdx.x] = own;
  }
  u64 best = 0;
#pragma unroll
  for (int j = 0; j < EACH; j++)
    if (job.id(blockIdx.x, j) < vocab) best = higher(best, rank_of(x[j], job.id(blockIdx.x, j)));
  best = block_reduce(best, 0ull, Higher());
  if (threadIdx.x == 0) row.best[blockIdx.x] = best;
}

// Softmax weights to a histogram, per split in shared memory, then added to the row's. Grid (splits, n).
KERNEL __launch_bounds__(THREADS) histogram(Row* rows, const float* logits, const Draw* draws, int vocab) {
  __shared__ u32 counts[BINS], sums[BINS];
  after_previous();
  Row& row = rows[blockIdx.y];
  Job job(row_argmax(row, gridDim.x), logits, draws[blockIdx.y], vocab);
  if (!job.cuts()) return;
  float x[EACH];
  job.load_split(blockIdx.x, x);
  for (int i = threadIdx.x; i < BINS; i += THREADS) counts[i] = sums[i] = 0;
  __syncthreads();
#pragma unroll
  for (int j = 0; j < EACH; j++) {
    float w = job.weight(x[j]);
    if (!(w > 0.0f)) continue;
    atomicAdd(&counts[bin_of(w)], 1u);
    atomicAdd(&sums[bin_of(w)], below_bin(w));
  }
  __syncthreads();
  for (int i = threadIdx.x; i < BINS; i += THREADS)
    if (counts[i]) atomicAdd(&row.bins[i], ((u64)counts[i] << COUNT_SHIFT) + sums[i]);
}

// The least rank that top-n-sigma keeps, 0 where it is off: n standard deviations below the largest logit. Called by one thread.
__device__ __forceinline__ u64 floor_of(const Row& row, float max, float n, int splits) {
  if (!(n > 0.0f)) return 0;
  Moments all = {0.0, 0.0, 0.0};
  for (int i = 0; i < splits; i++) {
    Moments part = row.moments[i];
    all.count += part.count, all.sum += part.sum, all.squares += part.squares;
  }
  double mean = all.sum / all.count, variance = fmax(all.squares / all.count - mean * mean, 0.0);
  // Of equal logits, the highest id has the lowest rank.
  return rank_of((float)((double)max - (double)n * sqrt(variance)), -1);
}

// Finds the bin in which top-k or top-p ends. Grid (1, n).
KERNEL __launch_bounds__(THREADS) threshold_bin(Row* rows, const float* logits, const Draw* draws, int vocab) {
  after_previous();
  Row& row = rows[blockIdx.y];
  int splits = (vocab + SPLIT - 1) / SPLIT;
  u64 highest = row_argmax(row, splits);
  Job job(highest, logits, draws[blockIdx.y], vocab);
  if (threadIdx.x == 0) {
    row.highest = highest, row.listed = 0;
    row.floor = job.greedy ? 0 : floor_of(row, job.max, draws[blockIdx.y].top_n_sigma, splits);
  }
  if (!job.cuts()) return;
  Bin top = {-1, 0, 0.0}, found = top;
  double total = 0.0;
  bool by_mass = job.k == 0;
  for (;; by_mass = true) {
    found = find_bin(row.bins, -1, top, Goal{by_mass ? 0 : job.k, job.share(), true}, &total);
    // Top-k may keep everything.
    if (found.bin >= 0 || by_mass || !job.nucleus()) break;
  }
  if (threadIdx.x > 0) return;
  row.threshold = found, row.by_count = !by_mass, row.total = total;
  // Few candidates are all listed; of many only those of the threshold's bin.
  row.from = found.bin >= 0 && found.above + count_of(row.bins[found.bin]) <= MAX_SORTED ? -1 : found.bin;
}

// Lists candidates, and makes the histogram of the sub-bins of the threshold's bin. Grid (splits, n).
KERNEL __launch_bounds__(THREADS) candidates(Row* rows, const float* logits, const Draw* draws, int vocab) {
  after_previous();
  Row& row = rows[blockIdx.y];
  Job job(row.highest, logits, draws[blockIdx.y], vocab);
  if (!job.cuts()) return;
  int from = row.from, to = row.threshold.bin;
  float x[EACH];
  job.load_split(blockIdx.x, x);
#pragma unroll
  for (int j = 0; j < EACH; j++) {
    float w = job.weight(x[j]);
    if (!(w > 0.0f) || bin_of(w) < from || bin_of(w) > to) continue;
    int at = atomicAdd(&row.listed, 1);
    if (at < MAX_LISTED) row.list[at] = rank_of(x[j], job.id(blockIdx.x, j));
    if (from >= 0) atomicAdd(&row.subs[sub_of(w)], (1ull << COUNT_SHIFT) + below_bin(w));
  }
}

// Finds the last candidate that top-k and top-p keep and, if all kept candidates are listed, samples the token. Grid (1, n).
KERNEL __launch_bounds__(THREADS)
    nucleus_cut(u32* sampled, Row* rows, const float* logits, const Draw* draws, const int* seq_len, int vocab) {
  __shared__ u64 items[MAX_SORTED], bins[BINS];
  __shared__ int listed;
  after_previous();
  Row& row = rows[blockIdx.y];
  const Draw& draw = draws[blockIdx.y];
  Job job(row.highest, logits, draw, vocab);
  if (!job.cuts()) return;
  int t = threadIdx.x, n = row.listed;
  Bin threshold = row.threshold;
  if (threshold.bin < 0) {
    if (t == 0) row.least = row.floor, row.sampled = 0;
    return;
  }
  bool all = row.from < 0, by_count = row.by_count;
  double goal = job.share() * row.total, unused;
  if (all) {
    threshold.above = 0, threshold.mass_above = 0.0;
    if (t < n) items[t] = row.list[t];
  } else {
    Goal target = {by_count ? job.k : 0, goal, false};
    Bin sub = find_bin(row.subs, threshold.bin, threshold, target, &unused);
    threshold.above = sub.above, threshold.mass_above = sub.mass_above;
    if (n > MAX_LISTED || count_of(row.subs[sub.bin]) > MAX_SORTED) {
      n = refine(job, items, bins, sub.bin, &threshold, target);
    } else {
      if (t == 0) listed = 0;
      __syncthreads();
      for (int i = t; i < n; i += THREADS) {
        u64 rank = row.list[i];
        if (sub_of(job.weight(logit_of(rank))) == sub.bin) items[atomicAdd(&listed, 1)] = rank;
      }
      __syncthreads();
      n = listed;
    }
  }
  sort(items, n);
  auto weight = [&](int i) { return job.weight(logit_of(items[i])); };
  if (by_count) n = min(n, job.k - threshold.above);
  if (job.nucleus()) {
    double above = threshold.mass_above;
    if (by_count && threshold.above > 0) {
      // Top-p may end above the bin or sub-bin in which top-k does.
      double mass = 0.0;
      prefix_sum(t < n ? (double)weight(t) : 0.0, &mass);
      goal = job.share() * (above + mass);
      if (above >= goal) {
        Goal target = {0, goal, false};
        threshold = find_bin(row.bins, -1, Bin{-1, 0, 0.0}, target, &unused);
        n = refine(job, items, bins, -1, &threshold, target);
        sort(items, n);
        above = threshold.mass_above;
      }
      n = find_item(n, &above, &goal, false, true, weight) + 1;
    } else {
      if (by_count) goal = job.share();
      n = find_item(n, &above, &goal, by_count, true, weight) + 1;
    }
  }
  u64 floor = row.floor;
  if (t == 0) row.least = higher(items[n - 1], floor), row.sampled = all;
  if (!all) return;
  __syncthreads();
  if (t < n) {
    float w = weight(t);
    int id = id_of(items[t]);
    items[t] = items[t] >= floor && job.likely(w, id) ? (u64)(u32)~id << 32 | __float_as_uint(w) : 0;
  }
  sort(items, n);
  auto drawn = [&](int i) { return __uint_as_float((u32)items[i]); };
  double before = 0.0;
  goal = uniform(draw, (u64)seq_len[draw.seq]);
  int chosen = find_item(n, &before, &goal, true, false, drawn);
  if (t == 0) sampled[blockIdx.y] = chosen < 0 ? (u32)job.best : ~(u32)(items[chosen] >> 32);
}

__device__ __forceinline__ float kept(const Job& job, u64 least, float logit, int id) {
  float w = job.weight(logit);
  return rank_of(logit, id) >= least && job.likely(w, id) ? w : 0.0f;
}

// The mass of every run under the mask of the filters, unless the token is sampled already. Grid (splits, n).
KERNEL __launch_bounds__(THREADS) mask_mass(Row* rows, const float* logits, const Draw* draws, int vocab) {
  after_previous();
  Row& row = rows[blockIdx.y];
  Job job(row.highest, logits, draws[blockIdx.y], vocab);
  if (job.greedy || (job.cuts() && row.sampled)) return;
  u64 least = job.cuts() ? row.least : row.floor;
  float x[EACH];
  job.load_split(blockIdx.x, x);
  double mass = 0.0;
#pragma unroll
  for (int j = 0; j < EACH; j++) mass += (double)kept(job, least, x[j], job.id(blockIdx.x, j));
  mass = warp_sum(mass);
  if (threadIdx.x % 32 == 0) row.masses[blockIdx.x * WARPS + threadIdx.x / 32] = mass;
}

// Samples the token: the first, in order of ids, at which the running mass exceeds a uniform share of the total. Grid (1, n).
KERNEL __launch_bounds__(THREADS)
    draw_token(u32* sampled, Row* rows, const float* logits, const Draw* draws, const int* seq_len, int vocab) {
  after_previous();
  Row& row = rows[blockIdx.y];
  const Draw& draw = draws[blockIdx.y];
  Job job(row.highest, logits, draw, vocab);
  if (job.greedy) {
    if (threadIdx.x == 0) sampled[blockIdx.y] = job.best;
    return;
  }
  if (job.cuts() && row.sampled) return;
  u64 least = job.cuts() ? row.least : row.floor;
  double before = 0.0, goal = uniform(draw, (u64)seq_len[draw.seq]);
  auto mass = [&](int i) { return row.masses[i]; };
  int run = find_item((vocab + SPLIT - 1) / SPLIT * WARPS, &before, &goal, true, false, mass), at = run * RUN;
  auto neighbour = [&](int i) { return at + i < vocab ? kept(job, least, job.logits[at + i], at + i) : 0.0f; };
  int chosen = run < 0 ? -1 : find_item(RUN, &before, &goal, false, false, neighbour);
  if (threadIdx.x == 0) sampled[blockIdx.y] = chosen < 0 ? job.best : at + chosen;
}
