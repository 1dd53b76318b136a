// Decode attention: split-KV attention of one token a sequence over the slots that its KV heads have stored, on tensor
// cores, and over the token itself. The token sees every live slot but the one that leaves the window at it. Prefill chunks go
// to attend_tiles.cu. CPU twins: `backend::cpu::attention`, `backend::cpu::rope`, `Codec::round_trip`.
//
// The token has no slot yet: its codes and its decision are staged, and `append` stores those of all layers when the step ends
// (`place_scores`, under a policy with scores, those of one layer next). So no table, slot or live count changes in a step before
// all layers have been attended to, and everything but the token's own rows is read while the kernels before this one still run.
// What ended the step before has ended by then: steps are separated as common.cuh says.
//
// A warp processes one page of 16 slots at a time, straight from global memory to registers: S = K Q^T has slots as rows
// (M = 16), O = V^T P^T has channels as rows, and the group's query heads are the N = 8 columns of both.
// Channels are contracted, and keys summed, in the order in which the loads bring them.
//
// Precision: K and V are exact, q and softmax weights are rounded to bf16, sums are f32. Running maxima are rounded up to
// whole exponents of 2, so a weight is rounded in the same way whatever maximum it is relative to: dividing the keys
// differently among warps, splits and tiles changes the order of sums and nothing else.
#pragma once
#include "attend_merge.cuh"
#include "pages.cuh"
#include "place.cuh"

#define UNSPLIT_PAGES 16  // of a head that are not worth a merge: two a warp
#ifndef DYNAMIC_MEMORY    // whether blocks take their shared memory dynamically: more than 48 KB
#define DYNAMIC_MEMORY (MAX_HEAD_DIM > 128)
#endif

// The block's share of the token's work: pages [first, last) of one KV head. head -1: none.
struct Split {
  int head, live, first, last, index, count;
};

// a / b where that is less than 2^21, in a third of the time of an integer division.
__device__ __forceinline__ int divide(int a, int b) {
  int q = (int)(a * reciprocal((float)b)), left = a - q * b;
  return left < 0 ? q - 1 : left >= b ? q + 1 : q;
}

// Divides the pages of a token's KV heads among blocks, about as many as the token's share of those that the GPU runs at once, at
// least one for each head. Every block computes the same division. A head has at most pages / per + 1 splits and pages / per
// adds up to at most the share, so a grid of heads + share blocks has room for all.
__device__ __forceinline__ Split split_of(const int* live, int heads, int lane) {
  // pages of all heads, hence pages per split
  int total = 0, block = blockIdx.x;
  for (int h = lane; h < heads; h += 32) total += (live[h] + PAGE_SLOTS - 1) / PAGE_SLOTS;
  total = warp_sum(total);
  // Rounds of a page for each warp, at least as many as bring a head of mean length the least time, in which a round takes as long
  // as a block takes to merge about eight splits; and no more blocks than the share.
  int share = max((int)gridDim.x - heads, 1), fewest = ((int)sqrtf(total * reciprocal((float)heads)) + 3) / WARPS;
  int per = max(max(fewest, divide(divide(total + share - 1, share) + WARPS - 1, WARPS)), 1) * WARPS;
  // Rounded up where no warp is to get two pages. Otherwise to nearest: rounded up, the blocks would outnumber the share, and
  // those that do not fit begin when others end, which takes longer than half a block's work more in one of them.
  int more = per > WARPS ? per / 2 : per - 1;
  Split s = {-1, 0, 0, 0, 0, 0};
  // prefix sum of the heads' splits, 32 heads at a time, until this block's is among them
  for (int h = lane, before = 0; h - lane < heads; h += 32) {
    int here = h < heads ? live[h] : 0, pages = (here + PAGE_SLOTS - 1) / PAGE_SLOTS;
    int splits = h >= heads ? 0 : pages <= UNSPLIT_PAGES ? 1 : max(1, divide(pages + more, per));
    int end = warp_prefix_sum(splits, lane) + before;
    before = __shfl_sync(FULL, end, 31);
    u32 mine = __ballot_sync(FULL, block >= end - splits && block < end);
    if (!mine) continue;
    int from = __ffs(mine) - 1;
    s.head = h - lane + from;
    s.live = __shfl_sync(FULL, here, from);
    s.count = __shfl_sync(FULL, splits, from);
    s.index = block - (__shfl_sync(FULL, end, from) - s.count);
    pages = __shfl_sync(FULL, pages, from);
    s.first = divide(s.index * pages, s.count);
    s.last = divide((s.index + 1) * pages, s.count);
    break;
  }
  return s;
}

