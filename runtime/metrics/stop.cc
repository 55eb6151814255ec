// SPDX-License-Identifier: Apache-2.0
#include "lockstep/metrics/stop.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/values.h"
#include "runtime/comm/coordinated_stop.h"
#include "runtime/comm/group_internals.h"

namespace lockstep {

EarlyStop::EarlyStop(ProcessGroup& group, const EarlyStopOptions& options) : group_(&group), options_(options) {
  if (options.patience < 1) {
    throw InvalidArgument(
        fmt::format("EarlyStop: a patience of {} values was given; give 1 or more", options.patience));
  }
  if (!(options.min_delta >= 0)) {
    throw InvalidArgument(fmt::format("EarlyStop: a min_delta of {} was given; give 0 or more", options.min_delta));
  }
}

bool EarlyStop::is_better(double value) const {
  if (std::isnan(state_.best)) return !std::isnan(value);
  return options_.higher_is_better ? value > state_.best + options_.min_delta
                                   : value < state_.best - options_.min_delta;
}

bool EarlyStop::step(double value) {
  // A resumed program may evaluate the step of the last value again, which says nothing new.
  const std::int64_t done = group_->internals().coordinated_stop()->steps_done();
  const bool is_repeated = done > 0 && std::exchange(state_.at_step, done) == done;
  if (is_better(value)) {
    state_ = {.best = value, .not_better = 0, .at_step = done};
  } else if (!is_repeated) {
    ++state_.not_better;
  }
  struct Decision {
    State state;
    bool stops = false;
  };
  const Decision decision = broadcast_value(Decision{state_, state_.not_better >= options_.patience}, *group_);
  state_ = decision.state;
  return decision.stops;
}

}  // namespace lockstep
