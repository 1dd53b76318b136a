// A row of logits to a token: the token that `sampler::sample` chooses from the same numbers. Seven small
// kernels: those over all parts of a row share it between blocks of 4,096 logits; `border`, `cut` and `choose`
// are one block to a row and do what needs all its parts. What a row does not ask for, they leave out at once.
// CPU twin: `crate::sampler`.
#include "kv.cuh"

#define THREADS 512
#define WARPS (THREADS / 32)
// Logits of a thread, of a warp, and of a block.
#define EACH 8
#define RUN (32 * EACH)
#define PART (THREADS * EACH)
// Bins of weights, the highest first, sixteen to an octave; and the parts of one bin.
#define BINS 2048
#define BIN_SHIFT 19
#define SUB_SHIFT 8
#define ONE 0x3f800000u
// A bin is one word: how many weights, and the sum of their bits below the bin's. So its mass is exact, and
// no order of summing matters.
#define COUNT_SHIFT 40
#define SUM_MASK ((1ull << COUNT_SHIFT) - 1)
// Candidates that are listed, and that one block puts in order.
#define LISTED 8192
#define FEW 256
// Runs, parts of a row: a vocabulary may have 2^20 tokens.
#define MOST_RUNS 4096
#define MOST_PARTS (MOST_RUNS / WARPS)

// How a row's token is chosen: mirrors `backend::Draw`.
struct Draw {
  u64 seed;
  u32 seq, top_k;
  float temperature, top_p, min_p, repetition_penalty;
};
static_assert(sizeof(Draw) == 32 && OFFSET_OF(Draw, seq) == 8 && OFFSET_OF(Draw, temperature) == 16 &&
                  OFFSET_OF(Draw, repetition_penalty) == 28,
              "backend::cuda::abi asserts another layout");

// A bin, and what lies above it.
struct Bin {
  int bin, above;
  double mass_above;
};

// What the kernels of a row tell each other; its size is in `backend::cuda::abi`. Nothing in it outlives a
// step.
struct Row {
  u64 best[MOST_PARTS];  // rank of each part's likeliest
  u64 highest;           // and of the row's
  Bin border;            // where top-k ends or, where that cuts nothing, top-p; -1: nowhere
  double total;          // mass of all weights
  int ranked;            // the border is that of top-k
  int from;              // the first bin that is listed, -1: all; the last one is the border's
  int settled;           // the token is chosen
  int listed;
  u64 least;  // rank of the last candidate kept
  u64 bins[BINS], subs[BINS];
  u64 list[LISTED];
  double masses[MOST_RUNS];  // what is kept of each run
};
static_assert(sizeof(Row) == 133176, "backend::cuda::abi::SAMPLE_ROW_BYTES is another size");

// Enters the step's tokens in the sets of their sequences, seen [n_seqs, words]. Grid covers n.
KERNEL note(u32* seen, const u32* tokens, const Span* spans, const int* span_of_row, int words, int n) {
  after_previous();
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= n) return;
  atomicOr(&seen[(u64)spans[span_of_row[row]].seq * words + tokens[row] / 32], 1u << (tokens[row] % 32));
}

// What the host wants of a step, in its own memory: the fault, the free pages, the tokens. Grid 1.
KERNEL post(int* out, const u32* sampled, const int* fault, const int* counts, int n) {
  after_previous();
  for (int i = threadIdx.x; i < n; i += blockDim.x) out[2 + i] = (int)sampled[i];
  if (threadIdx.x == 0) {
    out[0] = fault[0];
    out[1] = counts[0] + counts[1];
  }
}

__device__ __forceinline__ u64 higher(u64 a, u64 b) { return a > b ? a : b; }

// A token's place among the others: by its logit, then the lower id; 0 for NaN, which is nobody.
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

__device__ __forceinline__ u64 warp_highest(u64 x) {
  for (int m = 16; m > 0; m >>= 1) x = higher(x, __shfl_xor_sync(FULL, x, m));
  return x;
}

