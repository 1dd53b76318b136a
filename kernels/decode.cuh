// Parameters of the kernels of a decode step's attention, attend.cu and place_scores.cu, and their
// modes.
#pragma once
#include "heads.cuh"
#include "image.cuh"
#include "place.cuh"
#include "sinks.cuh"

// Mirrors `backend::cuda::abi::DecodeParams`.
struct DecodeParams {
  Kv kv;
  HeadParams heads;
  void* out;          // [n, n_q_heads * head_dim], bf16 or f32
  float* states;      // [blocks of attend, group, D / 64, UNIT_WORDS] states of splits; zero between launches
  float2* peaks;      // [n, n_q_heads] see `logits`: largest logit, rounded up, and the token's with itself, in log2 units
  const float* qkv;   // [n, heads.qkv_width] rows of the projection
  float* decisions;   // [n, n_kv_heads]; written where they are borrowed or predicted
  const Span* spans;  // [n] of one row each
  u8* image;          // of `out` too, or null
  int out_is_bf16, layer;
  float score_scale;  // 1 / sqrt(head_dim)
  int in_order;       // whether the launch before this one stores tokens in the same layer
  float* logits;      // of the stored slots where the policy has scores, else null: see logits_at
  int* arrivals;      // [n, n_kv_heads] splits of a KV head that have begun; zero between launches
  // Where pages are chosen: those that a KV head reads [n, n_kv_heads, max_pages], as `chosen_page`
  // makes them, and their slots [n, n_kv_heads], PAGE_SLOTS for each.
  int2* chosen;
  int* chosen_slots;
  const int* span_of_row;  // [n] of a staged step, whose spans may have several rows
  Kept kept;               // where the rows of a staged step go
  const float* sinks;      // [n_q_heads] see `sink_weight`; null: none
  // [n, keys_width] rows whose K and V are attended to: `qkv`, or those of the layer whose K and V
  // this one reads.
  const float* keys;
  int keys_width, unused;
};
static_assert(sizeof(DecodeParams) == 560 && OFFSET_OF(DecodeParams, heads) == 304 && OFFSET_OF(DecodeParams, out) == 408 &&
                  OFFSET_OF(DecodeParams, layer) == 468 && OFFSET_OF(DecodeParams, logits) == 480 &&
                  OFFSET_OF(DecodeParams, keys) == 544,
              "backend::cuda::abi::DecodeParams has another layout");

// What attention does beside the ordinary step: instances of their own, so that the ordinary ones
// lose nothing. VARIES: whether values may have a norm, and K and V may be those of other rows.
struct Ordinary {
  static constexpr bool CHOOSES = false, DRAFTS = false, VARIES = true, scores = false, pages = false, far = false;
  __device__ explicit Ordinary(const DecodeParams&) {}
};
// Attention chooses: under a policy with scores, whose logits are kept, what is dropped
// (place_scores.cu), or the pages that a token reads (pages.cu).
struct WithChoice {
  static constexpr bool CHOOSES = true, DRAFTS = false, VARIES = false, far = false;
  bool scores, pages;
  __device__ explicit WithChoice(const DecodeParams& p) : scores(p.kv.policy & SCORES), pages(p.kv.policy & READS_PAGES) {}
};
// Near rows are read after the slots (far.cuh), and the queries are stored: they choose among far
// pages.
struct WithFar {
  static constexpr bool CHOOSES = false, DRAFTS = false, VARIES = false, scores = false, pages = false, far = true;
  __device__ explicit WithFar(const DecodeParams&) {}
};
// Rows of a staged step, each with the ones before it in its span.
struct WithDrafts {
  static constexpr bool CHOOSES = false, DRAFTS = true, VARIES = true, scores = false, pages = false, far = false;
  __device__ explicit WithDrafts(const DecodeParams&) {}
};

// Logits of a token with the stored slots of a KV head, in log2 units: `logit_stride` floats a
// slot, one for each query head of the group, an even number.
__device__ __forceinline__ int logit_stride(const Kv& kv) {
  int group = kv.n_q_heads / kv.n_kv_heads;
  return group + group % 2;
}
__device__ __forceinline__ float* logits_at(const DecodeParams& p, int token, int head) {
  return p.logits + (u64)(token * p.kv.n_kv_heads + head) * p.kv.max_pages * PAGE_SLOTS * logit_stride(p.kv);
}
