// SPDX-License-Identifier: Apache-2.0
// Pauses between attempts at something that nobody announces, such as a listener that is not there yet.
#pragma once

#include <chrono>

#include "lockstep/base/deadline.h"

namespace lockstep::net {

// Doubles from `first` to `most`, each pause with jitter (half to all of it) so that a thousand ranks don't come at
// once.
class Backoff {
 public:
  using Duration = std::chrono::nanoseconds;
  explicit Backoff(Duration first = std::chrono::milliseconds(1), Duration most = std::chrono::milliseconds(250))
      : next_(first), most_(most) {}

  // Pauses, but not past the deadline. False if the deadline has passed.
  bool pause(const Deadline& deadline);

 private:
  Duration next_;
  Duration most_;
};

}  // namespace lockstep::net
