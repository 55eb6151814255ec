// SPDX-License-Identifier: Apache-2.0
// What a program says to command lines that it refuses, as a page of tests/messages/examples.txt.
#pragma once

#include <gtest/gtest.h>

#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/process.h"

namespace lockstep::testing {

// Runs `program` with each of these flags. Lines of a log, which tell of the machine, and CLI11's words for a range,
// which its versions change, are left out.
inline std::string refusals(const std::vector<std::string>& program,
                            const std::vector<std::vector<std::string>>& cases) {
  static const std::regex ranges("Value \\S+ not in range.*");
  std::string page;
  for (const auto& flags : cases) {
    std::vector<std::string> command = program;
    command.insert(command.end(), flags.begin(), flags.end());
    const Result result = run(command);
    EXPECT_NE(result.exit_code, 0) << result.err;
    EXPECT_NE(result.exit_code, -1) << result.err;
    page += "$";
    for (const std::string& flag : flags) page += " " + flag;
    std::istringstream said(result.out + result.err);
    for (std::string line; std::getline(said, line);) {
      if (line.starts_with("[lockstep]") || line.starts_with("tiny: ") || line.starts_with("Run with")) continue;
      page += "\n" + std::regex_replace(line, ranges, "not in range");
    }
    page += "\n";
  }
  return page;
}

}  // namespace lockstep::testing
