// SPDX-License-Identifier: Apache-2.0
// The sum of the squares of floats, exact until it is rounded to a double once: however an array is cut into parts, on
// one rank or on several, its norm has the same bits.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/base/internal_api.h"

namespace lockstep {

struct LOCKSTEP_INTERNAL_API ExactSquares {
  // Integers, so that an all-reduce adds up the parts of several ranks: digits (base/exact_sum.h), and as the last one
  // 1 for an infinity and 2^32 for a NaN in a part.
  std::array<std::int64_t, 24> words = {};

  void add(const float* a, std::int64_t count);
  // The nearest double; infinity or NaN if a part had one.
  double sum() const;
};

// The same of doubles, whose squares are rounded to doubles first: 0 below 2^-1075, infinity from 2^1024 on.
struct LOCKSTEP_INTERNAL_API ExactDoubleSquares {
  std::array<std::int64_t, 72> words = {};

  void add(const double* a, std::int64_t count);
  double sum() const;
};

}  // namespace lockstep
