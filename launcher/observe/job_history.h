// SPDX-License-Identifier: Apache-2.0
// The starts and ends of a run, from its --log-dir: the verdicts, and the launcher's messages in job.log.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launcher {

struct HistoryLine {
  std::string time = {};  // UTC, as in job.log; empty: not known
  std::string text = {};
};

struct JobHistory {
  std::vector<HistoryLine> verdicts = {};  // "start 1: finished; ...", by start
  bool is_over = false;                    // the last start has a verdict, and no other follows
  bool has_failed = false;                 // the last verdict is neither finished nor stopped
  std::string outcome = {};                // of the last verdict, if it is over: "finished", "host lost", ...
  std::string summary = {};                // and its sentence
  std::vector<HistoryLine> lines = {};     // the last kMost messages of the launcher and about snapshots
  static constexpr std::size_t kMost = 200;
};

// Returns an empty history for a folder with neither. A verdict that is not JSON, or not lockstep's, is replaced by a
// line that says so; one of another `run_id`, an earlier run's in the same folder, is left out.
JobHistory read_history(const std::filesystem::path& folder, std::string_view run_id);

}  // namespace lockstep::launcher
