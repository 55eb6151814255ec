// SPDX-License-Identifier: Apache-2.0
// The number of the step that a training is in: a Reducer and the Trainer that owns it share one clock.
//
// begin() and end() publish it to the launcher's board, to the lines that a signal's timer writes (CoordinatedStop),
// and to the process's trace; mark_group() publishes it to the group, whose failures name the step. A step that is
// given up publishes nothing: the next step has its number.
//
// Threads: the Reducer's.
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

  // The number of synchronised steps of this run that have ended, which is the number of the current one.
  std::int64_t step() const { return step_; }
  // Assigns the group's collectives from now on to this step, and to `bucket` of it; -1: to no bucket.
  void mark_group(int bucket = -1) const { group_->internals().set_step(step_, bucket); }

  // Begins the step, before its first collective. Returns this rank's stop word: 1 if the rank asks to stop, else 0.
  std::int64_t begin();
  // Ends the step, after its last collective. `words` is the sum of all ranks' stop words.
  void end(std::int64_t words);

 private:
  std::shared_ptr<ProcessGroup> group_;
  std::int64_t step_ = 0;
};

}  // namespace lockstep
