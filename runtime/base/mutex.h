// SPDX-License-Identifier: Apache-2.0
// std::mutex and its guards with thread-safety annotations.
#pragma once

#include <condition_variable>
#include <mutex>

#include "lockstep/base/deadline.h"
#include "runtime/base/thread_annotations.h"

namespace lockstep {

class CAPABILITY("mutex") Mutex {
 public:
  void lock() ACQUIRE() { mutex_.lock(); }
  void unlock() RELEASE() { mutex_.unlock(); }
  bool try_lock() TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  std::mutex mutex_;
};

class SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// A condition variable over Mutex. Wait in a loop that tests the condition: wake-ups may be spurious.
class Condition {
 public:
  void wait(Mutex& mutex) REQUIRES(mutex) { condition_.wait(mutex); }
  // False if the deadline passed.
  bool wait_until(Mutex& mutex, const Deadline& deadline) REQUIRES(mutex) {
    if (deadline.is_never()) {
      condition_.wait(mutex);
      return true;
    }
    return condition_.wait_for(mutex, deadline.remaining()) == std::cv_status::no_timeout;
  }
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

 private:
  std::condition_variable_any condition_;
};

}  // namespace lockstep
