// Prefill attention with `wgmma` (compute_90a, Hopper): what attend_tiles.cu does on other GPUs. CPU twin:
// `backend::cpu::attention`.
//
// Precision: as attend_tiles.cu.
//
// Warp-specialized: the last four warps (the producers, attend_producer.cuh) find the keys that rows of the tile see and
// bring them to shared memory in batches; two warpgroups (the consumers) have 64 query rows each. A consumer starts
// S = Q K^T of a batch and O += P V of the batch before, then computes the softmax of the former beside the latter and beside
// the wgmmas of the other consumer.
//
// Cost: as attend_tiles.cu, 4 D bytes of a bf16 slot for 512 D operations in a tile of 128 rows.
#include "attend_producer.cuh"

#define MIN_SPLIT_KEYS 512  // fewer are not worth a merge

// A consumer thread: the online softmax of two of its warpgroup's 64 rows, 8 apart, of which it holds a quarter.
template <class C>
struct Consumer {
  static constexpr int D = C::D, BN = C::BN;
  Shared<C>& s;
  int group, warp, lane;
  float acc[D / 2];
  float max[2], sum[2];  // max: of the logits, in log2 units; sum: of exp2(logit - max)

  // S = Q K^T of a batch, started.
  __device__ __forceinline__ void score(float (&scores)[BN / 2], const u16* k) const {
    u64 q = tile_at(s.q + group * (64 * 64), 0), keys = tile_at(k, 0);
#pragma unroll
    for (int c = 0; c < D / 16; c++)
      wgmma<BN>(scores, after(q, c / 4 * (C::QUERIES * 128) + c % 4 * 32), after(keys, c / 4 * (BN * 128) + c % 4 * 32),
                c > 0);
    wgmma_commit();
  }

  // O += P V of a batch, started.
  __device__ __forceinline__ void accumulate(const u32 (&weights)[BN / 4], const u16* v) {
    u64 values = transposed_at(v, BN);
#pragma unroll
    for (int c = 0; c < BN / 16; c++) wgmma_transposed<D>(acc, weights + 4 * c, after(values, 2048 * c), 1);
    wgmma_commit();
  }

  // Scores become softmax weights. `rescale`: by what sums and accumulators of before shrink.
  __device__ __forceinline__ void weigh(float (&rescale)[2], float (&scores)[BN / 2], const Batch& b, int number,
                                        const Tile& t, float scale) {
    const float(*scales)[C::SCALED ? BN : 4] = s.scales[number % C::BATCHES];
    // Scores times this are logits in log2 units; scaled codecs apply it with the scales of the keys.
    float unit = C::SCALED ? 1.0f : scale * LOG2E;
    if (C::SCALED) {
      float by = scale * (LOG2E * C::Codec::SCORE_FACTOR);
#pragma unroll
      for (int j = 0; j < BN / 8; j++) {
        float2 k = *(const float2*)&scales[0][8 * j + lane % 4 * 2];
        k.x *= by, k.y *= by;
        scores[4 * j] *= k.x, scores[4 * j + 1] *= k.y, scores[4 * j + 2] *= k.x, scores[4 * j + 3] *= k.y;
      }
    }
    if (b.unmasked < BN) {
      // mask
      int query = 64 * group + 16 * warp + lane / 4;
      int row = t.first_row + query / t.group, row8 = t.first_row + (query + 8) / t.group;
#pragma unroll
      for (int j = 0; j < BN / 8; j++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
          int key = 8 * j + lane % 4 * 2 + i, first = key < b.n ? 0 : FOREVER, last = FOREVER;
          if (key >= b.unmasked && key < b.n) {
            const Key& found = s.masked[b.masked + key - b.unmasked];
            first = found.first, last = found.last;
          }
          if (row < first || row > last) scores[4 * j + i] = NEG_INFINITY;
          if (row8 < first || row8 > last) scores[4 * j + 2 + i] = NEG_INFINITY;
        }
    }
    float from[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      // new maximum of the row, rounded up so that it soon stays the same
      float top = NEG_INFINITY;
#pragma unroll
      for (int j = 0; j < BN / 8; j++) top = fmaxf(top, fmaxf(scores[4 * j + 2 * h], scores[4 * j + 2 * h + 1]));
      top = fmaxf(top, __shfl_xor_sync(FULL, top, 1));
      top = fmaxf(top, __shfl_xor_sync(FULL, top, 2));
      top = fmaxf(max[h], ceilf(top * unit));
      from[h] = top == NEG_INFINITY ? 0.0f : top;
      rescale[h] = top > max[h] ? exp2_fast(max[h] - from[h]) : 1.0f;
      max[h] = top;
      sum[h] *= rescale[h];
    }
#pragma unroll
    for (int j = 0; j < BN / 8; j++) {
      float2 v = C::SCALED ? *(const float2*)&scales[1][8 * j + lane % 4 * 2] : float2{1.0f, 1.0f};
      v.x *= C::Codec::WEIGHT_FACTOR, v.y *= C::Codec::WEIGHT_FACTOR;
#pragma unroll
      for (int h = 0; h < 2; h++) {
        float &x = scores[4 * j + 2 * h], &y = scores[4 * j + 2 * h + 1];
        x = exp2_fast(x * unit - from[h]), y = exp2_fast(y * unit - from[h]);
        if (C::SCALED) {
          sum[h] += x + y;
          x *= v.x, y *= v.y;
        }
      }
    }
  }

