// The growth of queries with their positions. CPU twin: `backend::Growth`.
#pragma once

// The factor of a query at a position: 1 + beta * ln(1 + position / length), by a whole quotient; 1
// where the length is 0.
struct Growth {
  float beta;
  int length;
  __device__ __forceinline__ float at(int position) const {
    return length > 0 ? 1.0f + beta * logf((float)(1 + position / length)) : 1.0f;
  }
};
