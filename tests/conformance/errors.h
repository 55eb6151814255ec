// SPDX-License-Identifier: Apache-2.0
// What the tests of failures share.
#pragma once

#include <span>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/device/buffer_view.h"
#include "tests/support/error_of.h"

namespace lockstep::testing {

inline BufferView view(std::vector<float>& values) { return BufferView(std::span(values)); }

// The first may be under way, or done, when the group fails; nobody passes the second.
inline void two_barriers(ProcessGroup& group) {
  group.barrier().wait();
  group.barrier().wait();
}

}  // namespace lockstep::testing
