// SPDX-License-Identifier: Apache-2.0
// Sums along a row, in an order that depends on its length only.
#pragma once

#include <cstdint>

#include "runtime/tensor/cpu/clones.h"

namespace lockstep::cpu {

// The sum of value(i) over [0, count), in T: sixteen sums side by side, then halved. Spelled out, because a loop that
// is left to the compiler is summed in as many parts as the processor's vectors have.
template <typename T, typename Value>
LOCKSTEP_INLINE T sum_in_lanes(std::int64_t count, const Value& value) {
  constexpr std::int64_t kLanes = 16;
  T lanes[kLanes] = {};
  const std::int64_t whole = count - count % kLanes;
  for (std::int64_t i = 0; i < whole; i += kLanes) {
#pragma omp simd
    for (std::int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += value(i + lane);
  }
#pragma omp simd
  for (std::int64_t i = whole; i < count; ++i) lanes[i - whole] += value(i);
  for (std::int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::int64_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

}  // namespace lockstep::cpu