  // Weights in bf16, in the order of a wgmma's fragments: of 16 keys the first eight, rows and rows + 8, then the others.
  __device__ __forceinline__ void round(u32 (&weights)[BN / 4], const float (&scores)[BN / 2]) {
#pragma unroll
    for (int i = 0; i < BN / 4; i++) {
      weights[i] = round_pair(scores[2 * i], scores[2 * i + 1]);
      if (!C::SCALED) sum[i % 2] += sum_pair(weights[i]);
    }
  }

  __device__ __forceinline__ void shrink(const float (&rescale)[2]) {
    if (!__any_sync(FULL, rescale[0] != 1.0f || rescale[1] != 1.0f)) return;
#pragma unroll
    for (int j = 0; j < D / 8; j++) {
      acc[4 * j] *= rescale[0], acc[4 * j + 1] *= rescale[0];
      acc[4 * j + 2] *= rescale[1], acc[4 * j + 3] *= rescale[1];
    }
  }

  // Not before all lanes of the warp have read.
  __device__ __forceinline__ void release(u64* barrier) const {
    __syncwarp();
    if (lane == 0) barrier_arrive(barrier);
  }

  // Consumers multiply in turns: softmax of one beside wgmmas of another.
  __device__ __forceinline__ void await_turn(int number) const {
    if (C::TURNS) barrier_wait(s.turn + group, (number & 1) ^ (group == 0));
  }
  __device__ __forceinline__ void pass_turn() const {
    if (C::TURNS && lane == 0) barrier_arrive(s.turn + (group + 1) % C::GROUPS);
  }

