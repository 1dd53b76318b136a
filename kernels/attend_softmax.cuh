// Online softmax of decode attention. A warp processes one page of 16 slots at a time, directly
// from global memory to registers. S = K Q^T has slots as rows (M = 16), O = V^T P^T has channels
// as rows, and the group's query heads are the N = 8 columns of both. Channels are contracted, and
// keys summed, in the order in which the loads deliver them.
#pragma once
#include "codec.cuh"

// Layout of a row of a format in LANES warp lanes: D / LANES channels per lane, in runs of up to 16
// bytes. Run i of a lane is run LANES i + lane of the row.
template <int D, int LANES, class Rows>
struct RowLanes {
  static const int HALF = 16 / Rows::EIGHT_BYTES;            // values in half a u32
  static const bool ACROSS = HALF != 2;                      // whether neighbours lie in both halves: see `pair`
  static const int WORDS = D / LANES / (2 * HALF);           // of a lane
  static const int RUN = WORDS < 4 ? WORDS : 4, CHANNELS = 2 * HALF * RUN;  // words and channels of a run
  static const int ROW_BYTES = D * Rows::EIGHT_BYTES / 8;    // of a whole row
  // Words per load for rows of other widths: rows of narrow codes begin at multiples of 8 bytes.
  static const int ALIGNED = HALF > 1 && RUN > 2 ? 2 : RUN;

  // Channel of a row that is value i of a lane.
  static __device__ __forceinline__ int channel(int i, int lane) {
    return (i / CHANNELS * LANES + lane) * CHANNELS + i % CHANNELS;
  }
  // Loads a lane's words, AT_ONCE at a time. Of bf16 rows, channels from d on become zeros, because
  // the memory may hold NaN. Narrower codes are always finite, and the bytes after a row belong to
  // its page, so they need no check.
  template <int AT_ONCE>
  static __device__ __forceinline__ void load(u32* to, const u8* row, int d, int lane) {
#pragma unroll
    for (int w = 0; w < WORDS; w += AT_ONCE) {
      int first = channel(2 * HALF * w, lane);
      const u8* from = row + first * Rows::EIGHT_BYTES / 8;
      bool real = Rows::EIGHT_BYTES < 16 || first < d;
      if (AT_ONCE == 4) {
        uint4 x = real ? *(const uint4*)from : uint4{0, 0, 0, 0};
        to[w] = x.x, to[w + 1] = x.y, to[w + 2] = x.z, to[w + 3] = x.w;
      } else if (AT_ONCE == 2) {
        uint2 x = *(const uint2*)from;
        to[w] = x.x, to[w + 1] = x.y;
      } else {
        to[w] = *(const u32*)from;
      }
    }
  }
};

// A page in a warp's registers, as fragments of mma. Lane 4 g + t holds K of slots g and g + 8 as
// lane t of four, and V of slots 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 as lane g of eight.
template <int D, class Codec>
struct Page {
  using K = RowLanes<D, 4, typename Codec::K>;
  using V = RowLanes<D, 8, typename Codec::V>;
  u32 k[2][K::WORDS], v[4][V::WORDS];
  float k_scale[2];
  u32 v_side[2];

  // For rows of D channels the compiler knows all offsets in the page, and loads are 16 bytes wide.
  __device__ __forceinline__ void load_k(const Kv& kv, const u8* page, int lane) {
    if (kv.head_dim == D) load_k_by<K::RUN>(k, page, K::ROW_BYTES, D, lane);
    else load_k_by<K::ALIGNED>(k, page, kv.k_bytes, kv.head_dim, lane);
  }
  template <int AT_ONCE>
  static __device__ __forceinline__ void load_k_by(u32 (*k)[K::WORDS], const u8* page, int bytes, int d, int lane) {
#pragma unroll
    for (int half = 0; half < 2; half++)
      K::template load<AT_ONCE>(k[half], page + (lane / 4 + 8 * half) * bytes, d, lane % 4);
  }

  // Loads V and the side data. The first n slots are live.
  __device__ __forceinline__ void load_v(const Kv& kv, const u8* page, int n, int lane) {
    if (kv.head_dim == D) load_v_by<V::RUN>(v, page + kv.v_at, V::ROW_BYTES, D, n, lane);
    else load_v_by<V::ALIGNED>(v, page + kv.v_at, kv.v_bytes, kv.head_dim, n, lane);
    if (!Codec::SCALED) return;
    const float* k_scales = (const float*)(page + kv.k_sides_at) + lane / 4;
    const u32* v_sides = (const u32*)(page + kv.v_sides_at) + lane / 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      k_scale[half] = k_scales[8 * half];
      v_side[half] = v_sides[8 * half];
    }
  }
  template <int AT_ONCE>
  static __device__ __forceinline__ void load_v_by(u32 (*v)[V::WORDS], const u8* rows, int bytes, int d, int n, int lane) {
#pragma unroll
    for (int key = 0; key < 4; key++) {
      int slot = lane % 4 * 2 + key % 2 + key / 2 * 8;
      V::template load<AT_ONCE>(v[key], rows + slot * bytes, slot < n ? d : 0, lane / 4);
    }
  }
};

