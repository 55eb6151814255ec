// SPDX-License-Identifier: Apache-2.0
// `lockstep report`, and the timeline that `lockstep run --trace` leaves.
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
// folders one page, compare.html or the one that -o names. Says on stdout what it wrote. Returns 0, or 2 with a message
// on stderr if it can't.
int report_command(const ReportOptions& options);

// The folder that the ranks of a start write their traces to, which is made; empty: none is wanted. An absolute path,
// since ranks may go elsewhere. Throws SystemError, and InvalidArgument if --trace names a folder.
std::string make_trace_folder(const RunOptions& options, int generation);
// After the last start: --trace FILE, with a line on the console about it, or about why there is none. Node rank 0's
// has the ranks of all hosts that came with their traces to `store`, the job's (trace_exchange.h), within half a
// minute; where a host could not, it has a file of its own. `store` is null for a job on one host. A signal that asks
// to end ends the wait for other hosts, which is returned, and what has come by then is written.
std::optional<int> write_timeline(const RunOptions& options, const RankMap& hosts, int node_rank, store::Store* store,
                                  Console& console, Signals& signals);

}  // namespace lockstep::launcher
