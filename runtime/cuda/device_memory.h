// SPDX-License-Identifier: Apache-2.0
// A device's memory, from a memory pool of CUDA's: allocations belong to the order of a stream, and in a loop that
// repeats itself no step asks the device for memory or waits for it.
//
// An allocation that goes is freed in its stream, behind the work that is there. The pool keeps all that it has got
// (its release threshold is without bound), gives it to the same stream at once, and to another one when the free was
// reached; where the device has no more, it lets the other stream wait for that.
//
// Out of memory: the host waits until the allocation's own stream has come to its end, which frees what is given back
// there in pieces that are too small one by one; then DeviceError with the bytes wanted, free, used and kept.
//
// A pool's memory can be reached from its own device only, other GPUs of the process have no access to it.
//
// Threads: any.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/device/device_runtime.h"
#include "runtime/base/mutex.h"

namespace lockstep::cuda {

class DeviceAllocator : public std::enable_shared_from_this<DeviceAllocator> {
 public:
  // `describe` names the device in errors. `longest_wait`: for the stream of an allocation that the device has no room
  // for; longer than the collectives of most jobs, which their group aborts when its own timeout has passed.
  DeviceAllocator(DeviceId device, std::function<std::string()> describe,
                  std::chrono::nanoseconds longest_wait = std::chrono::minutes(10))
      : device_(device), describe_(std::move(describe)), longest_wait_(longest_wait) {}

  // Throws DeviceError; BackendUnavailable where the device has no memory pools; InvalidArgument where the stream is
  // being captured; Timeout past the longest wait.
  std::shared_ptr<void> allocate(std::size_t bytes, cudaStream_t stream) EXCLUDES(mutex_);
  DeviceMemory memory() EXCLUDES(mutex_);
  DeviceCounters counters() EXCLUDES(mutex_);

 private:
  cudaMemPool_t pool() EXCLUDES(mutex_);
  cudaMemPool_t make_pool() const;
  std::size_t attribute(cudaMemPoolAttr which) EXCLUDES(mutex_);
  // Null where the device has no more.
  void* take(std::size_t bytes, cudaStream_t stream) EXCLUDES(mutex_);
  void release(void* data, cudaStream_t stream) noexcept EXCLUDES(mutex_);
  void release_late() EXCLUDES(mutex_);
  void wait_for(cudaStream_t stream, std::size_t bytes);
  [[noreturn]] void refuse(std::size_t bytes) EXCLUDES(mutex_);

  const DeviceId device_;
  const std::function<std::string()> describe_;
  const std::chrono::nanoseconds longest_wait_;
  std::atomic<std::int64_t> host_waits_{0};
  Mutex mutex_;
  cudaMemPool_t pool_ GUARDED_BY(mutex_) = nullptr;  // made with the first allocation
  // Memory that went while its stream was being captured: a free would be the graph's. The next allocation frees it.
  std::vector<std::pair<void*, cudaStream_t>> late_ GUARDED_BY(mutex_);
};

}  // namespace lockstep::cuda
