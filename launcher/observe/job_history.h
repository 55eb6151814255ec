// SPDX-License-Identifier: Apache-2.0
// The starts and ends of a run, from its --log-dir: the verdicts, and the launcher's messages in job.log.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::launcher {

struct HistoryLine {
  std::string time = {};  // UTC, as in job.log; empty: not known
  std::string text = {};
};

struct JobHistory {
  std::vector<HistoryLine> verdicts = {};  // "start 1: finished; ...", by generation
  bool is_over = false;                    // the last start has a verdict
  bool has_failed = false;                 // the last verdict is neither finished nor stopped
  std::vector<HistoryLine> lines = {};     // the last kMost messages of the launcher and about snapshots
  static constexpr std::size_t kMost = 200;
};

// Returns an empty history for a folder with neither. A verdict that is not JSON, or not lockstep's, is replaced by a
// line that says so.
JobHistory read_history(const std::filesystem::path& folder);

}  // namespace lockstep::launcher
