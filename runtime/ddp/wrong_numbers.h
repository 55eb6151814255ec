// SPDX-License-Identifier: Apache-2.0
// WrongNumbers reports a NaN or infinity in this rank's own gradients. WrongNumbers writes each finding to the trace,
// and logs a warning or throws NotFiniteGradient.
//
// Threads: one thread at a time.
// Failure: with NotFinite::raise, WrongNumbers throws NotFiniteGradient and fails the group on every rank.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/not_finite.h"
#include "runtime/base/internal_api.h"

namespace lockstep {

class LOCKSTEP_INTERNAL_API WrongNumbers {
 public:
  WrongNumbers(NotFinite reaction, std::shared_ptr<ProcessGroup> group);

  // Reports the first NaN or infinity of step `step` in the order of backward. `at` is the result
  // of DeviceRuntime::first_not_finite.
  void found(std::int64_t step, const std::string& parameter, std::int64_t at);
  bool has_found(std::int64_t step) const { return last_found_ == step; }

 private:
  [[noreturn]] void raise(const std::string& text);

  NotFinite reaction_;
  std::shared_ptr<ProcessGroup> group_;
  std::optional<std::int64_t> last_found_ = {};  // the step of the last NaN or infinity
  int times_ = 0;                                // the number of runs of consecutive steps with NaN or infinity
};

}  // namespace lockstep
