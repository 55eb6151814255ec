// SPDX-License-Identifier: Apache-2.0
#include "runtime/net/tcp_liveness.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "lockstep/base/error.h"

namespace lockstep::net {
void end_when_host_is_silent(int fd, std::chrono::seconds limit) {
  constexpr int kProbes = 4;
  const int seconds = std::max(2, static_cast<int>(limit.count()));
  const int idle = std::max(1, seconds / 2);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE");
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, idle, "TCP_KEEPIDLE");
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, std::max(1, (seconds - idle) / kProbes), "TCP_KEEPINTVL");
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, kProbes, "TCP_KEEPCNT");
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, seconds * 1000, "TCP_USER_TIMEOUT");
}

bool all_is_acknowledged(int fd) {
  int bytes = 0;
  if (::ioctl(fd, SIOCOUTQ, &bytes) != 0) throw SystemError("ioctl(SIOCOUTQ)", errno);
  return bytes == 0;
}

void disable_dead_peer_timeout(int fd) {
  const int off = 0;
  if (::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &off, sizeof(off)) != 0) throw SystemError("tcp: SO_KEEPALIVE", errno);
  if (::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &off, sizeof(off)) != 0) {
    throw SystemError("tcp: TCP_USER_TIMEOUT", errno);
  }
}

}  // namespace lockstep::net
