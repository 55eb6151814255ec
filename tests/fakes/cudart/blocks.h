// SPDX-License-Identifier: Apache-2.0
// Kernels of ours on the host: a launch runs its blocks in random order, and in each of them the threads as fibers,
// which change at barriers, exchanges within a warp, and when one ends, at random too. gpu/lockstep_gpu.cuh is what
// kernels see of it.
//
// What is a violation, which names the kernel, the block and the thread:
//  - an access outside of a span, and one whose address is no multiple of what it takes at once;
//  - a barrier, or an exchange within a warp, that some threads never reach;
//  - a kernel that is launched on a device before cudaFuncGetAttributes() was asked about it there: the launch would
//  load
//    it, and wait for what the device is at;
//  - more of shared memory than a block has without asking for it.
// A race shows in what comes out: threads run until a barrier, in an order that differs from seed to seed, and shared
// memory is NaN before each block. Not seen: what a kernel does to memory but through its spans.
//
// Threads: launch() any; the others are called by kernels while they run.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/fakes/cudart/fake_cuda.h"

namespace lockstep::fake_cuda {

inline constexpr int kWarp = 32;

// The kernel is on the device from now on.
void load(const void* kernel, int device);

// Puts a launch into the stream: `thread` is called for each. What a launch returns.
cudaError_t launch(cudaStream_t stream, const std::string& name, const void* kernel, unsigned blocks, unsigned threads,
                   std::function<void()> thread, const std::vector<Range>& reads, const std::vector<Range>& writes);

// Whether the thread that runs may take elements i to i + number - 1 of a span; if not, that has been reported.
bool may_access(const void* data, std::int64_t i, std::int64_t number, std::int64_t count, std::size_t size,
                bool writes, std::size_t alignment);
// The block's, found by an address that belongs to its declaration.
void* shared_memory(const void* place, std::size_t bytes);

int thread_index();
int thread_count();
std::int64_t block_index();
std::int64_t block_count();
void wait_for_block();
std::uint64_t exchange_in_warp(std::uint64_t bits, int offset);
unsigned vote_in_warp(bool value);

}  // namespace lockstep::fake_cuda
