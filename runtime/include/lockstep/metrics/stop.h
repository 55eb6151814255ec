// SPDX-License-Identifier: Apache-2.0
// Early stopping that all ranks decide alike. comm/stop.h has the ends that somebody asks for.
//
// Threads: those of the group. Failure: what the group throws.
#pragma once

#include <cstdint>
#include <limits>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/stop.h"

namespace lockstep {

struct EarlyStopOptions {
  int patience = 3;      // values in a row that are not better before it stops; at least 1
  double min_delta = 0;  // a value is better if it beats the best one by more; at least 0
  bool higher_is_better = false;
};

// Early stopping, on rank 0's values: ranks whose own values differ decide alike all the same.
//
//   lockstep::EarlyStop stop(*group, {.patience = 3});
//   for (int epoch = 0; epoch < epochs; ++epoch) {
//     ...
//     if (stop.should_stop(metrics.result("loss"))) break;
//   }
class LOCKSTEP_API EarlyStop {
 public:
  // The state of should_stop(): to save, and to resume with.
  struct State {
    double best = std::numeric_limits<double>::quiet_NaN();  // NaN before the first
    int not_better = 0;                                      // values since
  };

  // The group outlives this object. InvalidArgument for options out of their range.
  explicit EarlyStop(ProcessGroup& group, const EarlyStopOptions& options = {});
  // Collective: whether `patience` values in a row were not better. A NaN is not better.
  bool should_stop(double value);

  const State& state() const { return state_; }
  void set_state(const State& state) { state_ = state; }

 private:
  bool is_better(double value) const;

  ProcessGroup* group_;
  EarlyStopOptions options_;
  State state_;
};

}  // namespace lockstep
