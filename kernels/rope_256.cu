// What prefill does to rows before attention, for heads of more than 128 channels: see rope.cuh.
#define MAX_HEAD_DIM 256
#include "rope.cuh"

QKV_ROPE(qkv_rope_256, 2)
