// SPDX-License-Identifier: Apache-2.0
// What the ranks of a host tell each other in memory that they share: how far each has come with the segments of
// all-reduces, and who has left.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "runtime/comm/wire/host_status_table.h"
#include "runtime/comm/wire/segment_counts.h"

namespace lockstep::wire::host_tables_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// The table of three ranks of a host, as each of them has it, next to a host of two. Two of the three carry a range, as
// the smallest host has two.
template <typename Table>
class TableOfThree : public ::testing::Test {
 protected:
  TableOfThree() {
    for (std::size_t local = 0; local < 3; ++local) {
      hosts_[local] = {.ranks = {{0, 1, 2}, {3, 4}}, .host = 0, .local = local, .rails = 2};
    }
    memory_.resize(Table::bytes_for(hosts_[0]) / sizeof(Line) + 1);
    auto* const memory = reinterpret_cast<std::byte*>(memory_.data());
    for (const Hosts& hosts : hosts_) {
      Table::format(memory, hosts);
      tables_.push_back(std::make_unique<Table>(memory, hosts,
                                                std::vector<DoorbellButton>{{&bells_[0]}, {&bells_[1]}, {&bells_[2]}}));
    }
  }
  Table& operator[](std::size_t local) { return *tables_[local]; }
  std::vector<std::uint64_t> rings() const { return {bells_[0].rings, bells_[1].rings, bells_[2].rings}; }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  Hosts hosts_[3];
  DoorbellWords bells_[3] = {};
  std::vector<Line> memory_;
  std::vector<std::unique_ptr<Table>> tables_;
};

using HostStatusTableTest = TableOfThree<HostStatusTable>;
using SegmentCountsTest = TableOfThree<SegmentCounts>;

TEST_F(HostStatusTableTest, WhoLeavesIsToldToTheOthersOfTheHost) {
  auto& ranks = *this;
  EXPECT_FALSE(ranks[0].has_news());
  ranks[1].tell_left(4, 0);  // before any collective
  ranks[1].tell_left(1, 7);
  EXPECT_THAT(rings(), ElementsAre(2, 0, 2));
  EXPECT_TRUE(ranks[0].has_news());
  EXPECT_FALSE(ranks[0].has_news()) << "since the last look";
  EXPECT_EQ(ranks[0].left_after(4), 0);
  EXPECT_EQ(ranks[0].left_after(1), 7);
  for (const int there : {0, 2, 3}) EXPECT_EQ(ranks[2].left_after(there), std::nullopt);
}

TEST_F(SegmentCountsTest, WhoeverFillsTheLastWindowRingsForTheOthers) {
  auto& ranks = *this;
  ranks[2].fill(1);
  ranks[0].fill(3);  // stands for all before it too
  EXPECT_FALSE(ranks[0].all_filled(1));
  EXPECT_THAT(ranks[0].awaited(1, true), ElementsAre(1));
  EXPECT_THAT(rings(), ElementsAre(0, 0, 0));
  ranks[1].fill(1);
  EXPECT_TRUE(ranks[2].all_filled(1));
  EXPECT_FALSE(ranks[2].all_filled(2));
  EXPECT_THAT(rings(), ElementsAre(1, 0, 1));
}

TEST_F(SegmentCountsTest, OnlyWhoCarriesAShareHasToFinish) {
  auto& ranks = *this;
  ranks[0].finish(1);
  EXPECT_THAT(ranks[2].awaited(1, false), ElementsAre(1));
  EXPECT_THAT(ranks[1].awaited(1, false), IsEmpty()) << "it knows of itself";
  ranks[1].finish(1);
  EXPECT_TRUE(ranks[2].all_finished(1));
  EXPECT_THAT(rings(), ElementsAre(1, 0, 1));
}

// Before that nobody can finish.
TEST_F(SegmentCountsTest, WhoHasNotFilledHisWindowIsAwaitedFirst) {
  auto& ranks = *this;
  ranks[0].fill(1);
  ranks[1].fill(1);
  EXPECT_THAT(ranks[0].awaited(1, true), ElementsAre(2));
  EXPECT_THAT(ranks[0].awaited(1, false), ElementsAre(1)) << "in arenas nothing is filled";
  ranks[2].fill(1);
  EXPECT_THAT(ranks[0].awaited(1, true), ElementsAre(1));
}

}  // namespace
}  // namespace lockstep::wire::host_tables_test
