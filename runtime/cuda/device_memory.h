// A device's memory with a cache in stream order (block_cache.h): in a loop that repeats itself, no step asks the
// device for memory or waits for it.
//
// A block that goes back is at once for its own stream again, whose order keeps the old work and the new apart. For
// another stream it is once a whole segment is free and an event behind its last use was reached. A block that other
// streams use too is nobody's until events in those were reached.
//
// When the device has no more, in this order: segments of other streams, behind their event; the cache goes back to the
// device; blocks that wait for other streams, for which the host waits; what other threads are giving back, for 10 s at
// most; then DeviceError with bytes wanted, free, used and cached.
//
// No lock is held while the device is asked for memory or given it back: that may wait for kernels, and who gives a
// block back meanwhile may be the thread that would end them.
//
// Threads: any.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/cuda/block_cache.h"
#include "runtime/cuda/event_pool.h"
#include "runtime/device/device_runtime.h"

namespace lockstep::cuda {

class DeviceAllocator : public std::enable_shared_from_this<DeviceAllocator> {
 public:
  // `describe` names the device in errors.
  DeviceAllocator(DeviceId device, EventPool& events, std::function<std::string()> describe)
      : device_(device), events_(events), describe_(std::move(describe)) {}

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
  void give_back(Block* block) REQUIRES(mutex_);
  // Blocks whose other streams are done go back.
  void collect() REQUIRES(mutex_);
  // The host waits until all are. False if there were none.
  bool wait_for_pending() EXCLUDES(mutex_);
  void drain() EXCLUDES(mutex_);
  [[noreturn]] void refuse(std::size_t bytes) EXCLUDES(mutex_);

  // For what another thread gives back: the kernels that this waits for may be this thread's to end.
  static constexpr std::chrono::seconds kLongestWait{10};

  const DeviceId device_;
  EventPool& events_;
  const std::function<std::string()> describe_;
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
