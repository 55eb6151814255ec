// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/permutation.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "tests/support/error_of.h"

namespace lockstep::data::permutation_test {
namespace {

using lockstep::testing::error_of;
using Ids = std::vector<std::int64_t>;

Ids all_of(std::int64_t length, std::uint64_t seed, std::int64_t epoch) {
  Ids ids(static_cast<std::size_t>(length));
  std::iota(ids.begin(), ids.end(), 0);
  Permutation(length, seed, epoch).map(ids);
  return ids;
}

void expect_every_number_once(std::int64_t length, std::uint64_t seed, std::int64_t epoch) {
  std::vector<char> seen(static_cast<std::size_t>(length));
  for (const std::int64_t id : all_of(length, seed, epoch)) {
    ASSERT_TRUE(id >= 0 && id < length) << id << " of " << length;
    ASSERT_FALSE(seen[static_cast<std::size_t>(id)]) << id << " of " << length << " comes twice";
    seen[static_cast<std::size_t>(id)] = 1;
  }
}

// Large enough for all of its bits to count.
std::uint64_t any_seed(Generator& random) { return std::uint64_t{random.next()} << 32 | random.next(); }

TEST(Permutation, HoldsEveryNumberOnceAtEveryLength) {
  Generator random(1);
  std::vector<std::int64_t> lengths(200);
  std::iota(lengths.begin(), lengths.end(), 0);
  for (std::int64_t near : {4096, 4160, 4225, 5000, 6000, 8192, 10000, 16384, 65536, 66049, 100489, 131072}) {
    for (std::int64_t by = -3; by <= 3; ++by) lengths.push_back(near + by);
  }
  for (int i = 0; i < 40; ++i) lengths.push_back(static_cast<std::int64_t>(random.below(60000)));
  for (const std::int64_t length : lengths) {
    expect_every_number_once(length, any_seed(random), static_cast<std::int64_t>(any_seed(random) >> 1));
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
    Ids odd(all.size() - all.size() / 2);
    for (std::size_t i = 0; i < odd.size(); ++i) odd[i] = static_cast<std::int64_t>(2 * i);
    order.map(odd);
    for (std::size_t i = 0; i < odd.size(); ++i) ASSERT_EQ(odd[i], all[2 * i]);
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
  EXPECT_EQ(error_of<InvalidArgument>([] { Permutation(-1, 0, 0); }),
            "permutation: length is -1; it must be at least 0: give the number of samples");
  EXPECT_THROW(Permutation(5, 0, -1), InvalidArgument);
  for (const std::int64_t length : {0, 10, 5000}) {
    const Permutation order(length, 0, 0);
    EXPECT_THROW(static_cast<void>(order[length]), InvalidArgument);
    EXPECT_THROW(static_cast<void>(order[-1]), InvalidArgument);
    Ids positions{-1, length};
    EXPECT_THROW(order.map(positions), InvalidArgument);
  }
}

// Chi-square tests. Seeds are fixed, so that a result is the same each time; each would fail of a true random order in
// one of a million seeds.
double most_chi_square(std::size_t cells) {
  // Wilson and Hilferty's approximation of the quantile at 1 - 1e-6, 4.753 standard deviations of a normal variable.
  const double freedom = static_cast<double>(cells) - 1;
  const double term = 2 / (9 * freedom);
  return freedom * std::pow(1 - term + 4.753 * std::sqrt(term), 3);
}

double chi_square(const std::vector<double>& counts, const std::vector<double>& expected) {
  double sum = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) sum += std::pow(counts[i] - expected[i], 2) / expected[i];
  return sum;
}

// Counts cells of (samples of) many orders.
class Cells {
 public:
  explicit Cells(std::vector<double> probabilities)
      : counts_(probabilities.size()), shares_(std::move(probabilities)) {}
  void count(std::size_t cell) {
    ++counts_.at(cell);
    ++total_;
  }
  void expect_as_likely(const std::string& what) const {
    std::vector<double> expected = shares_;
    for (double& share : expected) share *= total_;
    EXPECT_LT(chi_square(counts_, expected), most_chi_square(counts_.size())) << what;
  }

