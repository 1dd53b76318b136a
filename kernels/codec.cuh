// Codecs of the KV cache. A codec says how rows of K and of V are stored, how a warp encodes one,
// and how eight channels of it become bf16 for tensor cores. Where a row lies in a page is data of
// the cache's view (`kv.cuh`), from which a codec is made.
//
// A codec is a struct with
//   K, V            the formats of rows of K and of V, and k, v those formats
//   PACKED, SCALED  whether codes are narrower than bf16; whether each row has side data. Scaled
//   codes are packed.
//   AFFINE          whether values of V have an offset beside their scale
//   ROTATED         whether V is stored after `rotate_value`; attention's output then goes through
//                   `unrotate_*`
//   QUERY_FACTOR    what queries are multiplied by before q k^T, and
//   score_factor    scores after it;
//   WEIGHT_FACTOR   what softmax weights are multiplied by before they meet V, and
//   sum_factor      the sums after it. 1 where codes have their own value as bf16.
// A format of rows is a struct with
//   EIGHT_BYTES     bytes of eight consecutive channels of a stored row
//   Eight           eight consecutive channels; load reads them, zeros where not `real`, and
//                   as_bf16 decodes them
//   pair            value i of each half of a stored u32 as bf16. That of half h is channel
//                   2 i + h of the u32, but of one-byte codes 2 h + i
//   affine          scale and offset by the side data of a row
//   encode          a row of f32 to codes, and to the values that the codes give back; returns the
//                   side data
#pragma once
#include "codec_bf16.cuh"
#include "codec_bytes.cuh"
#include "codec_k8v4.cuh"

// Instances of a kernel: INSTANCE(suffix of its name, codec).
#define FOR_EACH_CODEC(INSTANCE) \
  INSTANCE(bf16, Bf16Codec)      \
  INSTANCE(bytes, ByteCodec)     \
  INSTANCE(k8v4, K8V4Codec)

// Starts an async copy of eight channels of a stored row to shared memory; zeros where not `real`.
template <class Rows>
__device__ __forceinline__ void copy_eight_async(void* to, const void* from, bool real) {
  if (Rows::EIGHT_BYTES == 16) copy_async(to, from, real);
  else if (Rows::EIGHT_BYTES == 8) copy_async8(to, from, real);
  else copy_async4(to, from, real);
}

// Row of K (v = 0) or V (1) to codes, of values that the codec gave back. By a warp.
template <class Codec>
__device__ __forceinline__ u32 encode_again(const Codec& codec, int v, u8* codes, float* x, int d, int lane) {
  return v ? codec.v.encode(codes, x, d, lane) : codec.k.encode(codes, x, d, lane);
}

// Row of K (v = 0) or V (1) to codes. By a warp.
template <class Codec>
__device__ __forceinline__ u32 encode_row(const Codec& codec, int v, u8* codes, float* x, int d, int lane) {
  if (!v) return codec.k.encode(codes, x, d, lane);
  if (Codec::ROTATED) rotate_value(x, d, lane);
  return codec.v.encode(codes, x, d, lane);
}
