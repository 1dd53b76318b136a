// Device memory: allocations between guard pages, reserved addresses mapped by granules, and a limit on the total.
#include "driver.h"
#include <sys/mman.h>
#include <unistd.h>

static const size_t PAGE = 4096;
static const size_t GRANULARITY = 2 << 20;

static size_t up(size_t n, size_t to) { return (n + to - 1) / to * to; }

uint64_t gpu_bytes() { return setting("SOFTWARE_GPU_MEMORY_MIB", 8192) << 20; }

bool inside(const std::map<Address, size_t>& map, Address at, size_t bytes) {
  while (bytes > 0) {
    auto piece = map.upper_bound(at);
    if (piece == map.begin()) return false;
    --piece;
    size_t here = at - piece->first;
    if (here >= piece->second) return false;
    size_t part = piece->second - here;
    if (part >= bytes) return true;
    at += part, bytes -= part;
  }
  return true;
}

static bool take(uint64_t bytes) {
  if (the_gpu().used_bytes + bytes > gpu_bytes()) return false;
  the_gpu().used_bytes += bytes;
  return true;
}

DRIVER cuMemGetInfo_v2(size_t* free, size_t* all) {
  ENTER
  *all = gpu_bytes();
  *free = *all - the_gpu().used_bytes;
  return OK;
}

// Allocations begin new blocks of 2 MiB or, up to 1 MiB, lie where a block has room, as on a GPU.
// What shares a block is not given back.
static std::vector<uint64_t> left_of_blocks;
static std::map<Address, uint64_t> taken_by;
static uint64_t blocks_for(size_t bytes) {
  const uint64_t BLOCK = 2 << 20;
  uint64_t taken = up(bytes, 512);
  if (bytes <= BLOCK / 2)
    for (uint64_t& left : left_of_blocks)
      if (left >= taken) return left -= taken, 0;
  left_of_blocks.push_back(up(bytes, BLOCK) - taken);
  return up(bytes, BLOCK);
}

// An allocation ends at a guard page, within 16 bytes.
DRIVER cuMemAlloc_v2(Address* at, size_t bytes) {
  ENTER
  if (Result no = forbidden_in_capture("cuMemAlloc")) return no;
  if (bytes == 0) return INVALID_VALUE;
  uint64_t blocks = blocks_for(bytes);
  if (!take(blocks)) return OUT_OF_MEMORY;
  size_t pages = up(bytes, PAGE);
  void* base = mmap(nullptr, pages + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED || mprotect((char*)base + PAGE, pages, PROT_READ | PROT_WRITE)) {
    the_gpu().used_bytes -= blocks;
    return OUT_OF_MEMORY;
  }
  *at = (Address)base + PAGE + pages - up(bytes, 16);
  memset((void*)*at, 0xff, bytes);
  the_gpu().memory[*at] = bytes;
  taken_by[*at] = bytes <= 1 << 20 ? 0 : blocks;
  return OK;
}

DRIVER cuMemFree_v2(Address at) {
  ENTER
  if (Result no = forbidden_in_capture("cuMemFree")) return no;
  auto piece = the_gpu().memory.find(at);
  if (piece == the_gpu().memory.end()) return INVALID_VALUE;
  Result done = flush();
  size_t bytes = piece->second;
  munmap((void*)(at / PAGE * PAGE - PAGE), up(bytes, PAGE) + 2 * PAGE);
  the_gpu().used_bytes -= taken_by[at];
  the_gpu().memory.erase(piece);
  return done;
}

// Physical memory. One file of garbage backs all of it: mappings are copy-on-write.
struct Physical {
  size_t bytes;
  int holders;  // the handle, and where it is mapped
  bool mapped;
};

static std::map<uint64_t, Physical> physical;
static std::map<Address, uint64_t> mapped;
static std::map<Address, size_t> reserved;

static int garbage(size_t bytes) {
  static int file = memfd_create("software-gpu", MFD_CLOEXEC);
  static size_t filled = 0;
  if (filled < bytes) {
    std::string part(1 << 20, (char)0xff);
    for (; filled < bytes; filled += part.size())
      if (pwrite(file, part.data(), part.size(), filled) != (ssize_t)part.size()) return -1;
  }
  return file;
}

DRIVER cuMemGetAllocationGranularity(size_t* bytes, const void*, int) {
  ENTER
  *bytes = GRANULARITY;
  return OK;
}

DRIVER cuMemAddressReserve(Address* at, size_t bytes, size_t, Address, unsigned long long) {
  ENTER
  if (bytes == 0 || bytes % GRANULARITY) return INVALID_VALUE;
  void* base = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return OUT_OF_MEMORY;
  *at = (Address)base;
  reserved[*at] = bytes;
  return OK;
}

