// SPDX-License-Identifier: Apache-2.0
// JSON of files from elsewhere, which may say little: three levels, and no key twice (a parser that keeps the last one,
// and another that keeps the first, would read different weights from the same file).
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace lockstep::checkpoint {

// What is quoted of a text from a file.
inline constexpr std::size_t kMostShown = 200;

// Throws CorruptData: "`what` is no JSON: ...".
nlohmann::json parse_json(std::string_view text, std::string_view what);

}  // namespace lockstep::checkpoint
