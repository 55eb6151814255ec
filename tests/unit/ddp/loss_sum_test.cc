// SPDX-License-Identifier: Apache-2.0
#include "runtime/ddp/loss_record.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "lockstep/base/random.h"

namespace lockstep::loss_sum_test {
namespace {

struct Told {
  std::optional<double> loss;
  std::int64_t weight;
};

// What the notes of ranks with one micro-batch each come to; fields add up modulo 2^64, as in a group.
GlobalBatch together(const std::vector<Told>& ranks, Loss kind = Loss::mean) {
  const int size = static_cast<int>(ranks.size());
  std::uint64_t weight = 0, whole = 0, fraction = 0;
  for (const Told& told : ranks) {
    LossSum sum(size);
    sum.add(kind, told.loss, told.weight);
    StepNote note;
    sum.write(note);
    weight += static_cast<std::uint64_t>(note.weight);
    whole += static_cast<std::uint64_t>(note.loss_whole);
    fraction += static_cast<std::uint64_t>(note.loss_fraction);
  }
  const StepNote all{.weight = static_cast<std::int64_t>(weight),
                     .loss_whole = static_cast<std::int64_t>(whole),
                     .loss_fraction = static_cast<std::int64_t>(fraction)};
  return global_batch_of({.step = 4, .of_all = all}, kind, size);
}

std::vector<Told> many(int ranks, Told told) { return std::vector<Told>(static_cast<std::size_t>(ranks), told); }

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(LossSum, IsTheMeanOverAllWeightsOrTheSum) {
  const GlobalBatch batch = together({{0.5, 3}, {-2.25, 1}, {std::nullopt, 0}});
  EXPECT_EQ(batch.step, 4);
  EXPECT_EQ(batch.weight, 4);
  EXPECT_EQ(batch.loss, (0.5 * 3 - 2.25) / 4);
  EXPECT_EQ(together({{0.5, 3}, {-2.25, 1}}, Loss::sum).loss, -1.75);
  // Of no rows it does not count.
  EXPECT_EQ(together({{std::nan(""), 0}, {3.0, 1}}).loss, 3.0);
  EXPECT_EQ(together({{1.0, 0}, {std::nullopt, 0}}).loss, std::nullopt);
  const GlobalBatch before_the_first = global_batch_of({}, Loss::mean, 2);
  EXPECT_EQ(before_the_first.step, -1);
  EXPECT_EQ(before_the_first.loss, std::nullopt);
}

TEST(LossSum, AddsUpOverMicroBatches) {
  LossSum sum(1);
  sum.add(Loss::mean, 1.0, 2);
  sum.add(Loss::mean, 4.0, 1);
  StepNote note;
  sum.write(note);
  EXPECT_EQ(global_batch_of({.step = 0, .of_all = note}, Loss::mean, 1).loss, 2.0);
  sum.add(Loss::mean, std::nullopt, 1);
  sum.write(note);
  EXPECT_EQ(global_batch_of({.step = 0, .of_all = note}, Loss::mean, 1).loss, std::nullopt);
}

TEST(LossSum, ComesBackToTheBitFromOneRankAndCloseFromMany) {
  for (const double loss : {1.0, -1.0, 1e-3, 0.1, -7.7, 12345.678, 0.0, -1e9}) {
    EXPECT_NEAR(together({{loss, 1}}).loss.value(), loss, 0x1p-52) << loss;
    for (const int ranks : {2, 3, 8, 1000, 1024, 5000}) {
      const double wanted = static_cast<float>(loss);
      EXPECT_NEAR(together(many(ranks, {wanted, 16})).loss.value(), wanted, 1e-9 + 1e-12 * std::abs(wanted))
          << ranks << " ranks, " << loss;
    }
  }
}

TEST(LossSum, ALargestAndASmallestValueAreNotTakenForAFlag) {
  for (const int ranks : {1, 2, 7, 8, 1024, 4097}) {
    const int log2 = static_cast<int>(std::ceil(std::log2(ranks)));
    const double limit = std::ldexp(1.0, 61 - 2 * log2);
    const double largest = std::floor(std::nextafter(limit, 0.0));
    for (const double loss : {largest, -largest}) {
      EXPECT_NEAR(together(many(ranks, {loss, 1})).loss.value() / loss, 1, 1e-9) << ranks;
    }
    EXPECT_TRUE(std::isnan(together(many(ranks, {limit, 1})).loss.value())) << ranks;
  }
}

TEST(LossSum, IsNoNumberIfOneIsNotFiniteAndNotKnownIfARankWithRowsDidNotTellIt) {
  for (const int ranks : {1, 2, 8, 1024}) {
    for (const double bad : {kInfinity, -kInfinity, std::nan("")}) {
      for (const double other : {1.0, -1e6, bad}) {
        auto told = many(ranks, {other, 2});
        told.back().loss = bad;
        EXPECT_TRUE(std::isnan(together(told).loss.value())) << ranks << ' ' << bad << ' ' << other;
      }
    }
    auto told = many(ranks, {1.5, 2});
    told.back().loss = std::nullopt;
    EXPECT_EQ(together(told).loss, std::nullopt) << ranks;
    EXPECT_EQ(together(told).weight, 2 * ranks);
    EXPECT_EQ(together(many(ranks, {std::nullopt, 2})).loss, std::nullopt) << ranks;
  }
}

// Parts of the sum are fixed micro-batches: whoever has them, in whatever order, the result has the same bits.
TEST(LossSum, OfPartsIsTheSameHoweverRanksShareThem) {
  constexpr int kParts = 48;
  Generator random(3);
  std::vector<Told> parts;
  for (int i = 0; i < kParts; ++i) {
    parts.push_back({std::ldexp(static_cast<float>(random.normal()), static_cast<int>(random.below(40)) - 30),
                     static_cast<std::int64_t>(random.below(9))});
  }
  const auto told_by = [&](std::uint64_t ranks) {
    std::vector<LossSum> sums(ranks, LossSum(kParts));
    for (std::size_t i = parts.size(); i > 1; --i) std::swap(parts[i - 1], parts[random.below(i)]);
    for (const Told& part : parts) sums[random.below(ranks)].add(Loss::mean, part.loss, part.weight);
    StepNote all;
    for (const LossSum& sum : sums) {
      StepNote note;
      sum.write(note);
      all.weight += note.weight;
      all.loss_whole += note.loss_whole;
      all.loss_fraction += note.loss_fraction;
    }
    return global_batch_of({.step = 0, .of_all = all}, Loss::mean, kParts).loss.value();
  };
  const double alone = told_by(1);
  for (int round = 0; round < 200; ++round) EXPECT_EQ(told_by(1 + random.below(kParts)), alone);
}

}  // namespace
}  // namespace lockstep::loss_sum_test
