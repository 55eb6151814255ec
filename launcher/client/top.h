// SPDX-License-Identifier: Apache-2.0
// `lockstep top`: the state of each rank of a running job, refreshed repeatedly.
#pragma once

#include <cstddef>
#include <string>

#include "launcher/flags/command_line.h"
#include "launcher/live/live_report.h"
#include "launcher/live/run_client.h"

namespace lockstep::launcher {

// Throws Error.
void show_top(const FoundRun& run, const RunsOptions& options);
// Returns the report of the run's launcher on this host. It lists ranks only if the launcher has node rank 0. Throws
// Error.
LiveReport ask_launcher(const FoundRun& run);
// Returns the report of the run's launcher, with its ranks. Throws Error; if the store is on another host, the error
// names the command to run there.
LiveReport ask_for_report(const FoundRun& run);
// Adds the ranks of this host that have not registered with the launcher: those of a program without lockstep, and
// those that have not come to its init_process_group. CPU time and memory are those of all their processes.
void add_ranks_in_no_group(LiveReport& report);

struct Screen {
  std::size_t columns = 0;  // 0: no limit
  std::size_t rows = 0;
  bool has_colours = false;
  bool has_keys = false;    // a user can type, and the screen says so
  bool shows_keys = false;  // the screen explains the keys and the columns
};
// Returns the screen's text. A screen without room for all ranks shows those that are not training first, then the
// slowest. A screen without room for all columns leaves out the least needed; memory and pid stay. Pure.
std::string as_screen(const LiveReport& report, const Screen& screen);

}  // namespace lockstep::launcher
