// SPDX-License-Identifier: Apache-2.0
// `lockstep run` as these tests type it. LOCKSTEP_PROGRAM and PLAIN_PROGRAM come from the build.
#pragma once

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/process.h"

namespace lockstep::e2e {

using testing::Process;
using testing::ProcessOptions;
using testing::Result;
using testing::Variables;

using Words = std::vector<std::string>;

inline Words joined(Words first, const Words& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// "lockstep run FLAGS -- PROGRAM ACTIONS".
inline Words run_command(const Words& flags, const std::string& program, const Words& actions) {
  return joined(joined(joined({LOCKSTEP_PROGRAM, "run"}, flags), {"--", program}), actions);
}

// `ranks` ranks of the plain program.
inline Words plain(int ranks, const Words& actions, const Words& flags = {}) {
  return run_command(joined({"-n", std::to_string(ranks)}, flags), PLAIN_PROGRAM, actions);
}

inline bool contains(const std::string& text, const std::string& wanted) {
  return text.find(wanted) != std::string::npos;
}

// Returns the bytes of a file; empty if the file does not exist.
inline std::string content(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::string line;
  for (const char c : text) {
    if (c == '\n') {
      lines.push_back(std::exchange(line, {}));
    } else {
      line += c;
    }
  }
  if (!line.empty()) lines.push_back(line);
  return lines;
}

// Returns the last error that this rank printed, from the library or from main(); empty if it printed none.
inline std::string last_word_of_rank(const Result& result, int rank) {
  const std::string mark = "[rank " + std::to_string(rank) + "] ";
  for (const auto& line : lines_of(result.err)) {
    if (line.starts_with(mark + "[lockstep] fatal: ") || line.starts_with(mark + "main caught: ")) return line;
  }
  return {};
}

}  // namespace lockstep::e2e
