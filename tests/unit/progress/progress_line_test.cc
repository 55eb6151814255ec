// SPDX-License-Identifier: Apache-2.0
#include "runtime/progress/progress_line.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/progress/progress.h"
#include "runtime/trace/process_trace.h"
#include "tests/unit/train/single_group.h"

namespace lockstep::progress_line_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class ProgressLineTest : public ::testing::Test {
 protected:
  ProgressLine make(ProgressMode mode, std::int64_t total, std::int64_t last_batch = -1, std::int64_t last_record = -1,
                    ProgressLine::Scalars scalars = nullptr) {
    return ProgressLine(
        mode, total, begin_, [this](std::string_view text) { written_.emplace_back(text); }, last_batch, last_record,
        std::move(scalars));
  }
  ProgressLine::Clock::time_point at(milliseconds since_begin) const { return begin_ + since_begin; }

  ProgressLine::Clock::time_point begin_{};
  std::vector<std::string> written_;
};

ProgressMode choose(std::map<std::string, std::string, std::less<>> variables, int rank, bool terminal) {
  return choose_progress_mode(Environment(std::move(variables)), rank, terminal);
}

TEST(ProgressMode, IsChosenFromRankTerminalLauncherAndWish) {
  EXPECT_EQ(choose({}, 0, true), ProgressMode::terminal);
  EXPECT_EQ(choose({}, 0, false), ProgressMode::lines);
  EXPECT_EQ(choose({}, 1, true), ProgressMode::off);
  EXPECT_EQ(choose({{"LOCKSTEP_RUN_ID", "7"}}, 0, false), ProgressMode::redraws);
  EXPECT_EQ(choose({{"LOCKSTEP_RUN_ID", "7"}, {"LOCKSTEP_PROGRESS", "lines"}}, 0, false), ProgressMode::lines);
  EXPECT_EQ(choose({{"LOCKSTEP_PROGRESS", "bar"}}, 0, false), ProgressMode::redraws);
  EXPECT_EQ(choose({{"LOCKSTEP_PROGRESS", "bar"}}, 0, true), ProgressMode::terminal);
  EXPECT_EQ(choose({{"LOCKSTEP_PROGRESS", "off"}}, 0, true), ProgressMode::off);
  EXPECT_THROW(choose({{"LOCKSTEP_PROGRESS", "fancy"}}, 0, true), InvalidArgument);
  EXPECT_THROW(choose({{"LOCKSTEP_PROGRESS", "fancy"}}, 1, true), InvalidArgument);
}

TEST_F(ProgressLineTest, TellsStepLossSpeedAndTimeLeft) {
  make(ProgressMode::lines, 10).step({.loss = 2.5, .samples = 30}, at(seconds(2)));
  make(ProgressMode::redraws, 4).step({.loss = 2.5, .samples = 30}, at(seconds(1)));
  make(ProgressMode::redraws, 0).step({.samples = 10}, at(seconds(1)));
  EXPECT_EQ(written_,
            (std::vector<std::string>{"step 1/10  0:18 left  loss 2.5000  15 samples/s\n",
                                      "step 1/4 [#####...............]  0:03 left  loss 2.5000  30 samples/s\r",
                                      "step 1  10 samples/s\r"}));
}

TEST_F(ProgressLineTest, AGlobalBatchCountsOnceAndThoseThatWereNotToldCountAsIt) {
  ProgressLine line = make(ProgressMode::lines, 0, 3);
  const trace::StepRecord none;
  line.step(GlobalBatch{.step = 3, .weight = 8, .loss = 1.0}, none, at(seconds(2)));  // of an earlier loop
  line.step(GlobalBatch{.step = 4, .weight = 8, .loss = 2.0}, none, at(seconds(4)));
  line.step(GlobalBatch{.step = 4, .weight = 8}, none, at(seconds(6)));  // a micro-batch behind it
  line.step(GlobalBatch{.step = 7, .weight = 8}, none, at(seconds(8)));  // 5 and 6 were not told
  EXPECT_EQ(written_,
            (std::vector<std::string>{"step 1\n", "step 2  loss 2.0000  2 samples/s\n",
                                      "step 3  loss 2.0000  1 samples/s\n", "step 4  loss 2.0000  4 samples/s\n"}));
}

// Whatever ddp still says of its last training step.
TEST_F(ProgressLineTest, ALoopWithoutAStepHasNoLossAndNoCommunication) {
  trace::StepRecord record;
  record.step = 5;
  record.waited = std::chrono::milliseconds(7);
  ProgressLine line = make(ProgressMode::lines, 0, 3, 5);
  line.step(GlobalBatch{.step = 3, .weight = 8, .loss = 1.0}, record, at(seconds(2)));
  line.step(GlobalBatch{.step = 3, .weight = 8, .loss = 1.0}, record, at(seconds(4)));
  line.finish(at(seconds(5)));
  EXPECT_EQ(written_, (std::vector<std::string>{"step 1\n", "step 2\n", "step 2\n"}));
  record.step = 6;  // and one that trains has both
  line.step(GlobalBatch{.step = 4, .weight = 8, .loss = 1.0}, record, at(seconds(8)));
  EXPECT_EQ(written_.back(), "step 3  loss 1.0000  1 samples/s  communication: 7.0 ms waited, 0 ns hidden\n");
}

