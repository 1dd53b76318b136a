// Decode attention over the pages that `select_pages` has chosen: see attend.cuh. Every query head of a group sees its own pages
// alone; those of the group are read once. CPU twin: `backend::cpu::attention::paged`.
#include "attend.cuh"

#define BY_HEAD_DIM(codec, Codec) \
  ATTEND(attend_pages_64_##codec, 64, Codec, WithPages) ATTEND(attend_pages_128_##codec, 128, Codec, WithPages)
FOR_EACH_CODEC(BY_HEAD_DIM)
