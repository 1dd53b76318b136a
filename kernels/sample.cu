// A row of logits to a token: the token that `sampler::sample` chooses from the same numbers.
// CPU twin: `crate::sampler`, whose order of steps this follows.
#include "kv.cuh"

#define THREADS 1024
#define ONE 0x3f800000u

// How a row's token is chosen: mirrors `backend::Draw`.
struct Draw {
  u64 seed;
  u32 seq, top_k;
  float temperature, top_p, min_p, repetition_penalty;
};

// Enters the step's tokens in the sets of their sequences, seen [n_seqs, words]. Grid covers n.
KERNEL note(u32* seen, const u32* tokens, const Span* spans, const int* span_of_row, int words, int n) {
  after_previous();
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= n) return;
  atomicOr(&seen[(u64)spans[span_of_row[row]].seq * words + tokens[row] / 32], 1u << (tokens[row] % 32));
}

// Divides or multiplies the logits of what the row's sequence was fed. Grid (blocks of vocab, n).
KERNEL penalise(float* logits, const Draw* draws, const u32* seen, int vocab, int words) {
  after_previous();
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  Draw draw = draws[blockIdx.y];
  float penalty = draw.repetition_penalty;
  if (i >= vocab || penalty == 1.0f || !(penalty > 0.0f)) return;
  if (!(seen[(u64)draw.seq * words + i / 32] >> (i % 32) & 1)) return;
  logits += (u64)blockIdx.y * vocab;
  float x = logits[i];
  logits[i] = x > 0.0f ? __fdiv_rn(x, penalty) : x * penalty;
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

// Running sums over the block's threads, in order of threads, in shared memory: s[t] becomes the sum
// of s[0..=t].
template <typename T>
__device__ __forceinline__ void running_sums(T* s) {
  int t = threadIdx.x;
  for (int step = 1; step < THREADS; step *= 2) {
    __syncthreads();
    T x = t >= step ? s[t] + s[t - step] : s[t];
    __syncthreads();
    s[t] = x;
  }
  __syncthreads();
}

// Sum of `x` over the block, the same for every thread and in every run.
__device__ __forceinline__ double sum_of(double x, double* s) {
  int t = threadIdx.x;
  __syncthreads();
  s[t] = x;
  for (int step = THREADS / 2; step > 0; step /= 2) {
    __syncthreads();
    if (t < step) s[t] += s[t + step];
  }
  __syncthreads();
  return s[0];
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

// The likeliest token and its logit, the lowest id among equals; NaN is nobody.
__device__ __forceinline__ int argmax(const float* logits, int vocab, float* max, float* values, int* ids) {
  int t = threadIdx.x, id = 0x7fffffff;
  float best = NEG_INFINITY;
  for (int i = t; i < vocab; i += THREADS) {
    float x = logits[i];
    if (x > best || (x == best && i < id)) best = x, id = i;
  }
  values[t] = best;
  ids[t] = id;
  for (int step = THREADS / 2; step > 0; step /= 2) {
    __syncthreads();
    if (t < step) {
      float x = values[t + step];
      if (x > values[t] || (x == values[t] && ids[t + step] < ids[t])) values[t] = x, ids[t] = ids[t + step];
    }
  }
  __syncthreads();
  *max = values[0];
  id = ids[0];
  __syncthreads();
  return id == 0x7fffffff ? 0 : id;
}

// Who is still in the running: weights whose bits lie above `bits`, and the first `ties` that equal it.
// Weights are positive, so their bits are in order as they are.
struct Border {
  u32 bits;
  int ties;
};

// How many weights, and how much weight in all, lie at `from` or above and inside the border.
__device__ __forceinline__ double inside(const float* w, int vocab, u32 from, Border border, bool count, double* s) {
  double sum = 0.0;
  u32 least = from > border.bits ? from : border.bits + 1;
  for (int i = threadIdx.x; i < vocab; i += THREADS)
    if (__float_as_uint(w[i]) >= least) sum += count ? 1.0 : (double)w[i];
  sum = sum_of(sum, s);
  if (from <= border.bits) sum += border.ties * (count ? 1.0 : (double)__uint_as_float(border.bits));
  return sum;
}

// The highest bits from which on there is as much inside as `goal`.
__device__ __forceinline__ u32 highest_with(const float* w, int vocab, Border border, double goal, bool count,
                                            double* s) {
  u32 low = border.bits > 0 ? border.bits : 1, high = ONE + 1;
  while (high - low > 1) {
    u32 middle = low + (high - low) / 2;
    if (inside(w, vocab, middle, border, count, s) >= goal) low = middle;
    else high = middle;
  }
  return low;
}

__device__ __forceinline__ Border keep_top_k(const float* w, int vocab, int k, double* s) {
  Border all = {0, 0};
  if (inside(w, vocab, 1, all, true, s) <= k) return all;
  Border border = {highest_with(w, vocab, all, k, true, s), 0};
  border.ties = k - (int)inside(w, vocab, border.bits + 1, all, true, s);
  return border;
}

__device__ __forceinline__ Border keep_nucleus(const float* w, int vocab, Border border, double p, double* s) {
  double goal = fmax(p, 0.0) * inside(w, vocab, 1, border, false, s);
  Border nucleus = {ONE, 1};
  if (goal <= 0.0) return nucleus;
  nucleus.bits = highest_with(w, vocab, border, goal, false, s);
  double above = inside(w, vocab, nucleus.bits + 1, border, false, s);
  double each = (double)__uint_as_float(nucleus.bits);
  int ties = 1;
  // All of these ties count, where rounding would leave the goal just out of reach.
  int most = (int)(inside(w, vocab, nucleus.bits, border, true, s) - inside(w, vocab, nucleus.bits + 1, border, true, s));
  if (above + each < goal) ties = (int)fmin((goal - above) / each, 2e9);
  if (ties < 1) ties = 1;
  while (ties < most && above + ties * each < goal) ties++;
  while (ties > 1 && above + (ties - 1) * each >= goal) ties--;
  nucleus.ties = ties < most ? ties : most;
  return nucleus;
}

// A block a row; `logits [n, vocab]` become weights. top_k 0 and top_p 1 are off. Reads the row once when
// greedy, some thirty times for each of top-k and top-p. The position is the sequence's length. Grid n.
KERNEL __launch_bounds__(THREADS)
    sample(u32* sampled, float* logits, int vocab, const Draw* draws, const int* seq_len) {
  after_previous();
  __shared__ double sums[THREADS];
  __shared__ int counts[THREADS];
  __shared__ int chosen, last;
  __shared__ Draw draw;
  int t = threadIdx.x;
  // In shared memory: registers are short with so many threads.
  if (t == 0) draw = draws[blockIdx.x];
  __syncthreads();
  logits += (u64)blockIdx.x * vocab;
  bool greedy = !(draw.temperature > 0.0f) || draw.top_k == 1;
  float max;
  int best = argmax(logits, vocab, &max, (float*)sums, counts);
  if (greedy || !(fabsf(max) < __int_as_float(0x7f800000))) {
    if (t == 0) sampled[blockIdx.x] = best;
    return;
  }
  float inv_temperature = __fdiv_rn(1.0f, draw.temperature);
  for (int i = t; i < vocab; i += THREADS) {
    // In f64 and then rounded: within f32's last bit as the CPU's.
    float w = (float)exp((double)__fmul_rn(__fsub_rn(logits[i], max), inv_temperature));
    logits[i] = w == w ? w : 0.0f;
  }
  __syncthreads();
  Border border = {0, 0};
  bool cut_k = draw.top_k > 0 && draw.top_k < (u32)vocab, cut_p = draw.top_p < 1.0f;
  if (cut_k) border = keep_top_k(logits, vocab, (int)draw.top_k, sums);
  if (cut_p) border = keep_nucleus(logits, vocab, border, (double)draw.top_p, sums);
  // Survivors in order of ids: each thread has a run of neighbours.
  int run = (vocab + THREADS - 1) / THREADS, from = min(t * run, vocab), to = min(from + run, vocab);
  int equal = 0;
  for (int i = from; i < to; i++) equal += border.bits > 0 && __float_as_uint(logits[i]) == border.bits;
  counts[t] = equal;
  running_sums(counts);
  int rank = counts[t] - equal;
  double mass = 0.0;
  int mine = -1;
  for (int i = from; i < to; i++) {
    float w = logits[i];
    u32 bits = __float_as_uint(w);
    bool in = bits > border.bits || (border.bits > 0 && bits == border.bits && rank++ < border.ties);
    in = in && (w >= draw.min_p || ((cut_k || cut_p) && i == best));
    if (in) mass += w, mine = i;
    else logits[i] = 0.0f;
  }
  if (t == 0) chosen = THREADS, last = -1;
  __syncthreads();
  sums[t] = mass;
  atomicMax(&last, mine);
  running_sums(sums);
  double goal = uniform(draw.seed, (u64)seq_len[draw.seq]) * sums[THREADS - 1];
  if (mine >= 0 && sums[t] > goal) atomicMin(&chosen, t);
  __syncthreads();
  if (chosen == THREADS) {
    if (t == 0) sampled[blockIdx.x] = last >= 0 ? last : best;
    return;
  }
  if (t != chosen) return;
  double passed = t > 0 ? sums[t - 1] : 0.0;
  for (int i = from; i < to; i++) {
    passed += logits[i];
    if (logits[i] > 0.0f && passed > goal) {
      mine = i;
      break;
    }
  }
  sampled[blockIdx.x] = mine;
}
