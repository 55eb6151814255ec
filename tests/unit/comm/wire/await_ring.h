// SPDX-License-Identifier: Apache-2.0
// The sleep of a doorbell's owner that waits for nothing else.
#pragma once

#include "lockstep/base/deadline.h"
#include "runtime/comm/wire/doorbell.h"
#include "runtime/net/stream.h"

namespace lockstep::wire {

// Blocks until `bell` has been rung since it was last heard, or until the deadline.
inline void await_ring(Doorbell& bell, const Deadline& deadline) {
  while (!bell.hear() && !deadline.expired()) {
    bell.sleep_unless_rung([&] { net::wait_readable(bell.file(), deadline); });
  }
}

}  // namespace lockstep::wire
