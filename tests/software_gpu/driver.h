// Shared by the files of the software driver: results, the GPU's state, memory, the queue of work.
#pragma once
#include "block.h"
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdint.h>
#include <string>
#include <thread>
#include <vector>

#define DRIVER extern "C" __attribute__((visibility("default"))) Result

typedef uint64_t Address;

enum Result : int {
  OK = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NOT_INITIALIZED = 3,
  NO_DEVICE = 100,
  INVALID_DEVICE = 101,
  INVALID_IMAGE = 200,
  INVALID_CONTEXT = 201,
  UNSUPPORTED_PTX_VERSION = 222,
  INVALID_HANDLE = 400,
  NOT_FOUND = 500,
  NOT_READY = 600,
  ILLEGAL_ADDRESS = 700,
  LAUNCH_OUT_OF_RESOURCES = 701,
  LAUNCH_FAILED = 719,
  NOT_PERMITTED = 800,
  NOT_SUPPORTED = 801,
  CAPTURE_UNSUPPORTED = 900,
  CAPTURE_INVALIDATED = 901,
  CAPTURE_UNMATCHED = 903,
  CAPTURE_IMPLICIT = 906,
  UNKNOWN = 999,
};

// Work that the GPU does later.
typedef std::function<Result()> Work;
typedef std::shared_ptr<std::vector<Work>> WorkList;

struct Stream {
  WorkList capture;  // null unless a capture is in progress
  bool capture_broken = false;
  std::thread::id capturer;
};

struct Device {
  std::recursive_mutex mutex;
  bool started = false;
  int contexts = 0;
  // Errors are sticky: the context is lost.
  Result lost = OK;
  uint64_t launches = 0;
  // Work issued and not done, in the order of issue over all streams.
  std::vector<Work> pending;
  std::vector<Stream*> streams;
  uint64_t used_bytes = 0;
  std::map<Address, size_t> memory;  // accessible device memory, by its first address
  std::map<Address, size_t> pinned;  // page-locked host memory
};

// Never destroyed: threads still call it while the process ends.
Device& the_gpu();
typedef std::lock_guard<std::recursive_mutex> Lock;

// A number from an environment variable.
uint64_t setting(const char* name, uint64_t otherwise);
uint64_t gpu_bytes();
// One line on stderr.
void say(const std::string& what);

// Whether `bytes` from `at` on lie in one or more ranges of `map`.
bool inside(const std::map<Address, size_t>& map, Address at, size_t bytes);

bool capturing();
// For calls that a capture forbids: invalidates it. OK if there is none.
Result forbidden_in_capture(const char* call);
// Does all pending work.
Result flush();
// Issues work, or captures it.
Result enqueue(Stream* stream, Work work);

// At the start of every call: one caller at a time, and none on a lost GPU.
#define ENTER                            \
  Lock lock(the_gpu().mutex);               \
  if (!the_gpu().started) return NOT_INITIALIZED; \
  if (the_gpu().lost) return the_gpu().lost;
