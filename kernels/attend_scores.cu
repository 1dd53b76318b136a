// Decode attention under a policy with scores: attend.cuh, which also writes the logits of the stored slots, 4 bytes for each
// query head and slot. CPU twin: `backend::cpu::attention::in_order`.
#include "attend.cuh"

// Instances as those of attend.cu.
#define ATTEND_SCORES(name, D, Codec)                                                                    \
  KERNEL __launch_bounds__(THREADS, D == 128 && !Codec::PACKED ? 1 : 2) name(DecodeParams params) {      \
    attend<D, Codec, WithScores>(params);                                                                \
  }
#define ATTEND_BY_HEAD_DIM(codec, Codec)               \
  ATTEND_SCORES(attend_scores_64_##codec, 64, Codec)   \
  ATTEND_SCORES(attend_scores_128_##codec, 128, Codec)
FOR_EACH_CODEC(ATTEND_BY_HEAD_DIM)
