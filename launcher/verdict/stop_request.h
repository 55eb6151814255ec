// SPDX-License-Identifier: Apache-2.0
// Somebody asks the job to end by a signal to the launcher. Pure but for the clock.
#pragma once

#include <optional>

#include "launcher/process/exit_status.h"
#include "lockstep/base/deadline.h"

namespace lockstep::launcher {

class StopRequest {
 public:
  enum class Step {
    pass_on,  // the first one: the ranks may take their time, to save
    kill,     // a later one: somebody insists. Comes once.
    ignore,
  };

  // One request often comes as two signals: timeout(1) signals its child and then its group, systemd sends SIGHUP after
  // SIGTERM. What comes this soon after the first is the same request.
  static constexpr std::chrono::milliseconds kOneRequest{200};

  explicit StopRequest(Deadline::Duration one_request = kOneRequest) : one_request_(one_request) {}

  Step asked(int signal);

  // The first signal; 0: nobody has asked.
  int signal() const { return signal_; }
  // All that came.
  int count() const { return count_; }
  // True if a rank that ends so after the request does as it was told. Anything else is a failure of its own.
  bool explains(const ExitStatus& ending) const;

 private:
  Deadline::Duration one_request_;
  std::optional<Deadline> same_until_;
  int signal_ = 0;
  int count_ = 0;
  bool insisted_ = false;
};

}  // namespace lockstep::launcher
