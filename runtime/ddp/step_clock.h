// SPDX-License-Identifier: Apache-2.0
// The number of the step that a training is in: a Reducer and the Trainer that owns it share one clock.
//
// begin() and end() publish it to the launcher's board, to the lines that a signal's timer writes (CoordinatedStop),
// and to the process's trace; mark_group() to the group, whose failures name the step. A step that is given up
// publishes nothing: its number is the next one's.
//
// Threads: the Reducer's. Failure: begin() and end() throw the errors of the group's store, if a rank asks to stop.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "runtime/comm/group_internals.h"

namespace lockstep {

class StepClock {
 public:
  explicit StepClock(std::shared_ptr<ProcessGroup> group) : group_(std::move(group)) {}

  // Synchronised steps of this run that have ended, which is the number of the current one.
  std::int64_t step() const { return step_; }
  // Collectives that the group starts from now on belong to this step, and to `bucket` of it; -1: to no bucket.
  void mark_group(int bucket = -1) const { group_->internals().set_step(step_, bucket); }

  // Before the step's first collective. Returns this rank's word for it: 1 if it asks to stop, else 0.
  std::int64_t begin();
  // After its last one. `words`: the sum of all ranks' words.
  void end(std::int64_t words);

 private:
  std::shared_ptr<ProcessGroup> group_;
  std::int64_t step_ = 0;
};

}  // namespace lockstep
