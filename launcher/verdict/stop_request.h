// SPDX-License-Identifier: Apache-2.0
// A request to end the job, made by a signal to the launcher. Pure except for the clock.
#pragma once

#include <optional>

#include "launcher/process/exit_status.h"
#include "lockstep/base/deadline.h"

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

}  // namespace lockstep::launcher
