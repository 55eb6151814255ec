// SPDX-License-Identifier: Apache-2.0
// JSON of files from elsewhere, which may say little: few levels, and no key twice (a parser that keeps the last one,
// and another that keeps the first, would read different weights from the same file).
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace lockstep::checkpoint {

// Bytes that a message quotes of a text from a file, at most.
inline constexpr std::size_t kMostShown = 200;

// Throws CorruptData ("`what` is not JSON: ..."), also for a text that is nested deeper than `most_depth`.
nlohmann::json parse_json(std::string_view text, std::string_view what, int most_depth = 3);

}  // namespace lockstep::checkpoint
