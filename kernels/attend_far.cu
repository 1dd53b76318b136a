// Decode attention of a layer that keeps the rows which leave it: attend.cuh, which reads the near
// rows after the slots and stores the queries. One instance a codec, for heads of up to 128
// channels.
// CPU twin: `backend::cpu::attention`.
#include "attend.cuh"

#define OF_CODEC(codec, Codec) ATTEND(attend_far_128_##codec, 128, Codec, WithFar)
FOR_EACH_CODEC(OF_CODEC)
