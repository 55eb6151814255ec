// SPDX-License-Identifier: Apache-2.0
// What the ranks of a host tell each other of the group's end, in memory that they share.
#include "runtime/comm/wire/host_notices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace lockstep::wire {
namespace {

using ::testing::ElementsAre;

// Three ranks of a host, beside one of two.
class HostNoticesTest : public ::testing::Test {
 protected:
  HostNoticesTest() {
    Hosts hosts{.ranks = {{0, 1, 2}, {3, 4}}, .host = 0, .local = 0, .lanes = 2};
    memory_.resize(HostNotices::bytes_for(hosts) / sizeof(Line) + 1);
    auto* const memory = reinterpret_cast<std::byte*>(memory_.data());
    for (hosts.local = 0; hosts.local < 3; ++hosts.local) {
      HostNotices::format(memory, hosts);
      notices_.push_back(std::make_unique<HostNotices>(
          memory, hosts, std::vector<DoorbellButton>{{&bells_[0]}, {&bells_[1]}, {&bells_[2]}}));
    }
  }
  std::vector<std::uint64_t> rings() const { return {bells_[0].rings, bells_[1].rings, bells_[2].rings}; }

  struct alignas(64) Line {
    std::byte bytes[64];
  };
  DoorbellWords bells_[3] = {};
  std::vector<Line> memory_;
  std::vector<std::unique_ptr<HostNotices>> notices_;
};

TEST_F(HostNoticesTest, WhoLeavesIsToldToTheOthersOfTheHost) {
  EXPECT_FALSE(notices_[0]->has_news());
  notices_[1]->tell_left(4, 0);  // before any collective
  notices_[1]->tell_left(1, 7);
  EXPECT_THAT(rings(), ElementsAre(2, 0, 2));
  EXPECT_TRUE(notices_[0]->has_news());
  EXPECT_FALSE(notices_[0]->has_news()) << "since the last look";
  EXPECT_EQ(notices_[0]->left_after(4), 0);
  EXPECT_EQ(notices_[0]->left_after(1), 7);
  for (const int there : {0, 2, 3}) EXPECT_EQ(notices_[2]->left_after(there), std::nullopt);
}

TEST_F(HostNoticesTest, AFailureIsToldWithItsCause) {
  EXPECT_EQ(notices_[0]->failure(), std::nullopt);
  notices_[2]->tell_failure("a cause");
  EXPECT_EQ(notices_[0]->failure(), "a cause");
  EXPECT_TRUE(notices_[1]->has_news());
  EXPECT_THAT(rings(), ElementsAre(1, 1, 0));
  notices_[0]->tell_failure("a cause");
  EXPECT_EQ(notices_[2]->failure(), "a cause");
}

}  // namespace
}  // namespace lockstep::wire
