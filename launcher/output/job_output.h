// SPDX-License-Identifier: Apache-2.0
// Where the output of a job goes on this host: --log-dir, --tee and --ranks. Main thread only.
#pragma once

#include <string>

#include "launcher/output/job_log.h"
#include "launcher/output/output_options.h"
#include "launcher/output/rank_output.h"
#include "launcher/output/recent_lines.h"

namespace lockstep::launcher {

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