// A terminal of 80 columns cuts the communication off.
TEST_F(ProgressLineTest, TheTimeLeftStandsBeforeWhatMayBeCutOff) {
  trace::StepRecord record;
  record.step = 0;
  ProgressLine line = make(ProgressMode::redraws, 1000);
  line.step({.loss = 2.5, .samples = 30, .record = &record}, at(seconds(12)));
  EXPECT_LT(written_.back().find("3:19:48 left"), written_.back().find("communication: "));
  EXPECT_EQ(line.left(at(seconds(12))), seconds(12 * 999));
  EXPECT_FALSE(make(ProgressMode::redraws, 1000).left(at(seconds(1)))) << "no step yet";
  EXPECT_FALSE(make(ProgressMode::redraws, 0).left(at(seconds(1)))) << "no total";
  ProgressLine endless = make(ProgressMode::redraws, std::numeric_limits<std::int64_t>::max());
  endless.step({}, at(seconds(2)));
  EXPECT_FALSE(endless.left(at(seconds(2)))) << "more than nanoseconds can hold";
}

// Three of them: the program's before the library's, by name so that they keep their places.
TEST_F(ProgressLineTest, TellsTheNewestScalars) {
  std::vector<trace::Scalar> scalars{{"grad_norm", 5, 1.25}, {"loss", 5, 2.5}, {"lr", 5, 0.001}};
  ProgressLine line = make(ProgressMode::lines, 0, -1, -1, [&] { return scalars; });
  line.step({.loss = 2.5}, at(seconds(2)));
  EXPECT_EQ(written_.back(), "step 1  loss 2.5000  grad_norm 1.25  lr 0.001\n");
  scalars.push_back({"val/loss", 4, std::nan("")});
  scalars.push_back({"val/acc", 4, 0.123456});
  line.step({.loss = 2.5}, at(seconds(4)));
  EXPECT_EQ(written_.back(), "step 2  loss 2.5000  grad_norm 1.25  val/acc 0.1235  val/loss nan\n");
}

TEST_F(ProgressLineTest, TellsWhatWasWaitedAndHidden) {
  trace::StepRecord record;
  record.step = 0;
  record.waited = std::chrono::microseconds(700);
  record.hidden = std::chrono::microseconds(11400);
  ProgressLine line = make(ProgressMode::lines, 0);
  line.step({.samples = 10, .record = &record}, at(seconds(1)));
  trace::StepSummary summary;
  summary.add(record);
  EXPECT_EQ(written_.back(), "step 1  10 samples/s  " + summary.line() + "\n");
  line.finish(at(seconds(2)));
  EXPECT_EQ(written_.back(), summary.report() + "\n");
}

TEST_F(ProgressLineTest, RedrawsAtMostTenTimesASecondAndLinesEveryTwoSeconds) {
  ProgressLine bar = make(ProgressMode::redraws, 1000);
  for (int i = 0; i < 1000; ++i) bar.step({}, at(milliseconds(i)));
  EXPECT_EQ(written_.size(), 10u);
  written_.clear();
  ProgressLine line = make(ProgressMode::lines, 1000);
  for (int i = 0; i < 1000; ++i) line.step({}, at(milliseconds(10 * i)));
  EXPECT_EQ(written_.size(), 5u);
}

TEST_F(ProgressLineTest, OnATerminalAShorterTextCoversTheLongerOne) {
  ProgressLine line = make(ProgressMode::terminal, 0);
  line.step({.loss = 10.5}, at(seconds(1)));
  line.step({.loss = 9.5}, at(seconds(2)));
  line.note("hello");
  line.step({.loss = 8.5}, at(seconds(3)));
  EXPECT_EQ(written_, (std::vector<std::string>{"step 1  loss 10.5000\r", "step 2  loss 9.5000 \r",
                                                "hello              \n", "step 3  loss 8.5000\r"}));
}

TEST_F(ProgressLineTest, TheEndIsDrawnOnceEvenIfTheLastStepWasNot) {
  ProgressLine line = make(ProgressMode::lines, 3);
  for (int i = 0; i < 3; ++i) line.step({.loss = 3.0 - i}, at(milliseconds(500 + i)));
  line.finish(at(milliseconds(503)));
  line.finish(at(seconds(9)));
  ASSERT_EQ(written_.size(), 2u);
  EXPECT_EQ(written_[1], "step 3/3  loss 1.0000\n");
}

TEST_F(ProgressLineTest, ARankThatDoesNotDrawWritesNothing) {
  ProgressLine line = make(ProgressMode::off, 3);
  line.step({.loss = 1}, at(seconds(1)));
  line.note("hello");
  line.finish(at(seconds(2)));
  EXPECT_TRUE(written_.empty());
}

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
  {
    Progress without_an_end(*group, 1000);  // as an exception leaves it
    without_an_end.step(ProgressStep{});
    EXPECT_GE(time_left(), 0);
  }
  EXPECT_EQ(time_left(), -1);
}

}  // namespace
}  // namespace lockstep::progress_line_test
