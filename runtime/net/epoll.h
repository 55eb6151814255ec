// SPDX-License-Identifier: Apache-2.0
// epoll(7) for code that is called by another's loop; event_loop.h is a loop of its own.
#pragma once

#include <sys/epoll.h>

#include <cerrno>
#include <cstdint>

#include "lockstep/base/error.h"
#include "runtime/base/unique_fd.h"

namespace lockstep::net {

// SystemError.
inline UniqueFd make_epoll() {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) throw SystemError("epoll_create1", errno);
  return epoll;
}

// `operation`: EPOLL_CTL_ADD or EPOLL_CTL_MOD; `what` comes with each event of `fd`. SystemError.
inline void watch(int epoll, int operation, int fd, std::uint32_t events, std::uint64_t what) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = what;
  if (::epoll_ctl(epoll, operation, fd, &event) != 0) throw SystemError("epoll_ctl", errno);
}

// Ends the watch of `fd`, if there is one, while the descriptor stays open.
inline void unwatch(int epoll, int fd) noexcept { ::epoll_ctl(epoll, EPOLL_CTL_DEL, fd, nullptr); }

// Closes a socket that may be watched. Before that it ends the watch: closing alone ends it only where no other
// descriptor of the socket is open, and a forked child has one, by whose events the loop would spin.
inline void close_watched(int epoll, UniqueFd& fd) noexcept {
  if (fd) unwatch(epoll, fd.get());
  fd.reset();
}

}  // namespace lockstep::net
