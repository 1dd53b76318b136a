// What the files of the software driver share: results, the card's state, memory, the queue of work.
#pragma once
#include "block.h"
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdint.h>
#include <string>
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

// Something the card does later.
typedef std::function<Result()> Work;
typedef std::shared_ptr<std::vector<Work>> WorkList;

struct Stream {
  WorkList capture;  // null where none is under way
  bool capture_broken = false;
};

struct Card {
  std::recursive_mutex mutex;
  bool started = false;
  int contexts = 0;
  // An error that has happened stays: the context is lost.
  Result lost = OK;
  uint64_t launches = 0;
  // What has been asked for and not done: in the order of asking, over all streams.
  std::vector<Work> pending;
  std::vector<Stream*> streams;
  uint64_t used_bytes = 0;
  std::map<Address, size_t> memory;  // what may be touched, by its first address
  std::map<Address, size_t> pinned;  // memory of the host that copies may use later
};

// Never destroyed: threads of a process that ends still call.
Card& card();
typedef std::lock_guard<std::recursive_mutex> Lock;

// A number of the environment.
uint64_t setting(const char* name, uint64_t otherwise);
uint64_t card_bytes();
// One line on stderr.
void say(const std::string& what);

// Whether `bytes` from there on lie in one or more pieces of `map`.
bool inside(const std::map<Address, size_t>& map, Address at, size_t bytes);

bool capturing();
// For calls that a capture does not allow: breaks it. OK where there is none.
Result forbidden_in_capture(const char* call);
// Does all that is pending.
Result flush();
// Now or when the graph runs.
Result enqueue(Stream* stream, Work work);

// Every entry: one caller at a time, and nothing on a lost card.
#define ENTER                            \
  Lock lock(card().mutex);               \
  if (!card().started) return NOT_INITIALIZED; \
  if (card().lost) return card().lost;
