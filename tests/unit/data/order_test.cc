// SPDX-License-Identifier: Apache-2.0
// In what order samples come: a permutation, and the orders of an epoch that are made of one, or of weights.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "lockstep/data/permutation.h"
#include "lockstep/data/sampler.h"
#include "tests/support/error_of.h"
#include "tests/support/messages.h"

namespace lockstep::data::order_test {
namespace {

using lockstep::testing::error_of, lockstep::testing::expect_message;
using Ids = std::vector<std::int64_t>;
using Doubles = std::vector<double>;

Ids numbers_below(std::int64_t length) {
  Ids ids(static_cast<std::size_t>(length));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

Ids all_of(std::int64_t length, std::uint64_t seed, std::int64_t epoch) {
  Ids ids = numbers_below(length);
  Permutation(length, seed, epoch).map(ids);
  return ids;
}

Ids all_of(const EpochOrder& order) {
  Ids ids = numbers_below(order.size());
  order.lookup(ids);
  return ids;
}

// Large enough for all of its bits to count.
std::uint64_t any_seed(Generator& random) { return std::uint64_t{random.next()} << 32 | random.next(); }

TEST(Permutation, HoldsEveryNumberOnceAtEveryLength) {
  Generator random(1);
  Ids lengths = numbers_below(200);
  for (std::int64_t near : {4096, 4160, 4225, 5000, 6000, 8192, 10000, 16384, 65536, 66049, 100489, 131072}) {
    for (std::int64_t by = -3; by <= 3; ++by) lengths.push_back(near + by);
  }
  for (int i = 0; i < 40; ++i) lengths.push_back(static_cast<std::int64_t>(random.below(60000)));
  for (const std::int64_t length : lengths) {
    Ids ids = all_of(length, any_seed(random), static_cast<std::int64_t>(any_seed(random) >> 1));
    std::sort(ids.begin(), ids.end());
    ASSERT_EQ(ids, numbers_below(length));
  }
}

TEST(Permutation, OfManyMoreThan32BitsStaysWithinAndComesToNoneTwice) {
  for (const std::int64_t length :
       {(std::int64_t{1} << 32) - 1, std::int64_t{1} << 32, (std::int64_t{1} << 32) + 1, (std::int64_t{1} << 40) + 7,
        (std::int64_t{1} << 62) - 1, std::numeric_limits<std::int64_t>::max()}) {
    const Permutation order(length, 5, 9);
    std::set<std::int64_t> seen;
    for (std::int64_t i = 0; i < 20000; ++i) {
      for (const std::int64_t position : {i, length - 1 - i, length / 2 + i}) {
        const std::int64_t id = order[position];
        ASSERT_TRUE(id >= 0 && id < length);
        ASSERT_TRUE(seen.insert(id).second) << length;
      }
    }
    EXPECT_GT(*seen.rbegin(), length - length / 1000) << "it reaches the end";
  }
}

TEST(Permutation, OfOnePositionIsThatOfAll) {
  for (const std::int64_t length : {1, 7, 4095, 4096, 4097, 70001}) {
    const Permutation order(length, 3, 2);
    const Ids all = all_of(length, 3, 2);
    for (std::int64_t i = 0; i < length; ++i) ASSERT_EQ(order[i], all[static_cast<std::size_t>(i)]);
    Ids every_other(all.size() - all.size() / 2);
    for (std::size_t i = 0; i < every_other.size(); ++i) every_other[i] = static_cast<std::int64_t>(2 * i);
    order.map(every_other);
    for (std::size_t i = 0; i < every_other.size(); ++i) ASSERT_EQ(every_other[i], all[2 * i]);
  }
}

// Every bit of the seed and of the epoch counts, and not their sum: about one of 5000 samples stays in its place.
TEST(Permutation, OfAnotherSeedOrEpochHasNothingToDoWithIt) {
  for (const std::int64_t length : {1000, 5000}) {
    const Ids here = all_of(length, 0, 1);
    const auto same_places = [&](const Ids& other) {
      return std::inner_product(here.begin(), here.end(), other.begin(), 0, std::plus<>(), std::equal_to<>());
    };
    EXPECT_EQ(same_places(all_of(length, 0, 1)), length);
    EXPECT_LT(same_places(all_of(length, 1, 0)), 9);
    for (int bit = 0; bit < 64; ++bit) EXPECT_LT(same_places(all_of(length, std::uint64_t{1} << bit, 1)), 9) << bit;
    for (int bit = 1; bit < 63; ++bit) EXPECT_LT(same_places(all_of(length, 0, std::int64_t{1} << bit | 1)), 9) << bit;
  }
}

// Golden: the order is a promise to every machine and every later version, or a resumed run would read other samples.
TEST(Permutation, IsTheSameOnEveryMachine) {
  EXPECT_EQ(all_of(10, 0, 0), (Ids{1, 7, 5, 2, 4, 0, 6, 8, 3, 9}));
  EXPECT_EQ(all_of(10, 42, 5), (Ids{2, 1, 3, 8, 7, 4, 5, 6, 9, 0}));
  const auto first = [](std::int64_t length, std::uint64_t seed, std::int64_t epoch) {
    Ids ids{0, 1, 2, length - 1};
    Permutation(length, seed, epoch).map(ids);
    return ids;
  };
  EXPECT_EQ(first(4096, 0, 0), (Ids{36, 60, 2276, 2760}));
  EXPECT_EQ(first(60000, 42, 5), (Ids{53390, 24204, 46054, 49062}));
  EXPECT_EQ(first((std::int64_t{1} << 40) + 7, 0x123456789abcdef0, std::int64_t{1} << 33),
            (Ids{844097167505, 1044970128768, 468707159692, 645575433879}));
}

TEST(Permutation, RefusesNumbersOutOfRange) {
  expect_message("data", "a length of -1", error_of<InvalidArgument>([] { Permutation(-1, 0, 0); }));
  EXPECT_THROW(Permutation(5, 0, -1), InvalidArgument);
  for (const std::int64_t length : {0, 10, 5000}) {
    const Permutation order(length, 0, 0);
    EXPECT_THROW(static_cast<void>(order[length]), InvalidArgument);
    EXPECT_THROW(static_cast<void>(order[-1]), InvalidArgument);
    Ids positions{-1, length};
    EXPECT_THROW(order.map(positions), InvalidArgument);
  }
}

// Counts cells, for chi-square tests. Seeds are fixed, so that a result is the same each time; each would fail of a
// true random order in one of a million seeds.
class Cells {
 public:
  // By cell: a number that is as large as it is likely. One of 0 must stay empty.
  explicit Cells(Doubles likely) : counts_(likely.size()), likely_(std::move(likely)) {}
  void count(std::size_t cell) { ++counts_.at(cell); }
  void expect_as_likely(const std::string& what = {}) const {
    const double total = std::accumulate(counts_.begin(), counts_.end(), 0.0);
    const double sum = std::accumulate(likely_.begin(), likely_.end(), 0.0);
    double chi_square = 0, freedom = -1;
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      const double expected = total * likely_[i] / sum;
      if (expected == 0) {
        EXPECT_EQ(counts_[i], 0) << what << ", cell " << i;
      } else if (expected > 5) {
        chi_square += std::pow(counts_[i] - expected, 2) / expected;
        ++freedom;
      }
    }
    // Wilson and Hilferty's approximation of the quantile at 1 - 1e-6, 4.753 standard deviations of a normal variable.
    const double term = 2 / (9 * freedom);
    EXPECT_LT(chi_square, freedom * std::pow(1 - term + 4.753 * std::sqrt(term), 3)) << what;
  }

 private:
  Doubles counts_;
  Doubles likely_;
};

// What cell a sample lies in: by its place, or by its last digits.
struct Split {
  std::int64_t cells;
  bool by_place;
  std::size_t operator()(std::int64_t id, std::int64_t length) const {
    return static_cast<std::size_t>(
        by_place ? static_cast<std::int64_t>(static_cast<double>(id) * static_cast<double>(cells) /
                                             static_cast<double>(length))
                 : id % cells);
  }
  // For each pair of cells: how many pairs of two samples there are.
  Doubles pairs(std::int64_t length) const {
    Doubles sizes(static_cast<std::size_t>(cells)), pairs;
    for (std::int64_t id = 0; id < length; ++id) ++sizes[(*this)(id, length)];
    for (std::size_t a = 0; a < sizes.size(); ++a) {
      for (std::size_t b = 0; b < sizes.size(); ++b) pairs.push_back(sizes[a] * (sizes[b] - (a == b ? 1 : 0)));
    }
    return pairs;
  }
};

constexpr int kOrders = 12000;

TEST(PermutationStatistics, EveryPairIsAsLikelyAtTwoPositions) {
  for (const std::int64_t length : {4096, 4097, 4160, 5003, 8192}) {
    for (const Split split : {Split{13, true}, Split{16, false}, Split{65, false}}) {
      // Neighbours, and some that share a row or a column of the network.
      for (const auto& [one, other] :
           {std::pair<std::int64_t, std::int64_t>{0, 1}, {0, 64}, {3, 68}, {length - 2, length - 1}, {7, length / 2}}) {
        Cells cells(split.pairs(length));
        for (int i = 0; i < kOrders * (split.cells > 20 ? 3 : 1); ++i) {
          const Permutation order(length, static_cast<std::uint64_t>(i % 100), i / 100);
          cells.count(split(order[one], length) * static_cast<std::size_t>(split.cells) + split(order[other], length));
        }
        cells.expect_as_likely(
            fmt::format("length {}, positions {} and {}, {} cells", length, one, other, split.cells));
      }
    }
  }
}

TEST(EpochOrder, OfAShuffleIsThePermutationOfItsEpoch) {
  EpochOrder order = EpochOrder::shuffled(5000, 3);
  const EpochOrder copy = order;
  order.set_epoch(4);
  EXPECT_EQ(order.epoch(), 4);
  EXPECT_EQ(all_of(order), all_of(5000, 3, 4));
  EXPECT_EQ(copy[7], Permutation(5000, 3, 0)[7]) << "copies are independent";
  EXPECT_EQ(all_of(EpochOrder::in_order(3)), (Ids{0, 1, 2}));
}

TEST(EpochOrder, WithinASubsetHoldsItsSamplesOnce) {
  Ids odd(3000), wanted;
  for (std::size_t i = 0; i < odd.size(); ++i) odd[i] = static_cast<std::int64_t>(2 * i + 1);
  EpochOrder order = EpochOrder::shuffled(3000, 1).within(odd);
  order.set_epoch(2);
  for (const std::int64_t id : all_of(3000, 1, 2)) wanted.push_back(odd[static_cast<std::size_t>(id)]);
  EXPECT_EQ(all_of(order), wanted);
  EXPECT_EQ(all_of(EpochOrder::in_order(2).within({40, 4})), (Ids{40, 4}));
  expect_message("data", "three positions of a subset of two", error_of<InvalidArgument>([] {
                   static_cast<void>(EpochOrder::in_order(3).within({40, 4})[2]);
                 }));
}

void expect_drawn_by(const Doubles& weights, const Doubles& likely, std::int64_t draws, std::uint64_t seed) {
  EpochOrder order = EpochOrder::weighted(weights, draws, seed);
  order.set_epoch(3);
  Cells cells(likely);
  for (const std::int64_t id : all_of(order)) cells.count(static_cast<std::size_t>(id));
  cells.expect_as_likely(fmt::format("{} weights", weights.size()));
}

TEST(EpochOrder, OfWeightsDrawsEachSampleByItsWeight) {
  const Doubles weights{1, 0, 2.5, 0.5, 4, 0, 1e-9, 2}, equal(1000, 0.1);
  expect_drawn_by(weights, weights, 200000, 5);
  expect_drawn_by(equal, equal, 100000, 2);
}

// Draws next to each other, and those of neighbouring seeds and epochs, have nothing to do with each other.
TEST(EpochOrder, OfWeightsDrawsIndependently) {
  const Doubles weights{3, 1, 2, 2};
  constexpr std::int64_t kDraws = 100000;
  const auto draws = [&](std::uint64_t seed, std::int64_t epoch) {
    EpochOrder order = EpochOrder::weighted(weights, kDraws + 1, seed);
    order.set_epoch(epoch);
    return all_of(order);
  };
  const Ids here = draws(0, 1);
  const auto expect_independent = [&](const Ids& other, std::size_t shift, const std::string& what) {
    Doubles pairs;
    for (std::size_t i = 0; i < 16; ++i) pairs.push_back(weights[i / 4] * weights[i % 4]);
    Cells cells(pairs);
    for (std::size_t i = 0; i < kDraws; ++i) cells.count(static_cast<std::size_t>(here[i] * 4 + other[i + shift]));
    cells.expect_as_likely(what);
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
  EXPECT_EQ(all_of(EpochOrder::weighted(Doubles{1, 2, 3, 4}, 12, 7)), (Ids{3, 3, 1, 3, 1, 2, 3, 2, 1, 1, 1, 3}));
}

// Of weights at the ends of a double's range, whose mean or sum is none.
TEST(EpochOrder, OfWeightsOfAnyScaleDrawsAlike) {
  constexpr double kLeast = std::numeric_limits<double>::denorm_min();
  constexpr double kMost = std::numeric_limits<double>::max();
  const double near_most = std::ldexp(1, 1022);
  const Ids wanted = all_of(EpochOrder::weighted(Doubles{1, 0, 2, 1}, 1000, 3));
  EXPECT_EQ(all_of(EpochOrder::weighted(Doubles{kLeast, 0, 2 * kLeast, kLeast}, 1000, 3)), wanted);
  EXPECT_EQ(all_of(EpochOrder::weighted(Doubles{near_most, 0, 2 * near_most, near_most}, 1000, 3)), wanted);
  expect_drawn_by({kMost / 2, 0, kMost, kMost / 2}, {1, 0, 2, 1}, 4000, 3);
  EXPECT_EQ(all_of(EpochOrder::weighted(Doubles{kLeast, kMost}, 1000, 3)), Ids(1000, 1)) << "the other in 2^2098 draws";
}

TEST(EpochOrder, SaysWhatIsWrongWithWeights) {
  const auto expect_refused = [](const char* what, const Doubles& weights) {
    expect_message("data", what, error_of<InvalidArgument>([&] { EpochOrder::weighted(weights, 1, 0); }));
  };
  expect_refused("a weight below 0", {1, -1});
  expect_refused("a weight that is no number", {std::nan(""), 1});
  expect_refused("an infinite weight", {1, std::numeric_limits<double>::infinity()});
  expect_refused("no weight above 0", {0, 0});
  expect_refused("no weights", {});
  EXPECT_THROW(EpochOrder::weighted(Doubles{1}, -1, 0), InvalidArgument);
  EXPECT_THROW(EpochOrder::shuffled(-1, 0), InvalidArgument);
}

TEST(EpochOrder, HasADigestOfAllItDependsOn) {
  const Doubles weights{1, 2}, others{2, 1};
  EXPECT_EQ(EpochOrder::weighted(weights, 5, 1).digest(), EpochOrder::weighted(weights, 5, 1).digest());
  EXPECT_NE(EpochOrder::weighted(weights, 5, 1).digest(), EpochOrder::weighted(others, 5, 1).digest());
  EXPECT_NE(EpochOrder::in_order(5).digest(), EpochOrder::shuffled(5, 0).digest());
  EXPECT_NE(EpochOrder::in_order(2).digest(), EpochOrder::in_order(2).within({1, 0}).digest());
}

}  // namespace
}  // namespace lockstep::data::order_test
