// SPDX-License-Identifier: Apache-2.0
// Conversions of 16-bit floats: each value against its definition, and arrays against single values.
#include "runtime/device/half_arrays.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "lockstep/base/random.h"
#include "lockstep/device/dtype.h"

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

// Each way of converting that this processor has, beside one value at a time, bit for bit.
std::vector<float16> all_halves() {
  std::vector<float16> halves;
  for (int bits = 0; bits < 65536; ++bits) halves.push_back({static_cast<std::uint16_t>(bits)});
  return halves;
}

std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }
// Signalling or quiet: half.h leaves a NaN as it is, an instruction makes it quiet.
std::uint32_t quiet_bits_of(float value) { return bits_of(value) | (std::isnan(value) ? 0x00400000u : 0u); }

// Wherever rounding may go one way or the other: each half, the point halfway to the next, and the floats beside both;
// infinities, NaN of several payloads, and any bits at all.
std::vector<float> floats_to_round() {
  std::vector<float> floats;
  const auto add_with_neighbours = [&](float value) {
    for (const std::uint32_t apart : {~0u, 0u, 1u}) floats.push_back(std::bit_cast<float>(bits_of(value) + apart));
  };
  for (const float16 half : all_halves()) {
    const float value = to_float(half);
    add_with_neighbours(value);
    if (!std::isfinite(value)) continue;
    const float16 next{static_cast<std::uint16_t>(half.bits + 1)};
    // Beyond the largest there would be 65536.
    const float end = std::isfinite(to_float(next)) ? to_float(next) : std::copysign(65536.0f, value);
    add_with_neighbours((value + end) / 2);
  }
  for (std::uint32_t payload = 1; payload < 0x00800000u; payload = payload * 3 + 1) {
    for (const std::uint32_t sign : {0u, 0x80000000u})
      floats.push_back(std::bit_cast<float>(sign | 0x7f800000u | payload));
  }
  Generator random(1);
  for (int i = 0; i < 1'000'000; ++i) floats.push_back(std::bit_cast<float>(random.next()));
  return floats;
}

TEST(HalfArrays, EveryHalfBecomesTheSameFloat) {
  const auto halves = all_halves();
  for (const HalfArrays& way : half_arrays()) {
    std::vector<float> got(halves.size());
    way.to_floats(halves.data(), got.data(), halves.size());
    for (std::size_t i = 0; i < halves.size(); ++i) {
      ASSERT_EQ(quiet_bits_of(got[i]), quiet_bits_of(to_float(halves[i]))) << way.name << ", half " << i;
    }
  }
}

TEST(HalfArrays, EveryFloatAtAndBesideAHalfwayPointBecomesTheSameHalf) {
  const auto floats = floats_to_round();
  for (const HalfArrays& way : half_arrays()) {
    std::vector<float16> got(floats.size());
    way.to_float16s(floats.data(), got.data(), floats.size());
    for (std::size_t i = 0; i < floats.size(); ++i) {
      ASSERT_EQ(got[i].bits, to_float16(floats[i]).bits) << way.name << ", float " << std::hex << bits_of(floats[i]);
    }
  }
}

// Vectors of a few at once, and what is left over.
TEST(HalfArrays, EveryLengthIsConvertedToItsEndAndNotBeyond) {
  const float16 mark{0x1234};
  for (const HalfArrays& way : half_arrays()) {
    for (std::size_t count = 0; count <= 40; ++count) {
      std::vector<float> floats(count);
      std::iota(floats.begin(), floats.end(), 1.0f);
      std::vector<float16> halves(count + 1, mark);
      way.to_float16s(floats.data(), halves.data(), count);
      EXPECT_EQ(halves[count].bits, mark.bits) << way.name << ", " << count;
      std::vector<float> back(count + 1, -1.0f);
      way.to_floats(halves.data(), back.data(), count);
      EXPECT_EQ(back[count], -1.0f) << way.name << ", " << count;
      back.pop_back();
      EXPECT_EQ(back, floats) << way.name << ", " << count;
    }
  }
}

// What needs nothing is always there, and comes after what the processor says it has.
TEST(HalfArrays, TheProcessorsOwnInstructionsComeFirst) {
  std::ifstream file("/proc/cpuinfo");
  const std::string cpu{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::string> names;
  for (const HalfArrays& way : half_arrays()) names.push_back(way.name);
  const bool has_f16c = cpu.find(" f16c") != std::string::npos;
  EXPECT_EQ(names, has_f16c ? (std::vector<std::string>{"F16C", "none"}) : std::vector<std::string>{"none"});
}

}  // namespace
}  // namespace lockstep::half_test
