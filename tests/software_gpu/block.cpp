// Runs a block as fibers on one host thread: schedules them, and reports deadlocks.
#include "block.h"
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <vector>

namespace gpu {

Thread* self;
dim3 block_index, block_dim, grid_dim;
unsigned char* dynamic_shared;

namespace {

constexpr size_t STACK = 256 << 10;
constexpr size_t DYNAMIC_SHARED = 228 << 10;

Thread fibers[MAX_THREADS];
Warp warps[MAX_THREADS / WARP];
uint32_t warps_ready;
unsigned char* stacks;
int n_threads, alive, at_barrier;
// Warp lanes that wait at __syncthreads.
uint32_t barrier_lanes[MAX_THREADS / WARP];
// Warp lanes that wait at an mbarrier.
uint32_t waiting_lanes[MAX_THREADS / WARP];
// Threads that wait at a barrier of some of the block's warps, and how often all have arrived.
struct GroupBarrier {
  int arrived;
  unsigned rounds;
} group_barriers[16];
bool backwards;
void (*kernel_call)(void* const*);
void* const* kernel_args;
void* main_stack_pointer;
sigjmp_buf out_of_kernel;
bool running;
std::string failure;

// Created by the first kernel that registers, before `main`.
std::vector<Entry>& entries() {
  static std::vector<Entry> all;
  return all;
}

// Saves the callee-saved registers, switches stacks, and resumes the other fiber.
extern "C" void software_gpu_switch(void** save, void* load);
asm(R"(
.text
.globl software_gpu_switch
.hidden software_gpu_switch
.type software_gpu_switch, @function
software_gpu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size software_gpu_switch, .-software_gpu_switch
)");

inline int pick(uint32_t set) { return backwards ? 31 - __builtin_clz(set) : __builtin_ctz(set); }

// The elements of `set` after number `at` in the order of this launch.
inline uint32_t after(uint32_t set, int at) {
  return backwards ? set & ((1u << at) - 1) : set & ~((2u << at) - 1);
}

const char* op_name(Op op) {
  static const char* names[] = {"__syncwarp", "a shuffle", "a vote", "mma", "ldmatrix"};
  return names[(int)op];
}

std::string where(const Thread& f) {
  char text[128];
  snprintf(text, sizeof text, "thread %u of block (%u, %u, %u)", f.index.x, block_index.x, block_index.y,
           block_index.z);
  return text;
}

// Deadlock: no fiber can run, and not all have ended.
std::string divergence() {
  for (int w = 0; w * WARP < n_threads; w++) {
    Warp& warp = warps[w];
    if (!warp.arrived) continue;
    uint32_t absent = warp.lanes & ~warp.arrived;
    int here = __builtin_ctz(warp.arrived), gone = absent ? __builtin_ctz(absent) : 0;
    bool at_block = barrier_lanes[w] >> gone & 1, at_own = waiting_lanes[w] >> gone & 1;
    return where(fibers[w * WARP + here]) + " waits in " + op_name(warp.op) + " for lane " + std::to_string(gone) +
           ", which " + (at_block ? "waits at __syncthreads" : at_own ? "waits at a barrier in shared memory" : "has ended");
  }
  for (int w = 0; w * WARP < n_threads; w++)
    if (waiting_lanes[w])
      return where(fibers[w * WARP + __builtin_ctz(waiting_lanes[w])]) + " waits at a barrier in shared memory for nobody";
  return "threads wait at __syncthreads for nobody";
}

[[noreturn]] void leave() {
  void* nowhere;
  software_gpu_switch(&nowhere, main_stack_pointer);
  __builtin_unreachable();
}

// Switches to the next fiber after `from` that can run.
void yield(Thread* from) {
  Warp* warp = from->warp;
  uint32_t lanes = after(warp->ready, from->lane);
  if (!lanes) lanes = warp->ready;
  if (!lanes) {
    int w = int(warp - warps);
    warps_ready &= ~(1u << w);
    uint32_t others = after(warps_ready, w);
    if (!others) others = warps_ready;
    if (!others) {
      if (alive) failure = divergence();
      software_gpu_switch(&from->stack_pointer, main_stack_pointer);
      return;
    }
    warp = &warps[pick(others)];
    lanes = warp->ready;
  }
  Thread* to = &fibers[(warp - warps) * WARP + pick(lanes)];
  self = to;
  software_gpu_switch(&from->stack_pointer, to->stack_pointer);
}

inline void make_ready(int w, uint32_t lanes) {
  warps[w].ready |= lanes;
  if (lanes) warps_ready |= 1u << w;
}

void open_barrier() {
  at_barrier = 0;
  for (int w = 0; w * WARP < n_threads; w++) {
    make_ready(w, barrier_lanes[w]);
    barrier_lanes[w] = 0;
  }
}

void begin() {
  kernel_call(kernel_args);
  Thread* me = self;
  me->warp->ready &= ~(1u << me->lane);
  alive--;
  // Threads that have ended are not waited for, as on a GPU.
  if (alive && at_barrier == alive) open_barrier();
  yield(me);
  __builtin_unreachable();
}

// A stack on which `software_gpu_switch` finds six registers and the address of `begin`, aligned as a call
// leaves it.
void prepare(Thread& f, int i) {
  uint64_t* top = (uint64_t*)(stacks + (i + 1) * STACK - 72);
  top[0] = 0;
  top[-1] = (uint64_t)&begin;
  for (int k = 2; k <= 7; k++) top[-k] = 0;
  f.stack_pointer = top - 7;
}

void run_block(dim3 block) {
  alive = n_threads, at_barrier = 0, warps_ready = 0;
  for (int w = 0; w * WARP < n_threads; w++) {
    int left = n_threads - w * WARP;
    warps[w].lanes = left >= WARP ? ~0u : (1u << left) - 1;
    warps[w].ready = warps[w].lanes;
    warps[w].arrived = 0;
    warps[w].turn = 0;
    barrier_lanes[w] = waiting_lanes[w] = 0;
    warps_ready |= 1u << w;
  }
  memset(group_barriers, 0, sizeof group_barriers);
  unsigned i = 0;
  for (unsigned z = 0; z < block.z; z++)
    for (unsigned y = 0; y < block.y; y++)
      for (unsigned x = 0; x < block.x; x++, i++) {
        fibers[i].index = {x, y, z};
        prepare(fibers[i], i);
      }
  int w = pick(warps_ready);
  Thread* first = &fibers[w * WARP + pick(warps[w].ready)];
  self = first;
  software_gpu_switch(&main_stack_pointer, first->stack_pointer);
}

void make_stacks() {
  if (stacks) return;
  void* at = mmap(nullptr, MAX_THREADS * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                  -1, 0);
  stacks = (unsigned char*)at;
  dynamic_shared = (unsigned char*)mmap(nullptr, DYNAMIC_SHARED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                                        -1, 0);
  for (int i = 0; i < MAX_THREADS; i++) {
    mprotect(stacks + i * STACK, 4096, PROT_NONE);
    fibers[i].warp = &warps[i / WARP];
    fibers[i].lane = i % WARP;
  }
}

}  // namespace

// The kernels' shared memory lies between these two: build.sh links their files in the middle. See first.cpp and
// last.cpp.
extern unsigned char shared_begin[], shared_end[];

void wrong_meeting(unsigned mask, Op op) {
  if (mask != 0xffffffffu) fault("a mask of less than a whole warp, which the software GPU does not know");
  std::string text = std::string(op_name(op)) + " while others of its warp wait in " + op_name(self->warp->op);
  fault(text.c_str());
}

void wait_for_warp() {
  self->warp->ready &= ~(1u << self->lane);
  yield(self);
}

void block_barrier() {
  Thread* me = self;
  at_barrier++;
  barrier_lanes[me->warp - warps] |= 1u << me->lane;
  if (at_barrier == alive) {
    open_barrier();
    return;
  }
  me->warp->ready &= ~(1u << me->lane);
  yield(me);
}

void wait_for_barrier() {
  Thread* me = self;
  waiting_lanes[me->warp - warps] |= 1u << me->lane;
  me->warp->ready &= ~(1u << me->lane);
  yield(me);
}

void wake_waiting() {
  for (int w = 0; w * WARP < n_threads; w++) {
    make_ready(w, waiting_lanes[w]);
    waiting_lanes[w] = 0;
  }
}

void group_barrier(int barrier, int threads) {
  GroupBarrier& b = group_barriers[barrier];
  unsigned round = b.rounds;
  if (++b.arrived == threads) {
    b.arrived = 0;
    b.rounds++;
    wake_waiting();
  }
  while (b.rounds == round) wait_for_barrier();
}

void fault(const char* why) {
  failure = where(*self) + ": " + why;
  leave();
}

bool in_kernel() { return running; }

void fault_at(const void* address) {
  char text[64];
  snprintf(text, sizeof text, "touches %p, where no memory is", address);
  failure = where(*self) + " " + text;
  siglongjmp(out_of_kernel, 1);
}

std::string run(const char* name, void (*call)(void* const*), void* const* args, dim3 grid, dim3 block,
                size_t dynamic_bytes) {
  static unsigned launches = 0;
  make_stacks();
  backwards = launches++ % 2 == 1;
  kernel_call = call, kernel_args = args, grid_dim = grid, block_dim = block;
  n_threads = block.x * block.y * block.z;
  // NaN as a float, and out of range as an index.
  memset(shared_begin, 0xff, shared_end - shared_begin);
  memset(dynamic_shared, 0xff, dynamic_bytes);
  failure.clear();
  uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
  running = true;
  if (sigsetjmp(out_of_kernel, 0) == 0) {
    for (uint64_t i = 0; i < blocks && failure.empty(); i++) {
      uint64_t at = backwards ? blocks - 1 - i : i;
      block_index = {(unsigned)(at % grid.x), (unsigned)(at / grid.x % grid.y), (unsigned)(at / grid.x / grid.y)};
      run_block(block);
    }
  }
  running = false;
  return failure.empty() ? "" : std::string(name) + ": " + failure;
}

int register_kernel(const Entry& entry) {
  entries().push_back(entry);
  return (int)entries().size();
}

const Entry* find(const char* name) {
  for (const Entry& e : entries())
    if (!strcmp(e.name, name)) return &e;
  return nullptr;
}

}  // namespace gpu
