// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/pinned_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "lockstep/base/error.h"
#include "runtime/cuda/check.h"
#include "runtime/cuda/current_device.h"
#include "runtime/cuda/outside_captures.h"

namespace lockstep::cuda {
namespace {

constexpr std::size_t kSmallest = 4096;

}  // namespace

std::shared_ptr<void> PinnedAllocator::allocate(std::size_t bytes, DeviceId device) {
  if (bytes == 0) return nullptr;
  if (bytes > std::numeric_limits<std::size_t>::max() / 2) {
    throw DeviceError(fmt::format("allocate_pinned: {} bytes are more than any host has; ask for fewer", bytes));
  }
  const std::size_t size = std::max(kSmallest, std::bit_ceil(bytes));
  const CurrentDevice current(device);
  const OutsideCaptures outside;
  Block* block = take(size);
  if (block == nullptr) {
    // Without the lock: it may wait for the device.
    void* data = nullptr;
    const cudaError_t error = cudaHostAlloc(&data, size, cudaHostAllocPortable);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      throw DeviceError(
          fmt::format("allocate_pinned: the host has no room for {} bytes of pinned memory for {}: {}; see 'free -g' "
                      "and 'ulimit -l', and in a container its memory limit",
                      size, device.str(), error_text(error)));
    }
    check(error, fmt::format("cudaHostAlloc of {} bytes", size), device);
    auto fresh = std::make_unique<Block>();
    fresh->data = static_cast<std::byte*>(data);
    fresh->bytes = size;
    block = fresh.get();
    MutexLock lock(mutex_);
    reserved_bytes_ += size;
    all_[reinterpret_cast<std::uintptr_t>(data)] = std::move(fresh);
  }
  return {block->data, [self = shared_from_this(), block](void*) { self->release(block); }};
}

PinnedAllocator::Block* PinnedAllocator::take(std::size_t size) {
  MutexLock lock(mutex_);
  auto& list = free_[size];
  for (auto place = list.begin(); place != list.end(); ++place) {
    Block* const block = *place;
    if (!is_idle(*block)) continue;
    list.erase(place);
    return block;
  }
  return nullptr;
}

// A free one: nobody else has its lock.
bool PinnedAllocator::is_idle(Block& block) {
  MutexLock lock(block.mutex);
  while (!block.uses.empty() && reached(*block.uses.back().event)) block.uses.pop_back();
  return block.uses.empty();
}

PinnedAllocator::Block* PinnedAllocator::find(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  MutexLock lock(mutex_);
  const auto next = all_.upper_bound(address);
  if (next == all_.begin()) return nullptr;
  const auto& [first, block] = *std::prev(next);
  return address - first < block->bytes ? block.get() : nullptr;
}

bool PinnedAllocator::holds(const void* data) { return find(data) != nullptr; }

bool PinnedAllocator::copied(const void* data, DeviceId device, cudaStream_t stream) {
  Block* const block = find(data);
  if (block == nullptr) return false;
  MutexLock lock(block->mutex);
  auto use = std::find_if(block->uses.begin(), block->uses.end(),
                          [&](const Use& known) { return known.event->device == device && known.stream == stream; });
  if (use == block->uses.end()) use = block->uses.insert(use, {stream, take_event_(device)});
  record(*use->event, stream);
  return true;
}

// Behind the copies that were put into streams the events are there already.
void PinnedAllocator::release(Block* block) noexcept {
  MutexLock lock(mutex_);
  free_[block->bytes].push_back(block);
}

std::size_t PinnedAllocator::reserved_bytes() {
  MutexLock lock(mutex_);
  return reserved_bytes_;
}

}  // namespace lockstep::cuda
