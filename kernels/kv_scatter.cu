// Scatters K and V of a prefill chunk from the step's staged pages to their slots. CPU twin:
// `backend::cpu::kv::store`, bit for bit.
#include "kv.cuh"

#define WARPS 8

// Copies n rows to the slots in kv.slots; -1 is not stored. A warp for a row and KV head; grid
// covers n * n_kv_heads warps. Reads and writes a slot's bytes; all 64 warps of an SM hide the
// latency.
KERNEL __launch_bounds__(32 * WARPS, 8)
    kv_scatter(Kv kv, int layer, const Span* spans, const int* span_of_row, int n) {
  after_previous();
  int i = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
  int row = i / kv.n_kv_heads, head = i % kv.n_kv_heads;
  int slot = row < n ? kv.slots[i] : -1;
  if (slot < 0) return;
  int to = lane_index(kv, layer, spans[span_of_row[row]].seq, head);
  u8* page = page_at(kv, kv.table[(u64)to * kv.max_pages + slot / PAGE_SLOTS]);
  copy_row(kv, page, slot % PAGE_SLOTS, staged_at(kv, row, head), row % PAGE_SLOTS, lane);
}
