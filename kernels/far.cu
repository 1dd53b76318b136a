// Far pages between steps: full pages go to page-locked host memory, the newest queries choose
// pages, and the chosen ones come back. CPU twin: `backend::cpu::far`.
#define MAX_HEAD_DIM 256
#include "codec.cuh"
#include "far.cuh"
#include "select.cuh"

#define BLOCKS (FAR_ROWS / PAGE_SLOTS)  // pages of the pool that a far page has
#define TILE_QUERIES 32                 // query rows in shared memory at once
#define LANES 8                         // partial sums of a dot product: as in `policy::far::score`
#define AT_ONCE (SELECT_THREADS / LANES)  // groups of eight threads of a block, each for one or two far pages
#define INDEX_MOST 7.0f                 // greatest code of an index: as in `policy::far::Index`
#define INDEX_ZERO 8                    // what is added to codes
#define LANE_CHANNELS (MAX_HEAD_DIM / LANES)  // channels of a partial sum, at most
// Query rows in f32, the channels of a partial sum contiguous. Padded by four words, so that the
// eight threads of a page read 16 bytes each without bank conflicts.
typedef float QueryTile[TILE_QUERIES][LANES][LANE_CHANNELS + 4];

// Where a far page lies: its rows in host memory, its index in memory of the GPU. The high bits of
// its number are those of an allocation, of which `homes` has both addresses.
struct FarPage {
  u8* rows;
  u8* index;  // mean of its keys: the scale in f32, then a byte for two channels
  __device__ __forceinline__ FarPage(const Kv& kv, const u64* homes, int number) {
    u64 of = number >> 16, at = number & 0xffff;
    rows = (u8*)homes[2 * of] + at * BLOCKS * kv.stride;
    index = (u8*)homes[2 * of + 1] + at * (sizeof(float) + kv.head_dim / 2);
  }
};

// By a whole block.
__device__ __forceinline__ void copy_block(const Kv& kv, u8* to, const u8* from) {
  for (int i = threadIdx.x; i < (int)(kv.stride / 16); i += blockDim.x) ((uint4*)to)[i] = ((const uint4*)from)[i];
}

// Channel `channel` of a stored row of K.
__device__ __forceinline__ float stored_key(const Kv& kv, u8* page, int r, int channel) {
  const u8* row = row_at(kv, page, r, 0);
  if (!kv.code_bits) return bf16_to_f32(((const u16*)row)[channel]);
  const ByteRows rows(kv);
  return __fmul_rn(rows.value(row[channel]), rows.affine(*side_at(kv, page, r, 0)).x);
}

// Copies full near pages to the host and computes their indices: `policy::far::Index`. A block of
// MAX_HEAD_DIM threads for each of `jobs`: the lane, which of its near pages it is, the number of
// the far page, and its place in numbers [n_layers, n_lanes, most]. Reads a far page twice, and
// writes it over the bus.
KERNEL far_send(Kv kv, const int4* jobs, int* numbers, int most, const u64* homes) {
  after_previous();
  int4 job = jobs[blockIdx.x];
  const int* pages = near_of(kv, job.x) + job.y * BLOCKS;
  FarPage to(kv, homes, job.z);
  if (threadIdx.x == 0) numbers[(u64)job.x * most + job.w] = job.z;
  for (int i = 0; i < BLOCKS; i++) copy_block(kv, to.rows + i * kv.stride, page_at(kv, pages[i]));
  __shared__ u32 greatest;
  if (threadIdx.x == 0) greatest = 0;
  __syncthreads();
  int channel = threadIdx.x;
  float mean = 0.0f;
  for (int row = 0; row < FAR_ROWS && channel < kv.head_dim; row++)
    mean = __fadd_rn(mean, stored_key(kv, page_at(kv, pages[row / PAGE_SLOTS]), row % PAGE_SLOTS, channel));
  mean *= 1.0f / FAR_ROWS;
  // The bits of floats that are not negative are in the order of their values.
  atomicMax(&greatest, __float_as_uint(fabsf(mean)));
  __syncthreads();
  float scale = __fdiv_rn(__uint_as_float(greatest), INDEX_MOST);
  if (channel == 0) *(float*)to.index = scale;
  int code = INDEX_ZERO + (scale > 0.0f ? __float2int_rn(__fdiv_rn(mean, scale)) : 0);
  int next = __shfl_down_sync(FULL, code, 1);
  if (channel % 2 == 0 && channel < kv.head_dim) to.index[sizeof(float) + channel / 2] = code | next << 4;
}

// Exchanges values among the eight threads of a page: thread i gets value i of each, in order.
__device__ __forceinline__ void transpose(float v[LANES], int at) {
#pragma unroll
  for (int m = 1; m < LANES; m *= 2) {
    bool high = at & m;
#pragma unroll
    for (int j = 0; j < LANES; j++) {
      if (j & m) continue;
      float got = __shfl_xor_sync(FULL, high ? v[j] : v[j | m], m);
      if (high) v[j] = got;
      else v[j | m] = got;
    }
  }
}

