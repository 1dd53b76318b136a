// Prefill attention by tiles of query rows: see attend_tiles.cuh.
#include "attend_tiles.cuh"

#define BY_HEAD_DIM(codec, Codec) \
  ATTEND_TILES(attend_tiles_64_##codec, 64, Codec) ATTEND_TILES(attend_tiles_128_##codec, 128, Codec)
FOR_EACH_CODEC(BY_HEAD_DIM)
