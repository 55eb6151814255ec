// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/log_limit.h"

#include <gtest/gtest.h>

namespace lockstep::log_limit_test {
namespace {

using std::chrono::seconds;

TEST(LogLimit, AdmitsSoManyLinesInATimeAndCountsTheRest) {
  LogLimit log(3, seconds(10));
  const LogLimit::Time start{seconds(1000)};
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(log.admit(start + seconds(i)));
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(log.admit(start + seconds(9)));
  EXPECT_EQ(log.summary_time(), start + seconds(10));
  EXPECT_EQ(log.take_left_out(), 100u);
  EXPECT_EQ(log.take_left_out(), 0u);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(log.admit(start + seconds(10)));
  EXPECT_FALSE(log.admit(start + seconds(19)));
  EXPECT_EQ(log.take_left_out(), 1u);
}

}  // namespace
}  // namespace lockstep::log_limit_test
