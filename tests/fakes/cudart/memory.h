// SPDX-License-Identifier: Apache-2.0
// The memory of the fake devices: each allocation has the address that the program gets, which nobody can read or
// write, and a second one for the threads of the streams. Pinned memory has one address. What was freed keeps its
// address for good, so that a late use is seen.
//
// Threads: the caller's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "tests/fakes/cudart/shadow.h"

namespace lockstep::fake_cuda {

struct Allocation {
  std::byte* address = nullptr;   // what the program has
  std::byte* bytes_at = nullptr;  // where the bytes are
  std::size_t bytes = 0;
  int device = 0;  // physical
  bool pinned = false;
  bool freed = false;
  bool pooled = false;  // by cudaMallocFromPoolAsync
  int number = 0;       // of all allocations, from 1
  Shadow shadow{0};

  std::string describe() const;
};

class Memory {
 public:
  // Null if the system has no more.
  Allocation* allocate(std::size_t bytes, int device, bool pinned);
  void free(Allocation& allocation);
  // The one that holds this byte, freed or not; null if there is none.
  Allocation* find(const void* data);

 private:
  std::map<std::uintptr_t, Allocation> all_;  // by their first byte
  int allocations_ = 0;
};

}  // namespace lockstep::fake_cuda
