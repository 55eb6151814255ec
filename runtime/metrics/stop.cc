// SPDX-License-Identifier: Apache-2.0
#include "lockstep/metrics/stop.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <span>

#include "lockstep/base/error.h"
#include "lockstep/comm/values.h"

namespace lockstep {
namespace {

constexpr const char* kStopKey = "stop_requested";

}  // namespace

void request_stop(ProcessGroup& group, std::string_view reason) {
  // An empty value could not be told from none.
  group.store().compare_set(kStopKey, "", reason.empty() ? "no reason was given" : reason);
}

std::optional<std::string> agreed_stop(ProcessGroup& group) {
  const std::array<std::string, 1> key{kStopKey};
  // One may look before the request is there, and another behind it: what one has seen counts for all.
  std::array<std::int32_t, 1> is_asked{group.store().check(key) ? 1 : 0};
  group.all_reduce(BufferView(std::span<std::int32_t>(is_asked)), {.op = ReduceOp::max}).wait();
  if (is_asked[0] == 0) return std::nullopt;
  return group.store().get(key[0], Deadline::after(group.timeout()));
}

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

bool EarlyStop::should_stop(double value) {
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
