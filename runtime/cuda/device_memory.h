// A device's memory with a cache in stream order (block_cache.h): in a loop that repeats itself, no step asks the
// device for memory or waits for it.
//
// A block that goes back is at once for its own stream again, whose order keeps the old work and the new apart. For
// another stream it is once a whole segment is free and an event behind its last use was reached. A block that other
// streams use too is nobody's until events in those were reached.
//
// When the device has no more, in this order: segments of other streams, behind their event; the cache goes back to the
// device; blocks that wait for other streams, for which the host waits; what other threads are giving back; then
// DeviceError with bytes wanted, free, used and cached. Both waits have their limits.
//
// No lock is held while the device is asked for memory or given it back, nor while something is put into a stream: that
// may wait for kernels, and who gives a block back meanwhile may be the thread that would end them.
//
// Threads: any.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/cuda/block_cache.h"
#include "runtime/cuda/event_pool.h"
#include "runtime/device/device_runtime.h"

namespace lockstep::cuda {

class DeviceAllocator : public std::enable_shared_from_this<DeviceAllocator> {
 public:
  // How long an allocation waits at most, where the device has no more.
  struct Limits {
    // For what other streams do with blocks that came back: longer than the collectives of most jobs, which their group
    // aborts when its own timeout has passed.
    std::chrono::nanoseconds kernels = std::chrono::minutes(10);
    // For what another thread gives back: the kernels that it waits for may be this thread's to end.
    std::chrono::nanoseconds returns = std::chrono::seconds(10);
  };

  // `describe` names the device in errors.
  DeviceAllocator(DeviceId device, EventPool& events, std::function<std::string()> describe)
      : DeviceAllocator(device, events, std::move(describe), Limits{}) {}
  DeviceAllocator(DeviceId device, EventPool& events, std::function<std::string()> describe, const Limits& limits)
      : device_(device), events_(events), describe_(std::move(describe)), limits_(limits) {}

  // Throws DeviceError, and Timeout past Limits::kernels.
  std::shared_ptr<void> allocate(std::size_t bytes, cudaStream_t stream) EXCLUDES(mutex_);
  // False if `memory` is none of its allocations.
  bool used_by(const void* memory, cudaStream_t stream) EXCLUDES(mutex_);
  DeviceMemory memory() EXCLUDES(mutex_);
  void release_cached() EXCLUDES(mutex_);

  struct Counters {
    std::int64_t host_waits = 0;
    std::int64_t allocations = 0;
  };
  Counters counters() EXCLUDES(mutex_);

 private:
  struct Pending {
    Block* block;
    std::vector<cudaEvent_t> events;
  };

  // From the cache; null if it has none. What these return is handed out.
  Block* take(std::size_t block_bytes, cudaStream_t stream) EXCLUDES(mutex_);
  Block* grow(std::size_t block_bytes, cudaStream_t stream) EXCLUDES(mutex_);
  // One time through the order above; null if that is not enough.
  Block* make_room(std::size_t block_bytes, cudaStream_t stream) EXCLUDES(mutex_);
  // How many returns there were: memory that had left the cache or waited for streams came where others find it.
  std::int64_t returns() EXCLUDES(mutex_);
  // Waits for one that is under way. False if none was, or the deadline passed.
  bool await_return_after(std::int64_t before, const Deadline& deadline) EXCLUDES(mutex_);
  void end_return() REQUIRES(mutex_);
  // Another stream's idle segment, behind its last use.
  Block* take_behind(std::size_t block_bytes, cudaStream_t stream) EXCLUDES(mutex_);
  // A new segment; null if the device has no more.
  Block* ask_device(std::size_t block_bytes, cudaStream_t stream) EXCLUDES(mutex_);
  Block* hand_out(Block* block) REQUIRES(mutex_);
  void release(Block* block) noexcept EXCLUDES(mutex_);
  // Of one that other streams use too.
  void release_behind_others(Block* block) EXCLUDES(mutex_);
  // Blocks whose other streams are done go back. Segments that are free as a whole now are to be guarded.
  std::vector<BlockCache::Unguarded> collect() REQUIRES(mutex_);
  void guard_collected() EXCLUDES(mutex_);
  // Puts an event behind their last use, for other streams to have them.
  void guard(std::span<const BlockCache::Unguarded> segments) noexcept EXCLUDES(mutex_);
  // The host waits until all are. False if there were none. Throws Timeout.
  bool wait_for_pending() EXCLUDES(mutex_);
  [[noreturn]] void throw_stuck(std::size_t bytes, const Deadline& deadline) const;
  void drain() EXCLUDES(mutex_);
  [[noreturn]] void refuse(std::size_t bytes) EXCLUDES(mutex_);

  const DeviceId device_;
  EventPool& events_;
  const std::function<std::string()> describe_;
  const Limits limits_;
  Mutex mutex_;
  BlockCache cache_ GUARDED_BY(mutex_);
  std::vector<Pending> pending_ GUARDED_BY(mutex_);
  std::unordered_map<const void*, Block*> live_ GUARDED_BY(mutex_);
  std::size_t used_ GUARDED_BY(mutex_) = 0;
  std::size_t peak_ GUARDED_BY(mutex_) = 0;
  std::size_t pending_bytes_ GUARDED_BY(mutex_) = 0;
  int returning_ GUARDED_BY(mutex_) = 0;  // threads
  std::int64_t returns_ GUARDED_BY(mutex_) = 0;
  Condition returned_;
  Counters counters_ GUARDED_BY(mutex_);
};

}  // namespace lockstep::cuda
