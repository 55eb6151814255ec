#include "runtime/tensor/cpu/vector_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace lockstep::cpu {
namespace {

TEST(VectorMath, ExpIsWithinTwoUnitsInTheLastPlace) {
  double worst = 0;
  for (double x = -87; x <= 88; x += 1e-4) {
    const auto argument = static_cast<float>(x);
    const double wanted = std::exp(static_cast<double>(argument));
    worst = std::max(worst, std::abs(static_cast<double>(fast_exp(argument)) - wanted) / wanted);
  }
  EXPECT_LT(worst, 2 * 0x1.0p-23);
  EXPECT_EQ(fast_exp(0), 1);
}

TEST(VectorMath, ExpSaturatesAndKeepsNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_LT(fast_exp(-1000), 1e-37f);
  EXPECT_GE(fast_exp(-infinity), 0);
  EXPECT_GT(fast_exp(infinity), 1e38f);
  EXPECT_TRUE(std::isnan(fast_exp(std::numeric_limits<float>::quiet_NaN())));
}

TEST(VectorMath, TanhIsWithinAMillionth) {
  for (double x = -12; x <= 12; x += 1e-4) {
    const auto argument = static_cast<float>(x);
    const double wanted = std::tanh(static_cast<double>(argument));
    ASSERT_NEAR(fast_tanh(argument), wanted, 1e-6 * std::abs(wanted) + 1e-30) << x;
    ASSERT_LE(std::abs(fast_tanh(argument)), 1.0f + 1e-6f) << x;
  }
  EXPECT_NEAR(fast_tanh(1e-10f), 1e-10f, 1e-16f);
  EXPECT_TRUE(std::isnan(fast_tanh(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace lockstep::cpu
