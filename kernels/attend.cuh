// Decode attention on tensor cores (split-KV): attention of one token per sequence over the slots
// that its KV heads store, and over the token itself. The token sees every live slot except the one
// that leaves the window at this token. Prefill chunks go to attend_tiles.cu. CPU twins:
// `backend::cpu::attention`, `backend::cpu::rope`, `Codec::round_trip`.
//
// The token has no slot yet: its codes and its decision are staged, and `append` stores them for
// all layers at the end of the step. (Under a policy with scores, `place_scores` stores them after
// each layer.) So no table, slot or live count changes before all layers of a step are attended to.
// Everything except the token's own rows can be read while the preceding kernels still run. The
// kernels of the previous step have ended by then: common.cuh explains how steps are separated.
//
// Precision: K and V are exact, q and softmax weights are rounded to bf16, sums are f32. Running
// maxima are rounded up to integer exponents of 2, so a weight is rounded in the same way whatever
// maximum it is relative to. How the keys are divided among warps, splits and tiles therefore
// changes only the order of sums.
#pragma once
#include "attend_merge.cuh"
#include "attend_softmax.cuh"
#include "pages.cuh"
#include "place.cuh"

#define UNSPLIT_PAGES 16  // of a head that are not worth a merge: two a warp
#ifndef DYNAMIC_MEMORY    // whether blocks take their shared memory dynamically: more than 48 KB
#define DYNAMIC_MEMORY (MAX_HEAD_DIM > 128)
#endif

// The block's share of the token's work: pages [first, last) of one KV head. head -1: no work.
struct Split {
  int head, live, first, last, index, count;
};

// a / b for quotients less than 2^21, in a third of the time of an integer division.
__device__ __forceinline__ int divide(int a, int b) {
  int q = (int)(a * reciprocal((float)b)), left = a - q * b;
  return left < 0 ? q - 1 : left >= b ? q + 1 : q;
}

