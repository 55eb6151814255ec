// SPDX-License-Identifier: Apache-2.0
// A gradient's norm scales the gradients of every replica, and may be taken of shares of several ranks.
#include "runtime/base/exact_squares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace lockstep::exact_squares_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <typename Squares, typename T>
Squares squares_of(const std::vector<T>& values) {
  Squares squares;
  squares.add(values.data(), std::ssize(values));
  return squares;
}
ExactSquares of(const std::vector<float>& values) { return squares_of<ExactSquares>(values); }
ExactDoubleSquares of_doubles(const std::vector<double>& values) { return squares_of<ExactDoubleSquares>(values); }

template <typename Squares>
void add(Squares& sum, const Squares& part) {
  for (std::size_t i = 0; i < sum.words.size(); ++i) sum.words[i] += part.words[i];
}

TEST(ExactSquares, AreRoundedOnce) {
  EXPECT_EQ(of({}).sum(), 0);
  EXPECT_EQ(of({0, -0.0f}).sum(), 0);
  EXPECT_EQ(of({3, -4}).sum(), 25);
  // 2^-53 is half a unit in the last place of 1: rounded to even, and upwards with anything more.
  const float unit = std::ldexp(1.0f, -26), quarter = std::ldexp(1.0f, -27), least = std::ldexp(1.0f, -149);
  EXPECT_EQ(of({1, unit}).sum(), 1 + std::ldexp(1.0, -52));
  EXPECT_EQ(of({1, quarter, quarter}).sum(), 1);
  EXPECT_EQ(of({1, quarter, quarter, least}).sum(), 1 + std::ldexp(1.0, -52));
  EXPECT_EQ(of({quarter, 1, unit, quarter}).sum(), 1 + std::ldexp(1.0, -51));
}

TEST(ExactSquares, ReachFromTheLeastFloatToTheLargest) {
  const float least = std::numeric_limits<float>::denorm_min(), largest = std::numeric_limits<float>::max();
  EXPECT_EQ(of({least}).sum(), std::ldexp(1.0, -298));
  EXPECT_EQ(of({std::numeric_limits<float>::min(), least}).sum(), std::ldexp(1.0, -252) + std::ldexp(1.0, -298));
  const double square = static_cast<double>(largest) * static_cast<double>(largest);
  EXPECT_EQ(of({largest, least}).sum(), square);
  EXPECT_EQ(of(std::vector<float>(1 << 20, largest)).sum(), std::ldexp(square, 20));
}

// Of `count` values between 2^least and 2^most.
template <typename Squares, typename T>
void expect_same_bits(std::size_t count, int least, int most) {
  std::mt19937_64 random(1);
  std::normal_distribution<T> mantissa;
  std::uniform_int_distribution<int> exponent(least, most);
  std::vector<T> values(count);
  for (T& value : values) value = std::ldexp(mantissa(random), exponent(random));
  const double wanted = squares_of<Squares>(values).sum();
  long double near = 0;
  for (const T value : values) near += static_cast<long double>(value) * static_cast<long double>(value);
  EXPECT_NEAR(wanted / static_cast<double>(near), 1, 1e-14);
  for (int repetition = 0; repetition < 20; ++repetition) {
    std::shuffle(values.begin(), values.end(), random);
    Squares sum;
    for (std::size_t begin = 0; begin < count;) {
      const std::size_t size = std::min<std::size_t>(count - begin, 1 + random() % count);
      const auto first = values.begin() + static_cast<std::ptrdiff_t>(begin);
      add(sum, squares_of<Squares>(std::vector<T>(first, first + static_cast<std::ptrdiff_t>(size))));
      begin += size;
    }
    ASSERT_EQ(sum.sum(), wanted) << count;
  }
}

TEST(ExactSquares, HaveTheSameBitsInAnyOrderAndHoweverTheyAreCut) {
  for (const std::size_t count : {1u, 17u, 100000u}) {
    expect_same_bits<ExactSquares, float>(count, -7, -7);
    expect_same_bits<ExactDoubleSquares, double>(count, -7, -7);
  }
  expect_same_bits<ExactSquares, float>(1000, -140, 120);
  expect_same_bits<ExactDoubleSquares, double>(17, -500, 500);
}

TEST(ExactSquares, WhatIsNotFiniteShowsInTheSumOfTheParts) {
  const float infinity = std::numeric_limits<float>::infinity();
  ExactSquares sum = of({1, -infinity, 2});
  EXPECT_EQ(sum.sum(), kInfinity);
  add(sum, of({infinity, 3}));
  add(sum, of({1}));
  EXPECT_EQ(sum.sum(), kInfinity);
  add(sum, of({5, kNan}));
  EXPECT_TRUE(std::isnan(sum.sum()));
  std::vector<float> many(100000, 1);
  many.back() = kNan;
  EXPECT_TRUE(std::isnan(of(many).sum()));
}

TEST(ExactDoubleSquares, ReachAsFarAsSquaresOfDoubles) {
  EXPECT_EQ(of_doubles({}).sum(), 0);
  EXPECT_EQ(of_doubles({3, -4, -0.0}).sum(), 25);
  EXPECT_EQ(of_doubles({1, std::ldexp(1.0, -27), std::ldexp(1.0, -27), std::ldexp(1.0, -537)}).sum(),
            1 + std::ldexp(1.0, -52));
  EXPECT_EQ(of_doubles({std::ldexp(1.0, -537)}).sum(), std::numeric_limits<double>::denorm_min());
  EXPECT_EQ(of_doubles(std::vector<double>(1 << 10, 1e150)).sum(), std::ldexp(1e150 * 1e150, 10));
  EXPECT_EQ(of_doubles(std::vector<double>(1 << 4, 1e154)).sum(), kInfinity) << "each square is finite";
  EXPECT_EQ(of_doubles({1, 1e155}).sum(), kInfinity);
  EXPECT_EQ(of_doubles({1, -kInfinity}).sum(), kInfinity);
  EXPECT_TRUE(std::isnan(of_doubles({1, kInfinity, std::numeric_limits<double>::quiet_NaN()}).sum()));
}

}  // namespace
}  // namespace lockstep::exact_squares_test
