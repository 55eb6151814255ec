// SPDX-License-Identifier: Apache-2.0
// Sums over fixed micro-batches: the tree of gradients, and the loss.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "lockstep/data/sampler.h"
#include "lockstep/ddp/reproducible.h"
#include "lockstep/device/device_runtime.h"
#include "runtime/ddp/loss_record.h"
#include "runtime/ddp/plan/micro_batch_tree.h"
#include "runtime/ddp/trainer.h"
#include "tests/support/error_of.h"
#include "tests/support/messages.h"

namespace lockstep::micro_batches_test {
namespace {

std::string text_of(MicroBatchRange node) {
  if (node.count() == 1) return std::to_string(node.begin);
  const int middle = right_child(node);
  return "(" + text_of({node.begin, middle}) + "+" + text_of({middle, node.end}) + ")";
}

TEST(MicroBatchTree, IsThatOfAllReduce) {
  EXPECT_EQ(text_of({0, 1}), "0");
  EXPECT_EQ(text_of({0, 5}), "(((0+1)+(2+3))+4)");
  EXPECT_EQ(text_of({0, 6}), "(((0+1)+(2+3))+(4+5))");
  EXPECT_EQ(text_of({3, 6}), "((3+4)+5)");
}

TEST(MicroBatchTree, RunsAreEvenAndCoverAllShards) {
  for (int micro_batches = 1; micro_batches <= 40; ++micro_batches) {
    for (int world = 1; world <= micro_batches; ++world) {
      int next = 0;
      for (int rank = 0; rank < world; ++rank) {
        const MicroBatchRange run = data::micro_batches_of(micro_batches, rank, world);
        EXPECT_EQ(run.begin, next);
        EXPECT_GE(run.count(), micro_batches / world);
        EXPECT_LE(run.count(), micro_batches / world + 1);
        next = run.end;
      }
      EXPECT_EQ(next, micro_batches);
    }
  }
}

// What is_tree_of_ranks() says, by the sums themselves.
TEST(MicroBatchTree, OverTheRanksSumsIsTheTreeOverTheShards) {
  for (int micro_batches = 1; micro_batches <= 24; ++micro_batches) {
    for (int world = 1; world <= micro_batches; ++world) {
      std::vector<std::string> sums;
      bool are_nodes = true;
      for (int rank = 0; rank < world; ++rank) {
        const auto nodes = whole_nodes(micro_batches, data::micro_batches_of(micro_batches, rank, world));
        are_nodes = are_nodes && nodes.size() == 1;
        sums.push_back(text_of(nodes.front()));
      }
      const auto over_ranks = [&](const auto& self, MicroBatchRange node) -> std::string {
        if (node.count() == 1) return sums[static_cast<std::size_t>(node.begin)];
        const int middle = right_child(node);
        return "(" + self(self, MicroBatchRange{node.begin, middle}) + "+" +
               self(self, MicroBatchRange{middle, node.end}) + ")";
      };
      const bool is_tree = are_nodes && over_ranks(over_ranks, {0, world}) == text_of({0, micro_batches});
      EXPECT_EQ(is_tree_of_ranks(micro_batches, world), is_tree)
          << micro_batches << " micro-batches, " << world << " ranks";
    }
  }
}

TEST(FixedMicroBatches, AreOfOneSizeAndAShortBatchFillsTheFirst) {
  const Reproducible four{.micro_batches = 4, .global_batch = 10};  // of 3 rows
  using MicroBatches = std::vector<MicroBatch>;
  EXPECT_EQ(micro_batches_of_step(four, 10, 0, 1),
            (MicroBatches{{0, 3, 0, false}, {3, 6, 1, false}, {6, 9, 2, false}, {9, 10, 3, true}}));
  EXPECT_EQ(micro_batches_of_step(four, 6, 0, 2), (MicroBatches{{0, 3, 0, false}, {3, 6, 1, true}}));
  EXPECT_EQ(micro_batches_of_step(four, 4, 1, 2), (MicroBatches{{0, 3, 2, false}, {3, 4, 3, true}}));
  EXPECT_EQ(micro_batches_of_step(four, 0, 1, 2), (MicroBatches{{0, 0, 2, false}, {0, 0, 3, true}}));
  EXPECT_EQ(micro_batches_of_step({}, 10, 1, 2), (MicroBatches{{0, 10, 0, true}}));
}

TEST(FixedMicroBatches, AreRefusedWithWhatToDo) {
  const Reproducible four{.micro_batches = 4, .global_batch = 10};
  const auto expect_refused = [](const char* what, const auto& call) {
    testing::expect_message("ddp", what, testing::error_of<InvalidArgument>(call));
  };
  expect_refused("more rows than micro-batches hold", [&] { micro_batches_of_step(four, 7, 1, 2); });
  expect_refused("more ranks than micro-batches", [&] { micro_batches_of_step(four, 1, 4, 5); });
  expect_refused("no batch size", [&] { micro_batches_of_step({.micro_batches = 4}, 1, 0, 1); });
  EXPECT_NO_THROW(Trainer::require_dealt_as_micro_batches(four, 6, 9, 0, 2));
  EXPECT_NO_THROW(Trainer::require_dealt_as_micro_batches(four, 3, 9, 1, 2));
  expect_refused("rows dealt in another way", [&] { Trainer::require_dealt_as_micro_batches(four, 5, 9, 0, 2); });
}

struct Told {
  std::optional<double> loss;
  std::int64_t weight;
};

// What the notes of ranks come to; fields add up modulo 2^64, as in a group.
StepNote note_of_all(const std::vector<LossSum>& ranks) {
  const auto add = [](std::int64_t& to, std::int64_t number) {
    to = static_cast<std::int64_t>(static_cast<std::uint64_t>(to) + static_cast<std::uint64_t>(number));
  };
  StepNote all;
  for (const LossSum& sum : ranks) {
    StepNote note;
    sum.write(note);
    add(all.weight, note.weight);
    add(all.loss_whole, note.loss_whole);
    add(all.loss_fraction, note.loss_fraction);
  }
  return all;
}

// Of ranks with one micro-batch each.
GlobalBatch together(const std::vector<Told>& ranks, Loss kind = Loss::mean) {
  const int size = static_cast<int>(ranks.size());
  std::vector<LossSum> sums(ranks.size(), LossSum(size));
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) sums[rank].add(kind, ranks[rank].loss, ranks[rank].weight);
  return global_batch_of({.step = 4, .of_all = note_of_all(sums)}, kind, size);
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
  const auto loss = [&] { return global_batch_of({.step = 0, .of_all = note_of_all({sum})}, Loss::mean, 1).loss; };
  sum.add(Loss::mean, 1.0, 2);
  sum.add(Loss::mean, 4.0, 1);
  EXPECT_EQ(loss(), 2.0);
  sum.add(Loss::mean, std::nullopt, 1);
  EXPECT_EQ(loss(), std::nullopt);
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
    return global_batch_of({.step = 0, .of_all = note_of_all(sums)}, Loss::mean, kParts).loss.value();
  };
  const double alone = told_by(1);
  for (int round = 0; round < 200; ++round) EXPECT_EQ(told_by(1 + random.below(kParts)), alone);
}

}  // namespace
}  // namespace lockstep::micro_batches_test
