// SPDX-License-Identifier: Apache-2.0
// The ranks' traces as one file in Chrome's Trace Event Format, which Perfetto and chrome://tracing show. Pure.
//
// https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
//
// A process of it is a rank. Its lanes: compute, communication (more than one where buckets are on their way together),
// waiting, data, and one for each thread that has spans of the program's own. Times are microseconds from the first
// event. Ranks of one host have one clock; those of several are put together by their buckets (host_clocks.h), and how
// well is in the file.
#pragma once

#include <string>
#include <vector>

#include "launcher/observe/run_traces.h"

namespace lockstep::launcher {

// The text of the file: JSON, an event a line.
std::string timeline_of(const std::vector<RunTrace>& traces);

// "run.json"; of several hosts, each of which has its own ranks', "run.node1.json".
std::string timeline_file(const std::string& trace, std::size_t hosts, int node_rank);

}  // namespace lockstep::launcher
