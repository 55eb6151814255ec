// SPDX-License-Identifier: Apache-2.0
// The end on which the ranks of a job have agreed: after one step, for a signal or because the program asks for it
// (lockstep/comm/stop.h). Each rank reports when it reaches that step. Pure.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "launcher/process/exit_status.h"
#include "lockstep/job/cause.h"

namespace lockstep::launcher {

class AgreedStop {
 public:
  // `code` is the exit code of a rank that wants to be started again.
  AgreedStop(int ranks, int code) : ranks_(ranks), code_(code) {}

  // Notes a rank's report of kind `stopped`.
  void heard(const Cause& cause);
  // Returns true if a rank with this ending has ended its training as agreed: with 0 or the code, after its report. A
  // world of one rank sends no report and has no other rank to lose: there the code suffices.
  bool explains(int rank, const ExitStatus& ending) const;
  bool has_reported(int rank) const { return reported_.contains(rank); }
  // Notes the end of a rank for which explains() is true.
  void ended(const ExitStatus& ending) { wants_another_start_ = wants_another_start_ || !ending.ok(); }

  // Returns the job's exit code, if all ranks have ended as agreed.
  int exit_code() const { return wants_another_start_ ? code_ : 0; }
  // Returns "stopped after 17 steps: rank 2 got SIGTERM"; "stopped" without a report.
  std::string describe() const;

 private:
  int ranks_;
  int code_;
  std::set<int> reported_;
  std::optional<Cause> first_;  // report of a rank
  bool wants_another_start_ = false;
};

}  // namespace lockstep::launcher
