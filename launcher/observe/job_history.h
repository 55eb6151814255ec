// SPDX-License-Identifier: Apache-2.0
// The starts and ends of a run, as its --log-dir has them: the verdicts, and the launcher's words in job.log.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::launcher {

struct HistoryLine {
  std::string time = {};  // UTC, as job.log has it; empty: not known
  std::string text = {};
};

struct JobHistory {
  std::vector<HistoryLine> verdicts = {};  // "start 1: finished; ...", by generation
  bool is_over = false;                    // the last start has a verdict
  bool has_failed = false;                 // which says so: neither finished nor stopped
  std::vector<HistoryLine> lines = {};     // of the launcher and about snapshots, the last kMost
  static constexpr std::size_t kMost = 200;
};

// Empty for a folder that has neither. A verdict that is not JSON, or not ours, is replaced by a line that says so.
JobHistory read_history(const std::filesystem::path& folder);

}  // namespace lockstep::launcher
