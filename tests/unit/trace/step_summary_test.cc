// SPDX-License-Identifier: Apache-2.0
#include "runtime/trace/step_summary.h"

#include <gtest/gtest.h>

namespace lockstep::trace::step_summary_test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

StepRecord record_of(std::int64_t step, nanoseconds waited, nanoseconds hidden) {
  StepRecord record;
  record.step = step;
  record.waited = waited;
  record.hidden = hidden;
  return record;
}

TEST(StepSummary, SaysNothingBeforeAStep) {
  StepSummary summary;
  EXPECT_EQ(summary.steps(), 0);
  EXPECT_EQ(summary.line(), "no step yet");
  EXPECT_EQ(summary.report(), "no step yet");
  EXPECT_EQ(summary.waited().median.count(), 0);
  summary.add(StepRecord{});
  EXPECT_EQ(summary.steps(), 0);
}

TEST(StepSummary, TakesMedianMeanAndLongest) {
  StepSummary summary;
  for (const int ms : {9, 1, 2}) summary.add(record_of(summary.steps(), milliseconds(ms), milliseconds(10 * ms)));
  EXPECT_EQ(summary.waited().median, milliseconds(2));
  EXPECT_EQ(summary.waited().mean, milliseconds(4));
  EXPECT_EQ(summary.waited().max, milliseconds(9));
  EXPECT_EQ(summary.hidden().median, milliseconds(20));
  summary.add(record_of(3, milliseconds(4), milliseconds(40)));
  EXPECT_EQ(summary.waited().median, milliseconds(3));
  EXPECT_EQ(summary.line(), "communication: 3.0 ms waited, 30.0 ms hidden");
  EXPECT_EQ(summary.report(),
            "4 steps, communication in each: 3.0 ms waited (mean 4.0 ms, longest 9.0 ms), 30.0 ms hidden by backward "
            "(mean 40.0 ms)");
}

TEST(StepSummary, CountsAStepOnce) {
  StepSummary summary;
  const StepRecord record = record_of(7, milliseconds(1), milliseconds(1));
  summary.add(record);
  summary.add(record);
  EXPECT_EQ(summary.steps(), 1);
}

TEST(StepSummary, MedianIsOfTheLastStepsMeanOfAll) {
  StepSummary summary;
  const auto window = static_cast<std::int64_t>(StepSummary::kWindow);
  for (std::int64_t i = 0; i < window; ++i) summary.add(record_of(i, milliseconds(1), {}));
  for (std::int64_t i = 0; i < window; ++i) summary.add(record_of(window + i, milliseconds(3), {}));
  EXPECT_EQ(summary.waited().median, milliseconds(3));
  EXPECT_EQ(summary.waited().mean, milliseconds(2));
  EXPECT_EQ(summary.steps(), 2 * window);
}

TEST(FormatDuration, ReadsWell) {
  EXPECT_EQ(format_duration(nanoseconds(0)), "0 ns");
  EXPECT_EQ(format_duration(nanoseconds(999)), "999 ns");
  EXPECT_EQ(format_duration(nanoseconds(1049)), "1.0 us");
  EXPECT_EQ(format_duration(microseconds(700)), "700.0 us");
  EXPECT_EQ(format_duration(nanoseconds(999'960)), "1.0 ms");
  EXPECT_EQ(format_duration(microseconds(11'400)), "11.4 ms");
  EXPECT_EQ(format_duration(milliseconds(2310)), "2.31 s");
  EXPECT_EQ(format_duration(-microseconds(5)), "-5.0 us");
  EXPECT_EQ(format_duration(nanoseconds::min()), "-9223372036.85 s");
}

}  // namespace
}  // namespace lockstep::trace::step_summary_test
