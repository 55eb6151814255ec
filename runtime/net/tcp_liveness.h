// SPDX-License-Identifier: Apache-2.0
// Is the host at the other end of a connection still there? What the kernel can say of it, whatever the process does.
#pragma once

#include <fmt/format.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>

#include "lockstep/base/error.h"

namespace lockstep::net {

// From now on the connection ends (ETIMEDOUT) when the other host has answered nothing for about `limit`, at least 2 s:
// neither to what was sent (TCP_USER_TIMEOUT) nor, while nothing is sent, to keepalive probes. A stopped process there
// does not end it: its kernel answers. Throws SystemError.
void end_when_host_is_silent(int fd, std::chrono::seconds limit);

// True if the other host has acknowledged all that was sent. It can't have acknowledged bytes sent just now. Throws
// SystemError.
bool all_is_acknowledged(int fd);

// For connections for data, whose waits have deadlines of their own. Takes back what tcp_socket.h says of
// kVanishedAfter: the kernel ends the connection neither for a peer that takes no bytes for so long, as a process that
// is stopped does, nor for a cable that is cut meanwhile. SystemError.
void disable_dead_peer_timeout(int fd);

// setsockopt(2) of a number. Throws a SystemError that names `what`.
inline void set_option(int fd, int level, int name, int value, const char* what) {
  if (::setsockopt(fd, level, name, &value, sizeof(value)) != 0) {
    throw SystemError(fmt::format("setsockopt({})", what), errno);
  }
}

}  // namespace lockstep::net
