// SPDX-License-Identifier: Apache-2.0
// `lockstep report`, and the timeline of `lockstep run --trace`.
#pragma once

#include <optional>
#include <string>

#include "launcher/base/signals.h"
#include "launcher/flags/command_line.h"
#include "launcher/output/console.h"
#include "launcher/placement/rank_map.h"
#include "lockstep/store/store.h"

namespace lockstep::launcher {

// Writes for one folder DIR/report.html (or the page that -o names), DIR/report.jsonl and DIR/tensorboard; for several
// folders one page, compare.html or the one that -o names. Lists the files on stdout. Returns 0, or 2 with a message on
// stderr if it can't write them.
int report_command(const ReportOptions& options);

// Makes the folder to which the ranks of a start write their traces, and returns its absolute path, since ranks may
// change their working directory; empty: no traces are wanted. Throws SystemError, and InvalidArgument if --trace names
// a folder.
std::string make_trace_folder(const RunOptions& options, int start);
// Writes the file of --trace after the last start, and reports on the console that it did, or why not. Node rank 0's
// file has the ranks of all hosts that sent their traces to `store`, the job's (trace_exchange.h), within half a
// minute; a host that could not writes its own file. `store` is null for a job on one host. A signal that asks to end
// ends the wait for other hosts, and is returned; the traces that have arrived by then are written.
std::optional<int> write_timeline(const RunOptions& options, const RankMap& hosts, int node_rank, store::Store* store,
                                  Console& console, Signals& signals);

}  // namespace lockstep::launcher
