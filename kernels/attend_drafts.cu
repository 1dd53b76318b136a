// Attention of the rows of a staged step: see attend.cuh. One instance a codec, for heads of up to
// 128 channels. Rows read the same slots, one after the other mostly from L2.
#define DYNAMIC_MEMORY 1
#include "attend.cuh"

#define OF_CODEC(codec, Codec) ATTEND(attend_drafts_128_##codec, 128, Codec, WithDrafts)
FOR_EACH_CODEC(OF_CODEC)
