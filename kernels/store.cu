// Codecs: what K and V become by being stored, and storing them. CPU twins: `Codec::round_trip` and
// `backend::cpu::kv::store`, bit for bit.
#include "kv.cuh"

// K and V of rows [q | k | v] as the cache will give them back. Grid (2 * n_kv_heads, n), 32 threads.
// Reads and writes K and V once.
KERNEL kv_round_trip(float* qkv, int n_q_heads, int n_kv_heads, int head_dim, int codec) {
  after_previous();
  int lane = threadIdx.x;
  float* x = qkv + ((u64)blockIdx.y * (n_q_heads + 2 * n_kv_heads) + n_q_heads + blockIdx.x) * head_dim;
  if (codec == CODEC_BF16) {
    for (int i = lane; i < head_dim; i += 32) x[i] = bf16_to_f32(f32_to_bf16(x[i]));
    return;
  }
  float scale = fp8_scale(x, head_dim, lane);
  __syncwarp();
  for (int i = lane; i < head_dim; i += 32) x[i] = __fmul_rn(fp8_decode(fp8_encode(__fdiv_rn(x[i], scale))), scale);
}

// K and V of the step's rows into their slots; -1 stores nothing. Grid (n_kv_heads, n), 64 threads: a
// warp for K, a warp for V. Reads K and V once, writes a slot's bytes.
KERNEL store(Kv kv, const float* qkv, int layer, const Span* spans, const int* span_of_row) {
  after_previous();
  int head = blockIdx.x, row = blockIdx.y, v = threadIdx.x / 32, lane = threadIdx.x % 32, d = kv.head_dim;
  int slot = kv.slots[row * kv.n_kv_heads + head];
  if (slot < 0) return;
  int lane_row = kv_row(kv, layer, spans[span_of_row[row]].seq, head);
  u8* page = page_at(kv, kv.table[(u64)lane_row * kv.max_pages + slot / kv.page_slots]);
  int r = slot % kv.page_slots;
  const float* x = qkv + ((u64)row * (kv.n_q_heads + 2 * kv.n_kv_heads) + kv.n_q_heads + v * kv.n_kv_heads + head) * d;
  u8* to = kv_bytes(kv, page, r, v);
  if (kv.codec == CODEC_BF16) {
    for (int i = lane; i < d; i += 32) ((u16*)to)[i] = f32_to_bf16(x[i]);
    return;
  }
  float scale = fp8_scale(x, d, lane);
  for (int i = lane; i < d; i += 32) to[i] = fp8_encode(__fdiv_rn(x[i], scale));
  if (lane == 0) *scale_at(kv, page, r, v) = scale;
}
