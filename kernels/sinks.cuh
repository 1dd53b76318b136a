// Attention sinks (gpt-oss): one more logit in the softmax of each query head, without a value.
#pragma once
#include "tensor.cuh"

// Weight of the sink of query head `head` beside weights exp2(logit - max), whose logits are in
// log2 units; 0 if `sinks` [n_q_heads] is null.
__device__ __forceinline__ float sink_weight(const float* sinks, int head, float max) {
  return sinks ? exp2_fast(sinks[head] * LOG2E - max) : 0.0f;
}
