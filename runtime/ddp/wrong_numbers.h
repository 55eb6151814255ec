// SPDX-License-Identifier: Apache-2.0
// Reports a NaN or infinity in this rank's own gradients: keeps it for the trace, and logs or raises it.
//
// Threads: one at a time.
// Failure: with NotFinite::raise NotFiniteGradient, and the group fails on every rank.
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

  // Reports the first one of a step, in the order of backward. `at` is DeviceRuntime::first_not_finite's result.
  void found(std::int64_t step, const std::string& parameter, std::int64_t at);
  bool has_found(std::int64_t step) const { return last_found_ == step; }

 private:
  [[noreturn]] void raise(const std::string& text);

  NotFinite reaction_;
  std::shared_ptr<ProcessGroup> group_;
  std::optional<std::int64_t> last_found_ = {};  // the step of the last one
  int times_ = 0;                                // number of runs of consecutive steps with NaN or infinity
};

}  // namespace lockstep
