// SPDX-License-Identifier: Apache-2.0
// Rows of text in columns, each as wide as its widest word. Pure.
#pragma once

#include <string>
#include <vector>

namespace lockstep::launcher {

// A line for each row, two blanks between columns; the last column is not filled up. All rows have as many words.
std::vector<std::string> in_columns(const std::vector<std::vector<std::string>>& rows);

}  // namespace lockstep::launcher
