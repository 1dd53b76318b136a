// Decode attention of ordinary steps, for heads of more than 128 channels: see attend.cuh.
#define MAX_HEAD_DIM 256
#include "attend.cuh"

#define OF_WIDE_HEADS(codec, Codec) ATTEND(attend_256_##codec, 256, Codec, Ordinary)
FOR_EACH_CODEC(OF_WIDE_HEADS)