// Divides the pages of a token's KV heads among blocks: about as many blocks as the token's share
// of those that the GPU runs at once, and at least one per head. Every block computes the same
// division. A head has at most pages / per + 1 splits, and the pages / per sum to at most the
// share, so a grid of heads + share blocks has room for all splits.
template <class Mode>
__device__ __forceinline__ Split split_of(Mode mode, const int* live, const int* near_rows, int heads, int lane) {
  // pages of all heads, which give the pages per split
  int total = 0, block = blockIdx.x;
  auto pages_of = [&](int h) {
    int pages = (live[h] + PAGE_SLOTS - 1) / PAGE_SLOTS;
    return mode.far ? pages + (near_rows[h] + PAGE_SLOTS - 1) / PAGE_SLOTS : pages;
  };
  for (int h = lane; h < heads; h += 32) total += pages_of(h);
  total = warp_sum(total);
  // Pages per warp. At least as many as make a head of mean length fastest, if reading a page takes
  // as long as merging about eight splits; and enough that there are no more blocks than the share.
  int share = max((int)gridDim.x - heads, 1), fewest = ((int)sqrtf(total * reciprocal((float)heads)) + 3) / WARPS;
  int per = max(max(fewest, divide(divide(total + share - 1, share) + WARPS - 1, WARPS)), 1) * WARPS;
  // Round the number of splits up if no warp would get two pages. Otherwise round to nearest:
  // rounding up gives more blocks than the share, and the blocks that do not fit start only when
  // others end. That costs more time than up to half a block of extra work in one block.
  int more = per > WARPS ? per / 2 : per - 1;
  Split s = {-1, 0, 0, 0, 0, 0};
  // prefix sum of the heads' splits, 32 heads at a time, until it includes this block
  for (int h = lane, before = 0; h - lane < heads; h += 32) {
    int here = h < heads ? live[h] : 0, pages = h < heads ? pages_of(h) : 0;
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

// Whether the token reads fewer than all pages of some head: `full` in `select_pages`.
__device__ __forceinline__ bool reads_some(const Kv& kv, const int* live, int position, int lane) {
  int reads = pages_to_read(kv, position + 1);
  bool some = false;
  for (int h = lane; h < kv.n_kv_heads; h += 32) some |= live[h] / PAGE_SLOTS >= reads;
  return __any_sync(FULL, some);
}

// Gives every head the same number of blocks, before it is known how many pages each head reads:
// the square root of the maximum that its query heads can choose (for the reason in `split_of`),
// and at most the head's part of the share.
__device__ __forceinline__ Split even_split(const Kv& kv, const int* live, int position) {
  int heads = kv.n_kv_heads, most = pages_to_read(kv, position + 1) * (kv.n_q_heads / heads);
  int count = max(1, min(((int)gridDim.x - heads) / heads, (int)sqrtf((float)most))), head = blockIdx.x / count;
  if (head >= heads) return Split{-1, 0, 0, 0, 0, 0};
  int index = blockIdx.x - head * count;
  return Split{head, live[head], index * WARPS, 0, index, count};
}

// K and V of the rows of a span as one page, and one row of scratch per warp. For the block that
// reads them.
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
  // softmax states of the warps and of the token itself
  float max[WARPS + 1][MAX_GROUP], sum[WARPS + 1][MAX_GROUP];
  union {
    float acc[MAX_GROUP * D];
    uint4 page[(2 * PAGE_SLOTS * D + 2 * PAGE_SLOTS * 4) / 16];  // a page of packed codes in flight
  } of[WARPS];
  OwnToken own;
  float scratch[ROW_STRIDE];
  float hidden[WARPS];  // shares of a predictor's hidden units
  // Slot of the token that leaves the window, or -1. For a row with drafts before it: the slots
  // that have left since the first row of the span.
  int unseen[PAGE_SLOTS];
  SpanRows<D, Codec, Mode::DRAFTS> of_span;
  bool last;
};

// Grid (n_kv_heads + a token's share of the blocks that the GPU runs at once; n), THREADS threads.
// The last block of a head to begin merges the head's splits: the blocks that it waits for are
// already running, whatever the order in which the GPU starts them. Reads every live slot once:
// head_dim channels of K and of V, and the scales. Modes with pages read only the chosen pages.
//
// Modes with drafts have n rows of spans of up to PAGE_SLOTS rows; a span has at most as many rows
// as the window has tokens. A row reads the stored slots and the rows of its span up to itself: the
// last split of a head collects those rows in a page, and keeps the row's own K and V for `append`.
template <int D, class Codec, class Mode>
__device__ __forceinline__ void attend(const DecodeParams& p) {
  typedef Shared<D, Codec, Mode> Memory;
#if DYNAMIC_MEMORY
  Memory& s = *(Memory*)dynamic_shared_memory<sizeof(Memory)>();
#else
  __shared__ __align__(16) Memory s;
#endif
  const Mode mode(p);
  const Codec codec(p.kv);
  next_may_begin();
  if (mode.scores && p.in_order) wait_previous();
  const Kv& kv = p.kv;
  const HeadParams& head_params = p.heads;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int d = kv.head_dim, heads = kv.n_kv_heads, group = kv.n_q_heads / heads;
  Span span = p.spans[Mode::DRAFTS ? p.span_of_row[blockIdx.y] : blockIdx.y];
  int row_of_step = Mode::DRAFTS ? blockIdx.y : span.start, before = Mode::DRAFTS ? row_of_step - span.start : mode.scores ? span.before : 0;
  int position = kv.seq_len[span.seq] + before;
  const int* live = kv.live + lane_index(kv, p.layer, span.seq, 0);
  bool some = mode.pages && reads_some(kv, live, position, lane);
  const int* near_rows = mode.far ? kv.near_rows + lane_index(kv, p.layer, span.seq, 0) : nullptr;
  Split split = some ? even_split(kv, live, position) : split_of(mode, live, near_rows, heads, lane);
  // Blocks without work end here; the kernel ends with the last working block.
  if (split.head < 0) return;
  Lane slots = lane_of(kv, p.layer, span.seq, split.head);
  int first_head = split.head * group;
  // Page numbers, or entries of the list of chosen pages.
  const int* pages = mode.pages ? (const int*)(p.chosen + (u64)(blockIdx.y * heads + split.head) * kv.max_pages) : slots.pages;
  // Whether page i is one of near rows, which are read after the slots, and which of them it is.
  auto is_near = [&](int i) { return mode.far && i * PAGE_SLOTS >= split.live; };
  auto near_at = [&](int i) { return i - (int)((u32)(split.live + PAGE_SLOTS - 1) / PAGE_SLOTS); };

  // this warp's pages: consecutive ones, or every step-th of a list
  int at = split.first + warp, step = some ? split.count * WARPS : WARPS, number = 0;
  // list entries of this page and of the next one, if pages are chosen
  u32 choice = 0, next = 0;
  auto look_up = [&](int i, u32& choice) {
    if (mode.pages) {
      int2 page = ((const int2*)pages)[i];
      choice = page.x, number = page.y;
    } else {
      // The tables of both have one shape.
      number = is_near(i) ? pages[near_at(i) + (kv.near - kv.table)] : pages[i];
    }
  };
  // prefetches the page that was looked up last
  auto prefetch_page = [&] {
#pragma unroll 1
    for (int j = 128 * lane; j < kv.meta_at; j += 128 * 32) prefetch(page_at(kv, number) + j);
  };
  auto first_slot = [&] { return (mode.pages ? chosen_entry(choice) : at) * PAGE_SLOTS; };
  // Slots of this page and of those after it, or near rows.
  auto slots_left = [&] {
    return is_near(at) ? near_rows[split.head] - near_at(at) * PAGE_SLOTS : split.live - first_slot();
  };
  Page<D, Codec> page;
  // loads the first page into registers and starts loading the second one
  auto load_first = [&] {
    if (some) {
      // read the list and its length at once
      int last = p.chosen_slots[blockIdx.y * heads + split.head] / PAGE_SLOTS;
      if (at < kv.max_pages) look_up(at, choice);
      split.last = last;
    } else if (at < split.last) {
      look_up(at, choice);
    }
    if (at < split.last) {
      const u8* from = page_at(kv, number);
      page.load_k(kv, from, lane);
      page.load_v(kv, from, slots_left(), lane);
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
  if (!mode.pages) load_first();
  // The head's first block (with drafts: the last one) also has the token's own K and V, and with
  // drafts K and V of the earlier rows of the span. Rows that the warps process: query heads, then
  // K and V of each token.
  bool own = split.index == (Mode::DRAFTS ? split.count - 1 : 0);
  int of_span = Mode::DRAFTS ? row_of_step - span.start : 0, rows = group + (own ? 2 * (of_span + 1) : 0);
  auto is_v = [&](int r) { return Mode::DRAFTS ? r > group && (r - group) % 2 : r > group; };
  auto norm_of = [&](int r) { return r < group ? head_params.q_norm : is_v(r) ? nullptr : head_params.k_norm; };
  auto is_normed = [&](int r) { return norm_of(r) || (Mode::VARIES && is_v(r) && head_params.v_norm); };
  for (int r = warp; r < rows; r += WARPS) prefetch_norm(norm_of(r), d, lane);
  RopeAngles angles;
  auto turn = [&](int r) { angles.compute(head_params, r < group ? position : position - of_span + (r - group) / 2, lane); };
  if (warp < rows && !is_v(warp)) turn(warp);
  // The last warp has no query, or the fewest pages, so it looks up the slot that leaves.
  SlotAssignment assignment = {};
  bool looks = warp == WARPS - 1;
  Dms dms = {};
  if (looks) dms = dms_of(kv, p.layer, span.seq);
  bool pinned = looks && is_pinned(kv, p.layer, row_of_step);
  if (looks && !Mode::DRAFTS) assignment.load(kv, dms, slots, position);
  if (looks && Mode::DRAFTS && lane < PAGE_SLOTS) {
    // Slots that leave at the span's rows so far. Their marks are stored, because the window has
    // more tokens than the span.
    int at = position - of_span + lane;
    bool leaves = at <= position && dms.leaves_at(at);
    int leaving = leaves ? slots.ring[dms.ring_at(at)] : -1;
    s.unseen[lane] = dms.overwritten(leaving, leaves && meta_marked(slot_meta(kv, slots, leaving)));
  }
  bool has_units = !mode.scores && head_params.units > 0;
  if (has_units && looks) prefetch_hidden_units(head_params, split.head, lane);
  // `select_pages` lets this kernel start only after all work before it is done.
  if (!mode.pages) wait_previous();

  // Index of this split in the order in which the head's splits begin. No block of this launch
  // begins after the last one, and the next launch waits for this one.
  int* arrivals = p.arrivals + blockIdx.y * heads + split.head;
  int begun = 0;
  auto begin = [&] {
    if (split.count > 1 && threadIdx.x == 0) begun = atomicAdd(arrivals, 1);
  };
  if (!mode.pages) begin();

  // rows of the token: norm, RoPE, codec
  const float* row = p.qkv + (u64)row_of_step * head_params.qkv_width;
  const int keys_width = Mode::VARIES ? p.keys_width : head_params.qkv_width;
  const float* keys = Mode::VARIES ? p.keys + (u64)row_of_step * keys_width : row;
  u8* staged = Mode::DRAFTS ? p.kept.page(kv, row_of_step, slots.row) : staged_token_at(kv, slots.row);
  int staged_row = slots.row % PAGE_SLOTS;
#pragma unroll 1
  for (int r = warp; r < rows; r += WARPS) {
    int column = r < group ? first_head + r : kv.n_q_heads + split.head + (is_v(r) ? heads : 0);
    if constexpr (Mode::DRAFTS) {
      int at = r < group ? of_span : (r - group) / 2;
      float* to = r < group ? s.rows[r] : s.of_span.row[warp];
      const float* from = r < group ? row + column * d : keys + (at - of_span) * keys_width + column * d;
      load_row(to, from, norm_of(r), is_normed(r), head_params.eps, d, lane);
      if (r != warp && !is_v(r)) turn(r);
      if (!is_v(r)) rotate(to, angles, d, head_params.rotary, r < head_params.borrowed, lane);
      if (r < group) continue;
      u8 *page = (u8*)s.of_span.page, *codes = row_at(kv, page, at, is_v(r));
      u32 side = encode_row(codec, is_v(r), codes, to, d, lane);
      if (kv.k_sides_at > 0 && lane == 0) *side_at(kv, page, at, is_v(r)) = side;
      if (at == of_span) write_codes(kv, staged, staged_row, is_v(r), codes, side, lane);
    } else {
      load_row(s.rows[r], (r < group ? row : keys) + column * d, norm_of(r), is_normed(r), head_params.eps, d, lane);
      if (r <= group) rotate(s.rows[r], angles, d, head_params.rotary, r < head_params.borrowed, lane);
      if (r >= group) stage_row(codec, kv, staged, staged_row, s.own, s.rows[r], r > group, lane);
    }
  }
  // All warps share the hidden units: one warp would take microseconds for some hundred.
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
    bool decides = own && !mode.scores;
    if (decides || (!Mode::DRAFTS && assignment.needs_decision()))
      decision = decision_of(s.scratch, head_params, head_params.q_norm, row, p.decisions, split.head,
                             row_of_step, pinned, hidden, kv, lane);
    // What leaves and is kept is still read.
    if (!Mode::DRAFTS) s.unseen[0] = mode.far ? -1 : assignment.overwritten(dms, decision);
    if (decides && lane == 0) {
      *(float*)meta_at(kv, staged, staged_row) = decision;
      if (head_params.borrowed || head_params.columns) p.decisions[row_of_step * heads + split.head] = decision;
    }
  }
  if (mode.pages) {
    wait_previous();
    begin();
    load_first();
  }
  __syncthreads();
  if (mode.far && own && warp < group)
    keep_query(kv, recent_at(kv, p.layer, span.seq, position) + (first_head + warp) * d, s.rows[warp], lane);
  int unseen = s.unseen[0];
  copy_wait<0>();
  __syncwarp();
  // The last warps have the fewest pages.
  int own_head = WARPS - 1 - warp;
  if (!Mode::DRAFTS && own && own_head < group) {
    float2 state = attend_to_itself<Codec>(mode, p, s.own, s.rows[own_head], s.rows[group], first_head, own_head, lane);
    if (lane == 0) s.max[WARPS][own_head] = state.x, s.sum[WARPS][own_head] = state.y;
  }
  float by = p.score_scale * LOG2E * codec.score_factor();
  float* logits = mode.scores ? logits_at(p, blockIdx.y, split.head) : nullptr;
  int stride = mode.scores ? logit_stride(kv) : 0;
  int busy = min(split.last - split.first, WARPS);  // warps with pages
  // The warp with the fewest pages reads the rows of the span.
  int reads_span = Mode::DRAFTS && own ? min(busy, WARPS - 1) : WARPS;
  if (Mode::DRAFTS && reads_span == busy && busy < WARPS) busy++;
  if (warp < busy) {
    OnlineSoftmax<D, Codec> softmax;
    softmax.init(s.rows, group, d, lane);
    // pages of this warp; the next page is loaded into registers that the current one no longer
    // needs
#pragma unroll 1
    while (at < split.last) {
      int first = first_slot();
      float* logits_of_page = mode.scores ? logits + first * stride : nullptr;
      int not_seen = unseen - first;
      if (Mode::DRAFTS) {
        int slot = lane < PAGE_SLOTS ? s.unseen[lane] - first : -1;
        not_seen = 0;
        for (u32 left = __ballot_sync(FULL, slot >= 0 && slot < PAGE_SLOTS); left; left &= left - 1)
          not_seen |= 1 << __shfl_sync(FULL, slot, __ffs(left) - 1);
      }
      softmax.score(mode, codec, page, slots_left(), not_seen, by, lane, logits_of_page, stride, chosen_readers(choice));
      // `select_pages` counted this slot as read, so subtract it
      if (mode.pages && unseen >= first && unseen < first + PAGE_SLOTS && lane == 0)
        atomicAdd(kv.reads + p.spans[blockIdx.y].seq, ~(u64)0);
      at += step;
      choice = next;
      const u8* from = number < 0 ? (const u8*)s.of[warp].page : page_at(kv, number);
      if (at < split.last) page.load_k(kv, from, lane);
      softmax.accumulate(codec, page);
      if (at < split.last) page.load_v(kv, from, slots_left(), lane);
      if (at + step < split.last) {
        look_up(at + step, next);
        prefetch_page();
      }
    }
    if constexpr (Mode::DRAFTS)
      if (warp == reads_span) {
        page.load_k(kv, (const u8*)s.of_span.page, lane);
        page.load_v(kv, (const u8*)s.of_span.page, of_span + 1, lane);
        softmax.score(mode, codec, page, of_span + 1, 0, by, lane, nullptr, 0, 0);
        softmax.accumulate(codec, page);
      }
    softmax.save(codec, s.of[warp].acc, s.max[warp], s.sum[warp], group, lane);
  }
  if (threadIdx.x == 0) {
    s.last = begun == split.count - 1;
    if (s.last) *arrivals = 0;
  }
  __syncthreads();

  // Merge the warps, two channels per thread and 64 channels per warp. Then the block that began
  // last merges the head's splits.
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
    x.acc.x *= codec.sum_factor(), x.acc.y *= codec.sum_factor();
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
    // The sum is not zero, because the first split (with drafts: the last one) sees the token
    // itself.
    float by = reciprocal(x.sum + sink_weight(p.sinks, first_head + head, x.max));
    x.acc.x *= by, x.acc.y *= by;
    if (mode.scores && channel == 0) p.peaks[blockIdx.y * kv.n_q_heads + first_head + head].x = x.max;
    if (channel >= d) continue;
    if (Codec::ROTATED) *(float2*)&s.rows[head][channel] = x.acc;
    else put_out(p, row_of_step, (first_head + head) * d + channel, x.acc);
  }
  if (!Codec::ROTATED || !last) return;
  // inverse rotation in shared memory, one warp per query head
  __syncthreads();
  if (warp < group) {
    unrotate_row(s.rows[warp], d, lane);
#pragma unroll
    for (int i = 4 * lane; i < MAX_HEAD_DIM; i += 128)
      if (i < d) put_out(p, row_of_step, (first_head + warp) * d + i, *(const float4*)&s.rows[warp][i]);
  }
}

// Instances by head size (up to 64, 128 and 256 channels) and codec. Two blocks fit on an SM,
// except for the widest rows and for modes that choose pages: limiting registers to fit two makes
// those 3 % slower.
#define ATTEND(name, D, Codec, Mode)                                                                                            \
  KERNEL __launch_bounds__(THREADS, D > 128 || (D > 64 && (!Codec::PACKED || Mode::CHOOSES)) ? 1 : 2) name(DecodeParams params) { \
    attend<D, Codec, Mode>(params);                                                                                             \
  }
