// The rule of the policies that drop the token with the least score, TOVA, H2O and TrimKV, written
// once for all kernels. CPU twin: `policy::Scored`.
//
// A token attends to the stored slots and to itself. Each of these keys gets a score from its
// weights, summed over the query heads of the KV head, or of the layer; or it has one from its
// decision, which counts once for each token since. If there are more keys than the budget, the one
// with the least score is dropped: a stored one, whose slot the token takes, or the token itself.
//
// What a policy does is data of the cache's view (`PolicyBits`), as the eviction rule is.
#pragma once
#include "place.cuh"

#define NO_SLOT (~0ull)  // after the keys of all slots

// Scores come from decisions: one more of `PolicyBits`.
enum { BY_DECISION = 32 };

// First position that is not dropped once `tokens` tokens were fed.
__device__ __forceinline__ int protected_from(const Kv& kv, int tokens) {
  int budget = budget_at(kv, tokens);
  return kv.policy & KEEPS_NEWEST ? max(tokens - (budget - budget / 2), 0) : tokens;
}

// The score of a key of that position by which it is compared with others, once `tokens` tokens
// were fed. CPU twin: `Scored::rank`.
__device__ __forceinline__ float ranked(const Kv& kv, float score, int tokens, int position) {
  return kv.policy & BY_DECISION ? score * (float)(tokens + 1 - position) : score;
}

// Orders keys by ranked score, and keys of the same score by slot.
__device__ __forceinline__ u64 score_key(float score, int slot) {
  u32 bits = __float_as_uint(score);
  bits ^= bits >> 31 ? ~0u : 1u << 31;
  return (u64)bits << 32 | (u32)slot;
}
