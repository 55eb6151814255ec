// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/random.h"

#include <cmath>
#include <numbers>

namespace lockstep {

std::uint32_t Generator::next() {
  if (used_ == 4) {
    block_ = philox(counter_, key_);
    if (++counter_[0] == 0) ++counter_[1];
    used_ = 0;
  }
  return block_[used_++];
}

std::uint64_t Generator::below(std::uint64_t bound) {
  // Numbers below `reject` would make the low remainders more likely; at most half are drawn again.
  const std::uint64_t reject = (0 - bound) % bound;
  for (;;) {
    const std::uint64_t high = next();
    const std::uint64_t value = high << 32 | next();
    if (value >= reject) return value % bound;
  }
}

float Generator::normal() {
  const double radius = std::sqrt(-2.0 * std::log((next() + 1.0) * 0x1.0p-32));
  const double angle = 2.0 * std::numbers::pi * (next() * 0x1.0p-32);
  return static_cast<float>(radius * std::cos(angle));
}

}  // namespace lockstep
