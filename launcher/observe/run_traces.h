// SPDX-License-Identifier: Apache-2.0
// The traces that the ranks of a run have left in a folder, and still write to while it runs.
//
//   DIR/generation0/rank2.trace   of rank 2, from its init_process_group() to its end, however it ended
//
// DIR is --log-dir, or FILE.ranks of --trace FILE, or what LOCKSTEP_TRACE_DIR said: then without the generations.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "launcher/placement/rank_map.h"
#include "runtime/trace/rank_trace.h"

namespace lockstep::launcher {

// The trace of one rank, in one start of the job.
struct RunTrace {
  int generation = 0;
  trace::RankTrace rank = {};
};

struct RunTraces {
  std::vector<RunTrace> traces = {};       // by generation, then rank; of one run
  std::vector<std::string> problems = {};  // why a file was passed over
};

// Reads the traces of the run that began last, if several have left theirs. `ranks`: only those. InvalidArgument if
// there is no such folder, SystemError.
RunTraces read_traces(const std::filesystem::path& folder, const std::optional<HostSlots>& ranks = std::nullopt);

// Where the ranks of a run write: below --log-dir, else beside --trace FILE, else nowhere (empty).
std::string trace_folder(const std::string& log_dir, const std::string& trace);

}  // namespace lockstep::launcher
