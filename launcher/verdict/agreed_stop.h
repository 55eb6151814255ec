// SPDX-License-Identifier: Apache-2.0
// The end that the ranks of a job have agreed on: after one step, for a signal or because the program says so
// (lockstep/comm/stop.h). Each rank reports it when it has come to it. Pure.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "launcher/process/exit_status.h"
#include "lockstep/job/cause.h"

namespace lockstep::launcher {

class AgreedStop {
 public:
  // `code`: what a rank exits with that wants to be started again.
  AgreedStop(int ranks, int code) : ranks_(ranks), code_(code) {}

  // A rank's report of kind `stopped`.
  void heard(const Cause& cause);
  // True if a rank that ends so has only ended its training as all do: with 0 or the code, after it reported. A world
  // of one reports to nobody, and has nobody to lose either: there the code speaks for itself.
  bool explains(int rank, const ExitStatus& ending) const;
  bool has_reported(int rank) const { return reported_.contains(rank); }
  // For a rank that explains() takes.
  void ended(const ExitStatus& ending) { wants_another_start_ = wants_another_start_ || !ending.ok(); }

  // The job's exit code if all ranks have ended so.
  int exit_code() const { return wants_another_start_ ? code_ : 0; }
  // "stopped after 17 steps: rank 2 got SIGTERM"; "stopped" where nobody reported.
  std::string describe() const;

 private:
  int ranks_;
  int code_;
  std::set<int> reported_;
  std::optional<Cause> first_;  // report
  bool wants_another_start_ = false;
};

}  // namespace lockstep::launcher
