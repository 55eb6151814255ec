// SPDX-License-Identifier: Apache-2.0
#include "runtime/trace/process_trace.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "runtime/trace/rank_trace.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::trace::process_trace_test {
namespace {

RankTrace kept() { return decode(*contents_of_trace()); }

// One test, since a process has one trace, for good.
TEST(ProcessTrace, HasWhatTheProcessDoesFromTheFirstGroupOn) {
  { const Span before("nobody keeps it"); }
  EXPECT_FALSE(contents_of_trace());

  const testing::TemporaryFolder folder;
  const std::string path = folder / "made";
  open_trace({.rank = 1, .world_size = 2, .pid = getpid(), .host = "n1", .run_id = "run-1"}, path);
  open_trace({.rank = 7}, "");  // of another group
  {
    const Span outer(SpanKind::data);
    const Span inner(SpanKind::data);  // as of a loader under progress()
    const Span own("tokenize");
    const Span own_too("tokenize");
  }
  const Span next(SpanKind::data);
  std::thread([] { const Span elsewhere("on a thread"); }).join();
  RankTrace trace = kept();
  ASSERT_EQ(trace.spans.size(), 4u);
  EXPECT_EQ(trace.spans[0].name, "tokenize");
  EXPECT_EQ(trace.spans[1].name, "tokenize");
  EXPECT_EQ(trace.spans[2].kind, SpanKind::data);
  EXPECT_LE(trace.spans[2].begin, trace.spans[0].begin);
  EXPECT_GE(trace.spans[2].end, trace.spans[0].end);
  EXPECT_EQ(trace.spans[3].name, "on a thread");
  EXPECT_NE(trace.spans[3].thread, trace.spans[2].thread);

  StepRecord record;
  record.step = 41;
  record.begin = Time(std::chrono::nanoseconds(1000));
  record.last_gradient_ready = Time(std::chrono::nanoseconds(1500));
  record.end = Time(std::chrono::nanoseconds(2000));
  record.waited = std::chrono::nanoseconds(400);
  record.hidden = std::chrono::nanoseconds(30);
  record.buckets = {{.bytes = 64,
                     .ready = Time(std::chrono::nanoseconds(1100)),
                     .launched = Time(std::chrono::nanoseconds(1200)),
                     .finished = Time(std::chrono::nanoseconds(1900)),
                     .gradients_ready = 2}};
  keep_step(record, false);
  keep_batch(41, 12, 0.25);
  // Of every step, also of one that is not kept, so that the ranks' numbers are the same.
  switch_trace(false);
  keep_step(record, false);
  switch_trace(true);
  keep_step(record, true);
  keep_span(SpanKind::backward, record.begin, record.end);
  trace = kept();
  ASSERT_EQ(trace.steps.size(), 2u);
  EXPECT_EQ(trace.steps[0].number, 0);
  EXPECT_EQ(trace.steps[1].number, 2);
  EXPECT_TRUE(trace.steps[1].on_device);
  EXPECT_EQ(trace.steps[0].step, 41);
  EXPECT_EQ(trace.steps[0].begin, 1000);
  EXPECT_EQ(trace.steps[0].last_gradient_ready, 1500);
  EXPECT_EQ(trace.steps[0].end, 2000);
  EXPECT_EQ(trace.steps[0].waited, 400);
  EXPECT_EQ(trace.steps[0].hidden, 30);
  ASSERT_EQ(trace.steps[0].buckets.size(), 1u);
  EXPECT_EQ(trace.steps[0].buckets[0].launched, 1200);
  EXPECT_EQ(trace.spans.back().kind, SpanKind::backward);

  keep_steps_done(50, 8);
  keep_scalar("lr", 0.1);
  keep_scalar("epoch/loss", 3, 2);
  keep_batch(42, 12, 0.75);  // of the process's 43rd step
  trace = kept();
  EXPECT_EQ(trace.steps_before, 8);
  ASSERT_EQ(trace.scalars.size(), 3u);
  EXPECT_EQ(trace.scalars[0].name, "loss");
  ASSERT_EQ(trace.scalars[0].points.size(), 2u);
  EXPECT_EQ(trace.scalars[0].points[1].step, 51);
  EXPECT_EQ(trace.scalars[0].points[1].value, 0.75);
  EXPECT_EQ(trace.scalars[1].points.front().step, 50);
  EXPECT_EQ(trace.scalars[2].points.front().step, 2);
  EXPECT_EQ(totals().scalars, (std::vector<Scalar>{{"loss", 51, 0.75}, {"epoch/loss", 2, 3}, {"lr", 50, 0.1}}));
  // Of names without room the 1st, 2nd, 4th ... value is a warning.
  for (std::size_t i = 3; i < ScalarTable::kMostNames; ++i) keep_scalar("name" + std::to_string(i), 1);
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 5; ++i) keep_scalar("other" + std::to_string(i), 1);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("a value is dropped, the last of 'other0': a rank keeps only the values of the first 64 names"),
            said.npos)
      << said;
  EXPECT_NE(said.find("2 values are dropped, the last of 'other1'"), said.npos) << said;
  EXPECT_EQ(said.find("3 values"), said.npos) << said;
  EXPECT_NE(said.find("4 values are dropped, the last of 'other3'"), said.npos) << said;
  EXPECT_EQ(said.find("5 values"), said.npos) << said;

  // The file's memory is the parent's.
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    { const Span in_child("in the child"); }
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  const RankTrace file = decode(TraceRing::read_file(trace_file(path, 1)));
  EXPECT_EQ(file.identity.rank, 1);
  EXPECT_EQ(file.spans.size(), trace.spans.size());
  EXPECT_EQ(file.steps.size(), trace.steps.size());
}

}  // namespace
}  // namespace lockstep::trace::process_trace_test
