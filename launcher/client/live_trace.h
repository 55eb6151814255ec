// SPDX-License-Identifier: Apache-2.0
// `lockstep trace`: the timeline of a running job, or of a job that has left its traces.
#pragma once

#include <cstddef>
#include <vector>

#include "launcher/flags/command_line.h"
#include "launcher/live/run_client.h"
#include "launcher/observe/run_traces.h"

namespace lockstep::launcher {

// Writes the timeline and reports it on stdout. The traces are those in the run's --log-dir, else those in the memory
// of its ranks on this host. Throws Error.
void write_live_trace(const FoundRun& run, const RunsOptions& options);

// Writes the timeline of the traces that a run has left in the folder `options.run`, or in several hosts' folders that
// were merged into one: all hosts, by one clock. Throws Error.
void write_left_trace(const RunsOptions& options);

// Returns the trace of each rank of the last start from the beginning of the last `steps` steps that all ranks have
// finished; 0: the whole trace, of all starts. `traces` are ordered by start. Pure.
std::vector<RunTrace> last_steps(std::vector<RunTrace> traces, std::size_t steps);

}  // namespace lockstep::launcher
