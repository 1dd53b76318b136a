// A row of logits to a token: the token that `sampler::sample` chooses from the same numbers.
// CPU twin: `crate::sampler`, whose order of steps this follows.
#include "common.cuh"

#define THREADS 1024
#define ONE 0x3f800000u

// Divides or multiplies the logits of the given ids, each given once. Grid covers n.
KERNEL penalise(float* logits, const u32* ids, int n, float penalty, int vocab) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n || ids[i] >= (u32)vocab) return;
  float x = logits[ids[i]];
  logits[ids[i]] = x > 0.0f ? __fdiv_rn(x, penalty) : x * penalty;
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

// One block; `logits [vocab]` become weights. top_k 0 and top_p 1 are off. Reads the row once when
// greedy, some thirty times for each of top-k and top-p. A negative `inv_temperature` takes the likeliest.
KERNEL __launch_bounds__(THREADS)
    sample(u32* sampled, float* logits, int vocab, float inv_temperature, int top_k, float top_p, float min_p,
           u64 seed, u64 position) {
  __shared__ double sums[THREADS];
  __shared__ int counts[THREADS];
  __shared__ int chosen, last;
  int t = threadIdx.x;
  float max;
  int best = argmax(logits, vocab, &max, (float*)sums, counts);
  if (inv_temperature < 0.0f || !(fabsf(max) < __int_as_float(0x7f800000))) {
    if (t == 0) *sampled = best;
    return;
  }
  for (int i = t; i < vocab; i += THREADS) {
    // In f64 and then rounded: within f32's last bit as the CPU's.
    float w = (float)exp((double)__fmul_rn(__fsub_rn(logits[i], max), inv_temperature));
    logits[i] = w == w ? w : 0.0f;
  }
  __syncthreads();
  Border border = {0, 0};
  bool cut_k = top_k > 0 && top_k < vocab, cut_p = top_p < 1.0f;
  if (cut_k) border = keep_top_k(logits, vocab, top_k, sums);
  if (cut_p) border = keep_nucleus(logits, vocab, border, (double)top_p, sums);
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
    in = in && (w >= min_p || ((cut_k || cut_p) && i == best));
    if (in) mass += w, mine = i;
    else logits[i] = 0.0f;
  }
  if (t == 0) chosen = THREADS, last = -1;
  __syncthreads();
  sums[t] = mass;
  atomicMax(&last, mine);
  running_sums(sums);
  double goal = uniform(seed, position) * sums[THREADS - 1];
  if (mine >= 0 && sums[t] > goal) atomicMin(&chosen, t);
  __syncthreads();
  if (chosen == THREADS) {
    if (t == 0) *sampled = last >= 0 ? last : best;
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
  *sampled = mine;
}
