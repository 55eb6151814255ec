// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace lockstep::optim {

double Schedule::operator()(std::int64_t step) const {
  step = std::max<std::int64_t>(step, 0);
  if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
  if (decay == Decay::none) return peak;
  if (step >= total) return floor;
  const double done = static_cast<double>(step - warmup) / static_cast<double>(total - warmup);
  const double left = decay == Decay::linear ? 1.0 - done : 0.5 * (1.0 + std::cos(std::numbers::pi * done));
  return floor + (peak - floor) * left;
}

}  // namespace lockstep::optim
