// SPDX-License-Identifier: Apache-2.0
// Deadline is the time by which a blocking call must have returned.
//
// Every blocking call of lockstep takes one. Deadlines are derived, never added up: a job has one timeout, and each
// call below it gets the remaining time or less.
#pragma once

#include <chrono>
#include <string>

#include "lockstep/base/api.h"

namespace lockstep {

class LOCKSTEP_API Deadline {
 public:
  using Clock = std::chrono::steady_clock;
  using Duration = std::chrono::nanoseconds;

  // The deadline `limit` from now. 0 or less has passed already; 100 years or more never passes.
  static Deadline after(Duration limit) { return limit < kLongest ? Deadline(Clock::now(), limit) : never(); }
  // A deadline that never passes.
  static Deadline never() { return Deadline(Clock::now(), Duration::max()); }

  // The earlier of this deadline and `limit` from now.
  Deadline sooner(Duration limit) const { return remaining() <= limit ? *this : after(limit); }

  bool is_never() const { return limit_ == Duration::max(); }
  bool expired() const { return !is_never() && Clock::now() - start_ >= limit_; }
  // The remaining time: 0 once passed, Duration::max() if it never passes.
  Duration remaining() const;
  Duration elapsed() const { return Clock::now() - start_; }
  Duration limit() const { return limit_; }
  // The remaining time for poll(2) and epoll_wait(2): milliseconds, rounded up, -1 if it never passes.
  int poll_timeout_ms() const;
  // A text for error messages: "elapsed 3.01 s of 3 s".
  std::string progress() const;

 private:
  // The longest limit: adding it to the clock doesn't overflow a Duration.
  static constexpr Duration kLongest = std::chrono::hours(24 * 365 * 100);

  Deadline(Clock::time_point start, Duration limit) : start_(start), limit_(limit) {}

  Clock::time_point start_;
  Duration limit_;
};

}  // namespace lockstep
