// SPDX-License-Identifier: Apache-2.0
// Where --log-dir DIR has what. Pure.
//
//   DIR/generation0/rank2.out   what rank 2 wrote to its stdout, byte by byte; rank2.err: to its stderr
//   DIR/job.log                 every line of the host's ranks and launcher, by time; of several hosts job.node1.log,
//                               and of one that has come to a later generation job.generation3.node1.log
//   DIR/verdict.json            how the last generation ended, on node rank 0's host; each has one in its folder too
//
// A generation is the job's ranks between two restarts, from 0. Generation 0 has a folder of its own too, so that a
// path means the same whether the job is restarted or not.
#pragma once

#include <string>
#include <string_view>

#include "launcher/output/stream.h"

namespace lockstep::launcher {

std::string log_folder(const std::string& log_dir, int generation);
std::string rank_log(const std::string& log_dir, int generation, int rank, Stream stream);
// Hosts may share the folder, so each of several has a file of its own, by the generation that it has come to and its
// node rank in that one: later it may have the number of a host that has gone, whose file stays.
std::string job_log(const std::string& log_dir, int hosts, int generation, int node_rank);
// A file's name, without its folder.
bool is_job_log(std::string_view file);
// `folder`: of the logs, or of a generation.
std::string verdict_file(const std::string& folder);

// "rank2.err".
std::string rank_label(int rank, Stream stream);

}  // namespace lockstep::launcher
