// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace lockstep::random_test {
namespace {

// tests/kat_vectors of Random123 (D. E. Shaw Research), the lines "philox4x32 10".
TEST(Philox, KnownAnswers) {
  using Block = std::array<std::uint32_t, 4>;
  constexpr std::uint32_t kOnes = 0xffffffffu;
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Block{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  EXPECT_EQ(philox({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Block{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  EXPECT_EQ(philox({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, {0xa4093822u, 0x299f31d0u}),
            (Block{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
}

TEST(Uniform01, StaysBelowOne) {
  EXPECT_EQ(uniform01(0), 0.0f);
  EXPECT_LT(uniform01(0xffffffffu), 1.0f);
  EXPECT_EQ(uniform01(0x80000000u), 0.5f);
}

TEST(Generator, IsPhiloxCountedUp) {
  Generator generator(0x0000000200000001ull, 0x0000000400000003ull);
  for (std::uint32_t block = 0; block < 3; ++block) {
    for (const std::uint32_t expected : philox({block, 0, 3, 4}, {1, 2})) EXPECT_EQ(generator.next(), expected);
  }
}

TEST(Generator, SeedsAndStreamsDiffer) {
  std::set<std::uint32_t> firsts;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    for (std::uint64_t stream = 0; stream < 50; ++stream) firsts.insert(Generator(seed, stream).next());
  }
  EXPECT_EQ(firsts.size(), 2500u);
}

TEST(Generator, BelowReachesEveryValueAndNoOther) {
  Generator generator(1);
  for (const std::uint64_t bound : {1, 2, 3, 7, 10}) {
    std::vector<int> seen(bound);
    for (int i = 0; i < 2000; ++i) {
      const std::uint64_t value = generator.below(bound);
      ASSERT_LT(value, bound);
      ++seen[value];
    }
    // Five standard deviations around the mean of a binomial; fixed seeds, so this can't fail by chance.
    const double mean = 2000.0 / static_cast<double>(bound);
    for (const int count : seen) EXPECT_NEAR(count, mean, 5 * std::sqrt(mean) + 1) << "bound " << bound;
  }
}

// With a bound of 3/4 of the range, a plain remainder would put half of the numbers into the lowest third.
TEST(Generator, BelowHasNoBiasForLargeBounds) {
  Generator generator(2);
  const std::uint64_t bound = 3ull << 62;
  int low = 0;
  for (int i = 0; i < 3000; ++i) low += generator.below(bound) < (1ull << 62);
  EXPECT_NEAR(low, 1000, 150);
}

TEST(Generator, NormalHasItsMoments) {
  Generator generator(3);
  constexpr int kCount = 100000;
  double sum = 0, squares = 0, fourth = 0;
  for (int i = 0; i < kCount; ++i) {
    const double x = generator.normal();
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
  }
  EXPECT_NEAR(sum / kCount, 0, 0.02);
  EXPECT_NEAR(squares / kCount, 1, 0.03);
  EXPECT_NEAR(fourth / kCount, 3, 0.2);
}

}  // namespace
}  // namespace lockstep::random_test
