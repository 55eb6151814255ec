// SPDX-License-Identifier: Apache-2.0
#include "lockstep/device/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lockstep/base/random.h"

namespace lockstep::half_test {
namespace {

// The value of a 16-bit float with `mantissa_bits`, by its definition.
double value_of(std::uint16_t bits, int mantissa_bits) {
  const int exponent_bits = 15 - mantissa_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits & 0x7fff) >> mantissa_bits;
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) return mantissa != 0 ? std::nan("") : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

template <typename Half>
constexpr int kMantissaBits = 0;
template <>
constexpr int kMantissaBits<bfloat16> = 7;
template <>
constexpr int kMantissaBits<float16> = 10;

bfloat16 from_float(float x, bfloat16) { return to_bfloat16(x); }
float16 from_float(float x, float16) { return to_float16(x); }

template <typename Half>
class Halves : public ::testing::Test {};
using Types = ::testing::Types<bfloat16, float16>;
TYPED_TEST_SUITE(Halves, Types);

TYPED_TEST(Halves, EveryValueConvertsExactlyAndBack) {
  for (int bits = 0; bits < 65536; ++bits) {
    const TypeParam half{static_cast<std::uint16_t>(bits)};
    const double wanted = value_of(half.bits, kMantissaBits<TypeParam>);
    const float got = to_float(half);
    if (std::isnan(wanted)) {
      ASSERT_TRUE(std::isnan(got)) << bits;
      ASSERT_TRUE(std::isnan(to_float(from_float(got, TypeParam{})))) << bits;
      continue;
    }
    ASSERT_EQ(static_cast<double>(got), wanted) << bits;
    ASSERT_EQ(std::signbit(got), std::signbit(wanted)) << bits;
    ASSERT_EQ(from_float(got, TypeParam{}).bits, half.bits) << bits;
  }
}

// Between two neighbours: the nearer one, of two equally near the even one.
TYPED_TEST(Halves, RoundsToNearestEven) {
  const int infinity = ((1 << (15 - kMantissaBits<TypeParam>)) - 1) << kMantissaBits<TypeParam>;
  for (int bits = 0; bits + 1 < infinity; ++bits) {
    const auto low = static_cast<std::uint16_t>(bits);
    const auto high = static_cast<std::uint16_t>(bits + 1);
    const double a = value_of(low, kMantissaBits<TypeParam>);
    const double b = value_of(high, kMantissaBits<TypeParam>);
    const double middle = (a + b) / 2;
    const auto tie = static_cast<float>(middle);
    if (static_cast<double>(tie) != middle) continue;  // below what a float can say
    const std::uint16_t even = bits % 2 == 0 ? low : high;
    ASSERT_EQ(from_float(tie, TypeParam{}).bits, even) << bits;
    ASSERT_EQ(from_float(-tie, TypeParam{}).bits, even | 0x8000) << bits;
    ASSERT_EQ(from_float(std::nextafter(tie, 0.0f), TypeParam{}).bits, low) << bits;
    ASSERT_EQ(from_float(std::nextafter(tie, INFINITY), TypeParam{}).bits, high) << bits;
  }
}

TYPED_TEST(Halves, TooLargeIsInfinityAndTooSmallIsZero) {
  const int infinity = ((1 << (15 - kMantissaBits<TypeParam>)) - 1) << kMantissaBits<TypeParam>;
  const double largest = value_of(static_cast<std::uint16_t>(infinity - 1), kMantissaBits<TypeParam>);
  const double step = largest - value_of(static_cast<std::uint16_t>(infinity - 2), kMantissaBits<TypeParam>);
  EXPECT_EQ(from_float(static_cast<float>(largest), TypeParam{}).bits, infinity - 1);
  EXPECT_EQ(from_float(static_cast<float>(largest + step / 2), TypeParam{}).bits, infinity);
  EXPECT_EQ(from_float(std::nextafter(static_cast<float>(largest + step / 2), 0.0f), TypeParam{}).bits, infinity - 1);
  EXPECT_EQ(from_float(INFINITY, TypeParam{}).bits, infinity);
  EXPECT_EQ(from_float(-INFINITY, TypeParam{}).bits, infinity | 0x8000);
  EXPECT_EQ(from_float(std::numeric_limits<float>::denorm_min(), TypeParam{}).bits, 0);
  EXPECT_EQ(from_float(-0.0f, TypeParam{}).bits, 0x8000);
}

}  // namespace
}  // namespace lockstep::half_test
