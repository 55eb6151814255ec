// SPDX-License-Identifier: Apache-2.0
// What a run's --log-dir says of its starts and ends: the verdicts, and the launcher's words in job.log.
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

// Empty of a folder that has neither. What is no JSON, or none of ours, is said in the verdict's place.
JobHistory read_history(const std::filesystem::path& folder);

}  // namespace lockstep::launcher
