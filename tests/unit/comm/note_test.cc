// SPDX-License-Identifier: Apache-2.0
// What the ranks' notes come to, by comparing them and out of sums alone.
#include "runtime/comm/inline_scalars.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace lockstep::comm::note_test {
namespace {

constexpr NoteField kFields[] = {{NoteOp::sum}, {NoteOp::any}, {NoteOp::equal}, {NoteOp::equal}};
constexpr int kSizes[] = {1, 2, 3, 4, 8};

// What each of the ranks is told, as both kinds of backend find it.
std::vector<InlineScalars> told(NoteOps ops, const std::vector<InlineScalars>& by_rank) {
  ScalarReduction scalars(ops);
  InlineScalars sums{};
  for (const InlineScalars& own : by_rank) {
    scalars.add(own);
    const InlineScalars summand = summands(ops, own);
    for (std::size_t i = 0; i < kInlineScalars; ++i) {
      sums[i] = static_cast<std::int64_t>(static_cast<std::uint64_t>(sums[i]) + static_cast<std::uint64_t>(summand[i]));
    }
  }
  std::vector<InlineScalars> result{scalars.words()};
  for (const InlineScalars& own : by_rank)
    result.push_back(from_sums(ops, own, sums, static_cast<int>(by_rank.size())));
  return result;
}

TEST(Note, OperationsAreTwoBitsEach) {
  const NoteOps ops(kFields);
  EXPECT_EQ(ops.fields(), 4u);
  EXPECT_EQ(ops.bits(), 0b11'11'10'01);
  EXPECT_EQ(ops[2], NoteOp::equal);
  EXPECT_EQ(describe(ops), "sum, any, equal, equal");
  EXPECT_EQ(NoteOps::of_bits(ops.bits()), ops);
  EXPECT_EQ(NoteOps::of_bits(0b11'00'01).fields(), 1u) << "behind a gap there is nothing";
  EXPECT_EQ(NoteOps::of_bits(0xffff).fields(), kMostNoteFields);
  EXPECT_EQ(NoteOps().fields(), 0u);
}

TEST(Note, IsCombinedAlikeOnEveryRankAndByEveryBackend) {
  const NoteOps ops(kFields);
  for (const int size : kSizes) {
    for (int odd_one = -1; odd_one < size; ++odd_one) {
      std::vector<InlineScalars> by_rank;
      for (int r = 0; r < size; ++r) {
        const bool is_odd = r == odd_one;
        by_rank.push_back({r + 1, 10 * r, is_odd ? -5 : 0, is_odd ? 7 : 6, std::numeric_limits<std::int64_t>::min()});
      }
      const std::int64_t below = size * (size - 1) / 2;
      const bool differs = odd_one >= 0 && size > 1;
      const InlineScalars wanted{below + size, 10 * below, odd_one >= 0, !differs, 1};
      for (const InlineScalars& words : told(ops, by_rank)) EXPECT_EQ(words, wanted) << size << " ranks, " << odd_one;
    }
  }
}

// By own value times ranks against the sum, the rank in the middle would think that all are equal, and alone.
TEST(Note, ARankWhoseValueIsTheMeanOfAllSeesThatTheyDiffer) {
  constexpr NoteField kOne[] = {{NoteOp::equal}};
  for (const std::vector<InlineScalars>& by_rank : {std::vector<InlineScalars>{{0, 1}, {0, 2}, {0, 3}},
                                                    std::vector<InlineScalars>{{0, -1}, {0, 0}, {0, 0}, {0, 1}}}) {
    for (const InlineScalars& words : told(NoteOps(kOne), by_rank)) EXPECT_EQ(words[1], 0);
  }
}

TEST(Note, SumsWrapAndWeightsDoNot) {
  constexpr NoteField kOne[] = {{NoteOp::sum}};
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  ScalarReduction scalars{NoteOps(kOne)};
  scalars.add({kMost, kMost, 9});
  EXPECT_FALSE(scalars.is_too_heavy());
  scalars.add({1, 1, 9});
  EXPECT_TRUE(scalars.is_too_heavy());
  EXPECT_EQ(scalars.words()[1], std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(scalars.words()[2], 0) << "of no field";
}

}  // namespace
}  // namespace lockstep::comm::note_test
