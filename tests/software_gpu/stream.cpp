// Streams, events, copies and graphs. Work runs as late as the driver may run it: when somebody synchronizes. So a program
// that reads too early, or changes memory that a copy still has to read, gets wrong numbers here in every run.
#include "driver.h"
#include <algorithm>
#include <chrono>

static const size_t MOST_PENDING = 20000;

static Result lose(Result error) { return the_gpu().lost = error; }

bool capturing() {
  auto& streams = the_gpu().streams;
  return std::any_of(streams.begin(), streams.end(), [](Stream* s) { return s->capture != nullptr; });
}

Result forbidden_in_capture(const char* call) {
  // Captures are begun for their own thread alone (thread local); others may call what they like.
  bool forbidden = false;
  for (Stream* s : the_gpu().streams)
    if (s->capture && s->capturer == std::this_thread::get_id()) forbidden = s->capture_broken = true;
  if (!forbidden) return OK;
  say(std::string(call) + " while a stream is captured");
  return CAPTURE_UNSUPPORTED;
}

Result flush() {
  std::vector<Work> work;
  work.swap(the_gpu().pending);
  for (Work& w : work)
    if (Result error = w()) return lose(error);
  return OK;
}

Result enqueue(Stream* stream, Work work) {
  if (stream && stream->capture) {
    if (stream->capture_broken) return CAPTURE_INVALIDATED;
    stream->capture->push_back(std::move(work));
    return OK;
  }
  if (!stream && capturing()) return CAPTURE_IMPLICIT;
  the_gpu().pending.push_back(std::move(work));
  return the_gpu().pending.size() >= MOST_PENDING ? flush() : OK;
}

DRIVER cuStreamCreate(Stream** stream, unsigned) {
  ENTER
  *stream = new Stream;
  the_gpu().streams.push_back(*stream);
  return OK;
}

static bool known(Stream* stream) {
  auto& all = the_gpu().streams;
  return !stream || std::find(all.begin(), all.end(), stream) != all.end();
}

DRIVER cuStreamDestroy_v2(Stream* stream) {
  ENTER
  if (!stream || !known(stream)) return INVALID_HANDLE;
  auto& all = the_gpu().streams;
  all.erase(std::find(all.begin(), all.end(), stream));
  Result done = flush();
  delete stream;
  return done;
}

DRIVER cuStreamSynchronize(Stream* stream) {
  ENTER
  if (!known(stream)) return INVALID_HANDLE;
  if (stream ? stream->capture != nullptr : capturing()) return forbidden_in_capture("cuStreamSynchronize");
  return flush();
}

struct Event {
  enum { NEW, ASKED, DONE } state = NEW;
  std::chrono::steady_clock::time_point time;
};

DRIVER cuEventCreate(Event** event, unsigned) {
  ENTER
  *event = new Event;
  return OK;
}

DRIVER cuEventDestroy_v2(Event* event) {
  ENTER
  Result done = flush();
  delete event;
  return done;
}

DRIVER cuEventRecord(Event* event, Stream* stream) {
  ENTER
  if (!known(stream)) return INVALID_HANDLE;
  event->state = Event::ASKED;
  return enqueue(stream, [event] {
    event->time = std::chrono::steady_clock::now();
    event->state = Event::DONE;
    return OK;
  });
}

DRIVER cuEventSynchronize(Event* event) {
  ENTER
  if (Result no = forbidden_in_capture("cuEventSynchronize")) return no;
  return event->state == Event::ASKED ? flush() : OK;
}

DRIVER cuEventElapsedTime(float* ms, Event* from, Event* to) {
  ENTER
  if (from->state == Event::NEW || to->state == Event::NEW) return INVALID_HANDLE;
  if (from->state != Event::DONE || to->state != Event::DONE) return NOT_READY;
  *ms = std::chrono::duration<float, std::milli>(to->time - from->time).count();
  return OK;
}

static bool on_gpu(Address at, size_t bytes, const char* call) {
  if (inside(the_gpu().memory, at, bytes) || inside(the_gpu().pinned, at, bytes)) return true;
  say(std::string(call) + ": no device memory holds " + std::to_string(bytes) + " bytes there");
  return false;
}

