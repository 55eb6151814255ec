// SPDX-License-Identifier: Apache-2.0
// Waiting for a condition of another process that no descriptor tells of.
#pragma once

#include <poll.h>

#include <chrono>
#include <functional>

#include "lockstep/base/deadline.h"

namespace lockstep::testing {

// The hard limit of a wait in a test: far above what it takes, so that only a hang meets it.
inline constexpr std::chrono::seconds kPatience{100};

// Asks until `condition` holds; false if the deadline passed first.
inline bool wait_until(const std::function<bool()>& condition, const Deadline& deadline = Deadline::after(kPatience)) {
  while (!condition()) {
    if (deadline.expired()) return false;
    poll(nullptr, 0, 2);
  }
  return true;
}

}  // namespace lockstep::testing
