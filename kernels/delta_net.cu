// Gated delta net: the convolution, the gates, the recurrence and the gated norm of Qwen3.5's
// layers without attention, token after token in f32. CPU twin: `backend::cpu::delta`.
//
// Columns of a head's state are independent of each other, so a block has some of them, in
// registers, for all tokens of a span: eight columns a warp, each in eight lanes. A step of one
// token has a block for each value head, which also does the norm; longer spans have blocks of 32
// columns, and a kernel of its own for the norm.
//
// Cost: a token takes each multiprocessor about 300 cycles, whatever it has of its head; 8 key_dim
// value_dim bytes of state a launch, and 4 bytes of each input of a block.
#include "image.cuh"
#include "kv.cuh"

#define TAPS 4         // tokens that the convolution sees
#define MOST_DIM 128   // channels of a head
#define ROWS 16        // rows of the state in a lane, of two columns
#define CHUNK 16       // tokens of a span that are convolved at once
#define CHUNK_COLUMNS 32
#define UNIT_EPS 1e-6f // of the norm of q and k
#define NORM_WARPS 8

// Mirrors `backend::cuda::abi::DeltaParams`.
struct DeltaParams {
  const float* rows;    // [n, channels + value width] rows [q heads | k heads | v heads | z heads]
  const float* gates;   // [n, 2 value_heads] rows [b | a]
  const float *conv;    // [TAPS, channels]
  const float *decay, *dt_bias;  // [value_heads]
  const float* norm;    // [value_dim]
  // Of the layer: the newest inputs [n_seqs, TAPS - 1, channels], states [n_seqs, value_heads,
  // key_dim, value_dim], and how many blocks have read a key head's inputs [n_seqs, key_heads],
  // zero between launches.
  float *inputs, *state;
  int* arrivals;
  const int* seq_len;   // [n_seqs] tokens before this step
  const Span* spans;    // of the step
  float* raw;           // [n, raw_width] outputs before the norm: in place of v, or elsewhere where the rows are needed again
  void* out;            // [n, value width], bf16 or f32
  u8* image;            // of `out` too, or null
  int raw_width;
  int staged;           // whether inputs and states stay as they are
  int out_is_bf16, key_heads, value_heads, key_dim, value_dim;
  int tiled;            // whether value head h has key head h % key_heads
  float eps;
  int n;                // rows of the step
};
static_assert(sizeof(DeltaParams) == 152 && OFFSET_OF(DeltaParams, inputs) == 48 && OFFSET_OF(DeltaParams, out) == 96 &&
                  OFFSET_OF(DeltaParams, eps) == 144,
              "backend::cuda::abi::DeltaParams has another layout");

__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

// Channels of q, k and v; those of z follow them in a row.
__device__ __forceinline__ int channels_of(const DeltaParams& p) { return 2 * p.key_heads * p.key_dim + p.value_heads * p.value_dim; }

// Channels `column` and the next of a head's output: norm(x) * silu(z), by the factor of the norm.
__device__ __forceinline__ void put_gated(const DeltaParams& p, int row, int head, int column, float2 x, float by, float2 z) {
  float2 w = *(const float2*)(p.norm + column);
  int width = p.value_heads * p.value_dim, at = head * p.value_dim + column;
  x.x *= by * w.x * silu(z.x), x.y *= by * w.y * silu(z.y);
  put2(p.out, p.out_is_bf16, (u64)row * width + at, x.x, x.y);
  if (p.image) put_image2(p.image, row, at, x.x, x.y);
}

template <int COLUMNS, int TOKENS>
struct Shared {
  __align__(16) float q[TOKENS][MOST_DIM], k[TOKENS][MOST_DIM];  // zeros beyond key_dim
  __align__(16) float v[TOKENS][COLUMNS];
  float decay[TOKENS], beta[TOKENS], qk[TOKENS];
  __align__(16) float out[COLUMNS];  // of a single token
  bool last;
};

// A channel that a thread convolves: of q, of k, or of the block's columns of v.
struct Channel {
  int at;  // in a row; -1: none
  bool is_v;
  float taps[TAPS], window[TAPS - 1];  // weights, and the newest inputs

