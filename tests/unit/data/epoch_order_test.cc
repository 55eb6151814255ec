// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/data/permutation.h"
#include "tests/support/error_of.h"

namespace lockstep::data::epoch_order_test {
namespace {

using lockstep::testing::error_of;
using Ids = std::vector<std::int64_t>;

Ids all_of(const EpochOrder& order) {
  Ids ids(static_cast<std::size_t>(order.size()));
  std::iota(ids.begin(), ids.end(), 0);
  order.lookup(ids);
  return ids;
}

TEST(EpochOrder, OfAShuffleIsThePermutationOfItsEpoch) {
  EpochOrder order = EpochOrder::shuffled(5000, 3);
  const EpochOrder copy = order;
  order.set_epoch(4);
  EXPECT_EQ(order.epoch(), 4);
  const Permutation wanted(5000, 3, 4);
  for (std::int64_t i = 0; i < 5000; ++i) ASSERT_EQ(order[i], wanted[i]);
  EXPECT_EQ(copy[7], Permutation(5000, 3, 0)[7]) << "copies are independent";
  EXPECT_EQ(all_of(EpochOrder::in_order(3)), (Ids{0, 1, 2}));
}

TEST(EpochOrder, WithinASubsetHoldsItsSamplesOnce) {
  Ids odd(3000);
  for (std::size_t i = 0; i < odd.size(); ++i) odd[i] = static_cast<std::int64_t>(2 * i + 1);
  EpochOrder order = EpochOrder::shuffled(3000, 1).within(odd);
  order.set_epoch(2);
  Ids ids = all_of(order);
  EXPECT_EQ(ids[5], odd[static_cast<std::size_t>(Permutation(3000, 1, 2)[5])]);
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(ids, odd);
  EXPECT_EQ(all_of(EpochOrder::in_order(2).within({40, 4})), (Ids{40, 4}));
  EXPECT_EQ(error_of<InvalidArgument>([] {
              static_cast<void>(EpochOrder::in_order(3).within({40, 4})[2]);
            }),
            "sampler: the order drew position 2 of a subset of 2 samples; make the order for as many samples as the "
            "subset has");
}

TEST(EpochOrder, OfWeightsDrawsEachSampleByItsWeight) {
  const std::vector<double> weights{1, 0, 2.5, 0.5, 4, 0, 1e-9, 2};
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  constexpr std::int64_t kDraws = 200000;
  EpochOrder order = EpochOrder::weighted(weights, kDraws, 5);
  order.set_epoch(3);
  std::vector<double> counts(weights.size());
  for (const std::int64_t id : all_of(order)) ++counts.at(static_cast<std::size_t>(id));
  double chi_square = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double expected = kDraws * weights[i] / sum;
    if (weights[i] == 0) {
      EXPECT_EQ(counts[i], 0) << i;
    } else if (expected > 5) {
      chi_square += std::pow(counts[i] - expected, 2) / expected;
    }
  }
  EXPECT_LT(chi_square, 33.4) << "4 degrees of freedom, one seed in a million";
}

// Draws next to each other, and those of neighbouring seeds and epochs, have nothing to do with each other.
TEST(EpochOrder, OfWeightsDrawsIndependently) {
  const std::vector<double> weights{3, 1, 2, 2};
  constexpr std::int64_t kDraws = 100000;
  const auto draws = [&](std::uint64_t seed, std::int64_t epoch) {
    EpochOrder order = EpochOrder::weighted(weights, kDraws + 1, seed);
    order.set_epoch(epoch);
    return all_of(order);
  };
  const Ids here = draws(0, 1);
  const auto expect_independent = [&](const Ids& other, std::size_t shift, const std::string& what) {
    std::vector<double> pairs(16);
    for (std::size_t i = 0; i < kDraws; ++i) ++pairs[static_cast<std::size_t>(here[i] * 4 + other[i + shift])];
    double chi_square = 0;
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      const double expected = kDraws * weights[i / 4] / 8 * weights[i % 4] / 8;
      chi_square += std::pow(pairs[i] - expected, 2) / expected;
    }
    EXPECT_LT(chi_square, 58) << what << ": 15 degrees of freedom, one seed in a million";
  };
  expect_independent(here, 1, "the next draw");
  expect_independent(draws(1, 0), 0, "epoch 0 of seed 1");
  expect_independent(draws(0, 2), 0, "the next epoch");
  expect_independent(draws(std::uint64_t{1} << 40, 1), 0, "a seed of more than 32 bits");
  expect_independent(draws(0, std::int64_t{1} << 40 | 1), 0, "an epoch of more than 32 bits");
  EXPECT_EQ(here, draws(0, 1));
}

// Golden, as that of a permutation.
TEST(EpochOrder, OfWeightsIsTheSameOnEveryMachine) {
  const std::vector<double> weights{1, 2, 3, 4};
  EXPECT_EQ(all_of(EpochOrder::weighted(weights, 12, 7)), (Ids{3, 3, 1, 3, 1, 2, 3, 2, 1, 1, 1, 3}));
}

