// SPDX-License-Identifier: Apache-2.0
// A running job as `lockstep top`, `lockstep inspect` and --metrics-port tell of it, and as one launcher tells another
// process: JSON. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/live/run_socket.h"
#include "launcher/observe/live_run.h"
#include "runtime/trace/finding.h"
#include "runtime/trace/rank_totals.h"

namespace lockstep::launcher {

struct ReportedRank {
  int rank = 0;
  std::string host = {};
  int pid = 0;
  std::string state = {};        // training, starting, left, lost, silent, failed
  std::int64_t step = -1;        // -1: not known
  std::int64_t collectives = 0;  // started
  std::string collective = {};   // the last of them
  double unchanged_s = 0;        // since it started one
  double resident_bytes = 0;
  double steps = 0;  // ended since its start; these are what grows
  double rows = 0;   // of all ranks
  double waited_s = 0;
  double hidden_s = 0;
  double step_s = 0;                // the mean of the last steps; 0: not known
  double rows_per_s = 0;            // of all ranks
  std::vector<double> shares = {};  // of a step's time, by Phase; empty: not known
  std::optional<double> loss = {};
  std::optional<double> snapshot_age_s = {};
  std::optional<double> left_s = {};            // until the end of the loop under progress()
  std::optional<double> gpu_use = {};           // of its GPU, 0 to 1: of ranks on the host that asks (gpu_use.h)
  std::optional<double> gpu_memory_bytes = {};  // as gpu_use
  double wrong_steps = 0;                       // with NaN or infinity in its own gradients
  std::int64_t equal_in = -1;                   // a step in which the replicas were equal; -1: not known
  std::optional<trace::Finding> finding = {};   // its first
};

struct LiveReport {
  RunFacts facts = {};
  std::vector<ReportedRank> ranks = {};
  // By name: the mean of the newest value of each rank that has logged one, whose steps may differ as ranks' heartbeats
  // do; with the newest step.
  std::vector<trace::Scalar> scalars = {};
  int straggler = -1;  // its rank
  double straggler_share = 0;
  std::string straggler_text = {};
};

// The one of all ranks that came first, step by step; nothing if there is none.
std::optional<trace::Finding> first_finding(const LiveReport& report);

LiveReport live_report(const RunFacts& facts, const LiveRun& run);

// One object, for people's programs too.
std::string as_json(const LiveReport& report);
// nullopt if the text is not one of as_json(). Texts in it may be printed.
std::optional<LiveReport> read_live_report(std::string_view text);

}  // namespace lockstep::launcher