  __device__ __forceinline__ void init(const DeltaParams& p, int place, int columns, int head, int key_head, int first_column,
                                       const float* inputs, bool stored) {
    is_v = place >= 2 * MOST_DIM;
    int keys = p.key_heads * p.key_dim, i = is_v ? first_column + place - 2 * MOST_DIM : place % MOST_DIM;
    bool real = is_v ? place < 2 * MOST_DIM + columns && i < p.value_dim : i < p.key_dim;
    at = !real ? -1 : is_v ? 2 * keys + head * p.value_dim + i : place / MOST_DIM * keys + key_head * p.key_dim + i;
#pragma unroll
    for (int t = 0; t < TAPS; t++) taps[t] = real ? p.conv[t * channels_of(p) + at] : 0.0f;
#pragma unroll
    for (int t = 0; t < TAPS - 1; t++) window[t] = real && stored ? inputs[t * channels_of(p) + at] : 0.0f;
  }

  // The convolution at the token of this input, which enters the window.
  __device__ __forceinline__ float next(float input) {
    float x = taps[0] * window[0];
#pragma unroll
    for (int t = 1; t < TAPS - 1; t++) x += taps[t] * window[t], window[t - 1] = window[t];
    window[TAPS - 2] = input;
    return silu(x + taps[TAPS - 1] * input);
  }
};

// Two columns of the state in eight lanes; lane `sub` has rows 32 (i / 4) + 4 sub + i % 4.
struct State {
  float2 at[ROWS];

  static __device__ __forceinline__ int row(int i, int sub) { return i / 4 * 32 + 4 * sub + i % 4; }

  // A token: its output. Both S^T k and S^T q are of the state before it.
  __device__ __forceinline__ float2 step(const float* q, const float* k, float2 v, float decay, float beta, float qk, int sub) {
    float2 by_k = {0.0f, 0.0f}, by_q = {0.0f, 0.0f};
    float4 keys[ROWS / 4];
#pragma unroll
    for (int i = 0; i < ROWS; i += 4) {
      float4 x = keys[i / 4] = *(const float4*)(k + row(i, sub)), y = *(const float4*)(q + row(i, sub));
      const float xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
      for (int j = 0; j < 4; j++) {
        by_k.x += at[i + j].x * xs[j], by_k.y += at[i + j].y * xs[j];
        by_q.x += at[i + j].x * ys[j], by_q.y += at[i + j].y * ys[j];
      }
    }
#pragma unroll
    for (int mask = 1; mask < 8; mask *= 2) {
      by_k.x += __shfl_xor_sync(FULL, by_k.x, mask), by_k.y += __shfl_xor_sync(FULL, by_k.y, mask);
      by_q.x += __shfl_xor_sync(FULL, by_q.x, mask), by_q.y += __shfl_xor_sync(FULL, by_q.y, mask);
    }
    float2 u = {beta * (v.x - decay * by_k.x), beta * (v.y - decay * by_k.y)};
#pragma unroll
    for (int i = 0; i < ROWS; i += 4) {
      const float xs[4] = {keys[i / 4].x, keys[i / 4].y, keys[i / 4].z, keys[i / 4].w};
#pragma unroll
      for (int j = 0; j < 4; j++) {
        at[i + j].x = decay * at[i + j].x + xs[j] * u.x;
        at[i + j].y = decay * at[i + j].y + xs[j] * u.y;
      }
    }
    return float2{decay * by_q.x + qk * u.x, decay * by_q.y + qk * u.y};
  }
};

// Makes unit vectors of q and k of the first n tokens, and computes their dot products. By a whole
// block.
template <int COLUMNS, int TOKENS>
__device__ __forceinline__ void norm_keys(Shared<COLUMNS, TOKENS>& s, int n, float scale) {
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int t = warp; t < n; t += COLUMNS / 8) {
    float4 &q = *(float4*)&s.q[t][4 * lane], &k = *(float4*)&s.k[t][4 * lane];
    float qq = q.x * q.x + q.y * q.y + q.z * q.z + q.w * q.w, kk = k.x * k.x + k.y * k.y + k.z * k.z + k.w * k.w;
    float qk = q.x * k.x + q.y * k.y + q.z * k.z + q.w * k.w;
    float q_by = scale * rsqrtf(warp_sum(qq) + UNIT_EPS), k_by = rsqrtf(warp_sum(kk) + UNIT_EPS);
    qk = warp_sum(qk) * q_by * k_by;
    q = float4{q.x * q_by, q.y * q_by, q.z * q_by, q.w * q_by};
    k = float4{k.x * k_by, k.y * k_by, k.z * k_by, k.w * k_by};
    if (lane == 0) s.qk[t] = qk;
  }
}

