// Codecs of the KV cache. A codec says how a row of K or V is stored, how a warp encodes one, and how eight channels of it
// become bf16 for tensor cores. Where a row lies in a page is data of the cache's view (`kv.cuh`).
//
// A codec is a struct with
//   PACKED, SCALED  whether codes are narrower than bf16; whether each row has an f32 scale. Scaled codes are packed.
//   QUERY_FACTOR    what queries are multiplied by before q k^T, and
//   SCORE_FACTOR    scores after it;
//   WEIGHT_FACTOR   what softmax weights are multiplied by before they meet V, and
//   SUM_FACTOR      the sums after it. 1 where codes have their own value as bf16.
//   Eight           load, as_bf16: eight consecutive channels of a stored row
//   encode          a row of f32 to codes, and to the values that the codes give back
#pragma once
#include "codec_bf16.cuh"
#include "codec_fp8.cuh"
#include "codec_int8.cuh"

// Instances of a kernel: INSTANCE(suffix of its name, codec).
#define FOR_EACH_CODEC(INSTANCE) \
  INSTANCE(bf16, Bf16Codec)      \
  INSTANCE(fp8, Fp8Codec)        \
  INSTANCE(int8, Int8Codec)