DRIVER cuMemAddressFree(Address at, size_t bytes) {
  ENTER
  auto range = reserved.find(at);
  if (range == reserved.end() || range->second != bytes) return INVALID_VALUE;
  auto next = mapped.lower_bound(at);
  if (next != mapped.end() && next->first < at + bytes) {
    say("cuMemAddressFree of a range in which memory is mapped");
    return INVALID_VALUE;
  }
  munmap((void*)at, bytes);
  reserved.erase(range);
  return OK;
}

DRIVER cuMemCreate(uint64_t* handle, size_t bytes, const void*, unsigned long long) {
  ENTER
  static uint64_t last = 0;
  if (bytes == 0 || bytes % GRANULARITY) return INVALID_VALUE;
  if (last >= setting("SOFTWARE_GPU_STEPS", ~0ull) || !take(bytes)) return OUT_OF_MEMORY;
  *handle = ++last;
  physical[*handle] = {bytes, 1, false};
  return OK;
}

static void let_go(uint64_t handle) {
  Physical& p = physical[handle];
  if (--p.holders > 0) return;
  the_gpu().used_bytes -= p.bytes;
  physical.erase(handle);
}

DRIVER cuMemRelease(uint64_t handle) {
  ENTER
  if (!physical.count(handle)) return INVALID_VALUE;
  let_go(handle);
  return OK;
}

DRIVER cuMemMap(Address at, size_t bytes, size_t offset, uint64_t handle, unsigned long long) {
  ENTER
  auto p = physical.find(handle);
  if (p == physical.end() || offset || p->second.bytes != bytes || !inside(reserved, at, bytes)) return INVALID_VALUE;
  if (mapped.count(at) || p->second.mapped) return INVALID_VALUE;
  int file = garbage(bytes);
  if (file < 0 || mmap((void*)at, bytes, PROT_NONE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, file, 0) == MAP_FAILED)
    return OUT_OF_MEMORY;
  p->second.holders++;
  p->second.mapped = true;
  mapped[at] = handle;
  return OK;
}

DRIVER cuMemSetAccess(Address at, size_t bytes, const void*, size_t) {
  ENTER
  for (Address next = at; next < at + bytes;) {
    auto piece = mapped.find(next);
    if (piece == mapped.end()) return INVALID_VALUE;
    size_t size = physical[piece->second].bytes;
    if (mprotect((void*)next, size, PROT_READ | PROT_WRITE)) return UNKNOWN;
    the_gpu().memory[next] = size;
    next += size;
  }
  return OK;
}

// Does not wait, so that an unmap of memory still in use is found.
DRIVER cuMemUnmap(Address at, size_t bytes) {
  ENTER
  for (Address next = at; next < at + bytes;) {
    auto piece = mapped.find(next);
    if (piece == mapped.end()) return INVALID_VALUE;
    uint64_t handle = piece->second;
    size_t size = physical[handle].bytes;
    mmap((void*)next, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    the_gpu().memory.erase(next);
    mapped.erase(piece);
    physical[handle].mapped = false;
    let_go(handle);
    next += size;
  }
  return OK;
}

// Page-locked host memory.
DRIVER cuMemHostAlloc(void** at, size_t bytes, unsigned) {
  ENTER
  if (Result no = forbidden_in_capture("cuMemHostAlloc")) return no;
  if (bytes == 0 || posix_memalign(at, PAGE, up(bytes, PAGE))) return bytes ? OUT_OF_MEMORY : INVALID_VALUE;
  memset(*at, 0xff, bytes);
  the_gpu().pinned[(Address)*at] = bytes;
  return OK;
}

DRIVER cuMemHostRegister_v2(void* at, size_t bytes, unsigned) {
  ENTER
  if (Result no = forbidden_in_capture("cuMemHostRegister")) return no;
  if (!at || !bytes || the_gpu().pinned.count((Address)at)) return INVALID_VALUE;
  the_gpu().pinned[(Address)at] = bytes;
  return OK;
}

DRIVER cuMemHostUnregister(void* at) {
  ENTER
  if (Result no = forbidden_in_capture("cuMemHostUnregister")) return no;
  if (!the_gpu().pinned.count((Address)at)) return INVALID_VALUE;
  Result done = flush();
  the_gpu().pinned.erase((Address)at);
  return done;
}

DRIVER cuMemFreeHost(void* at) {
  ENTER
  if (Result no = forbidden_in_capture("cuMemFreeHost")) return no;
  if (!the_gpu().pinned.count((Address)at)) return INVALID_VALUE;
  Result done = flush();
  the_gpu().pinned.erase((Address)at);
  free(at);
  return done;
}
