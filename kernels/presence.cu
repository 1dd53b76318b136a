// Which lanes store each token of a sequence: for the memory view, between steps. CPU twin:
// `backend::cpu::kv::presence`.
#include "place.cuh"

// Counts, for each position below n, the lanes that store it (low half of out[position]) and those
// that have marked it (high half); layer and head select the lanes, -1 is all. out[n + lane]
// becomes 1 where the lane, layer * table_heads + head, stores
// `position_of`, 2 where it has marked it. The caller clears out[n + n_layers * table_heads]. Grid
// (slots of a lane,
// n_kv_heads, n_layers), a thread a slot; reads 4 bytes of metadata a slot.
KERNEL presence(u32* out, Kv kv, int seq, int n, int layer, int head, int position_of) {
  after_previous();
  if (!describes(kv, blockIdx.z)) return;
  Lane l = lane_of(kv, blockIdx.z, seq, blockIdx.y);
  int slot = blockIdx.x * blockDim.x + threadIdx.x;
  if (slot >= kv.live[l.row]) return;
  int meta = slot_meta(kv, l, slot), position = meta_position(meta);
  u32 marked = meta_marked(meta);
  bool selected = (layer < 0 || layer == (int)blockIdx.z) && (head < 0 || head == (int)blockIdx.y);
  if (selected && position < n) atomicAdd(&out[position], 1u | marked << 16);
  if (position == position_of) out[n + blockIdx.z * kv.table_heads + blockIdx.y] = 1 + marked;
}
