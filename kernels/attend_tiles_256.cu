// Prefill attention by tiles of query rows, for heads of more than 128 channels: see
// attend_tiles.cuh.
#define MAX_HEAD_DIM 256
#include "attend_tiles.cuh"

#define OF_WIDE_HEADS(codec, Codec) ATTEND_TILES(attend_tiles_256_##codec, 256, Codec)
FOR_EACH_CODEC(OF_WIDE_HEADS)
