// SPDX-License-Identifier: Apache-2.0
// StepClock holds the number of the current step of a training run. A Reducer and the Trainer that owns the Reducer
// share one StepClock.
//
// StepClock's begin() and end() publish the step's number in three places: the launcher's board, CoordinatedStop (whose
// messages name the step), and the process's trace. StepClock::mark_group() gives the step's number to the group, so
// that the group's errors name the step. If a step is given up, end() is not called, and the next step gets the number
// of the step that was given up.
//
// Threads: only the Reducer's thread calls the functions of StepClock.
// Failure: if a rank asks to stop, begin() and end() use the group's store, and throw the store's errors.
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
  // Assigns the collectives that the group starts from now on to the current step and to `bucket`; -1 means no bucket.
  void mark_group(int bucket = -1) const { group_->internals().set_step(step_, bucket); }

  // Begins the step; call begin() before the step's first collective. Returns this rank's stop word: 1 if the rank asks
  // to stop, 0 otherwise.
  std::int64_t begin();
  // Ends the step; call end() after the step's last collective. `words` combines all ranks' stop words, and is not 0 if
  // some rank asks to stop.
  void end(std::int64_t words);
  // Makes the step that ended last the current step again, because it is computed again; its number does not change.
  void repeat();
  // Ends the current step again, after repeat(), if it is not computed again after all.
  void end_again();

 private:
  std::shared_ptr<ProcessGroup> group_;
  std::int64_t step_ = 0;
};

}  // namespace lockstep
