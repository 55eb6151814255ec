// SPDX-License-Identifier: Apache-2.0
// A graph for captured steps where no device can capture: a replay calls what was captured again. To the
// DistributedDataParallel that is the same: nothing runs in the capture, and a replay writes to the same places.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "lockstep/libtorch/captured_step.h"

namespace lockstep::testing {

class RunAgain final : public libtorch::StepGraph {
 public:
  static std::string why_not(DeviceId) { return {}; }
  void capture(std::function<void()> body) override {
    body_ = std::move(body);
    ++captures;
  }
  void replay() override {
    ++replays;
    body_();
  }

  // Of this thread, which is a rank.
  static inline thread_local int captures = 0;
  static inline thread_local int replays = 0;

 private:
  std::function<void()> body_;
};

}  // namespace lockstep::testing
