// SPDX-License-Identifier: Apache-2.0
#include "launcher/verdict/stop_request.h"

#include <csignal>

namespace lockstep::launcher {

StopRequest::Step StopRequest::asked(int signal) {
  ++count_;
  if (signal_ == 0) {
    signal_ = signal;
    same_until_ = Deadline::after(one_request_);
    return Step::pass_on;
  }
  if (insisted_ || !same_until_->expired()) return Step::ignore;
  insisted_ = true;
  return Step::kill;
}

bool StopRequest::explains(const ExitStatus& ending) const {
  if (signal_ == 0) return false;
  if (ending.ok() || ending.is_consequence() || ending.has_no_code) return true;
  // The rank ended by the signal, or with the exit code that a shell or a handler uses for it.
  if (ending.exit_code() == 128 + signal_) return true;
  return insisted_ && ending.by_signal && ending.value == SIGKILL;
}

}  // namespace lockstep::launcher
