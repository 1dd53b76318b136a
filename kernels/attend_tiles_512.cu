// Prefill attention by tiles of query rows, and that of single tokens, for heads of more than 256
// channels: see attend_tiles.cuh.
#define MAX_HEAD_DIM 512
#include "attend_tiles.cuh"

#define OF_WIDEST_HEADS(codec, Codec) ATTEND_TILES(attend_tiles_512_##codec, 512, Codec)
FOR_EACH_CODEC(OF_WIDEST_HEADS)
