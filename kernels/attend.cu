// Decode attention of ordinary steps: see attend.cuh.
#include "attend.cuh"

// Instances by head size (up to 64 and up to 128 channels) and codec. Two blocks fit an SM, but for one of the widest rows.
#define ATTEND(name, D, Codec)                                                                           \
  KERNEL __launch_bounds__(THREADS, D == 128 && !Codec::PACKED ? 1 : 2) name(DecodeParams params) {      \
    attend<D, Codec, Ordinary>(params);                                                                  \
  }
#define ATTEND_BY_HEAD_DIM(codec, Codec) \
  ATTEND(attend_64_##codec, 64, Codec)   \
  ATTEND(attend_128_##codec, 128, Codec)
FOR_EACH_CODEC(ATTEND_BY_HEAD_DIM)