__device__ __forceinline__ u64 block_highest(u64 x) {
  __shared__ u64 parts[WARPS];
  x = warp_highest(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  return warp_highest(threadIdx.x % 32 < WARPS ? parts[threadIdx.x % 32] : 0);
}

// The same of a sum over the threads before this one, which is the same in every run; `total` is that of all.
template <typename T>
__device__ __forceinline__ T sum_before(T x, T* total) {
  __shared__ T parts[WARPS];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    T y = __shfl_up_sync(FULL, x, step);
    if (lane >= step) x += y;
  }
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
__device__ __forceinline__ double uniform(u64 seed, u64 position) {
  const u64 golden = 0x9E3779B97F4A7C15ull;
  u64 key = mix64(seed + golden);
  return (double)(mix64(key + (position + 1) * golden) >> 40) * (1.0 / 16777216.0);
}

// e^x for x <= 0 in f32, within 0.6 of its last bit (0.1 % differ from glibc's) and never rising as x falls; 0 for NaN.
__device__ __forceinline__ float exp_down(float x) {
  if (!(x > -104.0f)) return 0.0f;
  float n = rintf(__fmul_rn(x, 1.44269504f));
  // ln 2 in two parts, of which the first has so few bits that its products are exact.
  float whole = __fmaf_rn(n, -0.693145752f, x), small = __fmul_rn(n, -1.42860682e-6f);
  float r = __fadd_rn(whole, small), s = __fadd_rn(__fsub_rn(whole, r), small);
  float p = __fmaf_rn(r, 2.48015873e-5f, 1.98412698e-4f);
  p = __fmaf_rn(p, r, 1.38888889e-3f);
  p = __fmaf_rn(p, r, 8.33333333e-3f);
  p = __fmaf_rn(p, r, 4.16666667e-2f);
  p = __fmaf_rn(p, r, 0.166666667f);
  p = __fmaf_rn(p, r, 0.5f);
  // 1 + r + s + r^2 p, with what the first sum rounds away.
  float rest = __fmaf_rn(__fmul_rn(r, r), p, __fmaf_rn(r, s, s));
  float sum = __fadd_rn(1.0f, r), lost = __fsub_rn(r, __fsub_rn(sum, 1.0f));
  sum = __fadd_rn(sum, __fadd_rn(lost, rest));
  int power = (int)n;
  if (power >= -126) return __fmul_rn(sum, __uint_as_float((u32)(power + 127) << 23));
  return __fmul_rn(__fmul_rn(sum, __uint_as_float((u32)(power + 191) << 23)), __uint_as_float(63u << 23));
}

// A row and what is asked of it.
struct Job {
  const float* logits;
  int vocab, best, k;  // k: 0 where top-k is off
  float max, inv_temperature, top_p, min_p;
  bool plain;  // the likeliest it is

  __device__ __forceinline__ Job(u64 highest, const float* all_logits, const Draw& draw, int vocab)
      : logits(all_logits + (u64)blockIdx.y * vocab), vocab(vocab), top_p(draw.top_p), min_p(draw.min_p) {
    best = highest ? id_of(highest) : 0;
    max = highest ? logit_of(highest) : NEG_INFINITY;
    k = draw.top_k < (u32)vocab ? (int)draw.top_k : 0;
    plain = !(draw.temperature > 0.0f) || draw.top_k == 1 || !(fabsf(max) < __int_as_float(0x7f800000));
    inv_temperature = __fdiv_rn(1.0f, draw.temperature);
  }
  __device__ __forceinline__ bool nucleus() const { return top_p < 1.0f; }
  __device__ __forceinline__ double share() const { return fmax((double)top_p, 0.0); }
  __device__ __forceinline__ bool cuts() const { return !plain && (k > 0 || nucleus()); }
  __device__ __forceinline__ float weight(float logit) const {
    return exp_down(__fmul_rn(__fsub_rn(logit, max), inv_temperature));
  }
  // Whether min-p leaves it in.
  __device__ __forceinline__ bool likely(float w, int id) const {
    return w >= min_p || (id == best && (k > 0 || nucleus()));
  }
  // A thread's logits of a part, a warp's side by side.
  __device__ __forceinline__ static int id(int part, int j) {
    return part * PART + (threadIdx.x / 32) * RUN + j * 32 + threadIdx.x % 32;
  }
  __device__ __forceinline__ void part_of(int part, float x[EACH]) const {
#pragma unroll
    for (int j = 0; j < EACH; j++) x[j] = id(part, j) < vocab ? logits[id(part, j)] : NEG_INFINITY;
  }
};

__device__ __forceinline__ u64 likeliest_of(const Row& row, int parts) {
  u64 highest = 0;
  for (int i = threadIdx.x % 32; i < parts; i += 32) highest = higher(highest, row.best[i]);
  return warp_highest(highest);
}

// The bin of a weight that is not 0, and the weights of a bin: all are whole multiples of one power of two.
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

// What a border is looked for by: the number of candidates down to it, or (0) their mass.
struct Aim {
  int count;
  double mass;
  bool share;  // the mass is a share of all there is
};

// The first of `bins` with which, and with what is above them all, there is as much as `aim` asks for; -1 where
// there are fewer. They are bins of weights or, where `bin` says which, parts of one of these. For whole blocks.
__device__ __forceinline__ Bin find(const u64* bins, int bin, Bin above, Aim aim, double* total) {
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
  count = above.above + sum_before(count, &counts);
  mass = above.mass_above + sum_before(mass, total);
  if (aim.share) aim.mass *= *total;
  if (threadIdx.x == 0) first = BINS, last = -1, found = Bin{-1, 0, 0.0};
  __syncthreads();
  Bin mine = {-1, 0, 0.0}, end = mine;
#pragma unroll
  for (int i = 0; i < run; i++) {
    if (count_of(own[i]) > 0) {
      end = Bin{from + i, count, mass};
      count += count_of(own[i]);
      mass += masses[i];
      if (mine.bin < 0 && (aim.count > 0 ? count >= aim.count : mass >= aim.mass)) mine = end;
    }
  }
  if (mine.bin >= 0) atomicMin(&first, mine.bin);
  if (end.bin >= 0) atomicMax(&last, end.bin);
  __syncthreads();
  if (mine.bin >= 0 && mine.bin == first) found = mine;
  // A mass that only rounding has put out of reach is that of all.
  if (first == BINS && aim.count == 0 && end.bin >= 0 && end.bin == last) found = end;
  __syncthreads();
  return found;
}

// Puts up to FEW `items` in order, the highest first. For whole blocks, which see them afterwards.
__device__ __forceinline__ void order(u64* items, int n) {
  __syncthreads();
  int t = threadIdx.x, place = 0;
  u64 item = t < n ? items[t] : 0;
  if (t < n)
    for (int i = 0; i < n; i++) place += items[i] > item || (items[i] == item && i < t);
  __syncthreads();
  if (t < n) items[place] = item;
  __syncthreads();
}

// Calls `each` with every candidate of a bin, or of its part `sub`: weight and rank. One block reads the row.
template <typename Each>
__device__ __forceinline__ void candidates(const Job& job, int bin, int sub, Each each) {
  const int batch = 4;  // logits that are on their way at once
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

// Lists, in no order, that part of a bin or of its part `sub` in which `aim` is reached: FEW at most. For what
// is crowded or tied; reads the row three times or more. Returns how many, and in `border` what is above them.
__device__ __noinline__ int refine(const Job& job, u64* items, u64* bins, int sub, Bin* border, Aim aim) {
  __shared__ int listed;
  int bin = border->bin;
  u64 high = 0, low_inverted = 0;
  candidates(job, bin, sub, [&](float, u64 rank) {
    high = higher(high, rank), low_inverted = higher(low_inverted, ~rank);
  });
  high = block_highest(high);
  u64 low = ~block_highest(low_inverted);
  for (int count = FEW + 1; count > FEW;) {
    int shift = 0;
    while ((high - low) >> shift >= BINS) shift++;
    for (int i = threadIdx.x; i < BINS; i += THREADS) bins[i] = 0;
    __syncthreads();
    candidates(job, bin, sub, [&](float w, u64 rank) {
      if (rank <= high && rank >= low) atomicAdd(&bins[(high - rank) >> shift], (1ull << COUNT_SHIFT) + below_bin(w));
    });
    __syncthreads();
    double total;
    *border = find(bins, bin, *border, aim, &total);
    count = count_of(bins[border->bin]);
    high -= (u64)border->bin << shift;
    u64 least = high - ((1ull << shift) - 1);
    low = least > low && least <= high ? least : low;
    __syncthreads();
  }
  if (threadIdx.x == 0) listed = 0;
  __syncthreads();
  candidates(job, bin, sub, [&](float, u64 rank) {
    if (rank <= high && rank >= low) items[atomicAdd(&listed, 1)] = rank;
  });
  __syncthreads();
  border->bin = bin;
  return listed;
}

// The first of n items, in order, with which and with `above` there is more mass than `goal`, or as much where
// that is `enough`; else the last one that weighs anything; -1 where there is none. A goal that is a `share` of all
// becomes a mass. `above` is what comes before all, and then before this one. For whole blocks.
template <typename Weight>
__device__ __forceinline__ int reach(int n, double* above, double* goal, bool share, bool enough, Weight weight) {
  __shared__ int first, last;
  __shared__ double passed;
  int run = (n + THREADS - 1) / THREADS, from = min((int)threadIdx.x * run, n), to = min(from + run, n);
  double mass = 0.0, total, before = 0.0;
  for (int i = from; i < to; i++) mass += (double)weight(i);
  mass = *above + sum_before(mass, &total);
  double least = share ? *goal * (*above + total) : *goal;
  if (threadIdx.x == 0) first = n, last = -1;
  __syncthreads();
  int mine = n, end = -1;
  for (int i = from; i < to; i++) {
    double w = (double)weight(i), with = mass + w;
    if (w > 0.0) end = i;
    if (mine == n && (with > least || (enough && with == least))) mine = i, before = mass;
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

// The likeliest of every part, after the repetition penalty. Grid (parts of a row, n).
KERNEL __launch_bounds__(THREADS)
    likeliest(Row* rows, float* logits, const Draw* draws, const u32* seen, int vocab, int words) {
  after_previous();
  Row& row = rows[blockIdx.y];
  int t = blockIdx.x * THREADS + threadIdx.x;
  for (int i = t; i < BINS; i += gridDim.x * THREADS) row.bins[i] = row.subs[i] = 0;
  Draw draw = draws[blockIdx.y];
  float penalty = draw.repetition_penalty, x[EACH];
  Job job(0, logits, draw, vocab);
  job.part_of(blockIdx.x, x);
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
  u64 best = 0;
#pragma unroll
  for (int j = 0; j < EACH; j++)
    if (job.id(blockIdx.x, j) < vocab) best = higher(best, rank_of(x[j], job.id(blockIdx.x, j)));
  best = block_highest(best);
  if (threadIdx.x == 0) row.best[blockIdx.x] = best;
}

// The histogram of the weights. Grid (parts of a row, n).
KERNEL __launch_bounds__(THREADS) weigh(Row* rows, const float* logits, const Draw* draws, int vocab) {
  __shared__ u32 counts[BINS], sums[BINS];
  after_previous();
  Row& row = rows[blockIdx.y];
  Job job(likeliest_of(row, gridDim.x), logits, draws[blockIdx.y], vocab);
  if (!job.cuts()) return;
  float x[EACH];
  job.part_of(blockIdx.x, x);
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

// Where top-k or top-p ends in it. Grid (1, n).
KERNEL __launch_bounds__(THREADS) border(Row* rows, const float* logits, const Draw* draws, int vocab) {
  after_previous();
  Row& row = rows[blockIdx.y];
  u64 highest = likeliest_of(row, (vocab + PART - 1) / PART);
  if (threadIdx.x == 0) row.highest = highest, row.listed = 0;
  Job job(highest, logits, draws[blockIdx.y], vocab);
  if (!job.cuts()) return;
  Bin top = {-1, 0, 0.0}, found = top;
  double total = 0.0;
  bool by_mass = job.k == 0;
  for (;; by_mass = true) {
    found = find(row.bins, -1, top, Aim{by_mass ? 0 : job.k, job.share(), true}, &total);
    // Top-k may cut nothing.
    if (found.bin >= 0 || by_mass || !job.nucleus()) break;
  }
  if (threadIdx.x > 0) return;
  row.border = found, row.ranked = !by_mass, row.total = total;
  // All candidates are listed where they are few, else those of the border's bin.
  row.from = found.bin >= 0 && found.above + count_of(row.bins[found.bin]) <= FEW ? -1 : found.bin;
}

// Lists candidates, and divides the border's bin. Grid (parts of a row, n).
KERNEL __launch_bounds__(THREADS) list(Row* rows, const float* logits, const Draw* draws, int vocab) {
  after_previous();
  Row& row = rows[blockIdx.y];
  Job job(row.highest, logits, draws[blockIdx.y], vocab);
  if (!job.cuts()) return;
  int from = row.from, to = row.border.bin;
  float x[EACH];
  job.part_of(blockIdx.x, x);
#pragma unroll
  for (int j = 0; j < EACH; j++) {
    float w = job.weight(x[j]);
    if (!(w > 0.0f) || bin_of(w) < from || bin_of(w) > to) continue;
    int at = atomicAdd(&row.listed, 1);
    if (at < LISTED) row.list[at] = rank_of(x[j], job.id(blockIdx.x, j));
    if (from >= 0) atomicAdd(&row.subs[sub_of(w)], (1ull << COUNT_SHIFT) + below_bin(w));
  }
}

// Finds the last candidate that is kept and, where it has all before it, draws. Grid (1, n).
KERNEL __launch_bounds__(THREADS)
    cut(u32* sampled, Row* rows, const float* logits, const Draw* draws, const int* seq_len, int vocab) {
  __shared__ u64 items[FEW], bins[BINS];
  __shared__ int listed;
  after_previous();
  Row& row = rows[blockIdx.y];
  const Draw& draw = draws[blockIdx.y];
  Job job(row.highest, logits, draw, vocab);
  if (!job.cuts()) return;
  int t = threadIdx.x, n = row.listed;
  Bin border = row.border;
  if (border.bin < 0) {
    if (t == 0) row.least = 0, row.settled = 0;
    return;
  }
  bool all = row.from < 0, ranked = row.ranked;
  double goal = job.share() * row.total, unused;
  if (all) {
    border.above = 0, border.mass_above = 0.0;
    if (t < n) items[t] = row.list[t];
  } else {
    Aim aim = {ranked ? job.k : 0, goal, false};
    Bin part = find(row.subs, border.bin, border, aim, &unused);
    border.above = part.above, border.mass_above = part.mass_above;
    if (n > LISTED || count_of(row.subs[part.bin]) > FEW) {
      n = refine(job, items, bins, part.bin, &border, aim);
    } else {
      if (t == 0) listed = 0;
      __syncthreads();
      for (int i = t; i < n; i += THREADS) {
        u64 rank = row.list[i];
        if (sub_of(job.weight(logit_of(rank))) == part.bin) items[atomicAdd(&listed, 1)] = rank;
      }
      __syncthreads();
      n = listed;
    }
  }
  order(items, n);
  auto weight = [&](int i) { return job.weight(logit_of(items[i])); };
  if (ranked) n = min(n, job.k - border.above);
  if (job.nucleus()) {
    double above = border.mass_above;
    if (ranked && border.above > 0) {
      // Top-p may end above the bin, or the part of one, in which top-k does.
      double mass = 0.0;
      sum_before(t < n ? (double)weight(t) : 0.0, &mass);
      goal = job.share() * (above + mass);
      if (above >= goal) {
        Aim aim = {0, goal, false};
        border = find(row.bins, -1, Bin{-1, 0, 0.0}, aim, &unused);
        n = refine(job, items, bins, -1, &border, aim);
        order(items, n);
        above = border.mass_above;
      }
      n = reach(n, &above, &goal, false, true, weight) + 1;
    } else {
      if (ranked) goal = job.share();
      n = reach(n, &above, &goal, ranked, true, weight) + 1;
    }
  }
  if (t == 0) row.least = items[n - 1], row.settled = all;
  if (!all) return;
  __syncthreads();
  if (t < n) {
    float w = weight(t);
    int id = id_of(items[t]);
    items[t] = job.likely(w, id) ? (u64)(u32)~id << 32 | __float_as_uint(w) : 0;
  }
  order(items, n);
  auto drawn = [&](int i) { return __uint_as_float((u32)items[i]); };
  double before = 0.0;
  goal = uniform(draw.seed, (u64)seq_len[draw.seq]);
  int chosen = reach(n, &before, &goal, true, false, drawn);
  if (t == 0) sampled[blockIdx.y] = chosen < 0 ? (u32)job.best : ~(u32)(items[chosen] >> 32);
}

__device__ __forceinline__ float kept(const Job& job, u64 least, float logit, int id) {
  float w = job.weight(logit);
  return rank_of(logit, id) >= least && job.likely(w, id) ? w : 0.0f;
}

// What is kept of every run, unless the token is chosen already. Grid (parts of a row, n).
KERNEL __launch_bounds__(THREADS) keep(Row* rows, const float* logits, const Draw* draws, int vocab) {
  after_previous();
  Row& row = rows[blockIdx.y];
  Job job(row.highest, logits, draws[blockIdx.y], vocab);
  if (job.plain || (job.cuts() && row.settled)) return;
  u64 least = job.cuts() ? row.least : 0;
  float x[EACH];
  job.part_of(blockIdx.x, x);
  double mass = 0.0;
#pragma unroll
  for (int j = 0; j < EACH; j++) mass += (double)kept(job, least, x[j], job.id(blockIdx.x, j));
#pragma unroll
  for (int m = 16; m > 0; m >>= 1) mass += __shfl_xor_sync(FULL, mass, m);
  if (threadIdx.x % 32 == 0) row.masses[blockIdx.x * WARPS + threadIdx.x / 32] = mass;
}

// Draws from that: in order of ids, at a uniform number of all that is kept. Grid (1, n).
KERNEL __launch_bounds__(THREADS)
    choose(u32* sampled, Row* rows, const float* logits, const Draw* draws, const int* seq_len, int vocab) {
  after_previous();
  Row& row = rows[blockIdx.y];
  const Draw& draw = draws[blockIdx.y];
  Job job(row.highest, logits, draw, vocab);
  if (job.plain) {
    if (threadIdx.x == 0) sampled[blockIdx.y] = job.best;
    return;
  }
  if (job.cuts() && row.settled) return;
  u64 least = job.cuts() ? row.least : 0;
  double before = 0.0, goal = uniform(draw.seed, (u64)seq_len[draw.seq]);
  auto mass = [&](int i) { return row.masses[i]; };
  int run = reach((vocab + PART - 1) / PART * WARPS, &before, &goal, true, false, mass), at = run * RUN;
  auto neighbour = [&](int i) { return at + i < vocab ? kept(job, least, job.logits[at + i], at + i) : 0.0f; };
  int chosen = run < 0 ? -1 : reach(RUN, &before, &goal, false, false, neighbour);
  if (threadIdx.x == 0) sampled[blockIdx.y] = chosen < 0 ? job.best : at + chosen;
}
