// SPDX-License-Identifier: Apache-2.0
// What a report of a run says, before it has a form. Pure, but for read_report().
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
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

struct RunReport {
  std::string run_id = {};
  int world_size = 0;
  std::vector<ReportedStart> starts = {};
  std::vector<ReportedBucket> buckets = {};
  std::uint64_t lost_events = 0;
  JobHistory history = {};
  std::vector<std::string> problems = {};

  std::size_t steps() const;  // of the rank that has the most, over all starts
};

RunReport report_of(const RunTraces& traces);
// InvalidArgument if `folder` is none or has no trace; SystemError.
RunReport read_report(const std::filesystem::path& folder);

// A line of JSON for the run, each start, each of its findings, each step of each rank.
std::string as_json_lines(const RunReport& report);
// One page that needs nothing else.
std::string as_page(const RunReport& report);

}  // namespace lockstep::launcher
