// SPDX-License-Identifier: Apache-2.0
// The destinations of a job's output on this host, from --log-dir, --tee and --ranks. Main thread only.
#pragma once

#include <string>

#include "launcher/flags/flag_values.h"
#include "launcher/output/job_log.h"
#include "launcher/output/rank_output.h"
#include "launcher/output/recent_lines.h"
#include "runtime/base/unique_fd.h"

namespace lockstep::launcher {

struct OutputOptions {
  std::string log_dir = {};      // empty: no files
  Tee tee = {};                  // streams shown besides their files; without files both are shown
  RankSet shown = {};            // ranks whose output is shown
  bool keep_last_lines = false;  // keeps the last lines of each rank's stderr that has no file
  int hosts = 1;                 // number of the job's hosts
  int start = 1;                 // the start in which this host joined
  int node_rank = 0;             // node rank of this host in that start
};

class JobOutput {
 public:
  // Opens the job's log, which gets the console's later and earlier messages. `console` outlives it. Throws
  // SystemError, and InvalidArgument if another process writes to the log.
  JobOutput(OutputOptions options, Console& console);
  ~JobOutput();
  JobOutput(const JobOutput&) = delete;
  JobOutput& operator=(const JobOutput&) = delete;

  // Returns the sinks of a rank's stream, whose read end is `fd`. Makes the start's folder. Throws SystemError.
  RankOutput open(int rank, Stream stream, UniqueFd fd, int start);
  // Returns the recent part of the job's log, which is in memory.
  RecentLines& recent() { return recent_; }
  // Returns "12 bytes of logs/job.log"; empty if the log is complete.
  std::string describe_lost() const;

 private:
  bool is_shown(int rank, Stream stream) const;

  OutputOptions options_;
  Console& console_;
  UniqueFd lock_;  // of the job's log file, which a second run must not empty
  RecentLines recent_;
  JobLog log_;
};

}  // namespace lockstep::launcher
