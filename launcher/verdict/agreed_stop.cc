// SPDX-License-Identifier: Apache-2.0
#include "launcher/verdict/agreed_stop.h"

#include <fmt/format.h>

#include "launcher/base/amounts.h"

namespace lockstep::launcher {

void AgreedStop::heard(const Cause& cause) {
  reported_.insert(cause.reporter);
  if (!first_) first_ = cause;
}

bool AgreedStop::explains(int rank, const ExitStatus& ending) const {
  if (ending.by_signal) return false;
  if (ranks_ == 1 && ending.value == code_) return true;
  return reported_.contains(rank) && (ending.ok() || ending.value == code_);
}

std::string AgreedStop::describe() const {
  if (!first_) return "stopped";
  if (first_->step < 0) return fmt::format("stopped: {}", first_->text);
  return fmt::format("stopped after {}: {}", count_of(first_->step, "step"), first_->text);
}

}  // namespace lockstep::launcher
