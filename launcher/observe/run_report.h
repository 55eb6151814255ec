// SPDX-License-Identifier: Apache-2.0
// The content of a report on a run, independent of its format. Pure, except for read_report().
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/observe/job_history.h"
#include "launcher/observe/run_traces.h"
#include "launcher/observe/step_table.h"

namespace lockstep::launcher {

// The steps of one start of the job.
struct ReportedStart {
  int number = 1;                     // from 1
  std::vector<RankTable> ranks = {};  // by rank
  std::optional<Straggler> straggler = {};
  std::vector<trace::Finding> findings = {};  // by step, then rank, without duplicates
  // Finished steps over all starts when this start began, and when it ended; for a start without steps, the largest
  // number and 0.
  std::int64_t resumed = std::numeric_limits<std::int64_t>::max();
  std::int64_t done = 0;
  // Finished steps when a later start took over and ran the later steps again.
  std::int64_t until = std::numeric_limits<std::int64_t>::max();
};

// A bucket in the layout of the last step, over all steps with as many buckets; times are medians over steps and ranks,
// in ns.
struct ReportedBucket {
  std::int64_t bytes = 0;
  std::int64_t under_way = 0;  // from its launch to its end
  // Time from the launch on the last rank of a host to the end on that host: the communication itself.
  std::int64_t moving = 0;
  double bus_bandwidth = 0;  // bytes/s: 2 (n - 1) / n of the bytes over `moving`, as nccl-tests defines it; 0: one rank
};

// The value of one name in one step.
struct ReportedScalar {
  double value = 0;       // the mean over the ranks that logged it
  int ranks = 0;          // number of ranks that logged it
  std::int64_t time = 0;  // ns of the wall clock at the first of them
};
// Scalars by number of finished steps. A start that repeats steps replaces all values of earlier starts from its first
// step on.
using ScalarCurve = std::map<std::int64_t, ReportedScalar>;

// A run in a few numbers.
struct RunTotals {
  std::int64_t steps = 0;    // finished steps, over all starts
  double samples_per_s = 0;  // the mean over the traced steps; 0: not known
  // Losses with their steps: the last loss, finite or not, and the least finite one.
  std::optional<std::pair<std::int64_t, double>> final_loss = {};
  std::optional<std::pair<std::int64_t, double>> best_loss = {};
};

struct RunReport {
  std::string run_id = {};
  std::string command = {};  // the command of rank 0, or of the lowest rank that has a trace
  int world_size = 0;
  std::vector<std::string> hosts = {};  // in the order of their ranks
  std::int64_t began = 0;               // ns of the wall clock: start of the first trace
  std::int64_t ended = 0;               // ns of the wall clock: end of the last step or span
  std::vector<ReportedStart> starts = {};
  std::vector<ReportedBucket> buckets = {};
  // Scalars by name, including "loss" of the global batch, and the first rank's "step ms" and "samples per second", of
  // all ranks.
  std::map<std::string, ScalarCurve> scalars = {};
  std::uint64_t lost_events = 0;
  JobHistory history = {};
  std::vector<std::string> problems = {};

  std::size_t steps() const;  // number of traced steps of the rank that has the most, over all starts
  RunTotals totals() const;
};

RunReport report_of(const RunTraces& traces);
// Throws InvalidArgument if `folder` is not a folder or has no trace; SystemError.
RunReport read_report(const std::filesystem::path& folder);

// Returns a line of JSON for the run, each start, each of its findings, each step of each rank; then each scalar.
std::string as_json_lines(const RunReport& report);
// Returns one self-contained page.
std::string as_page(const RunReport& report);
// Returns one page for several runs, with a table of their totals, and a chart for each name with a line for each run.
using NamedReport = std::pair<std::string, RunReport>;
std::string as_page(const std::vector<NamedReport>& runs);

}  // namespace lockstep::launcher
