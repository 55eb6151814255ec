// SPDX-License-Identifier: Apache-2.0
// Patience that runs only while its process does.
#include "runtime/comm/failure/patience.h"

#include <gtest/gtest.h>

namespace lockstep::comm {
namespace {

using namespace std::chrono_literals;
using Time = Patience::Time;

TEST(Patience, CountsTheTimeBetweenLooks) {
  const Time start{};
  Patience patience(200ms, start);
  EXPECT_FALSE(patience.over(start + 80ms));
  EXPECT_EQ(patience.remaining(start + 150ms), 50ms);
  EXPECT_FALSE(patience.over(start + 199ms));
  EXPECT_TRUE(patience.over(start + 200ms));
}

TEST(Patience, DoesNotCountThatItsProcessStoodStill) {
  const Time start{};
  Patience patience(1s, start);
  EXPECT_FALSE(patience.over(start + 50ms));
  EXPECT_FALSE(patience.over(start + 1h));
  EXPECT_EQ(patience.remaining(start + 1h), 1s - 50ms - 2 * Patience::kSlice);
}

TEST(Patience, LooksAgainSoonEnoughToTell) {
  Patience patience(10s);
  EXPECT_LE(patience.next().limit(), Patience::kSlice);
  EXPECT_FALSE(patience.over());
  Patience none(0s);
  EXPECT_TRUE(none.over());
  EXPECT_TRUE(none.next().expired());
}

}  // namespace
}  // namespace lockstep::comm
