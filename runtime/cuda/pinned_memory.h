// Host memory that devices copy to and from without staging, with a cache: to pin memory costs milliseconds, and to
// give it back waits for the device. Blocks have sizes of powers of two from 4 KiB; one that went back is for the next
// owner once events behind its copies were reached. These are recorded with each copy, whose stream may be gone later:
// under a lock of the block's own, since a stream that is full keeps whoever puts something into it.
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

#include "runtime/base/mutex.h"
#include "runtime/cuda/event_pool.h"
#include "runtime/device/device.h"

namespace lockstep::cuda {

class PinnedAllocator : public std::enable_shared_from_this<PinnedAllocator> {
 public:
  // `events_of` gives the pool of a device.
  explicit PinnedAllocator(std::function<EventPool&(DeviceId)> events_of) : events_of_(std::move(events_of)) {}

  std::shared_ptr<void> allocate(std::size_t bytes, DeviceId device) EXCLUDES(mutex_);
  // Whether a block of its holds this byte.
  bool holds(const void* data) EXCLUDES(mutex_);
  // The stream uses the block that holds this byte, until what is in it now; false if none does.
  bool copied(const void* data, DeviceId device, cudaStream_t stream) EXCLUDES(mutex_);
  // The same, until what is in it when the block goes: so long the stream has to live.
  bool used_by(const void* data, DeviceId device, cudaStream_t stream) EXCLUDES(mutex_);
  std::int64_t allocations() EXCLUDES(mutex_);

 private:
  struct Use {
    DeviceId device;
    cudaStream_t stream;
    cudaEvent_t event;  // behind it; null if it is to be recorded when the block goes
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

  const std::function<EventPool&(DeviceId)> events_of_;
  Mutex mutex_;
  std::map<std::uintptr_t, std::unique_ptr<Block>> all_ GUARDED_BY(mutex_);  // by the first byte
  std::map<std::size_t, std::vector<Block*>> free_ GUARDED_BY(mutex_);       // by size
};

}  // namespace lockstep::cuda
