// SPDX-License-Identifier: Apache-2.0
// StepClock holds the number of the step that a training is in. A Reducer and the Trainer that owns the Reducer share
// one clock.
//
// begin() and end() publish the step to the launcher's board, to the lines that a signal's timer writes
// (CoordinatedStop), and to the process's trace. mark_group() publishes the step to the group, whose failures name the
// step. A step that is given up publishes no end, and the next step gets its number.
//
// Threads: only the Reducer's thread calls this class.
// Failure: begin() and end() throw the errors of the group's store, if a rank asks to stop.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "runtime/comm/group_internals.h"

namespace lockstep {

class StepClock {
 public:
  explicit StepClock(std::shared_ptr<ProcessGroup> group) : group_(std::move(group)) {}

  // Returns the number of synchronised steps of this run that have ended, which is also the number of the current step.
  std::int64_t step() const { return step_; }
  // Assigns the group's collectives from now on to the current step and its bucket `bucket`; -1 means no bucket.
  void mark_group(int bucket = -1) const { group_->internals().set_step(step_, bucket); }

  // Begins the step, before the step's first collective. Returns this rank's stop word: 1 if the rank asks to stop,
  // 0 otherwise.
  std::int64_t begin();
  // Ends the step, after the step's last collective. `words` is the sum of all ranks' stop words.
  void end(std::int64_t words);

 private:
  std::shared_ptr<ProcessGroup> group_;
  std::int64_t step_ = 0;
};

}  // namespace lockstep
