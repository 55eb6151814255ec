// SPDX-License-Identifier: Apache-2.0
// Rows of text in columns, each as wide as its widest word. Pure.
#pragma once

#include <string>
#include <vector>

namespace lockstep::launcher {

// Returns a line for each row, with two blanks between columns and none behind the last. All rows have equally many
// words.
std::vector<std::string> in_columns(const std::vector<std::vector<std::string>>& rows);

}  // namespace lockstep::launcher
