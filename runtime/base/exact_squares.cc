// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/exact_squares.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <span>

#include "runtime/base/exact_sum.h"

namespace lockstep {
namespace {

// The exponent of the lowest digit is a multiple of 32, two digits and more below the least float's square, 2^-298.
// They reach to 2^352, which is 2^96 times the largest.
constexpr int kLowestExponent = -384;
// As far below the least double, 2^-1074; they reach to 2^1120.
constexpr int kLowestOfDoubles = -1152;
constexpr std::int64_t kNan = std::int64_t{1} << 32;
constexpr std::uint32_t kNotFinite = 255;  // the exponent of infinities and NaNs
// Squares of mantissas are below 2^48: as many have room in 63 bits.
constexpr std::int64_t kBlock = std::int64_t{1} << 15;

// The sum in `words`, a copy, rounded once.
double nearest(auto words, int lowest) {
  if (words.back() >= kNan) return std::numeric_limits<double>::quiet_NaN();
  if (words.back() != 0) return std::numeric_limits<double>::infinity();
  return exact::nearest({words.data(), words.size() - 1}, lowest);
}

}  // namespace

// Squares of one exponent are whole multiples of one number, and are added as such. Four sums of each, because the next
// addition to a sum waits for the one before.
void ExactSquares::add(const float* a, std::int64_t count) {
  const std::span<std::int64_t> digits(words.data(), words.size() - 1);
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::span<const float> block(a + begin, static_cast<std::size_t>(std::min(kBlock, count - begin)));
    std::int64_t sums[4][kNotFinite + 1] = {};
    for (std::size_t i = 0; i < block.size(); ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(block[i]);
      const std::uint32_t exponent = bits >> 23 & kNotFinite;
      const std::int64_t mantissa = (bits & 0x7fffff) | (exponent == 0 ? 0 : 0x800000);
      sums[i % 4][exponent] += mantissa * mantissa;
    }
    for (std::uint32_t exponent = 0; exponent <= kNotFinite; ++exponent) {
      const std::int64_t sum = sums[0][exponent] + sums[1][exponent] + sums[2][exponent] + sums[3][exponent];
      if (sum == 0) continue;
      if (exponent == kNotFinite) {
        words.back() |= std::ranges::any_of(block, [](float value) { return std::isnan(value); }) ? kNan : 1;
        continue;
      }
      // A float is mantissa * 2^(exponent - 150), with 1 for an exponent of 0.
      const int twice = 2 * (static_cast<int>(std::max(exponent, 1u)) - 150);
      exact::add(digits, sum, static_cast<std::size_t>(twice - kLowestExponent));
    }
    exact::carry(digits);
  }
}

// Squares of doubles are not grouped by their exponents: what has them is small, or computes in float64 anyway.
void ExactDoubleSquares::add(const double* a, std::int64_t count) {
  const std::span<std::int64_t> digits(words.data(), words.size() - 1);
  for (std::int64_t i = 0; i < count; ++i) {
    const double square = a[i] * a[i];
    if (!std::isfinite(square)) {
      words.back() |= std::isnan(square) ? kNan : 1;
      continue;
    }
    const auto bits = std::bit_cast<std::uint64_t>(square);
    const auto exponent = static_cast<int>(bits >> 52);
    const auto mantissa = static_cast<std::int64_t>((bits & 0xfffffffffffff) | (exponent == 0 ? 0 : 0x10000000000000));
    // A double is mantissa * 2^(exponent - 1075), with 1 for an exponent of 0.
    exact::add(digits, mantissa, static_cast<std::size_t>(std::max(exponent, 1) - 1075 - kLowestOfDoubles));
    if (i % kBlock == 0) exact::carry(digits);
  }
  exact::carry(digits);
}

double ExactSquares::sum() const { return nearest(words, kLowestExponent); }
double ExactDoubleSquares::sum() const { return nearest(words, kLowestOfDoubles); }

}  // namespace lockstep
