// SPDX-License-Identifier: Apache-2.0
// The longest time to wait for something that other processes may never do.
//
// The time counts only while this process runs: a process that was stopped, or got no core, must not give up on others
// for that, nor take memory back from under its own threads. One thread.
#pragma once

#include <algorithm>
#include <chrono>

#include "lockstep/base/deadline.h"
#include "runtime/base/observed_clock.h"

namespace lockstep::comm {

class ActiveTimeout {
 public:
  using Time = ObservedClock::Time;
  using Duration = ObservedClock::Duration;
  // The time between two looks.
  static constexpr std::chrono::milliseconds kSlice{50};

  explicit ActiveTimeout(Duration limit, Time now = Time::clock::now()) : limit_(limit) { clock_.observe(now); }

  bool over(Time now = Time::clock::now()) { return remaining(now) == Duration::zero(); }
  // The deadline of the wait before the next look.
  Deadline next() { return Deadline::after(std::min<Duration>(kSlice, remaining(Time::clock::now()))); }
  Duration remaining(Time now) {
    clock_.observe(now);
    return std::max(limit_ - clock_.elapsed(), Duration::zero());
  }

 private:
  Duration limit_;
  ObservedClock clock_{2 * kSlice};
};

}  // namespace lockstep::comm
