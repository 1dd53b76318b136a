// What prefill does to rows before attention: see rope.cuh.
#include "rope.cuh"

QKV_ROPE(qkv_rope, 3)
