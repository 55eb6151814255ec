#include "runtime/store/barrier_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::store {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(BarrierTable, TheLastToComeReleasesAll) {
  BarrierTable table;
  EXPECT_FALSE(table.arrive(10, "b", 0, 3).complete);
  EXPECT_FALSE(table.arrive(12, "b", 2, 3).complete);
  EXPECT_TRUE(table.contains(10));
  EXPECT_THAT(table.take_released(), IsEmpty());
  EXPECT_TRUE(table.arrive(11, "b", 1, 3).complete);
  EXPECT_THAT(table.take_released(), ElementsAre(10, 12));
  EXPECT_THAT(table.take_released(), IsEmpty());
  EXPECT_FALSE(table.contains(10));
}

TEST(BarrierTable, AWorldOfOneIsCompleteAtOnce) {
  BarrierTable table;
  EXPECT_TRUE(table.arrive(1, "b", 0, 1).complete);
  EXPECT_TRUE(table.arrive(1, "b", std::nullopt, 1).complete);
  EXPECT_THAT(table.take_released(), IsEmpty());
}

TEST(BarrierTable, ANameIsUsedAgainWhenAllWereReleased) {
  BarrierTable table;
  for (int round = 0; round < 3; ++round) {
    EXPECT_FALSE(table.arrive(1, "b", 0, 2).complete);
    EXPECT_TRUE(table.arrive(2, "b", 1, 2).complete);
    EXPECT_THAT(table.take_released(), ElementsAre(1));
  }
  // Also by another world.
  EXPECT_TRUE(table.arrive(1, "b", 0, 1).complete);
}

TEST(BarrierTable, WhatCantBeIsRefusedAndChangesNothing) {
  BarrierTable table;
  EXPECT_THAT(table.arrive(1, "b", 0, 0).refusal, HasSubstr("0 ranks"));
  EXPECT_THAT(table.arrive(1, "b", 2, 2).refusal, HasSubstr("rank 2"));
  EXPECT_THAT(table.arrive(1, "b", -1, 2).refusal, HasSubstr("rank -1"));
  EXPECT_THAT(table.arrive(1, "b", 0, 2).refusal, IsEmpty());
  EXPECT_THAT(table.arrive(2, "b", 0, 2).refusal, HasSubstr("rank 0 is in it already"));
  EXPECT_THAT(table.arrive(2, "b", 1, 3).refusal, HasSubstr("3 ranks"));
  EXPECT_FALSE(table.contains(2));
  EXPECT_TRUE(table.arrive(2, "b", 1, 2).complete);
}

TEST(BarrierTable, WhoLeavesHasNotCome) {
  BarrierTable table;
  EXPECT_FALSE(table.arrive(1, "b", 0, 2).complete);
  table.leave(1);
  table.leave(1);
  EXPECT_FALSE(table.contains(1));
  EXPECT_FALSE(table.arrive(2, "b", 1, 2).complete);
  EXPECT_TRUE(table.arrive(3, "b", 0, 2).complete);
  EXPECT_THAT(table.take_released(), ElementsAre(2));
}

TEST(BarrierTable, WhoLeavesAfterItsReleaseIsNotReleasedIntoItsNextBarrier) {
  BarrierTable table;
  EXPECT_FALSE(table.arrive(1, "b", 0, 2).complete);
  EXPECT_TRUE(table.arrive(2, "b", 1, 2).complete);
  table.leave(1);
  EXPECT_THAT(table.take_released(), IsEmpty());
}

TEST(BarrierTable, TellsWhoIsMissing) {
  BarrierTable table;
  table.arrive(1, "b", 1, 6);
  table.arrive(4, "b", 4, 6);
  EXPECT_THAT(table.missing(1).ranks, ElementsAre(0, 2, 3, 5));
  EXPECT_EQ(table.missing(4).count, 4);
  table.arrive(2, "b", 2, 6);
  EXPECT_THAT(table.missing(1).ranks, ElementsAre(0, 3, 5));
  table.leave(4);
  EXPECT_THAT(table.missing(1).ranks, ElementsAre(0, 3, 4, 5));
  EXPECT_EQ(table.missing(99).count, 0);
  // The world of a client that lies costs nothing.
  table.arrive(5, "huge", 0, std::int64_t{1} << 62);
  EXPECT_EQ(table.missing(5).ranks.size(), BarrierTable::Missing::kListed);
  EXPECT_EQ(table.missing(5).ranks.front(), 1);
  EXPECT_EQ(table.missing(5).count, (std::int64_t{1} << 62) - 1);
}

// All have one deadline as a rule, and give up one after the other: each must hear of those who never came.
TEST(BarrierTable, WhoGivesUpIsNotWhomTheOthersMiss) {
  BarrierTable table;
  for (const int rank : {0, 2, 3}) table.arrive(static_cast<BarrierTable::WaiterId>(rank), "b", rank, 5);
  for (const BarrierTable::WaiterId waiter : {0, 2, 3}) {
    EXPECT_THAT(table.missing(waiter).ranks, ElementsAre(1, 4));
    EXPECT_EQ(table.missing(waiter).count, 2);
    table.give_up(waiter);
    table.give_up(waiter);
    EXPECT_FALSE(table.contains(waiter));
  }
  // But the barrier is not complete without them.
  for (const int rank : {1, 4})
    EXPECT_FALSE(table.arrive(10 + static_cast<BarrierTable::WaiterId>(rank), "b", rank, 5).complete);
  EXPECT_THAT(table.missing(11).ranks, ElementsAre(0, 2, 3));
}

TEST(BarrierTable, IfAllOthersGaveUpTheyAreMissed) {
  BarrierTable table;
  for (const int rank : {0, 1, 2}) table.arrive(static_cast<BarrierTable::WaiterId>(rank), "b", rank, 4);
  table.give_up(0);
  table.arrive(3, "b", 3, 4);
  EXPECT_THAT(table.missing(3).ranks, ElementsAre(0));
  EXPECT_TRUE(table.arrive(0, "b", 0, 4).complete);
  EXPECT_THAT(table.take_released(), ElementsAre(1, 2, 3));
}

TEST(BarrierTable, HeadsAreCountedApartFromRanks) {
  BarrierTable table;
  EXPECT_FALSE(table.arrive(1, "b", std::nullopt, 2).complete);
  EXPECT_FALSE(table.arrive(2, "b", 0, 2).complete);
  EXPECT_THAT(table.missing(1).ranks, IsEmpty());
  EXPECT_EQ(table.missing(1).count, 1);
  EXPECT_TRUE(table.arrive(3, "b", std::nullopt, 2).complete);
  EXPECT_THAT(table.take_released(), ElementsAre(1));
}

}  // namespace
}  // namespace lockstep::store
