// SPDX-License-Identifier: Apache-2.0
// The parts of a launcher on its host beside the job: console, signals, the log, the ranks' guardian.
#pragma once

#include <memory>
#include <optional>

#include "launcher/base/signals.h"
#include "launcher/live/metrics_server.h"
#include "launcher/live/run_server.h"
#include "launcher/output/console.h"
#include "launcher/output/job_output.h"
#include "launcher/output/log_relay.h"
#include "launcher/placement/preparation.h"
#include "launcher/process/guardian.h"
#include "launcher/process/life_pipe.h"
#include "launcher/run/job.h"
#include "lockstep/store/store.h"

namespace lockstep::launcher {

// Made before the process has a second thread. Throws SystemError.
//
// The order of the members is the order in which they need each other, so that each ends before what it uses: `metrics`
// asks `server`, whose thread reads the lines of `output`, which writes to `console`.
struct HostParts {
  HostParts();

  Console console;
  Signals signals;
  LifePipe life;
  Guardian guardian;  // forked before there is a secret: it need not have it
  LogRelay log;
  // From the first start of the ranks on, through all of them.
  std::optional<JobOutput> output = {};
  std::unique_ptr<RunServer> server = {};       // nothing if none could be made
  std::unique_ptr<MetricsServer> metrics = {};  // asks `server`
};

// A control for `facts`: what the job knows of a rank that has not ended.
using MakeControl = std::function<std::unique_ptr<JobControl>(std::function<RankFacts(int rank)> facts)>;

// Says what the user ought to know before the ranks start for the first time.
void say_before_the_start(const RunOptions& options, const Preparation& preparation, const Environment& environment,
                          Console& console);

// How one start of the job's ranks has ended, as JobControl has it.
struct StartOutcome {
  int exit_code = 0;
  std::optional<std::chrono::milliseconds> again = {};
  bool is_hurried = false;  // a signal asked to end when no rank ran any more
};
// Starts the ranks, and returns once nothing of them runs any more. `store`: the job's, if it is on several hosts; for
// what they tell each other when it is over.
StartOutcome run_ranks(const RunOptions& options, const Preparation& preparation, JobOptions job_options,
                       const Environment& environment, HostParts& parts, const MakeControl& make_control,
                       store::Store* store = nullptr);

}  // namespace lockstep::launcher
