// SPDX-License-Identifier: Apache-2.0
// Early stopping that all ranks decide alike. comm/stop.h has stops that a rank or a signal requests.
//
// Threads: the group's. Failure: the group's errors.
#pragma once

#include <cstdint>
#include <limits>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/stop.h"

namespace lockstep {

struct EarlyStopOptions {
  // The number of values in a row that are not better before it stops; at least 1.
  int patience = 3;
  // The improvement that does not count yet: a better value beats the best one by more. At least 0.
  double min_delta = 0;
  bool higher_is_better = false;
};

// Stops early, judging rank 0's values, so all ranks decide alike even if their own values differ.
//
//   lockstep::EarlyStop stop(*group, {.patience = 3});
//   for (int epoch = 0; epoch < epochs; ++epoch) {
//     ...
//     if (stop.step(metrics.result("loss"))) break;
//   }
class LOCKSTEP_API EarlyStop {
 public:
  // The state of step(): to save, and to resume with.
  struct State {
    double best = std::numeric_limits<double>::quiet_NaN();  // NaN before the first
    int not_better = 0;                                      // values since the best one
    std::int64_t at_step = 0;  // steps that the group's training had done at the last value; 0: none, or not known
  };

  // `group` outlives this object. InvalidArgument for options out of their range.
  explicit EarlyStop(ProcessGroup& group, const EarlyStopOptions& options = {});
  // Collective: takes the next value, and returns whether `patience` values in a row were not better. A NaN is not
  // better. A value from the same training step as the value before, as after a resume, is not counted again.
  bool step(double value);

  const State& state() const { return state_; }
  void set_state(const State& state) { state_ = state; }

 private:
  bool is_better(double value) const;

  ProcessGroup* group_;
  EarlyStopOptions options_;
  State state_;
};

}  // namespace lockstep