// Whether a token reads fewer than all pages of some head: `full` in `select_pages`.
__device__ __forceinline__ bool reads_some(const Kv& kv, const int* live, int position, int lane) {
  int reads = pages_to_read(kv, position + 1);
  bool some = false;
  for (int h = lane; h < kv.n_kv_heads; h += 32) some |= live[h] / PAGE_SLOTS >= reads;
  return __any_sync(FULL, some);
}

// Gives every head the same number of blocks, before it is known how many pages it reads: the square root of the most that its query
// heads can choose, for the reason in `split_of`, and at most its part of the share.
__device__ __forceinline__ Split even_split(const Kv& kv, const int* live, int position) {
  int heads = kv.n_kv_heads, most = pages_to_read(kv, position + 1) * (kv.n_q_heads / heads);
  int count = max(1, min(((int)gridDim.x - heads) / heads, (int)sqrtf((float)most))), head = blockIdx.x / count;
  if (head >= heads) return Split{-1, 0, 0, 0, 0, 0};
  int index = blockIdx.x - head * count;
  return Split{head, live[head], index * WARPS, 0, index, count};
}

// How LANES lanes hold a row of a format: D / LANES channels each, in runs of up to 16 bytes. Run i of a lane is run
// LANES i + lane of the row.
template <int D, int LANES, class Rows>
struct RowLanes {
  static const int HALF = 16 / Rows::EIGHT_BYTES;            // values in half a u32
  static const bool ACROSS = HALF != 2;                      // whether neighbours lie in both halves: see `pair`
  static const int WORDS = D / LANES / (2 * HALF);           // of a lane
  static const int RUN = WORDS < 4 ? WORDS : 4, CHANNELS = 2 * HALF * RUN;  // words and channels of a run
  static const int ROW_BYTES = D * Rows::EIGHT_BYTES / 8;    // of a whole row
  // Words of a load of other rows: those of narrow codes begin at multiples of 8 bytes.
  static const int ALIGNED = HALF > 1 && RUN > 2 ? 2 : RUN;

  // Channel i of those that a lane holds.
  static __device__ __forceinline__ int channel(int i, int lane) {
    return (i / CHANNELS * LANES + lane) * CHANNELS + i % CHANNELS;
  }
  // Loads a lane's words, AT_ONCE at a time. Of bf16 the first d channels; others, which may hold NaN, become zeros. Narrower codes
  // are finite whatever their bits, and what follows a row lies in its page: they take no check.
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

// A page in a warp's registers, as fragments of mma: lane 4 g + t holds K of slots g and g + 8 as lane t of four, and V of slots
// 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 as lane g of eight.
template <int D, class Codec>
struct Page {
  using K = RowLanes<D, 4, typename Codec::K>;
  using V = RowLanes<D, 8, typename Codec::V>;
  u32 k[2][K::WORDS], v[4][V::WORDS];
  float k_scale[2];
  u32 v_side[2];

  // Of rows of D channels the compiler knows the addresses but for the page's, and 16 bytes are loaded at once.
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

  // V and the side data. The first n slots live.
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

// Online softmax of a warp over its pages, for the query heads of a group. Lane 4 g + t holds, of head g, q's channels that it
// holds of K; of heads 2 t and 2 t + 1, the maximum of the logits (in log2 units), its own slots' share of the sum of
// exp2(logit - max) and of the weights times V's offsets, and the accumulators, without the offsets, of the channels that it
// holds of V.
template <int D, class Codec>
struct OnlineSoftmax {
  using K = typename Page<D, Codec>::K;
  using V = typename Page<D, Codec>::V;
  u32 weights[2];
  float acc[D / 16][4], rescale[2], max[2], sum[2], offset[2];
#if MAX_HEAD_DIM > 128
  // A page of wide heads leaves no registers for q: its rows in shared memory, for every page again.
  const float (*rows)[ROW_STRIDE];
  int group, d;
#else
  u32 q[D / 16][2];
#endif

  // Fragment i of the queries: four channels as the two pairs in which K has them.
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

