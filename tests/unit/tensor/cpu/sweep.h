// SPDX-License-Identifier: Apache-2.0
// Inputs over all offsets and scales that a float holds, and results held to the same formula in double.
//
// Errors are counted in units in the last place (ulps) of a float as large as the terms that were added: a sum that
// cancels can't be better than they are.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/base/random.h"

namespace lockstep::testing {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

// None, one, and around the widths of vectors: 4, 8 and 16.
inline const std::vector<std::int64_t> kSizes{0, 1, 3, 7, 8, 9, 15, 16, 17, 31, 33};

// Elements are scale * (offset + u), u uniform in [-1, 1).
struct Range {
  float offset;
  float scale;
};

inline std::vector<Range> ranges(float smallest = 1e-30f, float largest = 1e30f) {
  std::vector<Range> result;
  for (const float offset : {0.0f, 1.0f, 1e3f, 1e4f, 1e6f}) {
    for (const float scale :
         {1e-40f, 1e-30f, 1e-20f, 1e-10f, 1e-5f, 1e-2f, 1.0f, 10.0f, 1e3f, 1e5f, 1e10f, 1e15f, 1e20f, 1e30f}) {
      if ((scale >= smallest || scale < 1e-35f) && scale <= largest) result.push_back({offset, scale});
    }
  }
  return result;
}

inline std::vector<float> values_in(const Range& range, std::int64_t count, std::uint64_t stream) {
  Generator generator(11, stream);
  std::vector<float> result(static_cast<std::size_t>(count));
  for (float& value : result) value = range.scale * (range.offset + (2 * generator.uniform() - 1));
  return result;
}

// Every pair of these is tried too.
inline const std::vector<float> kSpecial{kNan,    kInfinity, -kInfinity, 0.0f,      -0.0f, 1e-45f,
                                         -1e-40f, 1.2e-38f,  kLargest,   -kLargest, 1.0f,  -1.0f};

// The distance between floats around a number.
inline double ulp(double value) {
  const double magnitude = std::max(std::abs(value), static_cast<double>(std::numeric_limits<float>::min()));
  return std::ldexp(1.0, std::max(std::ilogb(magnitude) - 23, -149));
}

inline double in_double(float value) { return static_cast<double>(value); }

// A result in double, and the size of the terms it was added up from; 0 if it is the result alone.
struct Wanted {
  double value;
  double terms = 0;
};

// What a result is off by, in ulps. Infinity where one is NaN and the other is not, or where an overflow is hidden.
inline double error_in_ulps(float got, const Wanted& wanted) {
  const auto nearest = static_cast<float>(wanted.value);
  if (std::isnan(got) && std::isnan(wanted.value)) return 0;
  if (got == nearest) return 0;
  if (std::isnan(got) || std::isnan(wanted.value) || std::isinf(nearest)) {
    // An ulp less than what overflows.
    const bool at_the_edge = std::abs(wanted.value) < 1.000001 * static_cast<double>(kLargest) &&
                             std::abs(got) > 0.999999f * kLargest && std::signbit(got) == std::signbit(wanted.value);
    return at_the_edge ? 1 : std::numeric_limits<double>::infinity();
  }
  if (std::isinf(got)) {
    return std::max(std::abs(wanted.value), wanted.terms) > 0.999999 * static_cast<double>(kLargest)
               ? 0
               : std::numeric_limits<double>::infinity();
  }
  return std::abs(static_cast<double>(got) - wanted.value) / ulp(std::max(std::abs(wanted.value), wanted.terms));
}

// The largest error of many results, and where it was.
class Worst {
 public:
  explicit Worst(std::string what) : what_(std::move(what)) {}
  template <typename... Where>
  void add(float got, const Wanted& wanted, const Where&... where) {
    const double error = error_in_ulps(got, wanted);
    if (error <= ulps_) return;
    ulps_ = error;
    std::ostringstream text;
    text.precision(9);
    text << what_ << ": " << got << " instead of " << wanted.value << " at";
    ((text << ' ' << where), ...);
    where_ = text.str();
  }
  void expect_at_most(double ulps) const {
    EXPECT_LE(ulps_, ulps) << where_;
    ::testing::Test::RecordProperty(what_, std::to_string(ulps_));
  }

 private:
  std::string what_;
  std::string where_;
  double ulps_ = 0;
};

}  // namespace lockstep::testing
