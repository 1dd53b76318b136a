// Heads of more than 256 channels before attention: see rope.cuh.
#define MAX_HEAD_DIM 512
#include "rope.cuh"

QKV_ROPE(qkv_rope_512, 1)
