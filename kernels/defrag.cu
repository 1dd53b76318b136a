// Copies of whole pages between turns. Defragmentation of the page pool: pages move to lower
// numbers, so that the last mapping granules of the pool become empty and can be unmapped. Export
// and import: pages are gathered in the staging pages of prefill and scattered from them. No CPU
// twin: where a page lies changes no result.
#include "kv.cuh"

// By a whole block.
__device__ __forceinline__ void copy_page(const Kv& kv, u8* to, const u8* from) {
  for (int i = threadIdx.x; i < (int)(kv.stride / 16); i += blockDim.x) ((uint4*)to)[i] = ((const uint4*)from)[i];
}

// Copies page first + i, with its reference count, to page moved[i]; -1 stays. Grid n, any block.
// Reads and writes a page.
KERNEL move_pages(Kv kv, const int* moved, int first) {
  after_previous();
  int from = first + blockIdx.x, to = moved[blockIdx.x];
  if (to < 0) return;
  copy_page(kv, page_at(kv, to), page_at(kv, from));
  if (threadIdx.x == 0) {
    kv.refs[to] = kv.refs[from];
    kv.refs[from] = 0;
  }
}

// Renames the n pages from `first` on in all page tables. Grid covers `entries`. Reads the tables
// once.
KERNEL rename_pages(Kv kv, const int* moved, int first, int n, u64 entries) {
  after_previous();
  u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= entries) return;
  int page = kv.table[i] - first;
  if (page >= 0 && page < n && moved[page] >= 0) kv.table[i] = moved[page];
}

// Copies page pages[i] to staging page i or, if `back`, staging page i to page pages[i], which
// becomes a page with one holder. Grid n, any block. Reads and writes a page.
KERNEL stage_pages(Kv kv, const int* pages, int back) {
  after_previous();
  u8 *page = page_at(kv, pages[blockIdx.x]), *staged = kv.staged + (u64)blockIdx.x * kv.stride;
  copy_page(kv, back ? page : staged, back ? staged : page);
  if (back && threadIdx.x == 0) kv.refs[pages[blockIdx.x]] = 1;
}