// Online softmax of a warp over its pages, for the query heads of a group. Lane 4 g + t holds the
// channels of q of head g that match its channels of K. For heads 2 t and 2 t + 1 it holds: the
// maximum of the logits (in log2 units); the sums over its own slots of exp2(logit - max), and of
// the weights times V's offsets; and the accumulators, without the offsets, of its channels of V.
template <int D, class Codec>
struct OnlineSoftmax {
  using K = typename Page<D, Codec>::K;
  using V = typename Page<D, Codec>::V;
  u32 weights[2];
  float acc[D / 16][4], rescale[2], max[2], sum[2], offset[2];
#if MAX_HEAD_DIM > 128
  // With wide heads no registers are left for q: its rows are read from shared memory for every
  // page.
  const float (*rows)[ROW_STRIDE];
  int group, d;
#else
  u32 q[D / 16][2];
#endif

  // Fragment i of the queries: four channels, as the two pairs in which K has them.
  static __device__ __forceinline__ void load_query(u32 (&q)[2], const float (*rows)[ROW_STRIDE], int group, int d,
                                                    int i, int lane) {
    const float by = Codec::QUERY_FACTOR;
    int channel = K::channel(4 * i, lane % 4);
    float4 x = {0, 0, 0, 0};
    if (lane / 4 < group && channel < d) x = *(const float4*)(rows[lane / 4] + channel);
    if (!K::ACROSS) x = float4{x.x, x.z, x.y, x.w};
    q[0] = round_pair(x.x * by, x.y * by), q[1] = round_pair(x.z * by, x.w * by);
  }

  __device__ __forceinline__ void init(const float (*rows)[ROW_STRIDE], int group, int d, int lane) {
#if MAX_HEAD_DIM > 128
    this->rows = rows, this->group = group, this->d = d;
#else
#pragma unroll
    for (int i = 0; i < D / 16; i++) load_query(q[i], rows, group, d, i, lane);
#endif
#pragma unroll
    for (int j = 0; j < D / 16; j++)
#pragma unroll
      for (int k = 0; k < 4; k++) acc[j][k] = 0.0f;
#pragma unroll
    for (int k = 0; k < 2; k++) max[k] = NEG_INFINITY, sum[k] = offset[k] = 0.0f;
  }

