// SPDX-License-Identifier: Apache-2.0
#include "runtime/net/dead_peer_timeout.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>

#include "lockstep/base/error.h"

namespace lockstep::net {

void disable_dead_peer_timeout(int fd) {
  const int off = 0;
  if (::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &off, sizeof(off)) != 0) throw SystemError("tcp: SO_KEEPALIVE", errno);
  if (::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &off, sizeof(off)) != 0) {
    throw SystemError("tcp: TCP_USER_TIMEOUT", errno);
  }
}

}  // namespace lockstep::net
