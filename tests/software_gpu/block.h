// How the driver runs a kernel: a grid of blocks of fibers, and what may go wrong in it.
#pragma once
#include "device.h"
#include <string>

namespace gpu {

constexpr int MAX_THREADS = 1024;

// Runs every block of the grid; empty, or what went wrong. Every other launch runs its blocks and threads
// from the last to the first, so that who leans on an order is found out.
std::string run(const char* name, void (*call)(void* const*), void* const* args, dim3 grid, dim3 block,
                size_t dynamic_bytes);

const Entry* find(const char* name);

// For the handler of segmentation faults: whether a kernel runs, and the way out of it.
bool in_kernel();
[[noreturn]] void fault_at(const void* address);

}  // namespace gpu