// Scores the block's pages of a lane with a tile of queries and keeps the maximum over tiles in
// `scores`. Eight threads for PAGES pages: a query that is read from shared memory serves them all.
// Each thread has its partial sums with eight queries, then all partial sums of one of them. Sums
// run in the order of the CPU.
template <int PAGES>
__device__ __forceinline__ void score_pages(const Kv& kv, const QueryTile& tile, int queries, const int* numbers, int n,
                                            const u64* homes, float* scores, bool first_tile) {
  constexpr int CHANNELS = LANE_CHANNELS / PAGES;  // of a partial sum
  int at = threadIdx.x % LANES;
#pragma unroll 1
  for (int first = blockIdx.z * PAGES * AT_ONCE; first < n; first += gridDim.z * PAGES * AT_ONCE) {
    float mean[PAGES][CHANNELS], best[PAGES];
#pragma unroll
    for (int p = 0; p < PAGES; p++) {
      int page = first + p * AT_ONCE + threadIdx.x / LANES;
      bool real = page < n;
      const u8* from = real ? FarPage(kv, homes, numbers[page]).index : nullptr;
      float scale = real ? *(const float*)from : 0.0f;
      best[p] = NEG_INFINITY;
#pragma unroll
      for (int i = 0; i < CHANNELS; i++) {
        int code = real && LANES * i < kv.head_dim ? from[sizeof(float) + (LANES * i + at) / 2] >> at % 2 * 4 & 15 : INDEX_ZERO;
        mean[p][i] = __fmul_rn((float)(code - INDEX_ZERO), scale);
      }
    }
#pragma unroll 1
    for (int q = 0; q < queries; q += LANES) {
      float sums[PAGES][LANES];
#pragma unroll
      for (int j = 0; j < LANES; j++) {
#pragma unroll
        for (int p = 0; p < PAGES; p++) sums[p][j] = 0.0f;
        const float4* query = (const float4*)tile[q + j][at];
#pragma unroll
        for (int i = 0; i < CHANNELS; i += 4) {
          if (LANES * i >= kv.head_dim) break;
          float4 x = query[i / 4];
#pragma unroll
          for (int p = 0; p < PAGES; p++) {
            sums[p][j] = __fadd_rn(sums[p][j], __fmul_rn(x.x, mean[p][i]));
            sums[p][j] = __fadd_rn(sums[p][j], __fmul_rn(x.y, mean[p][i + 1]));
            sums[p][j] = __fadd_rn(sums[p][j], __fmul_rn(x.z, mean[p][i + 2]));
            sums[p][j] = __fadd_rn(sums[p][j], __fmul_rn(x.w, mean[p][i + 3]));
          }
        }
      }
#pragma unroll
      for (int p = 0; p < PAGES; p++) {
        transpose(sums[p], at);
        float all = 0.0f;
#pragma unroll
        for (int i = 0; i < LANES; i++) all = __fadd_rn(all, sums[p][i]);
        // Rows of the tile behind the last query hold anything.
        if (q + at < queries) best[p] = fmaxf(best[p], all);
      }
    }
#pragma unroll
    for (int p = 0; p < PAGES; p++) {
#pragma unroll
      for (int m = 1; m < LANES; m *= 2) best[p] = fmaxf(best[p], __shfl_xor_sync(FULL, best[p], m));
      int page = first + p * AT_ONCE + threadIdx.x / LANES;
      if (page < n && at == 0) scores[page] = first_tile ? best[p] : fmaxf(scores[page], best[p]);
    }
  }
}

// Scores the full far pages of the lanes of a sequence, of which there are counts [n_layers,
// n_kv_heads] with the numbers [n_layers, n_lanes, most], with the newest `queries` queries. Skips
// lanes with at most k pages. scores [n_layers, n_kv_heads, most]. Grid (n_kv_heads, n_layers,
// any), SELECT_THREADS threads: the blocks of a lane stride over its pages. Reads the indices once
// per TILE_QUERIES query rows.
KERNEL __launch_bounds__(SELECT_THREADS, 3)
    far_score(Kv kv, int seq, int queries, const int* counts, const int* numbers, int most, const u64* homes, float* scores, int k) {
  after_previous();
  __shared__ __align__(16) QueryTile tile;
  int head = blockIdx.x, layer = blockIdx.y, group = kv.n_q_heads / kv.n_kv_heads, d = kv.head_dim;
  int of_seq = layer * kv.n_kv_heads + head, full = counts[of_seq], tokens = kv.seq_len[seq];
  int pages = d <= MAX_HEAD_DIM / 2 ? 2 * AT_ONCE : AT_ONCE;
  if (full <= k || k == 0 || blockIdx.z * pages >= full) return;
  int n = min(queries, tokens) * group;
  numbers += (u64)lane_index(kv, layer, seq, head) * most, scores += (u64)of_seq * most;
#pragma unroll 1
  for (int first = 0; first < n; first += TILE_QUERIES) {
    int rows = min(n - first, TILE_QUERIES);
    __syncthreads();
    for (int i = threadIdx.x; i < rows * MAX_HEAD_DIM; i += SELECT_THREADS) {
      int row = first + i / MAX_HEAD_DIM, channel = i % MAX_HEAD_DIM;
      const u16* query = recent_at(kv, layer, seq, tokens - 1 - row / group) + (head * group + row % group) * d;
      tile[i / MAX_HEAD_DIM][channel % LANES][channel / LANES] = channel < d ? bf16_to_f32(query[channel]) : 0.0f;
    }
    __syncthreads();
    if (pages > AT_ONCE) score_pages<2>(kv, tile, rows, numbers, full, homes, scores, first == 0);
    else score_pages<1>(kv, tile, rows, numbers, full, homes, scores, first == 0);
  }
}

