// SPDX-License-Identifier: Apache-2.0
// `lockstep trace`: the timeline of a job that is running, or of what one has left.
#pragma once

#include <cstddef>
#include <vector>

#include "launcher/flags/command_line.h"
#include "launcher/live/run_client.h"
#include "launcher/observe/run_traces.h"

namespace lockstep::launcher {

// Writes it and says so on stdout. The traces are those in the run's --log-dir, else those in the memory of its ranks
// on this host. Throws Error.
void write_live_trace(const FoundRun& run, const RunsOptions& options);

// The same of the traces that a run has left in the folder `options.run`, or in several hosts' folders that were put
// into one: of all hosts, by one clock. Throws Error.
void write_left_trace(const RunsOptions& options);

// What each rank of the last start did from the begin of the last `steps` steps that all of them have ended; 0: all, of
// all starts. Traces come by generation. Pure.
std::vector<RunTrace> last_steps(std::vector<RunTrace> traces, std::size_t steps);

}  // namespace lockstep::launcher
