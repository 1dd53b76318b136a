// The GPU itself: attributes, contexts, modules and launches.
#include "driver.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Device& the_gpu() {
  static Device& only = *new Device;
  return only;
}

uint64_t setting(const char* name, uint64_t otherwise) {
  const char* text = getenv(name);
  return text && *text ? strtoull(text, nullptr, 10) : otherwise;
}

void say(const std::string& what) { fprintf(stderr, "software GPU: %s\n", what.c_str()); }

static struct sigaction handler_before;

static void on_segfault(int, siginfo_t* info, void*) {
  if (gpu::in_kernel()) gpu::fault_at(info->si_addr);
  sigaction(SIGSEGV, &handler_before, nullptr);
}

DRIVER cuInit(unsigned) {
  Lock lock(the_gpu().mutex);
  if (setting("SOFTWARE_GPU_COUNT", 1) == 0) return NO_DEVICE;
  if (the_gpu().started) return OK;
  struct sigaction handler = {};
  handler.sa_sigaction = on_segfault;
  handler.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigaction(SIGSEGV, &handler, &handler_before);
  the_gpu().started = true;
  return OK;
}

DRIVER cuDriverGetVersion(int* version) {
  *version = (int)setting("SOFTWARE_GPU_VERSION", 12020);
  return OK;
}

