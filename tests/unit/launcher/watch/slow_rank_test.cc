// SPDX-License-Identifier: Apache-2.0
#include "launcher/watch/slow_rank.h"

#include <gtest/gtest.h>

namespace lockstep::launcher::slow_rank_test {
namespace {

using namespace std::chrono_literals;

TEST(SlowRank, IsSaidOnceAndAgainAfterAWhileOrForAnotherCause) {
  SlowRank slow;
  const SlowRank::Time begin{};
  const Straggler data{.rank = 3, .host = "b", .share = 0.14, .cause = Phase::data};
  const Straggler forward{.rank = 3, .host = "b", .share = 0.2, .cause = Phase::forward};
  EXPECT_EQ(slow.look(std::nullopt, begin), "");
  EXPECT_EQ(slow.look(data, begin), "rank 3 (host b) costs 14 % of every step: data");
  EXPECT_EQ(slow.look(data, begin + 9min), "");
  EXPECT_EQ(slow.look(forward, begin + 59s), "");
  EXPECT_EQ(slow.look(forward, begin + 1min), "rank 3 (host b) costs 20 % of every step: forward");
  EXPECT_EQ(slow.look(data, begin + 90s), "");
  EXPECT_EQ(slow.look(std::nullopt, begin + 5min), "");
  EXPECT_EQ(slow.look(forward, begin + 10min), "");
  EXPECT_EQ(slow.look(forward, begin + 11min), "rank 3 (host b) costs 20 % of every step: forward");
}

}  // namespace
}  // namespace lockstep::launcher::slow_rank_test
