// SPDX-License-Identifier: Apache-2.0
// A server of one connection, as tests play one.
#pragma once

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "runtime/base/unique_fd.h"
#include "runtime/net/stream.h"
#include "runtime/net/tcp_socket.h"

namespace lockstep::testing {

// Accepts one connection at a listener of net::tcp_listen(). Timeout if nobody connects.
inline UniqueFd accept_one(int listener, const Deadline& deadline) {
  for (;;) {
    if (UniqueFd fd = net::tcp_try_accept(listener)) return fd;
    if (!net::wait_readable(listener, deadline)) throw Timeout("accept: nobody connected, " + deadline.progress());
  }
}

}  // namespace lockstep::testing
