// SPDX-License-Identifier: Apache-2.0
// Lets a thread sleep until another has changed something that it looks at.
//
// A sleeper takes the count, looks, and sleeps only while the count is as it was: a change between look and sleep is
// not missed. Threads: any.
#pragma once

#include <cstdint>

#include "runtime/base/mutex.h"

namespace lockstep::nccl {

class EventCount {
 public:
  std::uint64_t count() {
    MutexLock lock(mutex_);
    return count_;
  }
  void notify() {
    MutexLock lock(mutex_);
    ++count_;
    changed_.notify_all();
  }
  // Until somebody notifies after `seen`, or the deadline.
  void wait(std::uint64_t seen, const Deadline& deadline) {
    MutexLock lock(mutex_);
    while (count_ == seen && changed_.wait_until(mutex_, deadline)) {
    }
  }

 private:
  Mutex mutex_;
  Condition changed_;
  std::uint64_t count_ GUARDED_BY(mutex_) = 0;
};

}  // namespace lockstep::nccl
