// SPDX-License-Identifier: Apache-2.0
#include "runtime/ddp/plan/micro_batch_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/data/sampler.h"
#include "lockstep/ddp/reproducible.h"
#include "lockstep/device/device_runtime.h"
#include "runtime/ddp/trainer.h"
#include "tests/support/error_of.h"
#include "tests/support/messages.h"

namespace lockstep::micro_batch_tree_test {
namespace {

std::string text_of(MicroBatchRange node) {
  if (node.count() == 1) return std::to_string(node.begin);
  const int middle = right_child(node);
  return "(" + text_of({node.begin, middle}) + "+" + text_of({middle, node.end}) + ")";
}

// Adds `sum` to the sums that are kept, after `merges` of them.
void add(std::vector<std::string>& kept, std::string sum, int merges) {
  for (; merges > 0; --merges) {
    ASSERT_FALSE(kept.empty());
    sum = "(" + kept.back() + "+" + sum + ")";
    kept.pop_back();
  }
  kept.push_back(sum);
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

// A rank that follows merges_of() ends with its whole nodes, each added up as the tree over all micro-batches says.
TEST(MicroBatchTree, ARankAddsUpItsWholeNodes) {
  for (int micro_batches = 1; micro_batches <= 40; ++micro_batches) {
    for (int begin = 0; begin < micro_batches; ++begin) {
      for (int end = begin + 1; end <= micro_batches; ++end) {
        const std::vector<int> merges = merges_of(micro_batches, {begin, end});
        ASSERT_EQ(merges.size(), static_cast<std::size_t>(end - begin));
        std::vector<std::string> kept;
        for (int micro_batch = begin; micro_batch < end; ++micro_batch) {
          add(kept, std::to_string(micro_batch), merges[static_cast<std::size_t>(micro_batch - begin)]);
        }
        const std::vector<MicroBatchRange> nodes = whole_nodes(micro_batches, {begin, end});
        ASSERT_EQ(kept.size(), nodes.size()) << micro_batches << " micro-batches, run of " << begin << " to " << end;
        for (std::size_t i = 0; i < nodes.size(); ++i) EXPECT_EQ(kept[i], text_of(nodes[i]));
        EXPECT_EQ(nodes.front().begin, begin);
        EXPECT_EQ(nodes.back().end, end);
      }
    }
  }
}

// All ranks' nodes, added up as order_of_nodes() says, are the tree over all micro-batches.
TEST(MicroBatchTree, NodesOfAllRanksAreAddedUpInTheirOrder) {
  for (int micro_batches = 1; micro_batches <= 40; ++micro_batches) {
    for (int world = 1; world <= micro_batches; ++world) {
      const NodeOrder order = order_of_nodes(micro_batches, world);
      ASSERT_EQ(order.merges.size(), static_cast<std::size_t>(world) * order.rows_per_rank);
      std::vector<std::string> kept;
      for (int rank = 0; rank < world; ++rank) {
        const std::vector<MicroBatchRange> nodes =
            whole_nodes(micro_batches, data::micro_batches_of(micro_batches, rank, world));
        for (std::size_t row = 0; row < order.rows_per_rank; ++row) {
          const std::uint8_t merges = order.merges[static_cast<std::size_t>(rank) * order.rows_per_rank + row];
          ASSERT_EQ(merges == kSkippedRow, row >= nodes.size());
          if (merges != kSkippedRow) add(kept, text_of(nodes[row]), merges);
        }
      }
      EXPECT_EQ(kept, std::vector<std::string>{text_of({0, micro_batches})})
          << micro_batches << " micro-batches, " << world << " ranks";
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

}  // namespace
}  // namespace lockstep::micro_batch_tree_test
