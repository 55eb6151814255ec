// SPDX-License-Identifier: Apache-2.0
// The line of a source that stacks are to name.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace lockstep::testing {

// "plain_actions.cc:127": the first line of a file of tests/ with `text` in it, or so many lines behind it.
inline std::string source_line(const std::string& file, std::string_view text, int behind = 0) {
  // A compiler cache may have made the path of this file relative: then it is below some folder above.
  auto path = std::filesystem::path(__FILE__).parent_path().parent_path() / file;
  for (auto root = std::filesystem::current_path(); path.is_relative() && root.has_relative_path();
       root = root.parent_path()) {
    if (exists(root / "tests" / file)) path = root / "tests" / file;
  }
  std::ifstream in(path);
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.find(text) != line.npos) return path.filename().string() + ":" + std::to_string(number + behind);
  }
  ADD_FAILURE() << path << " has no line with '" << text << "'";
  return {};
}

// Of the rank program, where a rank hangs in its own code.
inline std::string line_of_hang() { return source_line("e2e/programs/plain_actions.cc", "name == \"hang\"", 1); }

}  // namespace lockstep::testing
