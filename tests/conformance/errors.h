// SPDX-License-Identifier: Apache-2.0
// What the tests of failures share.
#pragma once

#include <span>
#include <vector>

#include "lockstep/device/buffer_view.h"
#include "tests/support/error_of.h"

namespace lockstep::testing {

inline BufferView view(std::vector<float>& values) { return BufferView(std::span(values)); }

}  // namespace lockstep::testing
