// SPDX-License-Identifier: Apache-2.0
// A queue from other threads to the main thread, which sleeps on descriptors.
//
// Threads: any thread may call put(), which never waits for the reader; the main thread calls the rest.
#pragma once

#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "runtime/base/event_fd.h"
#include "runtime/base/mutex.h"

namespace lockstep::launcher {

template <typename T>
class WakingQueue {
 public:
  // Throws SystemError.
  explicit WakingQueue(std::size_t most = std::numeric_limits<std::size_t>::max()) : most_(most) {}

  // Returns false, and drops the item, if `most` items wait.
  bool put(T item) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (items_.size() >= most_) return false;
    items_.push_back(std::move(item));
    event_.notify();
    return true;
  }
  // Descriptor that is readable while items wait.
  int fd() const { return event_.fd(); }
  // Returns all items in the order in which they arrived.
  std::vector<T> take() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    event_.clear();
    return std::exchange(items_, {});
  }

 private:
  const std::size_t most_;
  EventFd event_;
  Mutex mutex_;
  std::vector<T> items_ GUARDED_BY(mutex_);
};

}  // namespace lockstep::launcher
