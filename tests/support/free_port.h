// SPDX-License-Identifier: Apache-2.0
// Ports for tests that have to name one before anybody listens there.
#pragma once

#include <cstdint>

namespace lockstep::testing {

// A TCP port of 127.0.0.1 that nobody listens on, for this process as long as it lives: Linux gives it to nobody by
// itself, and no test beside it is given it. Any thread.
std::uint16_t free_port();

}  // namespace lockstep::testing
