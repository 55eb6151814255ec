#include "runtime/cuda/pinned_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "runtime/base/error.h"
#include "runtime/cuda/check.h"
#include "runtime/cuda/current_device.h"

namespace lockstep::cuda {
namespace {

constexpr std::size_t kSmallest = 4096;

}  // namespace

std::shared_ptr<void> PinnedAllocator::allocate(std::size_t bytes, DeviceId device) {
  if (bytes == 0) return nullptr;
  if (bytes > std::numeric_limits<std::size_t>::max() / 2) {
    throw DeviceError(fmt::format("allocate_pinned: {} bytes are more than any host has", bytes));
  }
  const std::size_t size = std::max(kSmallest, std::bit_ceil(bytes));
  const CurrentDevice current(device);
  MutexLock lock(mutex_);
  auto& list = free_[size];
  auto idle = list.begin();
  while (idle != list.end() && !is_idle(**idle)) ++idle;
  Block* block = nullptr;
  if (idle != list.end()) {
    block = *idle;
    list.erase(idle);
  } else {
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
    all_[reinterpret_cast<std::uintptr_t>(data)] = std::move(fresh);
  }
  return {block->data, [self = shared_from_this(), block](void*) { self->release(block); }};
}

bool PinnedAllocator::is_idle(Block& block) {
  while (!block.waiting.empty()) {
    const Waiting& last = block.waiting.back();
    if (!reached(last.event, last.device)) return false;
    events_of_(last.device).put(last.event);
    block.waiting.pop_back();
  }
  return true;
}

bool PinnedAllocator::used_by(const void* data, DeviceId device, cudaStream_t stream) {
  MutexLock lock(mutex_);
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const auto next = all_.upper_bound(address);
  if (next == all_.begin()) return false;
  Block& block = *std::prev(next)->second;
  if (address - std::prev(next)->first >= block.bytes) return false;
  const Use use{device, stream};
  if (std::find(block.uses.begin(), block.uses.end(), use) == block.uses.end()) block.uses.push_back(use);
  return true;
}

void PinnedAllocator::release(Block* block) noexcept {
  try {
    MutexLock lock(mutex_);
    for (const Use& use : block->uses) {
      block->waiting.push_back({use.device, events_of_(use.device).record(use.stream)});
    }
    block->uses.clear();
    free_[block->bytes].push_back(block);
  } catch (const std::exception&) {
    // The device is broken, or gone as the process ends. Memory whose use can't be followed is nobody's from now on.
    check_quietly(cudaPeekAtLastError(), "giving pinned memory back", {DeviceKind::cuda, 0});
  }
}

std::int64_t PinnedAllocator::allocations() {
  MutexLock lock(mutex_);
  return static_cast<std::int64_t>(all_.size());
}

}  // namespace lockstep::cuda
