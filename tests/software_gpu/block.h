// Runs a kernel: a grid of blocks of fibers.
#pragma once
#include "device.h"
#include <string>

namespace gpu {

constexpr int MAX_THREADS = 1024;

// Runs every block of the grid and returns the error, or an empty string. Every other launch runs blocks and threads from
// the last to the first, to find kernels that depend on an order.
std::string run(const char* name, void (*call)(void* const*), void* const* args, dim3 grid, dim3 block,
                size_t dynamic_bytes);

const Entry* find(const char* name);

// For the SIGSEGV handler: whether a kernel runs, and how to leave it.
bool in_kernel();
[[noreturn]] void fault_at(const void* address);

}  // namespace gpu
