// Decode attention under a policy with scores: attend.cuh, which also writes the logits of the stored slots, 4 bytes for each
// query head and slot. CPU twin: `backend::cpu::attention::in_order`.
#include "attend.cuh"

#define BY_HEAD_DIM(codec, Codec) \
  ATTEND(attend_scores_64_##codec, 64, Codec, WithScores) ATTEND(attend_scores_128_##codec, 128, Codec, WithScores)
FOR_EACH_CODEC(BY_HEAD_DIM)
