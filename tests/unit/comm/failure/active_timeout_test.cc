// SPDX-License-Identifier: Apache-2.0
// Patience that runs only while its process does.
#include "runtime/comm/failure/active_timeout.h"

#include <gtest/gtest.h>

namespace lockstep::comm::active_timeout_test {
namespace {

using namespace std::chrono_literals;
using Time = ActiveTimeout::Time;

TEST(ActiveTimeout, CountsTheTimeBetweenLooks) {
  const Time start{};
  ActiveTimeout patience(200ms, start);
  EXPECT_FALSE(patience.over(start + 80ms));
  EXPECT_EQ(patience.remaining(start + 150ms), 50ms);
  EXPECT_FALSE(patience.over(start + 199ms));
  EXPECT_TRUE(patience.over(start + 200ms));
}

TEST(ActiveTimeout, DoesNotCountThatItsProcessStoodStill) {
  const Time start{};
  ActiveTimeout patience(1s, start);
  EXPECT_FALSE(patience.over(start + 50ms));
  EXPECT_FALSE(patience.over(start + 1h));
  EXPECT_EQ(patience.remaining(start + 1h), 1s - 50ms - 2 * ActiveTimeout::kSlice);
}

TEST(ActiveTimeout, LooksAgainSoonEnoughToTell) {
  ActiveTimeout patience(10s);
  EXPECT_LE(patience.next().limit(), ActiveTimeout::kSlice);
  EXPECT_FALSE(patience.over());
  ActiveTimeout none(0s);
  EXPECT_TRUE(none.over());
  EXPECT_TRUE(none.next().expired());
}

}  // namespace
}  // namespace lockstep::comm::active_timeout_test
