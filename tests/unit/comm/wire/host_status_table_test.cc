// SPDX-License-Identifier: Apache-2.0
// What the ranks of a host tell each other of the group's end, in memory that they share.
#include "runtime/comm/wire/host_status_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace lockstep::wire::host_status_table_test {
namespace {

using ::testing::ElementsAre;

// Three ranks of a host, beside one of two.
class HostStatusTableTest : public ::testing::Test {
 protected:
  HostStatusTableTest() {
    Hosts hosts{.ranks = {{0, 1, 2}, {3, 4}}, .host = 0, .local = 0, .rails = 2};
    memory_.resize(HostStatusTable::bytes_for(hosts) / sizeof(Line) + 1);
    auto* const memory = reinterpret_cast<std::byte*>(memory_.data());
    for (hosts.local = 0; hosts.local < 3; ++hosts.local) {
      HostStatusTable::format(memory, hosts);
      host_status_.push_back(std::make_unique<HostStatusTable>(
          memory, hosts, std::vector<DoorbellButton>{{&bells_[0]}, {&bells_[1]}, {&bells_[2]}}));
    }
  }
  std::vector<std::uint64_t> rings() const { return {bells_[0].rings, bells_[1].rings, bells_[2].rings}; }

  struct alignas(64) Line {
    std::byte bytes[64];
  };
  DoorbellWords bells_[3] = {};
  std::vector<Line> memory_;
  std::vector<std::unique_ptr<HostStatusTable>> host_status_;
};

TEST_F(HostStatusTableTest, WhoLeavesIsToldToTheOthersOfTheHost) {
  EXPECT_FALSE(host_status_[0]->has_news());
  host_status_[1]->tell_left(4, 0);  // before any collective
  host_status_[1]->tell_left(1, 7);
  EXPECT_THAT(rings(), ElementsAre(2, 0, 2));
  EXPECT_TRUE(host_status_[0]->has_news());
  EXPECT_FALSE(host_status_[0]->has_news()) << "since the last look";
  EXPECT_EQ(host_status_[0]->left_after(4), 0);
  EXPECT_EQ(host_status_[0]->left_after(1), 7);
  for (const int there : {0, 2, 3}) EXPECT_EQ(host_status_[2]->left_after(there), std::nullopt);
}

}  // namespace
}  // namespace lockstep::wire::host_status_table_test
