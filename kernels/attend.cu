// Decode attention of ordinary steps: see attend.cuh.
#include "attend.cuh"

#define BY_HEAD_DIM(codec, Codec) \
  ATTEND(attend_64_##codec, 64, Codec, Ordinary) ATTEND(attend_128_##codec, 128, Codec, Ordinary)
FOR_EACH_CODEC(BY_HEAD_DIM)
