// SPDX-License-Identifier: Apache-2.0
// The memory of the fake: what is allocated, given back and looked at, and by whom.
#include <fmt/format.h>

#include <algorithm>

#include "tests/fakes/cudart/runtime.h"

namespace lockstep::fake_cuda {

cudaError_t Runtime::allocate(void** data, std::size_t bytes, bool pinned) {
  std::lock_guard lock(mutex_);
  *data = nullptr;
  if (bytes == 0) return cudaSuccess;
  const int device = physical(current());
  for (const auto& [handle, pool] : pools_) {
    if (!pinned && pool->device == device && bytes > device_bytes_ - used_[device]) trim(*pool, 0);
  }
  if (!pinned && bytes > device_bytes_ - used_[device]) return cudaErrorMemoryAllocation;
  Allocation* const allocation = memory_.allocate(bytes, device, pinned);
  if (allocation == nullptr) return cudaErrorMemoryAllocation;
  if (!pinned) used_[device] += bytes;
  *data = allocation->address;
  return cudaSuccess;
}

cudaError_t Runtime::free(void* data, bool pinned) {
  if (data == nullptr) return cudaSuccess;
  count_host_synchronisation();
  std::vector<std::shared_ptr<FakeStream>> streams;
  {
    std::lock_guard lock(mutex_);
    Allocation* const allocation = memory_.find(data);
    if (allocation == nullptr || allocation->address != data || allocation->freed || allocation->pinned != pinned ||
        allocation->pooled) {
      violation(fmt::format("{} of {}, which is not a living allocation of its kind{}",
                            pinned ? "cudaFreeHost" : "cudaFree", data,
                            allocation == nullptr ? "" : ": " + allocation->describe()));
      return cudaErrorInvalidValue;
    }
    // As CUDA does, it waits for what the device still has to do.
    const auto add = [&](const std::shared_ptr<FakeStream>& stream) {
      if (pinned || stream->device == allocation->device) streams.push_back(stream);
    };
    for (const auto& [handle, stream] : live_streams_) add(stream);
    for (const auto& [device, stream] : default_streams_) add(stream);
  }
  wait_for(streams);
  std::lock_guard lock(mutex_);
  Allocation* const allocation = memory_.find(data);
  if (!pinned) used_[allocation->device] -= allocation->bytes;
  memory_.free(*allocation);
  return cudaSuccess;
}

cudaError_t Runtime::free_without_waiting(void* data) {
  if (data == nullptr) return cudaSuccess;
  std::lock_guard lock(mutex_);
  Allocation* const allocation = memory_.find(data);
  if (allocation == nullptr || allocation->address != data || allocation->freed || allocation->pinned ||
      allocation->pooled) {
    violation(fmt::format("ncclMemFree of {}, which is not a living allocation of its kind{}", data,
                          allocation == nullptr ? "" : ": " + allocation->describe()));
    return cudaErrorInvalidValue;
  }
  used_[allocation->device] -= allocation->bytes;
  if (const auto use = allocation->shadow.unfinished(host_)) {
    violation(fmt::format("ncclMemFree of {}, which {} {}: nobody has waited for that", allocation->describe(),
                          *use->earlier.what, use->earlier_writes ? "writes" : "reads"));
    allocation->freed = true;  // its bytes stay, for what is still to come
    return cudaSuccess;
  }
  memory_.free(*allocation);
  return cudaSuccess;
}

void Runtime::memory_info(std::size_t& free_bytes, std::size_t& total_bytes) {
  std::lock_guard lock(mutex_);
  total_bytes = device_bytes_;
  free_bytes = device_bytes_ - used_[physical(current())];
}

bool Runtime::check(const Range& range, bool writes, const Access& access, const VectorClock& clock) {
  if (range.bytes == 0) return true;
  Allocation* const allocation = memory_.find(range.data);
  if (allocation == nullptr) return true;
  const auto offset = static_cast<std::size_t>(static_cast<const std::byte*>(range.data) - allocation->address);
  const std::string doing = fmt::format("{} {} bytes {} to {} of {}", *access.what, writes ? "writes" : "reads", offset,
                                        offset + range.bytes, allocation->describe());
  if (allocation->freed || offset + range.bytes > allocation->bytes) {
    violation(doing + (allocation->freed ? ", which was freed" : ", past its end"));
    return true;
  }
  const auto conflict = allocation->shadow.access(offset, range.bytes, writes, access, clock);
  if (!conflict) return true;
  violation(fmt::format("{}, in no order with {}, which {} byte {} of it; one of them needs an event, or a wait", doing,
                        *conflict->earlier.what, conflict->earlier_writes ? "writes" : "reads", conflict->offset));
  return false;
}

bool Runtime::is_pinned_or_device(const void* data) {
  std::lock_guard lock(mutex_);
  return memory_.find(data) != nullptr;
}

bool Runtime::is_device(const void* data) {
  std::lock_guard lock(mutex_);
  const Allocation* const allocation = memory_.find(data);
  return allocation != nullptr && !allocation->pinned;
}

int Runtime::device_of(const void* data) {
  std::lock_guard lock(mutex_);
  const Allocation* const allocation = memory_.find(data);
  if (allocation == nullptr || allocation->pinned) return -1;
  const auto found = std::find(visible_.begin(), visible_.end(), allocation->device);
  return found == visible_.end() ? -1 : static_cast<int>(found - visible_.begin());
}

void* Runtime::host_address(const void* data) {
  std::lock_guard lock(mutex_);
  const Allocation* const allocation = memory_.find(data);
  if (allocation == nullptr || allocation->bytes_at == nullptr) return const_cast<void*>(data);
  return allocation->bytes_at + (static_cast<const std::byte*>(data) - allocation->address);
}

}  // namespace lockstep::fake_cuda
