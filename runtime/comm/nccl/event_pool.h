// Events that are used again: making one costs the driver a lock.
//
// Threads: any.
#pragma once

#include <memory>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/device/device_runtime.h"

namespace lockstep::nccl {

// Always in a shared_ptr: it lives as long as its events.
class EventPool : public std::enable_shared_from_this<EventPool> {
 public:
  // Of events that are all timed, or all not.
  explicit EventPool(bool timed) : timed_(timed) {}

  // An event that nobody else uses; its last copy brings it back.
  std::shared_ptr<void> take(DeviceRuntime& runtime, DeviceId device) {
    std::shared_ptr<void> event;
    {
      MutexLock lock(mutex_);
      if (!free_.empty()) {
        event = std::move(free_.back());
        free_.pop_back();
      }
    }
    if (!event) event = runtime.create_event(device, timed_);
    void* const handle = event.get();
    return {handle, [event = std::move(event), pool = weak_from_this()](void*) mutable {
              const auto alive = pool.lock();
              if (!alive) return;
              MutexLock lock(alive->mutex_);
              alive->free_.push_back(std::move(event));
            }};
  }

 private:
  const bool timed_;
  Mutex mutex_;
  std::vector<std::shared_ptr<void>> free_ GUARDED_BY(mutex_);
};

}  // namespace lockstep::nccl
