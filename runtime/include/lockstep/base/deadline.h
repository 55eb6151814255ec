// SPDX-License-Identifier: Apache-2.0
// A Deadline is the time by which a blocking call must have returned.
//
// Every blocking call of lockstep takes a Deadline. Timeouts of nested calls never add up: each nested call gets at
// most the time that remains of its caller's Deadline.
#pragma once

#include <chrono>
#include <string>

#include "lockstep/base/api.h"

namespace lockstep {

class LOCKSTEP_API Deadline {
 public:
  using Clock = std::chrono::steady_clock;
  using Duration = std::chrono::nanoseconds;

  // Returns the deadline `limit` from now. If `limit` is 0 or less, the deadline has already passed; if `limit` is 100
  // years or more, the deadline never passes.
  static Deadline after(Duration limit) { return limit < kLongest ? Deadline(Clock::now(), limit) : never(); }
  // Returns a deadline that never passes.
  static Deadline never() { return Deadline(Clock::now(), Duration::max()); }

  // Returns the earlier of two deadlines: this deadline, and the deadline `limit` from now.
  Deadline sooner(Duration limit) const { return remaining() <= limit ? *this : after(limit); }

  bool is_never() const { return limit_ == Duration::max(); }
  bool expired() const { return !is_never() && Clock::now() - start_ >= limit_; }
  // Returns the time that remains until the deadline: 0 once the deadline has passed, and Duration::max() if the
  // deadline never passes.
  Duration remaining() const;
  Duration elapsed() const { return Clock::now() - start_; }
  Duration limit() const { return limit_; }
  // Returns the remaining time as a timeout for poll(2) or epoll_wait(2): the number of milliseconds, rounded up, or -1
  // if the deadline never passes.
  int poll_timeout_ms() const;
  // Returns a text for error messages: "elapsed 3.01 s of 3 s".
  std::string progress() const;

 private:
  // The shortest limit of a deadline that never passes; the sum of the clock's time and any shorter limit fits into
  // a Duration.
  static constexpr Duration kLongest = std::chrono::hours(24 * 365 * 100);

  Deadline(Clock::time_point start, Duration limit) : start_(start), limit_(limit) {}

  Clock::time_point start_;
  Duration limit_;
};

}  // namespace lockstep