  __device__ __forceinline__ void run(const Tile& t, float scale) {
#pragma unroll
    for (int i = 0; i < D / 2; i++) acc[i] = 0.0f;
    max[0] = max[1] = NEG_INFINITY;
    sum[0] = sum[1] = 0.0f;
    Stage<C::STAGES> stage;
    barrier_wait(s.k_full, 0);
    Batch b = s.batches[0];
    if (b.n == 0) return;
    float scores[BN / 2], rescale[2];
    u32 weights[BN / 4];
    fence_tiles();
    await_turn(0);
    wgmma_begin();
    score(scores, s.k[0]);
    pass_turn();
    wgmma_wait<0>();
    pin(scores);
    release(s.k_empty);
    weigh(rescale, scores, b, 0, t, scale);
    round(weights, scores);
#pragma unroll 1
    for (int number = 1;; number++) {
      Stage<C::STAGES> before = stage;
      stage.advance();
      barrier_wait(s.k_full + stage.at, stage.parity);
      b = s.batches[number % C::BATCHES];
      if (b.n == 0) {
        stage = before;
        break;
      }
      fence_tiles();
      await_turn(number);
      pin(acc);
      pin(weights);
      wgmma_begin();
      score(scores, s.k[stage.at]);
      barrier_wait(s.v_full + before.at, before.parity);
      fence_tiles();
      accumulate(weights, s.v[before.at]);
      pass_turn();
      wgmma_wait<1>();
      pin(scores);
      release(s.k_empty + stage.at);
      weigh(rescale, scores, b, number, t, scale);
      pin(scores);
      // It is there. Without a branch in between, the assembler would wait for the wgmmas before the softmax.
      barrier_wait(s.v_full + before.at, before.parity);
      wgmma_wait<0>();
      pin(acc);
      pin(weights);
      release(s.v_empty + before.at);
      shrink(rescale);
      pin(scores);
      round(weights, scores);
    }
    barrier_wait(s.v_full + stage.at, stage.parity);
    fence_tiles();
    pin(acc);
    pin(weights);
    wgmma_begin();
    accumulate(weights, s.v[stage.at]);
    wgmma_wait<0>();
    pin(acc);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      sum[h] += __shfl_xor_sync(FULL, sum[h], 1);
      sum[h] += __shfl_xor_sync(FULL, sum[h], 2);
    }
  }

  // Queries as bf16 to shared memory, zeros where a row of the tile has no token.
  __device__ __forceinline__ void load_queries(const Tile& t, const float* qkv, const Kv& kv) {
    const float by = C::Codec::QUERY_FACTOR;
    u64 width = (kv.n_q_heads + 2 * kv.n_kv_heads) * D;
#pragma unroll 4
    for (int i = 32 * warp + lane; i < 64 * D / 8; i += 128) {
      int query = 64 * group + i / (D / 8), chunk = i % (D / 8), row = t.first_row + query / t.group;
      float4 a = {0, 0, 0, 0}, b = {0, 0, 0, 0};
      if (row <= t.last_row) {
        const float* from =
            qkv + (t.span.start + row) * width + (t.head * t.group + query % t.group) * D + 8 * chunk;
        a = *(const float4*)from, b = *(const float4*)(from + 4);
      }
      u16* to = s.q + chunk / 8 * (C::QUERIES * 64) + query * 64 + ((chunk ^ query) & 7) * 8;
      *(uint4*)to = uint4{round_pair(a.x * by, a.y * by), round_pair(a.z * by, a.w * by),
                          round_pair(b.x * by, b.y * by), round_pair(b.z * by, b.w * by)};
    }
    fence_tiles();
    group_barrier(2 + group, 128);
  }

  // Saves a split's state, in the order in which threads hold it.
  __device__ __forceinline__ void save(float* split) const {
    const int THREADS = 2 * C::QUERIES;
    float4* to = (float4*)split + threadIdx.x;
    to[0] = float4{max[0], max[1], sum[0], sum[1]};
#pragma unroll
    for (int j = 0; j < D / 8; j++)
      to[(1 + j) * THREADS] = float4{acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3]};
  }

  // Merges a saved state.
  __device__ __forceinline__ void merge(const float* split) {
    const int THREADS = 2 * C::QUERIES;
    const float4* from = (const float4*)split + threadIdx.x;
    float4 a = from[0];
    float more_max[2] = {a.x, a.y}, more_sum[2] = {a.z, a.w}, rescale[2], by[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float top = fmaxf(max[h], more_max[h]), base = top == NEG_INFINITY ? 0.0f : top;
      rescale[h] = exp2_fast(max[h] - base);
      by[h] = exp2_fast(more_max[h] - base);
      max[h] = top;
      sum[h] = sum[h] * rescale[h] + more_sum[h] * by[h];
    }
#pragma unroll
    for (int j = 0; j < D / 8; j++) {
      float4 x = from[(1 + j) * THREADS];
      float* to = acc + 4 * j;
      to[0] = to[0] * rescale[0] + x.x * by[0], to[1] = to[1] * rescale[0] + x.y * by[0];
      to[2] = to[2] * rescale[1] + x.z * by[1], to[3] = to[3] * rescale[1] + x.w * by[1];
    }
  }

  // Writes the normalised output.
  __device__ __forceinline__ void write(void* to, int out_is_bf16, const Tile& t, const Kv& kv) const {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      int query = 64 * group + 16 * warp + 8 * h + lane / 4, row = t.first_row + query / t.group;
      if (row > t.last_row) continue;
      int q_head = t.head * t.group + query % t.group;
      u64 at = ((u64)(t.span.start + row) * kv.n_q_heads + q_head) * D + lane % 4 * 2;
      float by = C::Codec::SUM_FACTOR / sum[h];
#pragma unroll
      for (int j = 0; j < D / 8; j++)
        put2(to, out_is_bf16, at + 8 * j, acc[4 * j + 2 * h] * by, acc[4 * j + 2 * h + 1] * by);
    }
  }
};

// Brings candidates `next` to `end` to shared memory.
template <class C, bool UNPACKED>
__device__ __forceinline__ void produce(Shared<C>& s, const PrefillParams& p, const Tile& t, const TensorMap* stored_pages,
                                        const TensorMap* staged_pages, int next, int end) {
  int thread = threadIdx.x - 2 * C::QUERIES;
  Producer<C, UNPACKED> producer = {s,          p.kv,         t, p.decisions, stored_pages, staged_pages, p.unpacked,
                                    t.lane * p.lane_pages, p.first_staged, thread};
  producer.next = next;
  producer.end = end;
  producer.run();
}