// Of weights at the ends of a double's range, whose mean or sum is none.
TEST(EpochOrder, OfWeightsOfAnyScaleDrawsAlike) {
  constexpr double kLeast = std::numeric_limits<double>::denorm_min();
  constexpr double kMost = std::numeric_limits<double>::max();
  const std::vector<double> plain{1, 0, 2, 1}, least{kLeast, 0, 2 * kLeast, kLeast};
  const std::vector<double> most{kMost / 2, 0, kMost, kMost / 2};
  const Ids wanted = all_of(EpochOrder::weighted(plain, 1000, 3));
  EXPECT_EQ(all_of(EpochOrder::weighted(least, 1000, 3)), wanted);
  const std::vector<double> near_most{std::ldexp(1, 1022), 0, std::ldexp(2, 1022), std::ldexp(1, 1022)};
  EXPECT_EQ(all_of(EpochOrder::weighted(near_most, 1000, 3)), wanted);
  std::vector<double> counts(4);
  for (const std::int64_t id : all_of(EpochOrder::weighted(most, 4000, 3))) ++counts[static_cast<std::size_t>(id)];
  EXPECT_NEAR(counts[0], 1000, 150);
  EXPECT_EQ(counts[1], 0);
  EXPECT_NEAR(counts[2], 2000, 150);
  const std::vector<double> apart{kLeast, kMost};
  EXPECT_EQ(all_of(EpochOrder::weighted(apart, 1000, 3)), Ids(1000, 1)) << "the other in 2^2098 draws";
}

TEST(EpochOrder, OfManyEqualWeightsDrawsThemAll) {
  const std::vector<double> weights(1000, 0.1);
  std::vector<double> counts(weights.size());
  for (const std::int64_t id : all_of(EpochOrder::weighted(weights, 100000, 2))) ++counts[static_cast<std::size_t>(id)];
  double chi_square = 0;
  for (const double count : counts) chi_square += (count - 100) * (count - 100) / 100;
  EXPECT_LT(chi_square, 1220) << "999 degrees of freedom, one seed in a million";
}

TEST(EpochOrder, IsDealtOutAsEveryOther) {
  const std::vector<double> weights{0, 1, 0, 5};
  Ids joined;
  for (int rank = 0; rank < 2; ++rank) {
    const Ids own = GlobalBatchSampler(EpochOrder::weighted(weights, 30, 1), rank, 2, {.global_batch = 30}).batch(0);
    joined.insert(joined.end(), own.begin(), own.end());
  }
  EXPECT_EQ(joined, all_of(EpochOrder::weighted(weights, 30, 1)));
}

TEST(EpochOrder, SaysWhatIsWrongWithWeights) {
  const auto text_of = [](std::vector<double> weights) {
    return error_of<InvalidArgument>([&] { EpochOrder::weighted(weights, 1, 0); });
  };
  EXPECT_EQ(text_of({1, -1}), "EpochOrder::weighted: the weight of sample 1 is -1; give finite weights of at least 0");
  EXPECT_EQ(text_of({std::nan(""), 1}),
            "EpochOrder::weighted: the weight of sample 0 is nan; give finite weights of at least 0");
  EXPECT_EQ(text_of({1, std::numeric_limits<double>::infinity()}),
            "EpochOrder::weighted: the weight of sample 1 is inf; give finite weights of at least 0");
  EXPECT_EQ(text_of({0, 0}),
            "EpochOrder::weighted: none of the 2 weights is above 0, so that no sample can be drawn; give at least one "
            "weight above 0");
  EXPECT_EQ(text_of({}),
            "EpochOrder::weighted: none of the 0 weights is above 0, so that no sample can be drawn; give at least one "
            "weight above 0");
  EXPECT_THROW(EpochOrder::weighted(std::vector<double>{1}, -1, 0), InvalidArgument);
  EXPECT_THROW(EpochOrder::shuffled(-1, 0), InvalidArgument);
}

TEST(EpochOrder, HasADigestOfAllItDependsOn) {
  const std::vector<double> weights{1, 2}, others{2, 1};
  EXPECT_EQ(EpochOrder::weighted(weights, 5, 1).digest(), EpochOrder::weighted(weights, 5, 1).digest());
  EXPECT_NE(EpochOrder::weighted(weights, 5, 1).digest(), EpochOrder::weighted(others, 5, 1).digest());
  EXPECT_NE(EpochOrder::in_order(5).digest(), EpochOrder::shuffled(5, 0).digest());
  EXPECT_NE(EpochOrder::in_order(2).digest(), EpochOrder::in_order(2).within({1, 0}).digest());
}

}  // namespace
}  // namespace lockstep::data::epoch_order_test
