// SPDX-License-Identifier: Apache-2.0
// Connections for data, whose waits have deadlines of their own.
#pragma once

namespace lockstep::net {

// Takes back what tcp_socket.h says of kVanishedAfter: the kernel ends the connection neither for a peer that takes no
// bytes for so long, as a process that is stopped does, nor for a cable that is cut meanwhile. SystemError.
void disable_dead_peer_timeout(int fd);

}  // namespace lockstep::net
