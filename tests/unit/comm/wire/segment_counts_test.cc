// SPDX-License-Identifier: Apache-2.0
// Who has come how far with the segments of all-reduces, in memory that the ranks of a host share.
#include "runtime/comm/wire/segment_counts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace lockstep::wire::segment_counts_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Three ranks of a host, of which two carry a range, as the smallest host has two.
class SegmentCountsTest : public ::testing::Test {
 protected:
  SegmentCountsTest() {
    for (std::size_t local = 0; local < 3; ++local) {
      hosts_[local] = {.ranks = {{0, 1, 2}, {3, 4}}, .host = 0, .local = local, .rails = 2};
    }
    memory_.resize(SegmentCounts::bytes_for(hosts_[0]) / sizeof(Line));
    auto* const memory = reinterpret_cast<std::byte*>(memory_.data());
    for (const Hosts& hosts : hosts_) {
      SegmentCounts::format(memory, hosts);
      counts_.push_back(std::make_unique<SegmentCounts>(
          memory, hosts, std::vector<DoorbellButton>{{&bells_[0]}, {&bells_[1]}, {&bells_[2]}}));
    }
  }
  std::vector<std::uint64_t> rings() const { return {bells_[0].rings, bells_[1].rings, bells_[2].rings}; }

  struct alignas(64) Line {
    std::byte bytes[64];
  };
  Hosts hosts_[3];
  DoorbellWords bells_[3] = {};
  std::vector<Line> memory_;
  std::vector<std::unique_ptr<SegmentCounts>> counts_;
};

TEST_F(SegmentCountsTest, WhoeverFillsTheLastWindowRingsForTheOthers) {
  counts_[2]->fill(1);
  counts_[0]->fill(3);  // stands for all before it too
  EXPECT_FALSE(counts_[0]->all_filled(1));
  EXPECT_THAT(counts_[0]->awaited(1, true), ElementsAre(1));
  EXPECT_THAT(rings(), ElementsAre(0, 0, 0));
  counts_[1]->fill(1);
  EXPECT_TRUE(counts_[2]->all_filled(1));
  EXPECT_FALSE(counts_[2]->all_filled(2));
  EXPECT_THAT(rings(), ElementsAre(1, 0, 1));
}

TEST_F(SegmentCountsTest, OnlyWhoCarriesAShareHasToFinish) {
  counts_[0]->finish(1);
  EXPECT_THAT(counts_[2]->awaited(1, false), ElementsAre(1));
  EXPECT_THAT(counts_[1]->awaited(1, false), IsEmpty()) << "it knows of itself";
  counts_[1]->finish(1);
  EXPECT_TRUE(counts_[2]->all_finished(1));
  EXPECT_THAT(rings(), ElementsAre(1, 0, 1));
}

// Before that nobody can finish.
TEST_F(SegmentCountsTest, WhoHasNotFilledHisWindowIsAwaitedFirst) {
  counts_[0]->fill(1);
  counts_[1]->fill(1);
  EXPECT_THAT(counts_[0]->awaited(1, true), ElementsAre(2));
  EXPECT_THAT(counts_[0]->awaited(1, false), ElementsAre(1)) << "in arenas nothing is filled";
  counts_[2]->fill(1);
  EXPECT_THAT(counts_[0]->awaited(1, true), ElementsAre(1));
}

}  // namespace
}  // namespace lockstep::wire::segment_counts_test