// Grid (value_dim / COLUMNS, value_heads, spans), four threads a column. With TOKENS = 1 spans have
// one token, and the block has all columns of its head.
//
// Nothing in a step but this kernel writes what it reads before `wait_previous`, and steps are
// separated as common.cuh says.
template <int COLUMNS, int TOKENS>
__device__ __forceinline__ void mix(const DeltaParams& p) {
  const int THREADS = 4 * COLUMNS, HELD = (2 * MOST_DIM + COLUMNS + THREADS - 1) / THREADS;
  const bool SINGLE = TOKENS == 1;
  __shared__ Shared<COLUMNS, TOKENS> s;
  next_may_begin();
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, sub = lane % 8, head = blockIdx.y, first_column = blockIdx.x * COLUMNS;
  int key_head = p.tiled ? head % p.key_heads : head / (p.value_heads / p.key_heads), channels = channels_of(p);
  int width = channels + p.value_heads * p.value_dim, own = 8 * warp + lane / 8 * 2, column = first_column + own;
  Span span = p.spans[blockIdx.z];
  bool stored = p.seq_len[span.seq] > 0, has_column = column < p.value_dim;

  // state and newest inputs of the sequence
  State state;
  float* states = p.state + (u64)(span.seq * p.value_heads + head) * p.key_dim * p.value_dim + column;
#pragma unroll
  for (int i = 0; i < ROWS; i++) {
    int row = State::row(i, sub);
    bool real = stored && has_column && row < p.key_dim;
    state.at[i] = real ? *(const float2*)(states + row * p.value_dim) : float2{0.0f, 0.0f};
  }
  float* inputs = p.inputs + (u64)span.seq * (TAPS - 1) * channels;
  Channel held[HELD];
#pragma unroll
  for (int j = 0; j < HELD; j++)
    held[j].init(p, threadIdx.x + j * THREADS, COLUMNS, head, key_head, first_column, inputs, stored);
  // Blocks with this key head have its inputs from the sequence: the last one to read them is free
  // to replace them.
  int readers = p.value_heads / p.key_heads * gridDim.x;
  bool last = is_last(p.arrivals + span.seq * p.key_heads + key_head, readers, s.last);
  wait_previous();

  const float* rows = p.rows + (u64)span.start * width;
  float raw[HELD][TOKENS], b = 0.0f, a = 0.0f, scale = rsqrtf((float)p.key_dim);
  // inputs of the tokens from `first` on
  auto load = [&](int first) {
#pragma unroll
    for (int j = 0; j < HELD; j++)
#pragma unroll
      for (int t = 0; t < TOKENS; t++)
        raw[j][t] = held[j].at >= 0 && first + t < span.len ? rows[(u64)(first + t) * width + held[j].at] : 0.0f;
    if ((int)threadIdx.x < TOKENS && first + (int)threadIdx.x < span.len) {
      const float* gates = p.gates + (u64)(span.start + first + threadIdx.x) * 2 * p.value_heads;
      b = gates[head], a = gates[p.value_heads + head];
    }
  };
  load(0);
  float2 z = {0.0f, 0.0f};
  if (SINGLE && 2 * (int)threadIdx.x < p.value_dim)
    z = *(const float2*)(rows + channels + head * p.value_dim + 2 * threadIdx.x);
  float decay = p.decay[head], dt_bias = p.dt_bias[head];
#pragma unroll 1
  for (int first = 0; first < span.len; first += TOKENS) {
    int n = min(TOKENS, span.len - first);
    if (!SINGLE) __syncthreads();
    // convolution, and gates
#pragma unroll
    for (int j = 0; j < HELD; j++) {
      int place = threadIdx.x + j * THREADS;
      float* to = place < MOST_DIM       ? &s.q[0][place]
                  : place < 2 * MOST_DIM ? &s.k[0][place - MOST_DIM]
                                         : &s.v[0][place - 2 * MOST_DIM];
      int step = place < 2 * MOST_DIM ? MOST_DIM : COLUMNS;
      if (place < 2 * MOST_DIM + COLUMNS)
#pragma unroll
        for (int t = 0; t < TOKENS; t++)
          if (t < n) to[t * step] = held[j].next(raw[j][t]);
    }
    if ((int)threadIdx.x < n) {
      s.beta[threadIdx.x] = 1.0f / (1.0f + expf(-b));
      s.decay[threadIdx.x] = expf(decay * softplus(a + dt_bias));
    }
    if (!SINGLE && first + TOKENS < span.len) load(first + TOKENS);
    __syncthreads();
    norm_keys(s, n, scale);
    __syncthreads();
    // recurrence
#pragma unroll 1
    for (int t = 0; t < n; t++) {
      float2 out = state.step(s.q[t], s.k[t], *(const float2*)&s.v[t][own], s.decay[t], s.beta[t], s.qk[t], sub);
      if (sub > 0) continue;
      if (SINGLE) *(float2*)&s.out[own] = out;
      else if (has_column)
        *(float2*)(p.raw + (u64)(span.start + first + t) * p.raw_width + head * p.value_dim + column) = out;
    }
  }
  if (!SINGLE && p.staged) return;
#pragma unroll
  for (int i = 0; i < ROWS; i++) {
    int row = State::row(i, sub);
    if (has_column && row < p.key_dim) *(float2*)(states + row * p.value_dim) = state.at[i];
  }
#pragma unroll
  for (int j = 0; j < HELD; j++)
#pragma unroll
    for (int t = 0; t < TAPS - 1; t++)
      if (held[j].at >= 0 && (held[j].is_v || last)) inputs[t * channels + held[j].at] = held[j].window[t];
  if (!SINGLE) return;
  // gated norm, two channels a thread
  __syncthreads();
  int c = 2 * threadIdx.x;
  float2 x = c < p.value_dim ? *(const float2*)&s.out[c] : float2{0.0f, 0.0f};
  float by = rms_factor(block_sum(x.x * x.x + x.y * x.y), p.value_dim, p.eps, 0, nullptr);
  if (c < p.value_dim) put_gated(p, span.start, head, c, x, by, z);
}

