// SPDX-License-Identifier: Apache-2.0
// A request to end the job, made by a signal to the launcher. Pure except for the clock.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "launcher/process/exit_status.h"
#include "lockstep/base/deadline.h"
#include "lockstep/job/cause.h"

namespace lockstep::launcher {

class StopRequest {
 public:
  enum class Step {
    pass_on,  // the first signal: the ranks may take time, to save
    kill,     // a later signal: the user insists. Returned once.
    ignore,
  };

  // Signals within this time after the first belong to the same request, since one request often sends two: timeout(1)
  // signals its child and then its group, systemd sends SIGHUP after SIGTERM.
  static constexpr std::chrono::milliseconds kOneRequest{200};

  explicit StopRequest(Deadline::Duration one_request = kOneRequest) : one_request_(one_request) {}

  Step asked(int signal);

  // The first signal; 0: none has arrived.
  int signal() const { return signal_; }
  // Number of all signals that arrived.
  int count() const { return count_; }
  // Returns true if a rank with this ending after the request has obeyed it. Any other ending is a failure of its own.
  bool explains(const ExitStatus& ending) const;

 private:
  Deadline::Duration one_request_;
  std::optional<Deadline> same_until_;
  int signal_ = 0;
  int count_ = 0;
  bool insisted_ = false;
};

// The end on which the ranks of a job have agreed: after one step, for a signal or because the program asks for it
// (lockstep/comm/stop.h). Each rank reports when it reaches that step.
class AgreedStop {
 public:
  // `code` is the exit code of a rank that wants to be started again.
  AgreedStop(int ranks, int code) : ranks_(ranks), code_(code) {}

  // Notes a rank's report of kind `stopped`.
  void heard(const Cause& cause);
  // Returns true if a rank with this ending has ended its training as agreed: with 0 or the code, after a report. The
  // report of any rank suffices, because all ranks have agreed if one has, and the end of a rank may become known
  // before its own report. A world of one rank sends no report and has no other rank to lose: there the code suffices.
  bool explains(const ExitStatus& ending) const;
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
