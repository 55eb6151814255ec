// SPDX-License-Identifier: Apache-2.0
// A descriptor by which one thread wakes another that waits for descriptors (eventfd(2)).
//
// Threads: any.
#pragma once

#include <utility>

#include "runtime/base/unique_fd.h"

namespace lockstep {

class EventFd {
 public:
  // Throws SystemError.
  EventFd();
  // The event of another process or another thread: `fd` is a duplicate of its descriptor.
  explicit EventFd(UniqueFd fd) : fd_(std::move(fd)) {}
  // Readable from notify() to clear().
  int fd() const { return fd_.get(); }
  // From notify() to clear(). Never waits.
  bool is_set() const;
  // Never waits.
  void notify() const noexcept;
  void clear() const noexcept;

 private:
  UniqueFd fd_;
};

}  // namespace lockstep
