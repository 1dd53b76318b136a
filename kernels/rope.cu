// Heads of up to 256 channels before attention: see rope.cuh.
#define MAX_HEAD_DIM 256
#include "rope.cuh"

QKV_ROPE(qkv_rope, 2)
