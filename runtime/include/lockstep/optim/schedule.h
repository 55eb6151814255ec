// SPDX-License-Identifier: Apache-2.0
// Schedule computes the learning rate of a step from the step's number, for an optimizer of lockstep, LibTorch or any
// other library. The whole implementation is in this header.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep::optim {

enum class Decay : std::uint8_t { none, linear, cosine };

// Schedule is a learning rate that rises linearly to `peak` over the first `warmup` steps, falls to `floor` until step
// `total`, and then stays at `floor`. With Decay::none the learning rate stays at `peak` after the warm-up, and `total`
// is not used.
//
//   optimizer.set_learning_rate(schedule(ddp.steps()));   // steps count from 0, and continue after a resume
struct Schedule {
  double peak = 1e-3;
  double floor = 0;
  std::int64_t warmup = 0;
  std::int64_t total = 0;  // number of steps, warm-up included; must be set, except with Decay::none
  Decay decay = Decay::cosine;

  // Returns the learning rate at a step. In the warm-up (step < warmup) the learning rate is peak * (step + 1) /
  // warmup; a step below 0 counts as step 0. Throws InvalidArgument for a step after the warm-up if `total` is not
  // above `warmup` and `decay` is not Decay::none.
  double operator()(std::int64_t step) const {
    step = std::max<std::int64_t>(step, 0);
    if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
    if (decay == Decay::none) return peak;
    if (total <= warmup) {
      throw InvalidArgument(
          "optim::Schedule: step " + std::to_string(step) + " follows a warm-up of " + std::to_string(warmup) +
          " steps, and total is " + std::to_string(total) +
          "; set total to the number of steps of the whole run, above warmup, or decay to Decay::none");
    }
    if (step >= total) return floor;
    const double done = static_cast<double>(step - warmup) / static_cast<double>(total - warmup);
    const double left = decay == Decay::linear ? 1.0 - done : 0.5 * (1.0 + std::cos(std::numbers::pi * done));
    return floor + (peak - floor) * left;
  }
};

}  // namespace lockstep::optim
