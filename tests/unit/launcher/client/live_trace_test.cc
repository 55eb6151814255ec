// SPDX-License-Identifier: Apache-2.0
#include "launcher/client/live_trace.h"

#include <gtest/gtest.h>

#include "tests/unit/launcher/observe/traces.h"

namespace lockstep::launcher::live_trace_test {
namespace {

using testing_traces::trace_of;

TEST(LiveTrace, HasTheLastStepsThatAllRanksHaveEnded) {
  // Rank 1 is two steps behind.
  const std::vector<RunTrace> traces = {{0, trace_of(0, 10, {}, 10'000)}, {0, trace_of(1, 8, {}, 10'000)}};
  const auto last = last_steps(traces, 3);
  ASSERT_EQ(last.size(), 2u);
  ASSERT_EQ(last[0].rank.steps.size(), 5u);
  ASSERT_EQ(last[1].rank.steps.size(), 3u);
  EXPECT_EQ(last[0].rank.steps.front().number, 5);
  EXPECT_EQ(last[1].rank.steps.front().number, 5);
  for (const RunTrace& trace : last) {
    const auto& before = traces[static_cast<std::size_t>(trace.rank.identity.rank)].rank.steps[4];
    ASSERT_FALSE(trace.rank.spans.empty());
    for (const auto& span : trace.rank.spans) EXPECT_GE(span.begin, before.end);
    EXPECT_EQ(trace.rank.spans.front().kind, trace::SpanKind::optimizer) << "what follows the step before";
  }
  EXPECT_EQ(last_steps(traces, 0)[0].rank.steps.size(), 10u);
  EXPECT_EQ(last_steps(traces, 100)[1].rank.steps.size(), 8u);
  EXPECT_TRUE(last_steps({}, 3).empty());
  const auto second = last_steps({{0, trace_of(0, 10, {}, 10'000)}, {1, trace_of(0, 4, {}, 10'000)}}, 3);
  ASSERT_EQ(second.size(), 1u) << "of the last start";
  EXPECT_EQ(second[0].rank.steps.size(), 3u);
}

}  // namespace
}  // namespace lockstep::launcher::live_trace_test
