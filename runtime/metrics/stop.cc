// SPDX-License-Identifier: Apache-2.0
#include "lockstep/metrics/stop.h"

#include <fmt/format.h>

#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/comm/values.h"

namespace lockstep {

EarlyStop::EarlyStop(ProcessGroup& group, const EarlyStopOptions& options) : group_(&group), options_(options) {
  if (options.patience < 1) {
    throw InvalidArgument(fmt::format("EarlyStop: a patience of {}; give 1 or more values", options.patience));
  }
  if (!(options.min_delta >= 0)) {
    throw InvalidArgument(fmt::format("EarlyStop: a min_delta of {}; give 0 or more", options.min_delta));
  }
}

bool EarlyStop::is_better(double value) const {
  if (std::isnan(state_.best)) return !std::isnan(value);
  return options_.higher_is_better ? value > state_.best + options_.min_delta
                                   : value < state_.best - options_.min_delta;
}

bool EarlyStop::step(double value) {
  if (is_better(value)) {
    state_ = {.best = value, .not_better = 0};
  } else {
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