 private:
  std::vector<double> counts_;
  std::vector<double> shares_;
  double total_ = 0;
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
  std::vector<double> sizes(std::int64_t length) const {
    std::vector<double> sizes(static_cast<std::size_t>(cells));
    for (std::int64_t id = 0; id < length; ++id) ++sizes[(*this)(id, length)];
    return sizes;
  }
};

const std::vector<std::int64_t> kLengths{4096, 4097, 4160, 5003, 8192};
constexpr int kOrders = 12000;

TEST(PermutationStatistics, EverySampleIsAsLikelyAtAPosition) {
  for (const std::int64_t length : kLengths) {
    for (const Split split : {Split{61, true}, Split{64, false}}) {
      std::vector<double> shares = split.sizes(length);
      for (double& share : shares) share /= static_cast<double>(length);
      for (const std::int64_t position : {std::int64_t{0}, std::int64_t{1}, length / 2, length - 1}) {
        Cells cells(shares);
        for (int i = 0; i < kOrders; ++i) {
          cells.count(split(Permutation(length, static_cast<std::uint64_t>(i % 100), i / 100)[position], length));
        }
        cells.expect_as_likely(fmt::format("length {}, position {}, by place {}", length, position, split.by_place));
      }
    }
  }
}

TEST(PermutationStatistics, EveryPairIsAsLikelyAtTwoPositions) {
  for (const std::int64_t length : kLengths) {
    for (const Split split : {Split{13, true}, Split{16, false}, Split{65, false}}) {
      const std::vector<double> sizes = split.sizes(length);
      std::vector<double> shares;
      const auto pairs = static_cast<double>(length) * static_cast<double>(length - 1);
      for (std::size_t a = 0; a < sizes.size(); ++a) {
        for (std::size_t b = 0; b < sizes.size(); ++b) shares.push_back(sizes[a] * (sizes[b] - (a == b)) / pairs);
      }
      // Neighbours, and some that share a row or a column of the network.
      for (const auto& [one, other] :
           {std::pair<std::int64_t, std::int64_t>{0, 1}, {0, 64}, {3, 68}, {length - 2, length - 1}, {7, length / 2}}) {
        Cells cells(shares);
        for (int i = 0; i < kOrders * (split.cells > 20 ? 3 : 1); ++i) {
          const Permutation order(length, static_cast<std::uint64_t>(i % 100), i / 100);
          cells.count(split(order[one], length) * sizes.size() + split(order[other], length));
        }
        cells.expect_as_likely(
            fmt::format("length {}, positions {} and {}, {} cells", length, one, other, split.cells));
      }
    }
  }
}

// The orders in which five positions' samples come, by size: 120, as likely each.
std::size_t rank_of_order(const std::array<std::int64_t, 5>& ids) {
  std::size_t rank = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto below = std::count_if(ids.begin() + static_cast<std::ptrdiff_t>(i), ids.end(),
                                     [&](std::int64_t id) { return id < ids[i]; });
    rank = rank * (ids.size() - i) + static_cast<std::size_t>(below);
  }
  return rank;
}

TEST(PermutationStatistics, EveryOrderOfFivePositionsIsAsLikely) {
  for (const std::int64_t length : {std::int64_t{5}, std::int64_t{4096}, std::int64_t{4097}, std::int64_t{1} << 33}) {
    for (const std::int64_t apart : {std::int64_t{1}, length / 5}) {
      Cells cells(std::vector<double>(120, 1.0 / 120));
      for (int i = 0; i < 2 * kOrders; ++i) {
        const Permutation order(length, static_cast<std::uint64_t>(i), i % 7);
        std::array<std::int64_t, 5> ids;
        for (std::size_t k = 0; k < ids.size(); ++k) ids[k] = order[static_cast<std::int64_t>(k) * apart];
        cells.count(rank_of_order(ids));
      }
      cells.expect_as_likely(fmt::format("length {}, positions {} apart", length, apart));
    }
  }
}

TEST(PermutationStatistics, NeighbouringSeedsAndEpochsAreIndependent) {
  for (const std::int64_t length : {std::int64_t{4096}, std::int64_t{5003}}) {
    for (const Split split : {Split{13, true}, Split{16, false}}) {
      const std::vector<double> sizes = split.sizes(length);
      std::vector<double> shares;
      const auto pairs = static_cast<double>(length) * static_cast<double>(length);
      for (const double a : sizes) {
        for (const double b : sizes) shares.push_back(a * b / pairs);
      }
      for (const bool by_seed : {false, true}) {
        Cells cells(shares);
        for (int i = 0; i < kOrders; ++i) {
          const std::int64_t position = i % length;
          const Permutation here(length, static_cast<std::uint64_t>(by_seed ? i : 3), by_seed ? 3 : i);
          const Permutation next(length, static_cast<std::uint64_t>(by_seed ? i + 1 : 3), by_seed ? 3 : i + 1);
          cells.count(split(here[position], length) * sizes.size() + split(next[position], length));
        }
        cells.expect_as_likely(fmt::format("length {}, by seed {}", length, by_seed));
      }
    }
  }
}

// As many as a random order has: a Poisson variable of mean 1 for each.
TEST(PermutationStatistics, AsManySamplesStayInTheirPlacesAsByChance) {
  constexpr int kCells = 6;
  for (const std::int64_t length : {std::int64_t{4096}, std::int64_t{4097}}) {
    std::vector<double> shares(kCells);
    double share = std::exp(-1.0), rest = 1;
    for (int i = 0; i + 1 < kCells; ++i) {
      shares[static_cast<std::size_t>(i)] = share;
      rest -= share;
      share /= i + 1;
    }
    shares.back() = rest;
    Cells cells(shares);
    for (int i = 0; i < 1500; ++i) {
      const Ids ids = all_of(length, static_cast<std::uint64_t>(i), 1);
      int stayed = 0;
      for (std::int64_t at = 0; at < length; ++at) stayed += ids[static_cast<std::size_t>(at)] == at;
      cells.count(static_cast<std::size_t>(std::min(stayed, kCells - 1)));
    }
    cells.expect_as_likely(fmt::format("length {}", length));
  }
}

}  // namespace
}  // namespace lockstep::data::permutation_test
