// Host memory that devices copy to and from without staging, with a cache: to pin memory costs milliseconds, and to
// give it back waits for the device. Blocks have sizes of powers of two from 4 KiB; one that went back is for the next
// owner once events behind its copies were reached.
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
  // Work in the stream uses the block that holds this byte. False if none does.
  bool used_by(const void* data, DeviceId device, cudaStream_t stream) EXCLUDES(mutex_);
  std::int64_t allocations() EXCLUDES(mutex_);

 private:
  struct Use {
    DeviceId device;
    cudaStream_t stream;
    bool operator==(const Use&) const = default;
  };
  struct Waiting {
    DeviceId device;
    cudaEvent_t event;
  };
  struct Block {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    std::vector<Use> uses = {};
    std::vector<Waiting> waiting = {};  // of a free one
  };

  void release(Block* block) noexcept EXCLUDES(mutex_);
  bool is_idle(Block& block) REQUIRES(mutex_);

  const std::function<EventPool&(DeviceId)> events_of_;
  Mutex mutex_;
  std::map<std::uintptr_t, std::unique_ptr<Block>> all_ GUARDED_BY(mutex_);  // by the first byte
  std::map<std::size_t, std::vector<Block*>> free_ GUARDED_BY(mutex_);       // by size
};

}  // namespace lockstep::cuda
