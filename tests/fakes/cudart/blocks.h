// SPDX-License-Identifier: Apache-2.0
// Kernels of ours on the host: a launch runs its blocks in random order, and in each of them the threads as fibers,
// which change at barriers, exchanges within a warp, and when one ends, at random too. gpu/lockstep_gpu.cuh is what
// kernels see of it.
//
// What is a violation, which names the kernel, the block and the thread:
//  - an access outside of a span, and one whose address is no multiple of what it takes at once;
//  - a race: two threads, one of them writing, on one element of a launch, that are in two blocks, or in one with no
//    barrier of all its threads between. Passing values within a warp is no barrier. Found whatever the order was;
//  - a barrier, or an exchange within a warp, that some threads never reach;
//  - shared memory that is read where nobody of the block has written it. It is NaN before each block;
//  - a kernel that is launched on a device before cudaFuncGetAttributes() was asked about it there: the launch would
//  load
//    it, and wait for what the device is at;
//  - more of shared memory than a block has without asking for it.
// Not seen: what a kernel does to memory but through its spans.
//
// Threads: launch() any; the others are called by kernels while they run.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/fakes/cudart/fake_cuda.h"

namespace lockstep::fake_cuda {

inline constexpr int kWarp = 32;

struct Cell;

// A span of a launch, as far as races go.
struct Watched {
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::size_t unit = 0;  // bytes of an element
  bool writes = false;
  bool is_shared = false;
  // Of the memory that this and what overlaps it is part of. Null where nobody writes.
  Cell* cells = nullptr;
  const std::byte* first = nullptr;
  std::size_t cell_bytes = 0;  // that one stands for
};

// All spans of a launch.
class Watch {
 public:
  Watch() = default;
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  Watched* add(const void* data, std::size_t bytes, std::size_t unit, bool writes);
  // Before the first block: finds what overlaps.
  void begin();

 private:
  std::vector<std::unique_ptr<Watched>> all_;
  std::vector<std::pair<Cell*, std::size_t>> cells_;
};

// The kernel is on the device from now on.
void load(const void* kernel, int device);

// Puts a launch into the stream: `thread` is called for each. What a launch returns.
cudaError_t launch(cudaStream_t stream, const std::string& name, const void* kernel, unsigned blocks, unsigned threads,
                   std::shared_ptr<Watch> watch, std::function<void()> thread, const std::vector<Range>& reads,
                   const std::vector<Range>& writes);

// Whether the thread that runs may take elements i to i + number - 1 of a span; if not, that has been reported.
bool may_access(Watched* watched, const void* data, std::int64_t i, std::int64_t number, std::int64_t count,
                std::size_t size, bool writes, std::size_t alignment);
// The block's, found by an address that belongs to its declaration.
std::pair<void*, Watched*> shared_memory(const void* place, std::size_t bytes, std::size_t unit, const char* name);

int thread_index();
int thread_count();
std::int64_t block_index();
std::int64_t block_count();
void wait_for_block();
std::uint64_t exchange_in_warp(std::uint64_t bits, int offset);
unsigned vote_in_warp(bool value);

}  // namespace lockstep::fake_cuda
