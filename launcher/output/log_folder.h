// SPDX-License-Identifier: Apache-2.0
// The layout of the --log-dir folder DIR. Pure.
//
//   DIR/start1/rank2.out   the stdout of rank 2, byte by byte; rank2.err has its stderr
//   DIR/job.log                 every line of the host's ranks and launcher, by time; in a job on several hosts
//                               job.node1.log, and for a host that joined later job.start4.node1.log
//   DIR/verdict.json            the end of the last start, on node rank 0's host; each start's folder has one
//
// A start is the job's ranks between two restarts, counted from 1. Start 1 has its own folder too, so that a
// path has the same meaning whether the job is restarted or not.
#pragma once

#include <string>
#include <string_view>

#include "launcher/output/stream.h"

namespace lockstep::launcher {

std::string log_folder(const std::string& log_dir, int start);
std::string rank_log(const std::string& log_dir, int start, int rank, Stream stream);
// Hosts may share the folder, so each of several hosts has its own file, named by the start in which it joined and
// its node rank in it: later it may get the number of a host that is gone, whose file stays.
std::string job_log(const std::string& log_dir, int hosts, int start, int node_rank);
// `file` is a file's name, without its folder.
bool is_job_log(std::string_view file);
// `folder` is that of the logs, or of a start.
std::string verdict_file(const std::string& folder);

// Returns "rank2.err".
std::string rank_label(int rank, Stream stream);

}  // namespace lockstep::launcher
