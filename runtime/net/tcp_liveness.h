// SPDX-License-Identifier: Apache-2.0
// Is the host at the other end of a connection still there? What the kernel can say of it, whatever the process does.
#pragma once

#include <chrono>

namespace lockstep::net {

// From now on the connection ends (ETIMEDOUT) when the other host has answered nothing for about `limit`, at least 2 s:
// neither to what was sent (TCP_USER_TIMEOUT) nor, while nothing is sent, to keepalive probes. A stopped process there
// does not end it: its kernel answers. Throws SystemError.
void end_when_host_is_silent(int fd, std::chrono::seconds limit);

// True if the other host has acknowledged all that was sent. It can't have acknowledged bytes sent just now. Throws
// SystemError.
bool all_is_acknowledged(int fd);

}  // namespace lockstep::net