KERNEL __launch_bounds__(4 * MOST_DIM) delta_step(DeltaParams params) { mix<MOST_DIM, 1>(params); }
KERNEL __launch_bounds__(4 * CHUNK_COLUMNS) delta_chunk(DeltaParams params) { mix<CHUNK_COLUMNS, CHUNK>(params); }

// Gated norm of what `delta_chunk` has left in `raw`. A warp for each row and value head; grid
// covers n * value_heads warps. Reads two values and writes one.
KERNEL __launch_bounds__(32 * NORM_WARPS) delta_norm(DeltaParams p) {
  after_previous();
  int i = blockIdx.x * NORM_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
  int row = i / p.value_heads, head = i % p.value_heads, width = p.value_heads * p.value_dim;
  if (row >= p.n) return;
  const float* z_at = p.rows + (u64)row * (channels_of(p) + width) + channels_of(p) + head * p.value_dim;
  const float* x_at = p.raw + (u64)row * p.raw_width + head * p.value_dim;
  float2 x[MOST_DIM / 64], z[MOST_DIM / 64];
  float squares = 0.0f;
#pragma unroll
  for (int k = 0; k < MOST_DIM / 64; k++) {
    int c = 2 * lane + 64 * k;
    bool real = c < p.value_dim;
    x[k] = real ? *(const float2*)(x_at + c) : float2{0.0f, 0.0f};
    z[k] = real ? *(const float2*)(z_at + c) : float2{0.0f, 0.0f};
    squares += x[k].x * x[k].x + x[k].y * x[k].y;
  }
  float by = rms_factor(warp_sum(squares), p.value_dim, p.eps, 0, nullptr);
#pragma unroll
  for (int k = 0; k < MOST_DIM / 64; k++) {
    int c = 2 * lane + 64 * k;
    if (c < p.value_dim) put_gated(p, row, head, c, x[k], by, z[k]);
  }
}

// out *= sigmoid(gate): the output gate of attention, whose columns lie behind v in the rows of the
// projection. Grid covers pairs of columns of n rows. Reads 4 bytes of gate for each value.
KERNEL gate_rows(void* out, u8* image, int is_bf16, const float* qkv, int qkv_width, int gate_at, int width, u64 pairs) {
  after_previous();
  u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= pairs) return;
  int row = i / (width / 2), column = i % (width / 2) * 2;
  float2 gate = *(const float2*)(qkv + (u64)row * qkv_width + gate_at + column), x;
  u64 at = (u64)row * width + column;
  if (is_bf16) {
    u32 pair = *(const u32*)((const u16*)out + at);
    x = float2{bf16_to_f32((u16)pair), __uint_as_float(pair & 0xffff0000u)};
  } else {
    x = *(const float2*)((const float*)out + at);
  }
  x.x *= 1.0f / (1.0f + expf(-gate.x)), x.y *= 1.0f / (1.0f + expf(-gate.y));
  put2(out, is_bf16, at, x.x, x.y);
  if (image) put_image2(image, row, column, x.x, x.y);
}
