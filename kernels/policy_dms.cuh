// The eviction rule of Dynamic Memory Sparsification (arXiv 2506.05345), written once for all
// kernels. CPU twin:
// `policy::Dms`.
//
// Every token gets a decision. One above the dial of its sequence marks a token, and a marked token
// stays visible to the `window` tokens after it; then the token that arrives takes over its slot. A
// sliding window with attention sinks is the same rule with constant decisions; so is a local
// layer, where the window is the model's. A dense cache is the rule with `evicts` = 0.
//
// The rule is data of the cache's view, not a template parameter: its branches are uniform over the
// grid and stay outside the loops over keys, and a parameter would double the instances of every
// kernel.
#pragma once
#include "kv.cuh"

// Strength of a decision: 11 bits that keep the order of decisions, with 64 steps an octave of 1 +
// |decision|. 0 is that of a pinned token, whose decision is minus infinity. CPU twin:
// `policy::strength`, bit for bit.
__device__ __forceinline__ int strength_of(float decision) {
  if (decision == NEG_INFINITY) return 0;
  int size = min((int)((__float_as_uint(__fadd_rn(1.0f, fabsf(decision))) - 0x3f800000u) >> 17), 1022);
  return decision > 0.0f ? 1024 + size : 1023 - size;
}

struct Dms {
  int evicts;    // 0: no token is ever marked
  int eviction;  // whether marked tokens are dropped; 0 where none is marked
  int window;    // W: tokens after a marked one that still see it
  int previous;  // 1: the decision computed at token t + 1 marks token t; 0: that of token t
  int sinks;     // the first tokens of a sequence, which are never marked
  float dial;    // what a decision must exceed to mark

  // Entries of a lane's ring: the newest token and the W before it.
  __device__ __forceinline__ int ring_len() const { return window + 1; }

  // Entry of the token at `position`. Until that token is entered, it is the slot of the one that
  // its arrival pushes out of the window.
  __device__ __forceinline__ int ring_at(int position) const { return position % ring_len(); }

  // Whether a decision marks the token at `position`.
  __device__ __forceinline__ bool marks(float decision, int position) const {
    return evicts && decision > dial && position >= sinks;
  }

  // Metadata of the token at `position` once its decision is known.
  __device__ __forceinline__ int decided(int position, float decision) const {
    return pack_meta(position, evicts ? strength_of(decision) : 0, marks(decision, position));
  }

  // Row of a span whose decision marks the token `row` rows into the span; -1 is the newest stored
  // token. Outside [0, len) no row of the span does: the stored mark holds, or the next step
  // decides.
  __device__ __forceinline__ int decided_by(int row) const { return row + previous; }

  // Position of the last query that sees a marked token at `position`.
  __device__ __forceinline__ int last_query(int position) const { return position + window; }

  // Whether compaction drops a slot: outside the window of a query at `position`, and marked or at
  // least as strong as
  // `threshold`.
  __device__ __forceinline__ bool drops(int meta, int position, int threshold) const {
    bool weak = meta_position(meta) >= sinks && meta_strength(meta) >= threshold;
    return (meta_marked(meta) || weak) && last_query(meta_position(meta)) < position;
  }

  // Whether the arrival of token n pushes a token out of the window.
  __device__ __forceinline__ bool leaves_at(int n) const { return eviction && n > window; }

  // Slot that the incoming token overwrites, given the slot and mark of the token that leaves the
  // window; -1: it appends one.
  __device__ __forceinline__ int overwritten(int leaving, bool marked) const { return marked ? leaving : -1; }
};

// The rule of a sequence in a layer.
__device__ __forceinline__ Dms dms_of(const Kv& kv, int layer, int seq) {
  if (is_local(kv, layer)) return Dms{1, 1, kv.local_window - 1, 0, 0, 0.0f};
  return Dms{kv.evicts, kv.evicts && kv.eviction[seq], kv.window, kv.previous, kv.sinks, kv.dial[seq]};
}
