// SPDX-License-Identifier: Apache-2.0
// Host memory that devices copy to and from without staging, with a cache: to pin memory costs milliseconds, and to
// give it back waits for the device. Blocks have sizes of powers of two from 4 KiB; one that went back is for the next
// owner once events behind its copies were reached. These are recorded with each copy, whose stream may be gone later:
// under a lock of the block's own, since a stream that is full keeps whoever puts something into it. CUDA's memory
// pools have no pinned memory in the oldest toolkit that we build with.
//
// Threads: any.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "lockstep/device/device.h"
#include "runtime/base/mutex.h"
#include "runtime/cuda/event_pool.h"

namespace lockstep::cuda {

class PinnedAllocator : public std::enable_shared_from_this<PinnedAllocator> {
 public:
  // `take_event` gives an event of a device.
  explicit PinnedAllocator(std::function<std::shared_ptr<DeviceEvent>(DeviceId)> take_event)
      : take_event_(std::move(take_event)) {}

  std::shared_ptr<void> allocate(std::size_t bytes, DeviceId device) EXCLUDES(mutex_);
  // Whether a block of its holds this byte.
  bool holds(const void* data) EXCLUDES(mutex_);
  // The stream uses the block that holds this byte, until what is in it now; false if none does.
  bool copied(const void* data, DeviceId device, cudaStream_t stream) EXCLUDES(mutex_);
  std::size_t reserved_bytes() EXCLUDES(mutex_);

 private:
  struct Use {
    cudaStream_t stream;
    std::shared_ptr<DeviceEvent> event;  // behind it
  };
  // Lives as long as the allocator. Its lock comes after the allocator's, where both are held.
  struct Block {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    Mutex mutex;
    std::vector<Use> uses GUARDED_BY(mutex) = {};  // of a free one, not known to be over
  };

  void release(Block* block) noexcept EXCLUDES(mutex_);
  bool is_idle(Block& block);
  // Null if there is none.
  Block* find(const void* data) EXCLUDES(mutex_);
  Block* take(std::size_t size) EXCLUDES(mutex_);

  const std::function<std::shared_ptr<DeviceEvent>(DeviceId)> take_event_;
  Mutex mutex_;
  std::map<std::uintptr_t, std::unique_ptr<Block>> all_ GUARDED_BY(mutex_);  // by the first byte
  std::map<std::size_t, std::vector<Block*>> free_ GUARDED_BY(mutex_);       // by size
  std::size_t reserved_bytes_ GUARDED_BY(mutex_) = 0;                        // in all of them
};

}  // namespace lockstep::cuda