// Grid (splits, n_kv_heads, tiles), a thread for each half of a query row and PRODUCERS; a span of len rows has
// len / (QUERIES / group) tiles, rounded up. Splits beyond those that a tile's keys are worth end at once; the last one to
// arrive merges all.
template <class C, int PRODUCER_REGISTERS, int CONSUMER_REGISTERS>
__device__ __forceinline__ void attend_wgmma(const PrefillParams& p, const TensorMap* stored_pages, const TensorMap* staged_pages) {
  Shared<C>& s = *(Shared<C>*)tile_memory<sizeof(Shared<C>)>();
  if (threadIdx.x == 0) {
    for (int i = 0; i < C::STAGES; i++) {
      barrier_init(s.k_full + i, 1);
      barrier_init(s.v_full + i, 1);
      barrier_init(s.k_empty + i, 4 * C::GROUPS);
      barrier_init(s.v_empty + i, 4 * C::GROUPS);
    }
    for (int i = 0; i < C::GROUPS; i++) barrier_init(s.turn + i, 4);
    for (int i = 0; i < 2; i++) barrier_init(s.codes_full + i, 1);
    barriers_made();
  }
  after_previous();
  __syncthreads();
  const Kv& kv = p.kv;
  Tile t = tile_of<C::QUERIES>(kv, p.layer, p.spans);
  int total = (t.live + PAGE_SLOTS - 1) / PAGE_SLOTS * PAGE_SLOTS + t.span.start % PAGE_SLOTS + t.last_row + 1;
  int per = max(((total + (int)gridDim.x - 1) / (int)gridDim.x + C::BN - 1) / C::BN * C::BN, MIN_SPLIT_KEYS);
  int splits = (total + per - 1) / per, split = blockIdx.x;
  if (split >= splits) return;

  if (threadIdx.x >= 2 * C::QUERIES) {
    fewer_registers<PRODUCER_REGISTERS>();
    if (C::PACKED && lane_is_unpacked(p, t.live)) produce<C, true>(s, p, t, stored_pages, staged_pages, split * per, min(split * per + per, total));
    else produce<C, false>(s, p, t, stored_pages, staged_pages, split * per, min(split * per + per, total));
    return;
  }
  more_registers<CONSUMER_REGISTERS>();
  Consumer<C> consumer = {s, (int)threadIdx.x / 128, (int)threadIdx.x / 32 % 4, (int)threadIdx.x % 32};
  consumer.load_queries(t, p.qkv, kv);
  consumer.run(t, p.score_scale);
  if (splits > 1) {
    const int SIZE = (C::D + 8) * C::QUERIES;
    int tile = t.index * kv.n_kv_heads + t.head;
    float* saved = p.partials + (u64)tile * gridDim.x * SIZE;
    consumer.save(saved + split * SIZE);
    auto consumers = [] { group_barrier(1 + PRODUCERS / 128 + C::GROUPS, 2 * C::QUERIES); };
    if (!is_last(p.arrivals + tile, splits, s.last, consumers)) return;
    // merge in order, so that the result does not depend on which split arrives last
    consumer.max[0] = consumer.max[1] = NEG_INFINITY;
    consumer.sum[0] = consumer.sum[1] = 0.0f;
#pragma unroll 1
    for (int i = 0; i < splits; i++) consumer.merge(saved + i * SIZE);
  }
  consumer.write(p.out, p.out_is_bf16, t, kv);
}

#define ATTEND_WGMMA(name, D, BN, GROUPS, STAGES, TURNS, Codec, PRODUCER_REGISTERS, CONSUMER_REGISTERS)             \
  KERNEL __launch_bounds__(128 * GROUPS + PRODUCERS, 1) name(PrefillParams params, const __grid_constant__ TensorMap stored, const __grid_constant__ TensorMap staged) {  \
    attend_wgmma<Config<D, BN, GROUPS, STAGES, TURNS, Codec>, PRODUCER_REGISTERS, CONSUMER_REGISTERS>(params, &stored, &staged);      \
  }
ATTEND_WGMMA(attend_wgmma_128_bf16, 128, 128, 2, 2, false, Bf16Codec, 72, 216)
ATTEND_WGMMA(attend_wgmma_128_fp8, 128, 128, 2, 2, false, Fp8Codec, 88, 208)
ATTEND_WGMMA(attend_wgmma_128_int8, 128, 128, 2, 2, false, Int8Codec, 88, 208)

// Codes of int8, or of fp8.
KERNEL __launch_bounds__(32 * UNPACK_WARPS) kv_unpack(PrefillParams params, int is_int8) {
  if (is_int8) unpack_pages<Int8Codec>(params);
  else unpack_pages<Fp8Codec>(params);
}
