// SPDX-License-Identifier: Apache-2.0
// A graph for captured steps where no device can capture: a replay calls what was captured again. To the
// DistributedDataParallel that is the same: nothing runs in the capture, and a replay writes to the same places.
#pragma once

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <functional>
#include <optional>
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
    // An optimizer's writes are not counted by torch, as those of a device's graph. Forward and backward are replayed
    // under a NoGradGuard.
    std::optional<c10::impl::ExcludeDispatchKeyGuard> uncounted;
    if (at::GradMode::is_enabled()) uncounted.emplace(c10::DispatchKey::ADInplaceOrView);
    body_();
  }

  // Of this thread, which is a rank.
  static inline thread_local int captures = 0;
  static inline thread_local int replays = 0;

 private:
  std::function<void()> body_;
};

}  // namespace lockstep::testing
