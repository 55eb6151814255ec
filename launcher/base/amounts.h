// SPDX-License-Identifier: Apache-2.0
// Amounts as people read them. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::launcher {

// Returns "1 rank", "3 ranks".
std::string count_of(std::int64_t count, std::string_view noun, std::string_view plural_ending = "s");

}  // namespace lockstep::launcher
