// SPDX-License-Identifier: Apache-2.0
// Traces that the ranks of a run have left in a folder, and append to while it runs.
//
//   DIR/start1/rank2.trace   the trace of rank 2, from its init_process_group() to its end, however it ended
//
// DIR is --log-dir, or FILE.ranks of --trace FILE, or LOCKSTEP_TRACE_DIR, which has no folders of starts.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/placement/rank_map.h"
#include "runtime/trace/rank_trace.h"

namespace lockstep::launcher {

// A file in the folder of traces: start1/rank2.trace.
struct TraceFile {
  int start = 1;
  int rank = 0;

  bool operator==(const TraceFile&) const = default;
  std::string name() const;
  // Returns nullopt if the text is not the name of such a file.
  static std::optional<TraceFile> of_name(std::string_view text);
};

// The trace of one rank in one start of the job.
struct RunTrace {
  int start = 1;
  trace::RankTrace rank = {};
};

struct RunTraces {
  std::vector<RunTrace> traces = {};       // the traces of one run, by start, then rank
  std::vector<std::string> problems = {};  // reasons why files were skipped
};

// Reads the traces of the run that began last, if several runs have left theirs. `ranks` limits them to those ranks.
// Throws InvalidArgument if the folder does not exist, SystemError.
RunTraces read_traces(const std::filesystem::path& folder, const std::optional<HostSlots>& ranks = std::nullopt);

// Returns the folder to which the ranks of a run write: below --log-dir, else beside --trace FILE; empty if there is
// neither.
std::string trace_folder(const std::string& log_dir, const std::string& trace);

}  // namespace lockstep::launcher
