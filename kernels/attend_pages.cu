// Decode attention over the pages that `select_pages` has chosen: instances of attend.cuh. Every query head of a group sees its
// own pages alone; those of the group are read once. CPU twin: `backend::cpu::attention::paged`.
#include "attend.cuh"

#define ATTEND(name, D, Codec)                                                                  \
  KERNEL __launch_bounds__(THREADS, D == 128 && !Codec::PACKED ? 1 : 2)                         \
      name(DecodeParams params, const int2* pages, const int* slots) {                          \
    attend<D, Codec, WithPages>(params, pages, slots);                                          \
  }
#define ATTEND_BY_HEAD_DIM(codec, Codec)       \
  ATTEND(attend_pages_64_##codec, 64, Codec)   \
  ATTEND(attend_pages_128_##codec, 128, Codec)
FOR_EACH_CODEC(ATTEND_BY_HEAD_DIM)