// Writes the k pages with the greatest scores of each lane to picks [n_layers, n_kv_heads, k],
// ascending. Skips lanes with at most k pages. Grid (n_kv_heads, n_layers), SELECT_THREADS threads.
KERNEL __launch_bounds__(SELECT_THREADS) far_choose(Kv kv, const int* counts, int most, const float* scores, int k, int* picks) {
  after_previous();
  __shared__ Search search;
  __shared__ int sums[SELECT_WARPS];
  int of_seq = blockIdx.y * kv.n_kv_heads + blockIdx.x, full = counts[of_seq];
  if (full <= k || k == 0) return;
  scores += (u64)of_seq * most, picks += (u64)of_seq * k;
  search.init();
  __syncthreads();
  Keys keys;
  keys.load(scores, full);
  Least least = least_of(search, keys, k);
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, before = 0;
#pragma unroll 1
  for (int first = 0; first < full; first += SELECT_THREADS) {
    int page = first + threadIdx.x;
    bool chosen = page < full && least.admits(key_of(scores[page]), page);
    u32 here = __ballot_sync(FULL, chosen);
    __syncthreads();
    if (lane == 0) sums[warp] = __popc(here);
    __syncthreads();
    int at = before + __popc(here & ((1u << lane) - 1));
    for (int w = 0; w < SELECT_WARPS; w++) {
      at += w < warp ? sums[w] : 0;
      before += sums[w];
    }
    if (chosen) picks[at] = page;
  }
}

// Makes the near pages of a sequence's lanes those of lists [n_layers, n_kv_heads, most], of which
// there are counts [n_layers, n_kv_heads]: below 0 the far page -1 - entry, else one that is near,
// by its place among the near ones. In two launches: the first drops the pages that are no longer
// near, for which old [n_layers, n_kv_heads, max_pages] is scratch; then, once what it dropped is
// free, `bring` takes pages for the far ones and copies them over the bus. Grid (n_kv_heads,
// n_layers), any whole warps.
KERNEL far_near(Kv kv, int seq, const int* lists, const int* counts, int most, const u64* homes, int* old, int bring) {
  after_previous();
  int head = blockIdx.x, layer = blockIdx.y, of_seq = layer * kv.n_kv_heads + head, row = lane_index(kv, layer, seq, head);
  if (!keeps_far(kv, layer)) return;
  int n = counts[of_seq], *near = near_of(kv, row);
  lists += (u64)of_seq * most, old += (u64)of_seq * kv.max_pages;
  if (bring) {
    int lane = threadIdx.x % 32;
    for (int i = threadIdx.x / 32; i < n * BLOCKS; i += blockDim.x / 32) {
      if (lists[i / BLOCKS] >= 0) continue;
      int page = page_take(kv, lane);
      const uint4* from = (const uint4*)(FarPage(kv, homes, -1 - lists[i / BLOCKS]).rows + i % BLOCKS * kv.stride);
      uint4* to = (uint4*)page_at(kv, page);
      for (int j = lane; j < (int)(kv.stride / 16); j += 32) to[j] = from[j];
      if (lane == 0) near[i] = page;
    }
    return;
  }
  int rows = kv.near_rows[row], held = rows / FAR_ROWS * BLOCKS, all = (rows + PAGE_SLOTS - 1) / PAGE_SLOTS;
  for (int i = threadIdx.x; i < all; i += blockDim.x) old[i] = near[i];
  __syncthreads();
  for (int i = threadIdx.x; i < n * BLOCKS; i += blockDim.x) {
    int entry = lists[i / BLOCKS], at = entry * BLOCKS + i % BLOCKS;
    near[i] = entry < 0 ? -1 : old[at];
    if (entry >= 0) old[at] = -1;
  }
  // the page that is filling
  for (int i = threadIdx.x; i < all - held; i += blockDim.x) near[n * BLOCKS + i] = old[held + i];
  __syncthreads();
  for (int i = threadIdx.x; i < held; i += blockDim.x)
    if (old[i] >= 0) page_drop(kv, old[i]);
  if (threadIdx.x == 0) kv.near_rows[row] = n * FAR_ROWS + rows % FAR_ROWS;
}
