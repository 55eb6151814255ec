// SPDX-License-Identifier: Apache-2.0
// Sums over rows, a strip of columns at a time: in an order that depends on the number of rows only.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/tensor/cpu/clones.h"
#include "runtime/tensor/kernels.h"

namespace lockstep::cpu {

// out[c] (+)= sum over r of value(r, c).
template <typename Value>
LOCKSTEP_INLINE void sum_strips(Into out, std::int64_t rows, std::int64_t columns, const Value& value) {
  constexpr std::int64_t kStrip = 64;  // columns summed at once: they stay in registers
  constexpr std::int64_t kBlock = 32;  // rows summed in float before they are added to the total in double
  for (std::int64_t c0 = 0; c0 < columns; c0 += kStrip) {
    const std::int64_t width = std::min(kStrip, columns - c0);
    double total[kStrip] = {};
    for (std::int64_t r0 = 0; r0 < rows; r0 += kBlock) {
      const std::int64_t r1 = std::min(r0 + kBlock, rows);
      float part[kStrip] = {};
      if (width == kStrip) {
        for (std::int64_t r = r0; r < r1; ++r) {
#pragma omp simd
          for (std::int64_t c = 0; c < kStrip; ++c) part[c] += value(r, c0 + c);
        }
      } else {
        for (std::int64_t r = r0; r < r1; ++r) {
#pragma omp simd
          for (std::int64_t c = 0; c < width; ++c) part[c] += value(r, c0 + c);
        }
      }
      for (std::int64_t c = 0; c < kStrip; ++c) total[c] += static_cast<double>(part[c]);
    }
    float* target = out.data + c0;
    for (std::int64_t c = 0; c < width; ++c) {
      target[c] = static_cast<float>((out.add ? static_cast<double>(target[c]) : 0.0) + total[c]);
    }
  }
}

}  // namespace lockstep::cpu
