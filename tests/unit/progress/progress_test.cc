// SPDX-License-Identifier: Apache-2.0
#include "lockstep/progress/progress.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "runtime/trace/process_trace.h"
#include "tests/unit/train/single_group.h"

namespace lockstep::progress_test {
namespace {

std::int64_t time_left() { return trace::totals().left; }

TEST(Progress, OfAnInnerLoopLeavesTheOuterLoopsTimeLeftAlone) {
  trace::open_trace({}, "");
  const auto group = testing::single_group();
  Progress training(*group, 1000);
  training.step(ProgressStep{});
  const auto left = time_left();
  EXPECT_GE(left, 0);
  {
    Progress validation(*group, 5);
    validation.step(ProgressStep{});
    EXPECT_EQ(time_left(), left);
  }
  EXPECT_EQ(time_left(), left);
  training.finish();
  EXPECT_EQ(time_left(), -1);
}

TEST(Progress, OfALoopThatAnExceptionEndsHasNoTimeLeft) {
  trace::open_trace({}, "");
  const auto group = testing::single_group();
  try {
    Progress training(*group, 1000);
    training.step(ProgressStep{});
    EXPECT_GE(time_left(), 0);
    throw std::runtime_error("no more");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(time_left(), -1);
}

}  // namespace
}  // namespace lockstep::progress_test
