// SPDX-License-Identifier: Apache-2.0
// What a report of a run says, before it has a form. Pure, but for read_report().
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
  int generation = 0;
  std::vector<RankTable> ranks = {};  // by rank
  std::optional<Straggler> straggler = {};
  std::vector<trace::Finding> findings = {};  // by step, then rank; each once
  // Steps done, of all starts, when its own began and when they ended; 0 steps: the largest number, and 0.
  std::int64_t resumed = std::numeric_limits<std::int64_t>::max();
  std::int64_t done = 0;
  // Steps done until a later start took over, which has run those behind it again.
  std::int64_t until = std::numeric_limits<std::int64_t>::max();
};

// A bucket of the plan that the last step had, over all steps with as many buckets; times are medians over steps and
// ranks, in ns.
struct ReportedBucket {
  std::int64_t bytes = 0;
  std::int64_t under_way = 0;  // from its launch to its end
  // From the launch on the last rank of a host to its end there: what the communication itself took.
  std::int64_t moving = 0;
  double bus_bandwidth = 0;  // bytes/s: 2 (n - 1) / n of the bytes over `moving`, as nccl-tests has it; 0: one rank
};

// The value of one name in one step.
struct ReportedScalar {
  double value = 0;       // the mean over the ranks that logged it
  int ranks = 0;          // how many did
  std::int64_t time = 0;  // ns of the wall clock, of the first of them
};
// By the number of steps done. A start that runs steps again replaces all that earlier ones have behind its first one.
using ScalarCurve = std::map<std::int64_t, ReportedScalar>;

// A run in a few numbers.
struct RunTotals {
  std::int64_t steps = 0;    // done, over all starts
  double samples_per_s = 0;  // the mean over the steps that the traces have; 0: not known
  // Losses with their steps: the last one, finite or not, and the least finite one.
  std::optional<std::pair<std::int64_t, double>> final_loss = {};
  std::optional<std::pair<std::int64_t, double>> best_loss = {};
};

struct RunReport {
  std::string run_id = {};
  std::string command = {};  // of rank 0, or the first rank that is here
  int world_size = 0;
  std::vector<std::string> hosts = {};  // in the order of their ranks
  std::int64_t began = 0;               // ns of the wall clock: the first trace
  std::int64_t ended = 0;               // the last step or span
  std::vector<ReportedStart> starts = {};
  std::vector<ReportedBucket> buckets = {};
  // Also "loss", of the global batch, and the first rank's "step ms" and "samples per second", of all ranks.
  std::map<std::string, ScalarCurve> scalars = {};
  std::uint64_t lost_events = 0;
  JobHistory history = {};
  std::vector<std::string> problems = {};

  std::size_t steps() const;  // that the traces have, of the rank that has the most, over all starts
  RunTotals totals() const;
};

RunReport report_of(const RunTraces& traces);
// InvalidArgument if `folder` is not a folder or has no trace; SystemError.
RunReport read_report(const std::filesystem::path& folder);

// A line of JSON for the run, each start, each of its findings, each step of each rank; then each scalar.
std::string as_json_lines(const RunReport& report);
// One page that needs nothing else.
std::string as_page(const RunReport& report);
// Several runs on one page: a table of their totals, and a chart for each name with a line for each run.
using NamedReport = std::pair<std::string, RunReport>;
std::string as_page(const std::vector<NamedReport>& runs);

}  // namespace lockstep::launcher
