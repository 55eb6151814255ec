// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string_view>

namespace lockstep {

// Seconds as people write them, "90" or "0.5", above 0 and at most ten years. InvalidArgument names `what`.
std::chrono::nanoseconds parse_timeout(std::string_view text, std::string_view what);

}  // namespace lockstep
