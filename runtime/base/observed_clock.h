// SPDX-License-Identifier: Apache-2.0
// A clock that stands still while its owner doesn't run.
//
// A process that judges its peers' silence must subtract the time it was itself suspended (SIGSTOP, a suspended laptop,
// a machine so loaded that it got no core): it could not have heard them then. Pure: the time is passed in. One thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>

namespace lockstep {

class ObservedClock {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::nanoseconds;

  // `longest_gap`: the most time that counts between two observations. More than the owner's own pauses.
  explicit ObservedClock(Duration longest_gap) : longest_gap_(longest_gap) {}

  // The owner runs now.
  void observe(Time now) {
    if (last_) elapsed_ += std::clamp<Duration>(now - *last_, Duration::zero(), longest_gap_);
    last_ = now;
  }
  // Time observed since the first observation.
  Duration elapsed() const { return elapsed_; }

 private:
  Duration longest_gap_;
  std::optional<Time> last_;
  Duration elapsed_{0};
};

}  // namespace lockstep