static const struct {
  Result error;
  const char *name, *text;
} ERRORS[] = {
    {OK, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {UNSUPPORTED_PTX_VERSION, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain."},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    {CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began"},
    {CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend on a capturing blocking stream"},
    {UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static Result error_text(Result error, const char** out, bool name) {
  for (auto& e : ERRORS)
    if (e.error == error) {
      *out = name ? e.name : e.text;
      return OK;
    }
  *out = nullptr;
  return INVALID_VALUE;
}

DRIVER cuGetErrorName(Result error, const char** out) { return error_text(error, out, true); }
DRIVER cuGetErrorString(Result error, const char** out) { return error_text(error, out, false); }

DRIVER cuDeviceGetCount(int* count) {
  ENTER
  *count = (int)setting("SOFTWARE_GPU_COUNT", 1);
  return OK;
}

DRIVER cuDeviceGet(int* device, int index) {
  ENTER
  if (index < 0 || index >= (int)setting("SOFTWARE_GPU_COUNT", 1)) return INVALID_DEVICE;
  *device = index;
  return OK;
}

DRIVER cuDeviceGetName(char* name, int size, int) {
  ENTER
  snprintf(name, size, "software GPU");
  return OK;
}

// Shared memory of a block, in bytes: by default, and with the opt-in attribute.
static const int SHARED = 48 << 10;
static int shared_opt_in() {
  long capability = setting("SOFTWARE_GPU_CAPABILITY", 80);
  return capability >= 90 ? 227 << 10 : capability > 80 ? 99 << 10 : 163 << 10;
}

DRIVER cuDeviceGetAttribute(int* value, int attribute, int) {
  ENTER
  int capability = (int)setting("SOFTWARE_GPU_CAPABILITY", 80);
  switch (attribute) {
    case 1: *value = gpu::MAX_THREADS; break;            // threads of a block
    case 8: *value = SHARED; break;                      // shared memory of a block
    case 10: *value = 32; break;                         // warp
    case 13: *value = 1000000; break;                    // clock, kHz
    case 16: *value = 8; break;                          // SMs
    case 33: case 34: case 50: *value = 0; break;        // place on the PCI bus
    case 36: *value = 1000000; break;                    // memory's clock, kHz
    case 37: *value = 128; break;                        // memory's width, bits
    case 38: *value = 1 << 20; break;                    // L2
    case 41: *value = 1; break;                          // unified addressing
    case 75: *value = capability / 10; break;            // major
    case 76: *value = capability % 10; break;            // minor
    case 97: *value = shared_opt_in(); break;          // shared memory, opt-in
    case 102: *value = 1; break;                         // reserved addresses
    case 115: *value = 0; break;                         // memory pools
    default: say("no value for device attribute " + std::to_string(attribute)); return INVALID_VALUE;
  }
  return OK;
}

// Device memory that a context takes.
static const uint64_t CONTEXT_BYTES = 64 << 20;

DRIVER cuDevicePrimaryCtxRetain(void** context, int) {
  ENTER
  if (the_gpu().contexts == 0) {
    if (CONTEXT_BYTES > gpu_bytes()) return OUT_OF_MEMORY;
    the_gpu().used_bytes += CONTEXT_BYTES;
  }
  the_gpu().contexts++;
  *context = &the_gpu();
  return OK;
}

DRIVER cuDevicePrimaryCtxRelease_v2(int) {
  ENTER
  if (the_gpu().contexts == 0) return INVALID_CONTEXT;
  if (--the_gpu().contexts == 0) the_gpu().used_bytes -= CONTEXT_BYTES;
  return OK;
}

DRIVER cuCtxSetCurrent(void*) {
  ENTER
  return OK;
}

DRIVER cuCtxGetCurrent(void** context) {
  ENTER
  *context = the_gpu().contexts ? &the_gpu() : nullptr;
  return OK;
}

struct Function {
  const gpu::Entry* entry;
  int most_threads = gpu::MAX_THREADS;
  int dynamic_shared = SHARED;
};

struct Module {
  std::map<std::string, Function> functions;
};

static bool digit(char c) { return c >= '0' && c <= '9'; }

// Sizes of the parameters between two parentheses of PTX.
static std::vector<size_t> parameter_sizes(const std::string& text) {
  std::vector<size_t> sizes;
  for (size_t at = text.find(".param"); at != std::string::npos; at = text.find(".param", at + 1)) {
    size_t end = text.find(',', at);
    std::string one = text.substr(at, end - at);
    size_t open = one.find('['), bits = one.find_first_of("usfb", 7);
    if (open != std::string::npos) {
      sizes.push_back(strtoul(one.c_str() + open + 1, nullptr, 10));
    } else {
      while (bits != std::string::npos && !digit(one[bits + 1])) bits = one.find_first_of("usfb", bits + 1);
      sizes.push_back(bits == std::string::npos ? 0 : strtoul(one.c_str() + bits + 1, nullptr, 10) / 8);
    }
  }
  return sizes;
}

// Compares an entry of the PTX with the function that g++ compiled from the source; empty if they match.
static std::string mismatch(const std::string& name, const gpu::Entry* entry, const std::vector<size_t>& sizes) {
  if (!entry) return "the software GPU was built without the kernel " + name;
  if (sizes == std::vector<size_t>(entry->sizes, entry->sizes + entry->count)) return "";
  return "the PTX of " + name + " takes other parameters than its source";
}

static Result load(Module* module, const std::string& ptx, std::string* log) {
  size_t target = ptx.find(".target sm_");
  if (ptx.find(".version") == std::string::npos || target == std::string::npos) return INVALID_IMAGE;
  char* rest;
  uint64_t needed = strtoul(ptx.c_str() + target + 11, &rest, 10), is = setting("SOFTWARE_GPU_CAPABILITY", 80);
  // Targets that end in an a are for GPUs of exactly that capability.
  if (needed > is || (*rest == 'a' && needed != is)) {
    *log = "the PTX is for another GPU";
    return INVALID_IMAGE;
  }
  for (size_t at = ptx.find(".entry "); at != std::string::npos; at = ptx.find(".entry ", at + 1)) {
    size_t open = ptx.find('(', at), close = ptx.find(')', open), body = ptx.find('{', close);
    std::string name = ptx.substr(at + 7, open - at - 7), head = ptx.substr(close, body - close);
    Function f = {gpu::find(name.c_str())};
    *log = mismatch(name, f.entry, parameter_sizes(ptx.substr(open, close - open)));
    if (!log->empty()) return INVALID_IMAGE;
    size_t most = head.find(".maxntid ");
    if (most != std::string::npos) f.most_threads = (int)strtoul(head.c_str() + most + 9, nullptr, 10);
    module->functions[name] = f;
  }
  return OK;
}

// Options 5 and 6: the buffer of the error log, and its size.
DRIVER cuModuleLoadDataEx(Module** module, const void* image, unsigned n, const int* options, void** values) {
  ENTER
  if (Result no = forbidden_in_capture("cuModuleLoadDataEx")) return no;
  Module* made = new Module;
  std::string log;
  Result done = load(made, (const char*)image, &log);
  char* buffer = nullptr;
  size_t room = 0;
  for (unsigned i = 0; i < n; i++) {
    if (options[i] == 5) buffer = (char*)values[i];
    if (options[i] == 6) room = (size_t)values[i];
  }
  if (buffer && room) snprintf(buffer, room, "%s", log.c_str());
  if (done) delete made;
  else *module = made;
  return done;
}

DRIVER cuModuleGetFunction(Function** function, Module* module, const char* name) {
  ENTER
  auto found = module->functions.find(name);
  if (found == module->functions.end()) return NOT_FOUND;
  *function = &found->second;
  return OK;
}

DRIVER cuModuleUnload(Module* module) {
  ENTER
  Result done = flush();
  delete module;
  return done;
}

DRIVER cuFuncSetAttribute(Function* function, int attribute, int value) {
  ENTER
  if (attribute == 8) {  // dynamic shared memory
    if (value > shared_opt_in()) return INVALID_VALUE;
    function->dynamic_shared = value;
  }
  return OK;
}

DRIVER cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Function*, int, size_t) {
  ENTER
  *blocks = 2;
  return OK;
}

// One launch of a kernel, with a copy of its arguments.
static Work launch(Function* function, const gpu::Entry* entry, dim3 grid, dim3 block, size_t shared, void** params) {
  // A wrong kernel: its grid lacks the last row of blocks.
  const char* wrong = getenv("SOFTWARE_GPU_WRONG");
  if (wrong && strcmp(wrong, entry->name) == 0) (grid.y > 1 ? grid.y : grid.x)--;
  auto kept = std::make_shared<std::vector<std::string>>();
  for (int i = 0; i < entry->count; i++) kept->emplace_back((const char*)params[i], entry->sizes[i]);
  return [=]() -> Result {
    uint64_t most = setting("SOFTWARE_GPU_LOSE_AFTER", ~0ull);
    if (++the_gpu().launches > most) return (Result)setting("SOFTWARE_GPU_LOSE_WITH", ILLEGAL_ADDRESS);
    if (grid.x == 0) return OK;
    std::vector<void*> args;
    for (std::string& s : *kept) args.push_back(s.data());
    std::string failed = gpu::run(entry->name, entry->call, args.data(), grid, block, shared);
    if (failed.empty()) return OK;
    say(failed);
    return failed.find("no memory is") == std::string::npos ? LAUNCH_FAILED : ILLEGAL_ADDRESS;
  };
}

static Result launch_checked(Function* f, dim3 grid, dim3 block, size_t shared, Stream* stream, void** params) {
  const uint64_t threads = (uint64_t)block.x * block.y * block.z;
  bool fits = grid.x && grid.y && grid.z && grid.x <= 0x7fffffff && grid.y <= 65535 && grid.z <= 65535;
  if (!fits || threads == 0 || threads > gpu::MAX_THREADS || block.z > 64) return INVALID_VALUE;
  if ((int)threads > f->most_threads) return LAUNCH_OUT_OF_RESOURCES;
  if (shared > (size_t)f->dynamic_shared || !params) return INVALID_VALUE;
  return enqueue(stream, launch(f, f->entry, grid, block, shared, params));
}

struct LaunchConfig {
  unsigned grid[3], block[3], shared;
  Stream* stream;
  void* attributes;
  unsigned n_attributes;
};

DRIVER cuLaunchKernelEx(const LaunchConfig* c, Function* f, void** params, void** extra) {
  ENTER
  if (extra) return NOT_SUPPORTED;
  dim3 grid = {c->grid[0], c->grid[1], c->grid[2]}, block = {c->block[0], c->block[1], c->block[2]};
  return launch_checked(f, grid, block, c->shared, c->stream, params);
}

// bf16 matrices in 128-byte swizzled tiles: all that dmschat uses.
DRIVER cuTensorMapEncodeTiled(void* out, int type, unsigned rank, void* at, const uint64_t* sizes, const uint64_t* strides,
                              const uint32_t* box, const uint32_t* steps, int interleave, int swizzle, int promotion,
                              int fill) {
  ENTER
  bool known = type == 9 && (rank == 2 || (rank == 3 && box[2] == 1)) && interleave == 0 && swizzle == 3 &&
               promotion >= 0 && promotion <= 3 && fill == 0;
  for (unsigned i = 0; i < rank; i++) known &= steps[i] == 1;
  if (!known) return NOT_SUPPORTED;
  bool fits = (uintptr_t)out % 64 == 0 && (uintptr_t)at % 16 == 0;
  for (unsigned i = 0; i < rank - 1; i++) fits &= strides[i] % 16 == 0 && strides[i] < 1ull << 40;
  for (unsigned i = 0; i < rank; i++) fits &= sizes[i] > 0 && sizes[i] <= 1ull << 32 && box[i] > 0 && box[i] <= 256;
  if (!fits || box[0] * 2 > 128 || box[0] % 8) return INVALID_VALUE;
  gpu::TileMap map = {gpu::TileMap::MARK, (unsigned char*)at, sizes[0], sizes[1], rank == 3 ? sizes[2] : 1, strides[0],
                      rank == 3 ? strides[1] : 0, box[0], box[1]};
  memset(out, 0, 128);
  memcpy(out, &map, sizeof map);
  return OK;
}