  // Softmax weights of a page's keys, of which the first n slots live and slot `unseen` is not seen: under a mode with drafts, slots
  // whose bit is 1. Dot products k q times
  // `scale` are logits in log2 units; under a mode with scores those of slot i go to `logits + i * stride` too.
  // Under a mode with pages, heads whose bit in `readers` is 0 see none of them.
  template <class Mode>
  __device__ __forceinline__ void score(const Page<D, Codec>& page, int n, int unseen, float scale, int lane,
                                        float* logits, int stride, u32 readers) {
    int g = lane / 4;
    // S = K Q^T, in two independent chains of mma
    float scores[4] = {}, others[4] = {};
#if MAX_HEAD_DIM > 128
    // Keeps the compiler from reading q before the loop over pages.
    asm volatile("" ::: "memory");
#endif
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
      auto pair = [&](int half, int p) { return Codec::K::pair(page.k[half][p / K::HALF], p % K::HALF); };
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
        if (Mode::PAGES && !(readers >> (lane % 4 * 2 + k) & 1)) x = NEG_INFINITY;
      }
    if (Mode::SCORES) {
      int head = 2 * (lane % 4);
#pragma unroll
      for (int half = 0; half < 2; half++)
        if (g + 8 * half < n && head < stride)
          *(float2*)(logits + (g + 8 * half) * stride + head) = float2{scores[2 * half], scores[2 * half + 1]};
    }
    // new maximum, and the factor that brings the sums to it
    float from[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
      float top = fmaxf(scores[k], scores[2 + k]);
#pragma unroll
      for (int mask = 4; mask < 32; mask *= 2) top = fmaxf(top, __shfl_xor_sync(FULL, top, mask));
      top = fmaxf(max[k], ceilf(top));
      // nothing seen so far: avoid inf - inf
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
        // Slots that do not live have garbage side data.
        float by = Codec::V::affine(page.v_side[half]).x * Codec::WEIGHT_FACTOR;
        x = x > 0.0f ? x * by : 0.0f;
        y = y > 0.0f ? y * by : 0.0f;
      }
      u32 pair = round_pair(x, y);
      if (Codec::AFFINE) {
        // Offsets get the rounded weights that codes get: an error that both share does not grow by their cancellation.
        float2 affine = Codec::V::affine(page.v_side[half]);
        float steps = affine.y * reciprocal(affine.x) * (1.0f / Codec::WEIGHT_FACTOR);
        offset[0] += x > 0.0f ? bf16_to_f32((u16)pair) * steps : 0.0f;
        offset[1] += y > 0.0f ? __uint_as_float(pair & 0xffff0000u) * steps : 0.0f;
      }
      if (!Codec::SCALED) sum[0] += bf16_to_f32((u16)pair), sum[1] += __uint_as_float(pair & 0xffff0000u);
      weights[half] = transpose(pair);
    }
  }

