// SPDX-License-Identifier: Apache-2.0
// EarlyStop decides, for all ranks together, whether to stop a training early because a value no longer improves. The
// header comm/stop.h declares the functions for stops that a rank or a signal requests.
//
// Threads: an EarlyStop belongs to the thread that uses the group. Failure: step() throws the group's errors.
#pragma once

#include <cstdint>
#include <limits>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/stop.h"

namespace lockstep {

struct EarlyStopOptions {
  // The number of consecutive values without an improvement after which the training stops; at least 1.
  int patience = 3;
  // The margin, at least 0, by which a value must be better than the best value: smaller and equal improvements do
  // not count.
  double min_delta = 0;
  bool higher_is_better = false;
};

// EarlyStop uses only the values of rank 0, so all ranks make the same decision even if the ranks' values differ.
//
//   lockstep::EarlyStop stop(*group, {.patience = 3});
//   for (int epoch = 0; epoch < epochs; ++epoch) {
//     ...
//     if (stop.step(metrics.result("loss"))) break;
//   }
class LOCKSTEP_API EarlyStop {
 public:
  // State holds what step() remembers between calls; a program saves State to resume a run.
  struct State {
    double best = std::numeric_limits<double>::quiet_NaN();  // the best value; NaN before the first value
    int not_better = 0;                                      // number of values since the best value
    // The number of training steps that the group had done when step() got its last value. `at_step` is 0 before the
    // first value, or if the group's number of steps is not known.
    std::int64_t at_step = 0;
  };

  // Throws InvalidArgument if an option is out of its range. `group` outlives this object.
  explicit EarlyStop(ProcessGroup& group, const EarlyStopOptions& options = {});
  // Takes the next value, and returns whether the training should stop, because the last `patience` values were not
  // better than the best value. The call is collective. A NaN is never better. A value from the same training step as
  // the previous value, for example after a resume, does not count as one more value without improvement.
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
