// SPDX-License-Identifier: Apache-2.0
// Learning rates as functions of the step.
#pragma once

#include <cstdint>

#include "lockstep/base/api.h"

namespace lockstep::optim {

enum class Decay : std::uint8_t { none, linear, cosine };

// Rises linearly over the first `warmup` steps to `peak`, then falls to `floor` at step `total` and stays there; with
// Decay::none it stays at `peak`. A warm-up of `total` steps or more is followed by `floor`.
//
//   optimizer.set_learning_rate(schedule(step));   // step counts from 0
struct LOCKSTEP_API Schedule {
  double peak = 1e-3;
  double floor = 0;
  std::int64_t warmup = 0;
  std::int64_t total = 1;  // steps, warm-up included
  Decay decay = Decay::cosine;

  // peak (step + 1) / warmup while step < warmup. A step below 0 counts as 0.
  double operator()(std::int64_t step) const;
};

}  // namespace lockstep::optim
