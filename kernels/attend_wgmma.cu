// Prefill attention with `wgmma` (compute_90a, Hopper): what attend_tiles.cu does on other GPUs.
// CPU twin:
// `backend::cpu::attention`.
//
// Precision: as attend_tiles.cu.
//
// Warp-specialized: the last four warps (the producers, attend_producer.cuh) find the keys that
// rows of the tile see and bring them to shared memory in batches; two warpgroups (the consumers)
// have 64 query rows each. A consumer starts S = Q K^T of a batch and O += P V of the batch before,
// then computes the softmax of the former beside the latter and beside the wgmmas of the other
// consumer.
//
// Cost: as attend_tiles.cu, 4 D bytes of a bf16 slot for 512 D operations in a tile of 128 rows.
#include "attend_producer.cuh"

#define MIN_SPLIT_KEYS 512  // fewer are not worth a merge

// A consumer thread: the online softmax of two of its warpgroup's 64 rows, 8 apart, of which it
// holds a quarter.
template <class C>
struct Consumer {
  static constexpr int D = C::D, BN = C::BN;
  Shared<C>& s;
  const typename C::Codec codec;
  int group, warp, lane;
  RowPair<D> rows;

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
    for (int c = 0; c < BN / 16; c++) wgmma_transposed<D>(rows.acc, weights + 4 * c, after(values, 2048 * c), 1);
    wgmma_commit();
  }

  // Scores become softmax weights. `rescale`: by what sums and accumulators of before shrink.
  __device__ __forceinline__ void weigh(float (&rescale)[2], float (&scores)[BN / 2], const Batch& b, int number,
                                        const Tile& t, float scale) {
    const float(*scales)[C::SCALED ? BN : 4] = s.scales[number % C::BATCHES];
    // Scores times this are logits in log2 units; scaled codecs apply it with the scales of the
    // keys.
    float unit = C::SCALED ? 1.0f : scale * LOG2E;
    if (C::SCALED) {
      float by = scale * (LOG2E * codec.score_factor());
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
      top = fmaxf(rows.max[h], ceilf(top * unit));
      from[h] = top == NEG_INFINITY ? 0.0f : top;
      rescale[h] = top > rows.max[h] ? exp2_fast(rows.max[h] - from[h]) : 1.0f;
      rows.max[h] = top;
      rows.sum[h] *= rescale[h];
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
          rows.sum[h] += x + y;
          x *= v.x, y *= v.y;
        }
      }
    }
  }

  // Weights in bf16, in the order of a wgmma's fragments: of 16 keys the first eight, rows and rows
  // + 8, then the others.
  __device__ __forceinline__ void round(u32 (&weights)[BN / 4], const float (&scores)[BN / 2]) {
#pragma unroll
    for (int i = 0; i < BN / 4; i++) {
      weights[i] = round_pair(scores[2 * i], scores[2 * i + 1]);
      if (!C::SCALED) rows.sum[i % 2] += sum_pair(weights[i]);
    }
  }

  __device__ __forceinline__ void shrink(const float (&rescale)[2]) {
    if (!__any_sync(FULL, rescale[0] != 1.0f || rescale[1] != 1.0f)) return;
#pragma unroll
    for (int j = 0; j < D / 8; j++) {
      float* x = rows.acc + 4 * j;
      x[0] *= rescale[0], x[1] *= rescale[0], x[2] *= rescale[1], x[3] *= rescale[1];
    }
  }

  // Not before all lanes of the warp have read.
  __device__ __forceinline__ void release(u64* barrier) const {
    __syncwarp();
    if (lane == 0) barrier_arrive(barrier);
  }

  __device__ __forceinline__ void run(const Tile& t, float scale) {
    rows.init();
    Stage<C::STAGES> stage;
    barrier_wait(s.k_full, 0);
    Batch b = s.batches[0];
    if (b.n == 0) return;
    float scores[BN / 2], rescale[2];
    u32 weights[BN / 4];
    fence_tiles();
    wgmma_begin();
    score(scores, s.k[0]);
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
      pin(rows.acc);
      pin(weights);
      wgmma_begin();
      score(scores, s.k[stage.at]);
      barrier_wait(s.v_full + before.at, before.parity);
      fence_tiles();
      accumulate(weights, s.v[before.at]);
      wgmma_wait<1>();
      pin(scores);
      release(s.k_empty + stage.at);
      weigh(rescale, scores, b, number, t, scale);
      pin(scores);
      // It is there. Without a branch in between, the assembler would wait for the wgmmas before
      // the softmax.
      barrier_wait(s.v_full + before.at, before.parity);
      wgmma_wait<0>();
      pin(rows.acc);
      pin(weights);
      release(s.v_empty + before.at);
      shrink(rescale);
      pin(scores);
      round(weights, scores);
    }
    barrier_wait(s.v_full + stage.at, stage.parity);
    fence_tiles();
    pin(rows.acc);
    pin(weights);
    wgmma_begin();
    accumulate(weights, s.v[stage.at]);
    wgmma_wait<0>();
    pin(rows.acc);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      rows.sum[h] += __shfl_xor_sync(FULL, rows.sum[h], 1);
      rows.sum[h] += __shfl_xor_sync(FULL, rows.sum[h], 2);
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

