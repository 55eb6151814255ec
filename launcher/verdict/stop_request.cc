// SPDX-License-Identifier: Apache-2.0
#include "launcher/verdict/stop_request.h"

#include <fmt/format.h>

#include <csignal>

#include "launcher/base/amounts.h"

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

void AgreedStop::heard(const Cause& cause) {
  reported_.insert(cause.reporter);
  if (!first_) first_ = cause;
}

bool AgreedStop::explains(const ExitStatus& ending) const {
  if (ending.by_signal) return false;
  if (ranks_ == 1 && ending.value == code_) return true;
  return first_ && (ending.ok() || ending.value == code_);
}

std::string AgreedStop::describe() const {
  if (!first_) return "stopped";
  if (first_->step < 0) return fmt::format("stopped: {}", first_->text);
  return fmt::format("stopped after {}: {}", count_of(first_->step, "step"), first_->text);
}

}  // namespace lockstep::launcher
