// SPDX-License-Identifier: Apache-2.0
// Parts of a launcher on its host other than the job: console, signals, the log, the ranks' guardian.
#pragma once

#include <functional>
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

// Make it before the process has a second thread. Throws SystemError.
//
// The members are ordered by their dependencies, so that each ends before those that it uses: `metrics` asks `server`,
// whose thread reads the lines of `output`, which writes to `console`.
struct HostParts {
  HostParts();

  Console console;
  Signals signals;
  LifePipe life;
  Guardian guardian;  // forked before the secret exists, which it does not need
  LogRelay log;
  // Set from the first start of the ranks on, for all starts.
  std::optional<JobOutput> output = {};
  std::unique_ptr<RunServer> server = {};       // null if it could not be made
  std::unique_ptr<MetricsServer> metrics = {};  // asks `server`
};

// Makes a control. `facts` returns the facts that the job has about a running rank.
using MakeControl = std::function<std::unique_ptr<JobControl>(std::function<RankFacts(int rank)> facts)>;

// Prints hints before the ranks start for the first time.
void say_before_the_start(const RunOptions& options, const Preparation& preparation, const Environment& environment,
                          Console& console);

// The outcome of one start of the job's ranks, as JobControl reports it.
struct StartOutcome {
  int exit_code = 0;
  std::optional<std::chrono::milliseconds> again = {};
  std::optional<int> late_stop = {};  // a signal that asks the job to end, after `again` was decided
  bool is_hurried = false;            // a signal asked to end after the last rank had ended
};
// Starts the ranks, and returns once none of their processes runs any more. `store` is the job's, for a job on several
// hosts; the hosts use it to exchange their traces afterwards.
StartOutcome run_ranks(const RunOptions& options, const Preparation& preparation, JobOptions job_options,
                       const Environment& environment, HostParts& parts, const MakeControl& make_control,
                       store::Store* store = nullptr);

}  // namespace lockstep::launcher