// Grid (splits, n_kv_heads, tiles), a thread for each half of a query row and PRODUCERS; a span of
// len rows has len / (QUERIES / group) tiles, rounded up. Splits beyond those that a tile's keys
// are worth end at once; the last one to arrive merges all.
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
    for (int i = 0; i < 2; i++) barrier_init(s.codes_full + i, 1);
    barriers_made();
  }
  after_previous();
  __syncthreads();
  const Kv& kv = p.kv;
  Tile t = tile_of<C::QUERIES>(kv, p.layer, p.spans);
  int total = whole_pages(t.live) + whole_pages(t.n_near) + t.span.start % PAGE_SLOTS + t.last_row + 1;
  int per = max(((total + (int)gridDim.x - 1) / (int)gridDim.x + C::BN - 1) / C::BN * C::BN, MIN_SPLIT_KEYS);
  int splits = (total + per - 1) / per, split = blockIdx.x;
  if (split >= splits) return;

  if (threadIdx.x >= 2 * C::QUERIES) {
    fewer_registers<PRODUCER_REGISTERS>();
    if (C::PACKED && lane_is_unpacked(p, t.live, t.n_near)) produce<C, true>(s, p, t, stored_pages, staged_pages, split * per, min(split * per + per, total));
    else produce<C, false>(s, p, t, stored_pages, staged_pages, split * per, min(split * per + per, total));
    return;
  }
  more_registers<CONSUMER_REGISTERS>();
  Consumer<C> consumer = {s, typename C::Codec(kv), (int)threadIdx.x / 128, (int)threadIdx.x / 32 % 4, (int)threadIdx.x % 32};
  load_queries<C::D, typename C::Codec, 64, 128>(p, t, 64 * consumer.group, threadIdx.x % 128, C::D, [&](int query, int chunk) {
    return s.q + chunk / 8 * (C::QUERIES * 64) + query * 64 + ((chunk ^ query) & 7) * 8;
  });
  fence_tiles();
  group_barrier(2 + consumer.group, 128);
  consumer.run(t, p.score_scale);
  if (splits > 1) {
    const int SIZE = (C::D + 8) * C::QUERIES;
    int tile = t.index * kv.n_kv_heads + t.head;
    float* saved = p.partials + (u64)tile * gridDim.x * SIZE;
    auto state_at = [&](int split) { return (float4*)(saved + split * SIZE) + threadIdx.x; };
    consumer.rows.save(state_at(split), 2 * C::QUERIES);
    auto consumers = [] { group_barrier(1 + PRODUCERS / 128 + C::GROUPS, 2 * C::QUERIES); };
    if (!is_last(p.arrivals + tile, splits, s.last, consumers)) return;
    // merge in order, so that the result does not depend on which split arrives last
    consumer.rows.max[0] = consumer.rows.max[1] = NEG_INFINITY;
    consumer.rows.sum[0] = consumer.rows.sum[1] = 0.0f;
#pragma unroll 1
    for (int i = 0; i < splits; i++) consumer.rows.merge(state_at(i), 2 * C::QUERIES);
  }
  consumer.rows.write(consumer.codec, p, t, 64 * consumer.group + 16 * consumer.warp + consumer.lane / 4, C::D, 0);
}

#define ATTEND_WGMMA(name, Codec, PRODUCER_REGISTERS, CONSUMER_REGISTERS)                                                  \
  KERNEL __launch_bounds__(2 * Config<Codec>::QUERIES + PRODUCERS, 1)                                                      \
      name(PrefillParams params, const __grid_constant__ TensorMap stored, const __grid_constant__ TensorMap staged) {     \
    attend_wgmma<Config<Codec>, PRODUCER_REGISTERS, CONSUMER_REGISTERS>(params, &stored, &staged);                         \
  }
ATTEND_WGMMA(attend_wgmma_128_bf16, Bf16Codec, 72, 216)
ATTEND_WGMMA(attend_wgmma_128_bytes, ByteCodec, 88, 208)

KERNEL __launch_bounds__(32 * UNPACK_WARPS) kv_unpack(PrefillParams params) { unpack_pages(params); }
