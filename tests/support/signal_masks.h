// SPDX-License-Identifier: Apache-2.0
// Which signals the threads of this process let through: read from /proc, so of threads that nobody has a handle of.
#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

namespace lockstep::testing {

// By thread id: the blocked signals as /proc has them, signal N as bit N - 1.
inline std::map<std::string, unsigned long long> blocked_signals_of_threads() {
  std::map<std::string, unsigned long long> masks;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("SigBlk:")) masks[task.path().filename()] = std::stoull(line.substr(7), nullptr, 16);
    }
  }
  return masks;
}

// How many threads there are that were not in `before` and let `signal` through.
inline int new_threads_that_take(int signal, const std::map<std::string, unsigned long long>& before) {
  int count = 0;
  for (const auto& [thread, mask] : blocked_signals_of_threads()) {
    if (!before.contains(thread) && (mask >> (signal - 1) & 1) == 0) ++count;
  }
  return count;
}

}  // namespace lockstep::testing
