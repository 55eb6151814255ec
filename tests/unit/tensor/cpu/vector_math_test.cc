// SPDX-License-Identifier: Apache-2.0
#include "runtime/tensor/cpu/vector_math.h"

#include <bit>
#include <cmath>

#include "tests/unit/tensor/cpu/sweep.h"

namespace lockstep::cpu::vector_math_test {
namespace {

// Every 1009th float of either sign, so that no binade is left out.
void expect_within(double ulps, float (*function)(float), double (*wanted)(double), float lowest, float highest) {
  testing::Worst worst("vector math");
  for (std::uint32_t bits = 0; bits < 0x7f800000u; bits += 1009) {
    for (const float x : {std::bit_cast<float>(bits), -std::bit_cast<float>(bits)}) {
      if (x >= lowest && x <= highest) worst.add(function(x), {wanted(static_cast<double>(x))}, x);
    }
  }
  worst.expect_at_most(ulps);
}

TEST(VectorMath, AreWithinTheirUnitsInTheLastPlace) {
  const float most = testing::kLargest;
  expect_within(1.01, fast_exp, std::exp, -most, most);
  expect_within(1.1, fast_tanh, std::tanh, -most, most);
  expect_within(1.01, fast_exp_normal, std::exp, -87, 88);
}

TEST(VectorMath, EndsAreExactAndNanStays) {
  EXPECT_EQ(fast_exp(0), 1);
  EXPECT_EQ(fast_exp(-testing::kInfinity), 0);
  EXPECT_EQ(fast_exp(testing::kInfinity), testing::kInfinity);
  EXPECT_LT(fast_exp_normal(-testing::kInfinity), 2e-38f);
  EXPECT_EQ(fast_exp_normal(testing::kInfinity), testing::kInfinity);
  EXPECT_EQ(fast_tanh(-testing::kInfinity), -1);
  EXPECT_EQ(fast_tanh(testing::kInfinity), 1);
  EXPECT_TRUE(std::signbit(fast_tanh(-0.0f)));
  for (const auto function : {fast_exp, fast_exp_normal, fast_tanh}) {
    EXPECT_TRUE(std::isnan(function(testing::kNan)));
    EXPECT_TRUE(std::isnan(function(-testing::kNan)));
  }
}

}  // namespace
}  // namespace lockstep::cpu::vector_math_test
