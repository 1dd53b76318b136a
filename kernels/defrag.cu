// Defragmentation of the page pool between turns: pages move to lower numbers, so that the last mapping granules of the
// pool become empty and can be unmapped. No CPU twin: where a page lies changes no result.
#include "kv.cuh"

// Copies page first + i, with its reference count, to page moved[i]; -1 stays. Grid n, any block. Reads and writes a
// page.
KERNEL move_pages(Kv kv, const int* moved, int first) {
  after_previous();
  int from = first + blockIdx.x, to = moved[blockIdx.x];
  if (to < 0) return;
  const uint4* a = (const uint4*)page_at(kv, from);
  uint4* b = (uint4*)page_at(kv, to);
  for (int i = threadIdx.x; i < (int)(kv.stride / 16); i += blockDim.x) b[i] = a[i];
  if (threadIdx.x == 0) {
    kv.refs[to] = kv.refs[from];
    kv.refs[from] = 0;
  }
}

// Renames the n pages from `first` on in all page tables. Grid covers `entries`. Reads the tables once.
KERNEL rename_pages(Kv kv, const int* moved, int first, int n, u64 entries) {
  after_previous();
  u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= entries) return;
  int page = kv.table[i] - first;
  if (page >= 0 && page < n && moved[page] >= 0) kv.table[i] = moved[page];
}