  // O = O * rescale + V^T P^T of the page that was scored last.
  __device__ __forceinline__ void accumulate(const Page<D, Codec>& page) {
#pragma unroll
    for (int w = 0; w < V::WORDS; w++) {
      // halves of the same channels of two keys become words, so that a pair is of two keys of one channel
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
        u32 a[4] = {Codec::V::pair(x[h0], i0), Codec::V::pair(x[h1], i1), Codec::V::pair(y[h0], i0), Codec::V::pair(y[h1], i1)};
        float* to = acc[V::HALF * w + i];
        to[0] *= rescale[0], to[1] *= rescale[1], to[2] *= rescale[0], to[3] *= rescale[1];
        mma(to, a, weights);
      }
    }
  }

  // Where `save` puts a channel of a head: runs are shifted by four channels against each other so that the lanes' stores meet in
  // no bank. Four channels from a multiple of 4 on stay together.
  static __device__ __forceinline__ int place(int channel) {
    return channel / V::CHANNELS * V::CHANNELS + (channel / 4 + channel / 32) % (V::CHANNELS / 4) * 4 + channel % 4;
  }

  // Writes the state to shared memory, with the offsets.
  __device__ __forceinline__ void save(float* to_acc, float* to_max, float* to_sum, int group, int lane) {
    int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int k = 0; k < 2; k++) {
#pragma unroll
      for (int mask = 4; mask < 32; mask *= 2) sum[k] += __shfl_xor_sync(FULL, sum[k], mask);
      if (g == 0) to_max[2 * t + k] = max[k], to_sum[2 * t + k] = sum[k];
      if (!Codec::AFFINE) continue;
#pragma unroll
      for (int mask = 4; mask < 32; mask *= 2) offset[k] += __shfl_xor_sync(FULL, offset[k], mask);
      float by = offset[k] * (1.0f / Codec::SUM_FACTOR);
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

// K and V of the rows of a span as a page, and a row in the making for each warp. By the block that reads them.
template <int D, class Codec, bool IS>
struct SpanRows {};
template <int D, class Codec>
struct SpanRows<D, Codec, true> {
  uint4 page[(2 * PAGE_SLOTS * D * (Codec::PACKED ? 1 : 2) + 2 * PAGE_SLOTS * 4) / 16];
  float row[WARPS][ROW_STRIDE];
};

template <int D, class Codec, class Mode>
struct Shared {
  float rows[MAX_GROUP + 2][ROW_STRIDE];  // query heads of the group, K, V
  // states of the warps and of the token itself
  float max[WARPS + 1][MAX_GROUP], sum[WARPS + 1][MAX_GROUP];
  union {
    float acc[MAX_GROUP * D];
    uint4 page[(2 * PAGE_SLOTS * D + 2 * PAGE_SLOTS * 4) / 16];  // a page of packed codes in flight
  } of[WARPS];
  OwnToken own;
  float scratch[ROW_STRIDE];
  float hidden[WARPS];  // shares of a predictor's hidden units
  // Slot of the token that leaves the window, -1: none. Of a row with drafts before it those that have left since the first one.
  int unseen[PAGE_SLOTS];
  SpanRows<D, Codec, Mode::DRAFTS> of_span;
  bool last;
};

// Grid (n_kv_heads + a token's share of the blocks that the GPU runs at once; n), THREADS threads. The last block of a head to begin
// merges its splits: the blocks that it waits for are already running, in whatever order the GPU starts them. Reads every live slot
// once: head_dim channels of K and of V, and the scales. Under a mode with pages, those of the chosen ones.
//
// Under a mode with drafts, n rows of spans of up to PAGE_SLOTS rows, no more than the window has tokens. Beside the stored slots a row reads
// those of its span up to itself: the last split of a head makes a page of them, and keeps the row's own for `append`.
template <int D, class Codec, class Mode>
__device__ __forceinline__ void attend(const DecodeParams& p) {
  typedef Shared<D, Codec, Mode> Memory;
#if DYNAMIC_MEMORY
  Memory& s = *(Memory*)dynamic_shared_memory<sizeof(Memory)>();
#else
  __shared__ __align__(16) Memory s;
#endif
  next_may_begin();
  if (Mode::SCORES && p.in_order) wait_previous();
  const Kv& kv = p.kv;
  const HeadParams& head_params = p.heads;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int d = kv.head_dim, heads = kv.n_kv_heads, group = kv.n_q_heads / heads;
  Span span = p.spans[Mode::DRAFTS ? p.span_of_row[blockIdx.y] : blockIdx.y];
  int row_of_step = Mode::DRAFTS ? blockIdx.y : span.start, position = position_of<Mode>(kv, span, row_of_step);
  const int* live = kv.live + lane_index(kv, p.layer, span.seq, 0);
  bool some = Mode::PAGES && reads_some(kv, live, position, lane);
  Split split = some ? even_split(kv, live, position) : split_of(live, heads, lane);
  // Blocks without work end here; the kernel ends with the last of the others.
  if (split.head < 0) return;
  Lane slots = lane_of(kv, p.layer, span.seq, split.head);
  int first_head = split.head * group;
  const int2* chosen = Mode::PAGES ? p.chosen + (u64)(blockIdx.y * heads + split.head) * kv.max_pages : nullptr;

  // this warp's pages: each of a run, or every step-th of a list
  int at = split.first + warp, step = some ? split.count * WARPS : WARPS, number = 0;
  // of this page and the next one, where pages are chosen
  u32 choice = 0, next = 0;
  auto look_up = [&](int i, u32& choice) {
    if (Mode::PAGES) {
      int2 page = chosen[i];
      choice = page.x, number = page.y;
    } else {
      number = slots.pages[i];
    }
  };
  // of the page looked up last
  auto prefetch_page = [&] {
#pragma unroll 1
    for (int j = 128 * lane; j < kv.meta_at; j += 128 * 32) prefetch(page_at(kv, number) + j);
  };
  auto first_slot = [&] { return (Mode::PAGES ? chosen_entry(choice) : at) * PAGE_SLOTS; };
  Page<D, Codec> page;
  // first page to registers, second one in flight
  auto load_first = [&] {
    if (some) {
      // the list and its length at once
      int last = p.chosen_slots[blockIdx.y * heads + split.head] / PAGE_SLOTS;
      if (at < kv.max_pages) look_up(at, choice);
      split.last = last;
    } else if (at < split.last) {
      look_up(at, choice);
    }
    if (at < split.last) {
      const u8* from = page_at(kv, number);
      page.load_k(kv, from, lane);
      page.load_v(kv, from, split.live - first_slot(), lane);
    }
    if (at + step < split.last) {
      look_up(at + step, next);
      const u8* from = page_at(kv, number);
      if (Codec::PACKED) {
        for (int i = lane; i < kv.meta_at / 16; i += 32) copy_async(s.of[warp].page + i, from + 16 * i, true);
        number = -1;  // in shared memory
      } else {
        prefetch_page();
      }
    }
    copy_commit();
  };
  if (!Mode::PAGES) load_first();
  // The head's first block, under a mode with drafts the last, also has the token's K and V, and those of the rows before it in its
  // span. A warp's rows: query heads, then K and V of each.
  bool own = split.index == (Mode::DRAFTS ? split.count - 1 : 0);
  int of_span = Mode::DRAFTS ? row_of_step - span.start : 0, rows = group + (own ? 2 * (of_span + 1) : 0);
  auto is_v = [&](int r) { return Mode::DRAFTS ? r > group && (r - group) % 2 : r > group; };
  auto norm_of = [&](int r) { return r < group ? head_params.q_norm : is_v(r) ? nullptr : head_params.k_norm; };
  for (int r = warp; r < rows; r += WARPS) prefetch_norm(norm_of(r), d, lane);
  RopeAngles angles;
  auto turn = [&](int r) { angles.compute(head_params, r < group ? position : position - of_span + (r - group) / 2, lane); };
  if (warp < rows && !is_v(warp)) turn(warp);
  // The last warp has no query, or the fewest pages: it looks up which slot leaves.
  SlotAssignment assignment = {};
  bool looks = warp == WARPS - 1;
  Dms dms = {};
  if (looks) dms = dms_of(kv, p.layer, span.seq);
  bool pinned = looks && is_pinned(kv, p.layer, row_of_step);
  if (looks && !Mode::DRAFTS) assignment.load(kv, dms, slots, position);
  if (looks && Mode::DRAFTS && lane < PAGE_SLOTS) {
    // The token that leaves at each of the span's rows so far. Its mark is stored: its window has more tokens than the span.
    int at = position - of_span + lane;
    bool leaves = at <= position && dms.leaves_at(at);
    int leaving = leaves ? slots.ring[dms.ring_at(at)] : -1;
    s.unseen[lane] = dms.overwritten(leaving, leaves && meta_marked(slot_meta(kv, slots, leaving)));
  }
  bool has_units = !Mode::SCORES && head_params.units > 0;
  if (has_units && looks) prefetch_hidden_units(head_params, split.head, lane);
  // `select_pages` lets this kernel start when all work in front of it is done.
  if (!Mode::PAGES) wait_previous();

  // The split's number among those of its head in the order in which they begin. No block of this launch comes after the last one,
  // and the next launch waits for this one.
  int* arrivals = p.arrivals + blockIdx.y * heads + split.head;
  int begun = 0;
  auto begin = [&] {
    if (split.count > 1 && threadIdx.x == 0) begun = atomicAdd(arrivals, 1);
  };
  if (!Mode::PAGES) begin();

  // rows of the token: norm, RoPE, codec
  const float* row = p.qkv + (u64)row_of_step * head_params.qkv_width;
  u8* staged = Mode::DRAFTS ? p.kept.page(kv, row_of_step, slots.row) : staged_token_at(kv, slots.row);
  int staged_row = slots.row % PAGE_SLOTS;
#pragma unroll 1
  for (int r = warp; r < rows; r += WARPS) {
    int column = r < group ? first_head + r : kv.n_q_heads + split.head + (is_v(r) ? heads : 0);
    if constexpr (Mode::DRAFTS) {
      int at = r < group ? of_span : (r - group) / 2;
      float* to = r < group ? s.rows[r] : s.of_span.row[warp];
      load_row(to, row + (at - of_span) * head_params.qkv_width + column * d, norm_of(r), head_params.eps, d, lane);
      if (r != warp && !is_v(r)) turn(r);
      if (!is_v(r)) rotate(to, angles, d, head_params.rotary, r < head_params.borrowed, lane);
      if (r < group) continue;
      u8 *page = (u8*)s.of_span.page, *codes = row_at(kv, page, at, is_v(r));
      u32 side = encode_row<Codec>(is_v(r), codes, to, d, lane);
      if (kv.k_sides_at > 0 && lane == 0) *side_at(kv, page, at, is_v(r)) = side;
      if (at == of_span) write_codes(kv, staged, staged_row, is_v(r), codes, side, lane);
    } else {
      load_row(s.rows[r], row + column * d, norm_of(r), head_params.eps, d, lane);
      if (r <= group) rotate(s.rows[r], angles, d, head_params.rotary, r < head_params.borrowed, lane);
      if (r >= group) stage_row<Codec>(kv, staged, staged_row, s.own, s.rows[r], r > group, lane);
    }
  }
  // One warp would take microseconds for some hundred units.
  float hidden = 0.0f;
  if (has_units) {
    float units = warp_sum(hidden_units(head_params, span.start, split.head, heads, threadIdx.x, THREADS));
    if (lane == 0) s.hidden[warp] = units;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < WARPS; w++) hidden += s.hidden[w];
  }
  if (looks) {
    float decision = 0.0f;
    bool decides = own && !Mode::SCORES;
    if (decides || (!Mode::DRAFTS && assignment.needs_decision()))
      decision = decision_of<!Mode::SCORES>(s.scratch, head_params, head_params.q_norm, row, p.decisions, split.head,
                                            row_of_step, pinned, hidden, kv, lane);
    if (!Mode::DRAFTS) s.unseen[0] = assignment.overwritten(dms, decision);
    if (decides && lane == 0) {
      *(float*)meta_at(kv, staged, staged_row) = decision;
      if (head_params.borrowed || head_params.columns) p.decisions[row_of_step * heads + split.head] = decision;
    }
  }
  if (Mode::PAGES) {
    wait_previous();
    begin();
    load_first();
  }
  __syncthreads();
  int unseen = s.unseen[0];
  copy_wait<0>();
  __syncwarp();
  // The last warps are those with the fewest pages.
  int own_head = WARPS - 1 - warp;
  if (!Mode::DRAFTS && own && own_head < group) {
    float2 state = attend_to_itself<Codec, Mode>(p, s.own, s.rows[own_head], s.rows[group], first_head, own_head, lane);
    if (lane == 0) s.max[WARPS][own_head] = state.x, s.sum[WARPS][own_head] = state.y;
  }
  float by = p.score_scale * LOG2E * Codec::SCORE_FACTOR;
  float* logits = Mode::SCORES ? logits_at(p, blockIdx.y, split.head) : nullptr;
  int stride = Mode::SCORES ? logit_stride(kv) : 0;
  int busy = min(split.last - split.first, WARPS);  // warps with pages
  // The rows of the span are read by the warp with the fewest.
  int reads_span = Mode::DRAFTS && own ? min(busy, WARPS - 1) : WARPS;
  if (Mode::DRAFTS && reads_span == busy && busy < WARPS) busy++;
  if (warp < busy) {
    OnlineSoftmax<D, Codec> softmax;
    softmax.init(s.rows, group, d, lane);
    // pages of this warp; the next one is loaded into the registers that the current one no longer needs
#pragma unroll 1
    while (at < split.last) {
      int first = first_slot();
      float* logits_of_page = Mode::SCORES ? logits + first * stride : nullptr;
      int not_seen = unseen - first;
      if (Mode::DRAFTS) {
        int slot = lane < PAGE_SLOTS ? s.unseen[lane] - first : -1;
        not_seen = 0;
        for (u32 left = __ballot_sync(FULL, slot >= 0 && slot < PAGE_SLOTS); left; left &= left - 1)
          not_seen |= 1 << __shfl_sync(FULL, slot, __ffs(left) - 1);
      }
      softmax.template score<Mode>(page, split.live - first, not_seen, by, lane, logits_of_page, stride, chosen_readers(choice));
      // `select_pages` has counted it
      if (Mode::PAGES && unseen >= first && unseen < first + PAGE_SLOTS && lane == 0)
        atomicAdd(kv.reads + p.spans[blockIdx.y].seq, ~(u64)0);
      at += step;
      choice = next;
      const u8* from = number < 0 ? (const u8*)s.of[warp].page : page_at(kv, number);
      if (at < split.last) page.load_k(kv, from, lane);
      softmax.accumulate(page);
      if (at < split.last) page.load_v(kv, from, split.live - first_slot(), lane);
      if (at + step < split.last) {
        look_up(at + step, next);
        prefetch_page();
      }
    }
    if constexpr (Mode::DRAFTS)
      if (warp == reads_span) {
        page.load_k(kv, (const u8*)s.of_span.page, lane);
        page.load_v(kv, (const u8*)s.of_span.page, of_span + 1, lane);
        softmax.template score<Mode>(page, of_span + 1, 0, by, lane, nullptr, 0, 0);
        softmax.accumulate(page);
      }
    softmax.save(s.of[warp].acc, s.max[warp], s.sum[warp], group, lane);
  }
  if (threadIdx.x == 0) {
    s.last = begun == split.count - 1;
    if (s.last) *arrivals = 0;
  }
  __syncthreads();

  // Merge the warps, two channels a thread and 64 channels a warp; then the head's splits, by the block that began last.
  bool last = s.last;
  const int UNITS = D / 64;
  int split_words = group * UNITS * UNIT_WORDS;
  float* states = p.states + (u64)(blockIdx.y * gridDim.x + blockIdx.x - split.index) * split_words;
#pragma unroll 1
  for (int unit = warp; unit < group * UNITS; unit += WARPS) {
    int head = unit / UNITS, channel = unit % UNITS * 64 + 2 * lane;
    bool itself = !Mode::DRAFTS && own;
    TwoChannels x = {{0.0f, 0.0f}, itself ? s.max[WARPS][head] : NEG_INFINITY, 0.0f};
#pragma unroll
    for (int w = 0; w < WARPS; w++)
      if (w < busy) x.max = fmaxf(x.max, s.max[w][head]);
    float from = x.max == NEG_INFINITY ? 0.0f : x.max;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      // A warp without pages has not written its state.
      float2 acc = *(const float2*)&s.of[w].acc[head * D + OnlineSoftmax<D, Codec>::place(channel)];
      float by = exp2_fast(s.max[w][head] - from), sum = s.sum[w][head];
      bool is = w < busy;
      x.sum += is ? by * sum : 0.0f;
      x.acc.x += is ? by * acc.x : 0.0f;
      x.acc.y += is ? by * acc.y : 0.0f;
    }
    x.acc.x *= Codec::SUM_FACTOR, x.acc.y *= Codec::SUM_FACTOR;
    if (itself) {
      const float* v = s.rows[group + 1] + channel;
      float by = exp2_fast(s.max[WARPS][head] - from), weight = by * s.own.weight[head];
      x.sum += by * s.sum[WARPS][head];
      x.acc.x += weight * v[0], x.acc.y += weight * v[1];
    }
    float* unit_states = states + unit * UNIT_WORDS;
    if (!last) {
      send_state(unit_states + split.index * split_words, x, lane);
      continue;
    }
    if (split.count > 1) x = merge_splits(unit_states, split_words, split.count, split.index, x, lane);
    // The first split sees the token itself, under a mode with drafts the last one, so the sum is not zero.
    float by = reciprocal(x.sum);
    x.acc.x *= by, x.acc.y *= by;
    if (Mode::SCORES && channel == 0) p.peaks[blockIdx.y * kv.n_q_heads + first_head + head].x = x.max;
    if (channel >= d) continue;
    if (Codec::ROTATED) *(float2*)&s.rows[head][channel] = x.acc;
    else put_out(p, row_of_step, (first_head + head) * d + channel, x.acc);
  }
  if (!Codec::ROTATED || !last) return;
  // back through shared memory, a warp for each query head
  __syncthreads();
  if (warp < group) {
    unrotate_row(s.rows[warp], d, lane);
#pragma unroll
    for (int i = 4 * lane; i < MAX_HEAD_DIM; i += 128)
      if (i < d) put_out(p, row_of_step, (first_head + warp) * d + i, *(const float4*)&s.rows[warp][i]);
  }
}

// Instances by head size (up to 64, 128 and 256 channels) and codec. Two blocks fit an SM, but for one of the widest rows.
#define ATTEND(name, D, Codec, Mode)                                                                     \
  KERNEL __launch_bounds__(THREADS, D > 128 || (D > 64 && !Codec::PACKED) ? 1 : 2) name(DecodeParams params) {      \
    attend<D, Codec, Mode>(params);                                                                      \
  }
