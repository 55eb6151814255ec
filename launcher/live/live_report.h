// SPDX-License-Identifier: Apache-2.0
// The report on a running job that `lockstep top`, `lockstep inspect` and --metrics-port show, and that one launcher
// sends to another process as JSON. Pure.
#pragma once

#include <array>
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
  std::string state = {};        // training, starting, left, lost, silent, failed; "no group": not known to the store
  std::int64_t step = -1;        // -1: not known
  std::int64_t collectives = 0;  // number started
  std::string collective = {};   // the name of the last one started
  double unchanged_s = 0;        // for how long no heartbeat, which comes twice a second, has told of another one
  double resident_bytes = 0;
  std::optional<double> cpu_s = {};                  // CPU time of a rank in no group
  std::array<double, trace::kHeld> held_bytes = {};  // by trace::Held; 0: not known
  double steps = 0;  // finished since the rank's start; it, rows, waited_s and hidden_s only grow
  double rows = 0;   // rows of all ranks together
  double waited_s = 0;
  double hidden_s = 0;
  double step_s = 0;                // the mean of the last steps; 0: not known
  double rows_per_s = 0;            // rate of all ranks together
  std::vector<double> shares = {};  // shares of a step's time, by Phase; empty: not known
  std::optional<double> loss = {};
  std::optional<double> snapshot_age_s = {};
  std::optional<double> left_s = {};  // time until the end of the loop under progress()
  // use of its GPU, 0 to 1, for ranks on the host that asks (client/gpu_use.h)
  std::optional<double> gpu_use = {};
  std::optional<double> gpu_memory_bytes = {};  // for the same ranks as gpu_use
  double wrong_steps = 0;                       // steps with NaN or infinity in the rank's own gradients
  std::int64_t equal_in = -1;                   // a step in which the replicas were equal; -1: not known
  std::optional<trace::Finding> finding = {};   // the rank's first
};

struct LiveReport {
  RunFacts facts = {};
  std::vector<ReportedRank> ranks = {};
  // Scalars by name: each the mean of the newest values of the ranks that have logged it, whose steps may differ as
  // ranks' heartbeats do, and the newest step.
  std::vector<trace::Scalar> scalars = {};
  int straggler = -1;  // rank of the straggler; -1: none
  double straggler_share = 0;
  std::string straggler_text = {};
};

// Returns "812 all_reduce"; if it is 2 s old or older, ", none since 12.3 s" follows. Heartbeats can't tell younger
// ones.
std::string describe_collective(const ReportedRank& rank);

// Returns the finding of all ranks that came first, by step; nullopt if there is none.
std::optional<trace::Finding> first_finding(const LiveReport& report);

LiveReport live_report(const RunFacts& facts, const LiveRun& run);

// Returns one JSON object, whose format users' programs may rely on.
std::string as_json(const LiveReport& report);
// Returns nullopt if the text was not made by as_json(). The texts in the result are printable.
std::optional<LiveReport> read_live_report(std::string_view text);

}  // namespace lockstep::launcher