static Work copy(void* to, const void* from, size_t bytes) {
  return [=] {
    memcpy(to, from, bytes);
    return OK;
  };
}

// Memory that is not pinned is read before the call returns.
DRIVER cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, Stream* stream) {
  ENTER
  if (!known(stream)) return INVALID_HANDLE;
  if (!on_gpu(to, bytes, "cuMemcpyHtoDAsync")) return INVALID_VALUE;
  if (inside(the_gpu().pinned, (Address)from, bytes)) return enqueue(stream, copy((void*)to, from, bytes));
  if (stream && stream->capture) return forbidden_in_capture("a copy from memory that is not pinned");
  auto kept = std::make_shared<std::string>((const char*)from, bytes);
  return enqueue(stream, [=] {
    memcpy((void*)to, kept->data(), bytes);
    return OK;
  });
}

// Memory that is not pinned is written before the call returns.
DRIVER cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, Stream* stream) {
  ENTER
  if (!known(stream)) return INVALID_HANDLE;
  if (!on_gpu(from, bytes, "cuMemcpyDtoHAsync")) return INVALID_VALUE;
  bool pinned = inside(the_gpu().pinned, (Address)to, bytes);
  if (stream && stream->capture && !pinned) return forbidden_in_capture("a copy to memory that is not pinned");
  Result asked = enqueue(stream, copy(to, (void*)from, bytes));
  return asked || pinned ? asked : flush();
}

DRIVER cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, Stream* stream) {
  ENTER
  if (!known(stream)) return INVALID_HANDLE;
  const char* call = "cuMemcpyDtoDAsync";
  if (!on_gpu(to, bytes, call) || !on_gpu(from, bytes, call)) return INVALID_VALUE;
  return enqueue(stream, copy((void*)to, (void*)from, bytes));
}

DRIVER cuMemsetD8Async(Address at, unsigned char value, size_t bytes, Stream* stream) {
  ENTER
  if (!known(stream)) return INVALID_HANDLE;
  if (!on_gpu(at, bytes, "cuMemsetD8Async")) return INVALID_VALUE;
  return enqueue(stream, [=] {
    memset((void*)at, value, bytes);
    return OK;
  });
}

// Graphs: the work that was captured from a stream, in order.
struct Graph {
  WorkList work;
};

DRIVER cuStreamBeginCapture_v2(Stream* stream, int mode) {
  ENTER
  const int THREAD_LOCAL = 1;
  if (mode != THREAD_LOCAL) return CAPTURE_UNSUPPORTED;
  if (!stream || !known(stream)) return stream ? INVALID_HANDLE : CAPTURE_UNSUPPORTED;
  if (stream->capture) return INVALID_VALUE;
  stream->capture = std::make_shared<std::vector<Work>>();
  stream->capture_broken = false;
  stream->capturer = std::this_thread::get_id();
  return OK;
}

DRIVER cuStreamEndCapture(Stream* stream, Graph** graph) {
  ENTER
  if (!stream || !known(stream)) return INVALID_HANDLE;
  if (!stream->capture) return INVALID_VALUE;
  WorkList work = stream->capture;
  stream->capture = nullptr;
  *graph = stream->capture_broken ? nullptr : new Graph{work};
  return stream->capture_broken ? CAPTURE_INVALIDATED : OK;
}

DRIVER cuGraphInstantiateWithFlags(Graph** exec, Graph* graph, unsigned long long) {
  ENTER
  *exec = new Graph{graph->work};
  return OK;
}

DRIVER cuGraphLaunch(Graph* exec, Stream* stream) {
  ENTER
  if (!known(stream)) return INVALID_HANDLE;
  WorkList work = exec->work;
  return enqueue(stream, [work] {
    for (Work& w : *work)
      if (Result error = w()) return error;
    return OK;
  });
}

DRIVER cuGraphDestroy(Graph* graph) {
  ENTER
  delete graph;
  return OK;
}

DRIVER cuGraphExecDestroy(Graph* exec) {
  ENTER
  delete exec;
  return OK;
}
