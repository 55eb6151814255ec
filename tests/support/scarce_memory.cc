// SPDX-License-Identifier: Apache-2.0
#include "tests/support/scarce_memory.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace lockstep::testing {
namespace {

std::atomic<bool> is_scarce{false};
std::atomic<long> allocations{0};
std::atomic<long> first{0};
std::atomic<long> end{0};
thread_local bool is_spared = false;

[[maybe_unused]] bool fails() {
  if (!is_scarce.load() || is_spared) return false;
  const long number = allocations.fetch_add(1);
  return number >= first.load() && number < end.load();
}

}  // namespace

ScarceMemory::ScarceMemory(long spare, long failures) {
  is_spared = true;
  allocations.store(0);
  first.store(spare);
  end.store(spare + failures);
  is_scarce.store(true);
}

ScarceMemory::~ScarceMemory() {
  is_scarce.store(false);
  is_spared = false;
}

bool ScarceMemory::was_met() const { return allocations.load() > first.load(); }

}  // namespace lockstep::testing

#ifndef __SANITIZE_THREAD__
void* operator new(std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  return lockstep::testing::fails() ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
}
void* operator new(std::size_t bytes) {
  void* const memory = operator new(bytes, std::nothrow);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*bytes*/) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t& /*tag*/) noexcept { std::free(memory); }
#endif
