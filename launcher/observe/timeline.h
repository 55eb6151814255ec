// SPDX-License-Identifier: Apache-2.0
// One file of the ranks' traces in Chrome's Trace Event Format, which Perfetto and chrome://tracing show. Pure.
//
// https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
//
// Each process in the file is a rank. Its lanes: compute, communication (more than one if buckets overlap), waiting,
// data, and one for each thread that has spans of the program's own. Times are microseconds from the first event. Ranks
// of one host have one clock; the clocks of several hosts are aligned by their buckets (host_clocks.h), and the file
// states the remaining error.
#pragma once

#include <string>
#include <vector>

#include "launcher/observe/run_traces.h"

namespace lockstep::launcher {

// Returns the text of the file: JSON, with one event per line.
std::string timeline_of(const std::vector<RunTrace>& traces);

// Returns "run.json"; for several hosts that each write their own ranks, "run.node1.json".
std::string timeline_file(const std::string& trace, std::size_t hosts, int node_rank);

}  // namespace lockstep::launcher
