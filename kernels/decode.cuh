// Parameters of the two kernels of a decode step's attention: attend.cu and decode_epilogue.cu.
#pragma once
#include "heads.cuh"
#include "image.cuh"
#include "place.cuh"

// Mirrors `backend::cuda::abi::DecodeParams`.
struct DecodeParams {
  Kv kv;
  HeadParams heads;
  void* out;          // [n, n_q_heads * head_dim], bf16 or f32
  float* partials;    // [blocks of attend, group, head_dim + 4] softmax states of the splits
  int2* splits;       // [n, n_kv_heads] first block of a head's splits, and how many
  const float* qkv;   // [n, (n_q_heads + 2 n_kv_heads) * head_dim] rows of the projection
  float* decisions;   // [n, n_kv_heads]; written where they are borrowed
  const Span* spans;  // [n] of one row each
  u8* image;          // of `out` too, or null
  int out_is_bf16, layer;
  float score_scale;  // 1 / sqrt(head_dim)
  int unused;
};
static_assert(sizeof(DecodeParams) == 320 && OFFSET_OF(DecodeParams, heads) == 200 && OFFSET_OF(DecodeParams, out) == 248 &&
                  OFFSET_OF(DecodeParams, layer) == 308,
              "backend::cuda::abi::DecodeParams has another layout");
