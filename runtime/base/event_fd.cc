// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/event_fd.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "lockstep/base/error.h"
#include "runtime/base/io.h"

namespace lockstep {

EventFd::EventFd() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!fd_) throw SystemError("eventfd", errno);
}

bool EventFd::is_set() const {
  pollfd entry{.fd = fd_.get(), .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, 0) > 0;
}

// The only failure that is left is EAGAIN: a full counter is readable already, and an empty one is clear.
void EventFd::notify() const noexcept {
  const std::uint64_t one = 1;
  uninterrupted([&] { return ::write(fd_.get(), &one, sizeof one); });
}

void EventFd::clear() const noexcept {
  std::uint64_t count = 0;
  uninterrupted([&] { return ::read(fd_.get(), &count, sizeof count); });
}

}  // namespace lockstep
