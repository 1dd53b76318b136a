// The rule of the policies whose victims the attention weights choose, TOVA and H2O, written once
// for all kernels. CPU twin: `policy::Scored`.
//
// A token attends to the stored slots and to itself. Each of these keys gets a score from its
// weights, summed over the query heads of the KV head, or of the layer. If there are more keys than
// the budget, the one with the least score is dropped: a stored one, whose slot the token takes, or
// the token itself.
//
// What a policy does is data of the cache's view (`PolicyBits`), as the eviction rule is.
#pragma once
#include "place.cuh"

#define NO_SLOT (~0ull)  // after the keys of all slots

// First position that is not dropped once `tokens` tokens were fed.
__device__ __forceinline__ int protected_from(const Kv& kv, int tokens) {
  int budget = budget_at(kv, tokens);
  return kv.policy & KEEPS_NEWEST ? max(tokens - (budget - budget / 2), 0) : tokens;
}

// Orders keys by score, and keys of the same score by slot. Scores are not negative.
__device__ __forceinline__ u64 score_key(float score, int slot) { return (u64)__float_as_uint(score) << 32 | (u32)slot; }