  // Computes the softmax weights of a page's keys. The first n slots are live, and slot `unseen` is
  // not seen (with drafts: the slots whose bit is 1). Dot products k q times `scale` are logits in
  // log2 units; under a mode with scores the logit of slot i is also written to
  // `logits + i * stride`. Under a mode with pages, heads whose bit in `readers` is 0 do not see
  // the page.
  template <class Mode>
  __device__ __forceinline__ void score(Mode mode, const Codec& codec, const Page<D, Codec>& page, int n, int unseen, float scale, int lane,
                                        float* logits, int stride, u32 readers) {
    int g = lane / 4;
    // S = K Q^T, in two independent chains of mma
    float scores[4] = {}, others[4] = {};
#if MAX_HEAD_DIM > 128
    // Keep the compiler from reading q before the loop over pages.
    asm volatile("" ::: "memory");
#endif
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
      auto pair = [&](int half, int p) { return codec.k.pair(page.k[half][p / K::HALF], p % K::HALF); };
      u32 a[4] = {pair(0, 2 * i), pair(1, 2 * i), pair(0, 2 * i + 1), pair(1, 2 * i + 1)};
#if MAX_HEAD_DIM > 128
      u32 b[2];
      load_query(b, rows, group, d, i, lane);
      mma(i % 2 ? others : scores, a, b);
#else
      mma(i % 2 ? others : scores, a, q[i]);
#endif
    }
    // scale and mask
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int k = 0; k < 2; k++) {
        float& x = scores[2 * half + k];
        x = (x + others[2 * half + k]) * (Codec::SCALED ? page.k_scale[half] * scale : scale);
        int slot = g + 8 * half;
        if (slot >= n || (Mode::DRAFTS ? unseen >> slot & 1 : slot == unseen)) x = NEG_INFINITY;
        if (mode.pages && !(readers >> (lane % 4 * 2 + k) & 1)) x = NEG_INFINITY;
      }
    if (mode.scores) {
      int head = 2 * (lane % 4);
#pragma unroll
      for (int half = 0; half < 2; half++)
        if (g + 8 * half < n && head < stride)
          *(float2*)(logits + (g + 8 * half) * stride + head) = float2{scores[2 * half], scores[2 * half + 1]};
    }
    // new maximum, and the factor that rescales the sums to it
    float from[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
      float top = fmaxf(scores[k], scores[2 + k]);
#pragma unroll
      for (int mask = 4; mask < 32; mask *= 2) top = fmaxf(top, __shfl_xor_sync(FULL, top, mask));
      top = fmaxf(max[k], ceilf(top));
      // no key seen so far: avoid inf - inf
      from[k] = top == NEG_INFINITY ? 0.0f : top;
      rescale[k] = exp2_fast(max[k] - from[k]);
      max[k] = top;
      sum[k] *= rescale[k];
      if (Codec::AFFINE) offset[k] *= rescale[k];
    }
    // weights as bf16, transposed into the B fragment of the second mma
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float x = exp2_fast(scores[2 * half] - from[0]), y = exp2_fast(scores[2 * half + 1] - from[1]);
      if (Codec::SCALED) {
        sum[0] += x, sum[1] += y;
        // Slots that are not live have garbage side data.
        float by = Codec::V::affine(page.v_side[half]).x * Codec::WEIGHT_FACTOR;
        x = x > 0.0f ? x * by : 0.0f;
        y = y > 0.0f ? y * by : 0.0f;
      }
      u32 pair = round_pair(x, y);
      if (Codec::AFFINE) {
        // Offsets use the same rounded weights as codes, so that cancellation between the two does
        // not amplify the rounding error.
        float2 affine = Codec::V::affine(page.v_side[half]);
        float steps = affine.y * reciprocal(affine.x) * (1.0f / Codec::WEIGHT_FACTOR);
        offset[0] += x > 0.0f ? bf16_to_f32((u16)pair) * steps : 0.0f;
        offset[1] += y > 0.0f ? __uint_as_float(pair & 0xffff0000u) * steps : 0.0f;
      }
      if (!Codec::SCALED) sum[0] += bf16_to_f32((u16)pair), sum[1] += __uint_as_float(pair & 0xffff0000u);
      weights[half] = transpose(pair);
    }
  }

  // O = O * rescale + V^T P^T for the page that was scored last.
  __device__ __forceinline__ void accumulate(const Codec& codec, const Page<D, Codec>& page) {
#pragma unroll
    for (int w = 0; w < V::WORDS; w++) {
      // Combine halves of the same channels of two keys into words, so that a pair holds two keys
      // of one channel.
      u32 x[2], y[2];
#pragma unroll
      for (int half = 0; half < 2; half++) {
        u32 which = half ? 0x7632 : 0x5410;
        x[half] = __byte_perm(page.v[0][w], page.v[1][w], which), y[half] = __byte_perm(page.v[2][w], page.v[3][w], which);
      }
#pragma unroll
      for (int i = 0; i < V::HALF; i++) {
        // Rows of A are channels 2 i and 2 i + 1 of the word.
        int h0 = V::ACROSS ? 0 : i, h1 = V::ACROSS ? 1 : i, i0 = V::ACROSS ? i : 0, i1 = V::ACROSS ? i : 1;
        u32 a[4] = {codec.v.pair(x[h0], i0), codec.v.pair(x[h1], i1), codec.v.pair(y[h0], i0), codec.v.pair(y[h1], i1)};
        float* to = acc[V::HALF * w + i];
        to[0] *= rescale[0], to[1] *= rescale[1], to[2] *= rescale[0], to[3] *= rescale[1];
        mma(to, a, weights);
      }
    }
  }

  // Index at which `save` stores a channel of a head. Runs are shifted by four channels relative to
  // each other to avoid bank conflicts. Four channels from a multiple of 4 on stay together.
  static __device__ __forceinline__ int place(int channel) {
    return channel / V::CHANNELS * V::CHANNELS + (channel / 4 + channel / 32) % (V::CHANNELS / 4) * 4 + channel % 4;
  }

  // Writes the state to shared memory, including the offsets.
  __device__ __forceinline__ void save(const Codec& codec, float* to_acc, float* to_max, float* to_sum, int group, int lane) {
    int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int k = 0; k < 2; k++) {
#pragma unroll
      for (int mask = 4; mask < 32; mask *= 2) sum[k] += __shfl_xor_sync(FULL, sum[k], mask);
      if (g == 0) to_max[2 * t + k] = max[k], to_sum[2 * t + k] = sum[k];
      if (!Codec::AFFINE) continue;
#pragma unroll
      for (int mask = 4; mask < 32; mask *= 2) offset[k] += __shfl_xor_sync(FULL, offset[k], mask);
      float by = offset[k] * (1.0f / codec.sum_factor());
#pragma unroll
      for (int j = 0; j < D / 16; j++) acc[j][k] += by, acc[j][2 + k] += by;
    }
#pragma unroll
    for (int k = 0; k < 2; k++)
      if (2 * t + k < group)
#pragma unroll
        for (int j = 0; j < D / 16; j += 2)
          *(float4*)&to_acc[(2 * t + k) * D + place(V::channel(2 * j, g))] =
              float4{acc[j][k], acc[j][2 + k], acc[j + 1][k], acc[j + 1][2 + k]};
  }
};
