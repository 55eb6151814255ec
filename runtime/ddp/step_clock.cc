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

// Before the ranks agree to stop, tells the launcher that the step has ended, so that the launcher's message about the
// stop counts the step.
void StepClock::end(std::int64_t words) {
  CoordinatedStop& stop = *group_->internals().coordinated_stop();
  stop.step_ended(step_++);
  stop.agree(*group_, words);
  const std::int64_t done = stop.steps_done();
  trace::keep_steps_done(done, done - step_);
}

}  // namespace lockstep
