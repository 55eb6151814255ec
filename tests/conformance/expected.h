// SPDX-License-Identifier: Apache-2.0
// What the collectives must give, as closed formulas of rank and element.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/device/dtype.h"

namespace lockstep::testing {

// Rank r gives value(r, i) at element i: small integers from 1 to 4, so that every dtype holds them, and their sums
// over 8 ranks, exactly.
inline int value(int rank, std::int64_t element) { return 1 + static_cast<int>((rank + element + element / 7) % 4); }

// The reduction of all ranks' values at an element.
inline double reduced(ReduceOp op, int ranks, std::int64_t element) {
  double result = value(0, element);
  for (int r = 1; r < ranks; ++r) {
    const double next = value(r, element);
    switch (op) {
      case ReduceOp::sum:
      case ReduceOp::avg: result += next; break;
      case ReduceOp::min: result = std::fmin(result, next); break;
      case ReduceOp::max: result = std::fmax(result, next); break;
      case ReduceOp::product: result *= next; break;
    }
  }
  return op == ReduceOp::avg ? result / ranks : result;
}

// Conversions between what a dtype stores and a number. from_number() rounds as the collectives must: floats to
// nearest, integers towards zero and, for sums and products, modulo their range.
template <typename T>
double to_number(T x) {
  return static_cast<double>(x);
}
inline double to_number(bfloat16 x) { return to_float(x); }
inline double to_number(float16 x) { return to_float(x); }

template <typename T>
T from_number(double x) {
  return static_cast<T>(x);
}
template <>
inline std::uint8_t from_number<std::uint8_t>(double x) {
  return static_cast<std::uint8_t>(static_cast<std::int64_t>(x));
}
template <>
inline bfloat16 from_number<bfloat16>(double x) {
  return to_bfloat16(static_cast<float>(x));
}
template <>
inline float16 from_number<float16>(double x) {
  return to_float16(static_cast<float>(x));
}

}  // namespace lockstep::testing
