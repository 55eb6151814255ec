// SPDX-License-Identifier: Apache-2.0
#include "runtime/store/server/barrier_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::store::barrier_table_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(BarrierTable, TheLastToComeReleasesAll) {
  BarrierTable table;
  EXPECT_FALSE(table.arrive(10, "b", 3).complete);
  EXPECT_FALSE(table.arrive(12, "b", 3).complete);
  EXPECT_FALSE(table.arrive(20, "another", 2).complete);
  EXPECT_THAT(table.take_released(), IsEmpty());
  EXPECT_TRUE(table.arrive(11, "b", 3).complete);
  EXPECT_THAT(table.take_released(), ElementsAre(10, 12));
  EXPECT_THAT(table.take_released(), IsEmpty());
}

TEST(BarrierTable, AWorldOfOneIsCompleteAtOnce) {
  BarrierTable table;
  EXPECT_TRUE(table.arrive(1, "b", 1).complete);
  EXPECT_THAT(table.take_released(), IsEmpty());
}

TEST(BarrierTable, ANameIsUsedAgainWhenAllWereReleased) {
  BarrierTable table;
  for (int round = 0; round < 3; ++round) {
    EXPECT_FALSE(table.arrive(1, "b", 2).complete);
    EXPECT_TRUE(table.arrive(2, "b", 2).complete);
    EXPECT_THAT(table.take_released(), ElementsAre(1));
  }
  // Also by another world.
  EXPECT_TRUE(table.arrive(1, "b", 1).complete);
}

TEST(BarrierTable, WorldSizesThatDifferAreRefusedAndChangeNothing) {
  BarrierTable table;
  EXPECT_THAT(table.arrive(1, "b", 0).refusal, HasSubstr("0 ranks"));
  EXPECT_THAT(table.arrive(1, "b", 2).refusal, IsEmpty());
  EXPECT_THAT(table.arrive(2, "b", 3).refusal, HasSubstr("3 ranks"));
  EXPECT_TRUE(table.arrive(2, "b", 2).complete);
}

TEST(BarrierTable, WhoLeavesHasNotCome) {
  BarrierTable table;
  EXPECT_FALSE(table.arrive(1, "b", 2).complete);
  table.leave(1);
  table.leave(1);
  EXPECT_FALSE(table.arrive(2, "b", 2).complete);
  EXPECT_TRUE(table.arrive(3, "b", 2).complete);
  EXPECT_THAT(table.take_released(), ElementsAre(2));
}

TEST(BarrierTable, WhoLeavesAfterItsReleaseIsNotReleasedIntoItsNextBarrier) {
  BarrierTable table;
  EXPECT_FALSE(table.arrive(1, "b", 2).complete);
  EXPECT_TRUE(table.arrive(2, "b", 2).complete);
  table.leave(1);
  EXPECT_THAT(table.take_released(), IsEmpty());
}

}  // namespace
}  // namespace lockstep::store::barrier_table_test
