// What becomes of a gate and up in a block of an MLP or in an expert.
#pragma once
#include "common.cuh"

// GELU by its approximation with tanh: (1 + tanh(y)) / 2 is the logistic function of 2 y.
__device__ __forceinline__ float gelu_tanh(float x) {
  float y = 0.7978846f * (x + 0.044715f * x * x * x);
  return x / (1.0f + expf(-2.0f * y));
}

// What becomes of a gate and up. Mirrors `backend::cuda::gemm::Gate`.
enum Gate { SILU, GELU, CLAMPED };

// (up + 1) * gate * sigmoid(1.702 gate), with the gate clamped to at most 7 and up to [-7, 7]. The
// comparisons keep NaN. CPU twin: `clamped_swiglu`.
__device__ __forceinline__ float clamped_swiglu(float gate, float up) {
  gate = gate > 7.0f ? 7.0f : gate;
  up = up > 7.0f ? 7.0f : up < -7.0f ? -7.0f : up;
  return (up + 1.0f) * gate / (1.0f + expf(-1.702f * gate));
}

__device__ __forceinline__ float gated(int kind, float gate, float up) {
  if (kind == CLAMPED) return clamped_swiglu(gate, up);
  return (kind == GELU ? gelu_tanh(gate) : silu(gate)) * up;
}
