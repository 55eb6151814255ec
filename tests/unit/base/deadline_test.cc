// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/deadline.h"

#include <gtest/gtest.h>

#include <climits>

namespace lockstep::deadline_test {
namespace {

using namespace std::chrono_literals;

TEST(Deadline, OfZeroOrLessHasPassed) {
  for (const auto limit : {0ns, -1ns, -5'000'000'000ns}) {
    const Deadline deadline = Deadline::after(limit);
    EXPECT_TRUE(deadline.expired());
    EXPECT_EQ(deadline.remaining(), 0ns);
    EXPECT_EQ(deadline.poll_timeout_ms(), 0);
  }
}

TEST(Deadline, NeverDoesNotPass) {
  const Deadline deadline = Deadline::never();
  EXPECT_TRUE(deadline.is_never());
  EXPECT_FALSE(deadline.expired());
  EXPECT_EQ(deadline.remaining(), Deadline::Duration::max());
  EXPECT_EQ(deadline.poll_timeout_ms(), -1);
  EXPECT_NE(deadline.progress().find("no limit"), std::string::npos);
}

TEST(Deadline, LimitsThatWouldOverflowTheClockAreNever) {
  EXPECT_TRUE(Deadline::after(Deadline::Duration::max()).is_never());
  EXPECT_TRUE(Deadline::after(Deadline::Duration::max() - 1ns).is_never());
  EXPECT_FALSE(Deadline::after(24h * 365 * 99).is_never());
}

TEST(Deadline, FarAwayHasNotPassedAndKeepsItsLimit) {
  const Deadline deadline = Deadline::after(24h);
  EXPECT_FALSE(deadline.expired());
  EXPECT_GT(deadline.remaining(), 23h);
  EXPECT_LE(deadline.remaining(), 24h);
  EXPECT_EQ(deadline.limit(), 24h);
  EXPECT_NE(deadline.progress().find("of 8.64e+04 s"), std::string::npos) << deadline.progress();
}

TEST(Deadline, PollTimeoutRoundsUpAndSaturates) {
  // Rounded down, the last partial millisecond would be a busy loop.
  EXPECT_EQ(Deadline::after(24h * 365).poll_timeout_ms(), INT_MAX);
  const Deadline fraction = Deadline::after(1h + 1ns);
  EXPECT_GT(fraction.poll_timeout_ms(), 0);
  EXPECT_LE(fraction.poll_timeout_ms(), 3'600'001);
}

TEST(Deadline, SoonerTakesTheEarlier) {
  const Deadline day = Deadline::after(24h);
  EXPECT_EQ(day.sooner(1h).limit(), 1h);
  EXPECT_EQ(day.sooner(48h).limit(), 24h);
  EXPECT_EQ(Deadline::never().sooner(1h).limit(), 1h);
  EXPECT_TRUE(Deadline::never().sooner(Deadline::Duration::max()).is_never());
  EXPECT_TRUE(day.sooner(0ns).expired());
}

}  // namespace
}  // namespace lockstep::deadline_test
