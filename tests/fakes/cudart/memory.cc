// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/cudart/memory.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace lockstep::fake_cuda {
namespace {

// Every float type reads it as NaN.
constexpr int kPoison = 0xff;
constexpr std::size_t kPoisoned = std::size_t{1} << 22;

std::size_t mapped_bytes(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

std::byte* map(std::size_t bytes, int protection) {
  void* const address = ::mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return address == MAP_FAILED ? nullptr : static_cast<std::byte*>(address);
}

}  // namespace

std::string Allocation::describe() const {
  return fmt::format("{} allocation {} of {} bytes{}{}", pinned ? "pinned" : "device", number, bytes,
                     pinned ? "" : fmt::format(" on GPU {}", device), freed ? " (freed)" : "");
}

Allocation* Memory::allocate(std::size_t bytes, int device, bool pinned) {
  const std::size_t mapped = mapped_bytes(bytes);
  Allocation allocation;
  if (pinned) {
    allocation.address = map(mapped, PROT_READ | PROT_WRITE);
    allocation.bytes_at = allocation.address;
    if (allocation.address == nullptr) return nullptr;
  } else {
    allocation.bytes_at = map(mapped, PROT_READ | PROT_WRITE);
    if (allocation.bytes_at == nullptr) return nullptr;
    allocation.address = map(mapped, PROT_NONE);
    if (allocation.address == nullptr) {
      ::munmap(allocation.bytes_at, mapped);
      return nullptr;
    }
  }
  // All of a large one would take longer than the test.
  const std::size_t edge = std::min(bytes, kPoisoned);
  std::memset(allocation.bytes_at, kPoison, edge);
  std::memset(allocation.bytes_at + bytes - edge, kPoison, edge);
  allocation.bytes = bytes;
  allocation.device = device;
  allocation.pinned = pinned;
  allocation.number = ++allocations_;
  allocation.shadow = Shadow(bytes);
  const auto key = reinterpret_cast<std::uintptr_t>(allocation.address);
  return &(all_[key] = std::move(allocation));
}

void Memory::free(Allocation& allocation) {
  const std::size_t mapped = mapped_bytes(allocation.bytes);
  if (allocation.pinned) {
    // The pages go back, the addresses stay taken, and a touch of them is a SIGSEGV.
    ::mmap(allocation.address, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  } else {
    ::munmap(allocation.bytes_at, mapped);
  }
  allocation.bytes_at = nullptr;
  allocation.freed = true;
  allocation.shadow = Shadow(0);
}

Allocation* Memory::find(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  auto next = all_.upper_bound(address);
  if (next == all_.begin()) return nullptr;
  Allocation& allocation = std::prev(next)->second;
  // One past the end counts too: it is no byte of it, and of nothing else.
  return address - std::prev(next)->first <= allocation.bytes ? &allocation : nullptr;
}

}  // namespace lockstep::fake_cuda
