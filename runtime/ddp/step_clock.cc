// SPDX-License-Identifier: Apache-2.0
#include "runtime/ddp/step_clock.h"

#include "runtime/comm/coordinated_stop.h"
#include "runtime/trace/process_trace.h"

namespace lockstep {

std::int64_t StepClock::begin() {
  CoordinatedStop& stop = *group_->internals().coordinated_stop();
  stop.step_begun(step_);
  return stop.word(*group_);
}

// Tells the launcher that the step has ended before the ranks agree to stop, so that the launcher counts this step in
// its message about the stop.
void StepClock::end(std::int64_t words) {
  CoordinatedStop& stop = *group_->internals().coordinated_stop();
  stop.step_ended(step_++);
  stop.agree(*group_, words);
  const std::int64_t done = stop.steps_done();
  trace::keep_steps_done(done, done - step_);
}

void StepClock::repeat() { group_->internals().coordinated_stop()->step_ended(--step_ - 1); }
void StepClock::end_again() { group_->internals().coordinated_stop()->step_ended(step_++); }

}  // namespace lockstep
