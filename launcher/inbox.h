// What other threads have for the main thread, which sleeps on descriptors.
//
// Threads: put() any, and never delayed; the rest the main thread's.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/mutex.h"
#include "runtime/base/unique_fd.h"

namespace lockstep::launcher {

template <typename T>
class Inbox {
 public:
  // Throws SystemError.
  explicit Inbox(std::size_t most = std::numeric_limits<std::size_t>::max())
      : most_(most), event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!event_) throw SystemError("eventfd", errno);
  }

  // False if `most` items wait: this one is dropped.
  bool put(T item) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (items_.size() >= most_) return false;
    items_.push_back(std::move(item));
    const std::uint64_t one = 1;
    if (write(event_.get(), &one, sizeof one) != sizeof one) throw SystemError("write an eventfd", errno);
    return true;
  }
  // Readable while items wait.
  int fd() const { return event_.get(); }
  // In the order in which they came.
  std::vector<T> take() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    std::uint64_t count = 0;
    // Nothing there (EAGAIN) is no error; nothing else can go wrong with an eventfd of our own.
    if (read(event_.get(), &count, sizeof count) < 0 && errno != EAGAIN) throw SystemError("read an eventfd", errno);
    return std::exchange(items_, {});
  }

 private:
  const std::size_t most_;
  UniqueFd event_;
  Mutex mutex_;
  std::vector<T> items_ GUARDED_BY(mutex_);
};

}  // namespace lockstep::launcher
