// SPDX-License-Identifier: Apache-2.0
// Where the output of a job goes on this host: --log-dir, --tee and --ranks. Main thread only.
#pragma once

#include <string>

#include "launcher/flags/rank_set.h"
#include "launcher/flags/tee.h"
#include "launcher/output/job_log.h"
#include "launcher/output/rank_output.h"
#include "launcher/output/recent_lines.h"

namespace lockstep::launcher {

struct OutputOptions {
  std::string log_dir = {};      // empty: no files
  Tee tee = {};                  // with files; without them all is shown
  RankSet shown = {};            // of these ranks only something is shown
  bool keep_last_lines = false;  // of each rank's stderr, where there is no file
  int hosts = 1;                 // of the job
  int generation = 0;            // to which this host has come
  int node_rank = 0;             // of this one among them then
};

class JobOutput {
 public:
  // Makes the job's log, with what the console says from now on and has said. `console` outlives it.
  // Throws SystemError.
  JobOutput(OutputOptions options, Console& console);
  ~JobOutput();
  JobOutput(const JobOutput&) = delete;
  JobOutput& operator=(const JobOutput&) = delete;

  // Where a stream of a rank goes, of which `fd` is the read end. Makes the generation's folder. Throws SystemError.
  RankOutput open(int rank, Stream stream, UniqueFd fd, int generation);
  // The job's log in memory.
  RecentLines& recent() { return recent_; }
  // "12 bytes of logs/job.log"; empty: the log has all.
  std::string describe_lost() const;

 private:
  bool is_shown(int rank, Stream stream) const;

  OutputOptions options_;
  Console& console_;
  RecentLines recent_;
  JobLog log_;
};

}  // namespace lockstep::launcher
