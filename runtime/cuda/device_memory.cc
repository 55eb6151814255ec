// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/device_memory.h"

#include <fmt/format.h>
#include <unistd.h>

#include <limits>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/cuda/check.h"
#include "runtime/cuda/current_device.h"
#include "runtime/cuda/outside_captures.h"

namespace lockstep::cuda {

std::shared_ptr<void> DeviceAllocator::allocate(std::size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return nullptr;
  const CurrentDevice current(device_);
  const OutsideCaptures outside;
  check_not_captured(stream, "an allocation", device_);
  release_late();
  void* data = take(bytes, stream);
  if (data == nullptr) {
    wait_for(stream, bytes);
    data = take(bytes, stream);
  }
  if (data == nullptr) refuse(bytes);
  return {data, [self = shared_from_this(), stream](void* memory) { self->release(memory, stream); }};
}

void* DeviceAllocator::take(std::size_t bytes, cudaStream_t stream) {
  void* data = nullptr;
  const cudaError_t error = cudaMallocFromPoolAsync(&data, bytes, pool(), stream);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  check(error, fmt::format("cudaMallocFromPoolAsync of {} bytes", bytes), device_);
  return data;
}

cudaMemPool_t DeviceAllocator::pool() {
  MutexLock lock(mutex_);
  if (pool_ == nullptr) pool_ = make_pool();
  return pool_;
}

// A pool of our own: the device's default one is the program's, with the program's settings.
cudaMemPool_t DeviceAllocator::make_pool() const {
  int supported = 0;
  check(cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, device_.index), "cudaDeviceGetAttribute",
        device_);
  if (supported == 0) {
    throw BackendUnavailable(
        fmt::format("allocate: {} has no memory pools (cudaDevAttrMemoryPoolsSupported is 0), and lockstep takes all "
                    "memory of a device from a pool; for a virtual GPU, switch unified memory on; for a physical GPU, "
                    "install a driver for CUDA 12.4 or newer",
                    describe_()));
  }
  cudaMemPoolProps props{};
  props.allocType = cudaMemAllocationTypePinned;
  props.location = {cudaMemLocationTypeDevice, device_.index};
  cudaMemPool_t pool = nullptr;
  check(cudaMemPoolCreate(&pool, &props), "cudaMemPoolCreate", device_);
  std::uint64_t keep = std::numeric_limits<std::uint64_t>::max();
  check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep), "cudaMemPoolSetAttribute", device_);
  return pool;
}

void DeviceAllocator::release(void* data, cudaStream_t stream) noexcept {
  try {
    const CurrentDevice current(device_);
    const OutsideCaptures outside;
    if (is_captured(stream, device_)) {
      MutexLock lock(mutex_);
      late_.emplace_back(data, stream);
      return;
    }
    check(cudaFreeAsync(data, stream), "cudaFreeAsync", device_);
  } catch (const std::exception& error) {
    // The device is broken, or gone as the process ends.
    log_debug("memory of {} is not used again: {}", device_.str(), error.what());
  }
}

void DeviceAllocator::release_late() {
  std::vector<std::pair<void*, cudaStream_t>> late;
  {
    MutexLock lock(mutex_);
    late.swap(late_);
  }
  for (const auto& [data, stream] : late) release(data, stream);
}

void DeviceAllocator::wait_for(cudaStream_t stream, std::size_t bytes) {
  const auto idle = [&] { return is_idle(stream, device_); };
  if (idle()) return;
  ++host_waits_;
  const Deadline deadline = Deadline::after(longest_wait_);
  if (poll(idle, deadline)) return;
  throw Timeout(
      fmt::format("allocate: {} has no room for {} bytes, and the allocation's stream has not ended the work after "
                  "which memory becomes free, {}; look for a kernel that never ends, look at the other ranks' output, "
                  "or use a smaller batch or model",
                  describe_(), bytes, deadline.progress()));
}

std::size_t DeviceAllocator::attribute(cudaMemPoolAttr which) {
  std::uint64_t value = 0;
  check(cudaMemPoolGetAttribute(pool(), which, &value), "cudaMemPoolGetAttribute", device_);
  return value;
}

DeviceMemory DeviceAllocator::memory() {
  const CurrentDevice current(device_);
  DeviceMemory memory;
  check(cudaMemGetInfo(&memory.free_bytes, &memory.total_bytes), "cudaMemGetInfo", device_);
  memory.used_bytes = attribute(cudaMemPoolAttrUsedMemCurrent);
  memory.cached_bytes = attribute(cudaMemPoolAttrReservedMemCurrent) - memory.used_bytes;
  memory.peak_bytes = attribute(cudaMemPoolAttrUsedMemHigh);
  return memory;
}

DeviceCounters DeviceAllocator::counters() {
  {
    // A device that nobody has taken memory of has no context, and the question would bring one up.
    MutexLock lock(mutex_);
    if (pool_ == nullptr) return {.host_waits = host_waits_};
  }
  const CurrentDevice current(device_);
  return {.host_waits = host_waits_, .reserved_bytes = attribute(cudaMemPoolAttrReservedMemHigh)};
}

void DeviceAllocator::refuse(std::size_t bytes) {
  const DeviceMemory now = memory();
  throw DeviceError(
      fmt::format("allocate: no room for {} bytes on {}: {} of its {} bytes are free; this process (pid {}) uses {} "
                  "bytes and keeps {} in blocks that are too small; use a smaller batch or model, empty LibTorch's "
                  "cache (c10::cuda::CUDACachingAllocator::emptyCache()), or see in nvidia-smi what else runs there",
                  bytes, describe_(), now.free_bytes, now.total_bytes, ::getpid(), now.used_bytes, now.cached_bytes));
}

}  // namespace lockstep::cuda
