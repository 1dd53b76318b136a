// Sampling: logits [n, vocab] to tokens [n], the same tokens as `sampler::sample` from the same
// logits. Seven kernels in order: `argmax`, `histogram`, `threshold_bin`, `candidates`,
// `nucleus_cut`, `mask_mass`, `draw_token`; two where all rows are greedy: `argmax`, `draw_token`.
// `argmax`, `histogram`, `candidates` and `mask_mass` split a row over blocks of 4,096 logits; the
// others are one block per row. Each kernel returns at once for rows that do not need it. Every one
// that reads logits reads 4 vocab bytes per row. CPU twin: `crate::sampler`.
//
// Top-k and top-p are a radix select on the softmax weights e^((logit - max) / temperature): a
// histogram finds the bin in which the threshold lies, and only candidates of that bin are sorted.
#include "sample.cuh"

// What is added to logits.
struct Adjustment {
  u32 token;
  float add;
};

// Adds the adjustments of a row [n, MOST_ADJUSTED], each token once, then applies the mask of
// allowed tokens and the repetition penalty, and finds the argmax of every split. A row that is
// masked has a bit a token in masks [n, words]: it reads vocab / 8 bytes and writes up to 4 vocab.
// The tokens of `ahead` rows up to a row count as fed. Grid (splits, n).
KERNEL __launch_bounds__(THREADS)
    argmax(Row* rows, float* logits, const Draw* draws, const u32* seen, const u32* tokens, const u32* masks,
           const Adjustment* adjusts, int vocab, int words) {
  after_previous();
  Row& row = rows[blockIdx.y];
  int t = blockIdx.x * THREADS + threadIdx.x;
  for (int i = t; i < BINS; i += gridDim.x * THREADS) row.bins[i] = row.subs[i] = 0;
  Draw draw = draws[blockIdx.y];
  float penalty = draw.repetition_penalty, x[EACH];
  Job job(0, logits, draw, vocab);
  if (draw.adjusted) {
    adjusts += (u64)blockIdx.y * Draw::MOST_ADJUSTED;
    for (u32 i = threadIdx.x; i < draw.adjusted; i += THREADS) {
      Adjustment own = adjusts[i];
      if (own.token / SPLIT == blockIdx.x && own.token < vocab) logits[(u64)blockIdx.y * vocab + own.token] += own.add;
    }
    __syncthreads();
  }
  if (draw.masked) {
    masks += (u64)blockIdx.y * words;
#pragma unroll 1
    for (int j = 0; j < EACH; j++) {
      // The tokens of a warp share a word.
      int id = job.id(blockIdx.x, j);
      if (id < vocab && !(masks[id / 32] >> (id % 32) & 1)) logits[(u64)blockIdx.y * vocab + id] = NEG_INFINITY;
    }
  }
  job.load_split(blockIdx.x, x);
  if (penalty != 1.0f && penalty > 0.0f) {
    logits += (u64)blockIdx.y * vocab;
    seen += (u64)draw.seq * words;
    auto fed = [&](u32 id) {
      bool own = false;
      for (u32 i = 0; i < draw.ahead; i++) own |= tokens[blockIdx.y - i] == id;
      return own || seen[id / 32] >> (id % 32) & 1;
    };
#pragma unroll
    for (int j = 0; j < EACH; j++) {
      int id = job.id(blockIdx.x, j);
      if (id >= vocab || !fed(id)) continue;
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

// Softmax weights to a histogram, per split in shared memory, then added to the row's. Grid
// (splits, n).
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

// The least rank that top-n-sigma keeps, 0 where it is off: n standard deviations below the largest
// logit. Called by one thread.
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

// Lists candidates, and makes the histogram of the sub-bins of the threshold's bin. Grid (splits,
// n).
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

// Finds the last candidate that top-k and top-p keep and, if all kept candidates are listed,
// samples the token. Grid (1, n).
KERNEL __launch_bounds__(THREADS)
    nucleus_cut(Results results, Row* rows, const float* logits, const Draw* draws, const int* seq_len, int vocab) {
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
  goal = uniform(draw, (u64)(seq_len[draw.seq] + draw.ahead));
  int chosen = find_item(n, &before, &goal, true, false, drawn);
  if (t == 0) results.put(chosen < 0 ? (u32)job.best : ~(u32)(items[chosen] >> 32));
}

__device__ __forceinline__ float kept(const Job& job, u64 least, float logit, int id) {
  float w = job.weight(logit);
  return rank_of(logit, id) >= least && job.likely(w, id) ? w : 0.0f;
}

// The mass of every run under the mask of the filters, unless the token is sampled already. Grid
// (splits, n).
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

// Samples the token: the first, in order of ids, at which the running mass exceeds a uniform share
// of the total. Grid (1, n).
KERNEL __launch_bounds__(THREADS)
    draw_token(Results results, Row* rows, const float* logits, const Draw* draws, const int* seq_len, int vocab) {
  after_previous();
  Row& row = rows[blockIdx.y];
  const Draw& draw = draws[blockIdx.y];
  Job job(row_argmax(row, (vocab + SPLIT - 1) / SPLIT), logits, draw, vocab);
  if (job.greedy) {
    if (threadIdx.x == 0) results.put(job.best);
    return;
  }
  if (job.cuts() && row.sampled) return;
  u64 least = job.cuts() ? row.least : row.floor;
  double before = 0.0, goal = uniform(draw, (u64)(seq_len[draw.seq] + draw.ahead));
  auto mass = [&](int i) { return row.masses[i]; };
  int run = find_item((vocab + SPLIT - 1) / SPLIT * WARPS, &before, &goal, true, false, mass), at = run * RUN;
  auto neighbour = [&](int i) { return at + i < vocab ? kept(job, least, job.logits[at + i], at + i) : 0.0f; };
  int chosen = run < 0 ? -1 : find_item(RUN, &before, &goal, false, false, neighbour);
  if (threadIdx.x == 0) results.put(chosen < 0 ? job.best : at + chosen);
}
