// SPDX-License-Identifier: Apache-2.0
// `lockstep top`: what the ranks of a running job do, again and again.
#pragma once

#include <cstddef>
#include <string>

#include "launcher/flags/command_line.h"
#include "launcher/live/live_report.h"
#include "launcher/live/run_client.h"

namespace lockstep::launcher {

// Throws Error.
void show_top(const FoundRun& run, const RunsOptions& options);
// What the run's launcher on this host tells: of ranks only if it is node rank 0's. Throws Error.
LiveReport ask_launcher(const FoundRun& run);
// What the run's launcher tells of its ranks. Throws Error; where the store is another host's, that names the host's
// command.
LiveReport ask_for_report(const FoundRun& run);

struct Screen {
  std::size_t columns = 0;  // 0: no limit
  std::size_t rows = 0;
  bool has_colours = false;
  bool has_keys = false;    // someone can type, and is told so
  bool shows_keys = false;  // what they do, and what the columns mean
};
// Pure. A screen without room for all ranks shows those that are not training first, then the slowest. One without room
// for all columns leaves out the least needed; memory and pid stay.
std::string as_screen(const LiveReport& report, const Screen& screen);

}  // namespace lockstep::launcher
