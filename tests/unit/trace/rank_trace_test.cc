// SPDX-License-Identifier: Apache-2.0
// What a rank's trace tells from its words, what a process puts there, and what steps come to.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <tuple>

#include "runtime/trace/process_trace.h"
#include "runtime/trace/rank_totals.h"
#include "runtime/trace/rank_trace.h"
#include "runtime/trace/scalar_table.h"
#include "runtime/trace/step_summary.h"
#include "runtime/trace/totals_keeper.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::trace::rank_trace_test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

TraceRing::Contents contents_of(std::vector<TraceRing::Words> events) {
  return {.identity = {.rank = 2}, .wall_clock = 77, .lost = 0, .events = std::move(events)};
}

auto fields(const TracedSpan& span) { return std::tuple(span.kind, span.thread, span.begin, span.end, span.name); }
auto fields(const TracedBucket& bucket) {
  return std::tuple(bucket.bytes, bucket.ready, bucket.launched, bucket.finished, bucket.gradients_ready);
}
// But for its buckets.
auto fields(const TracedStep& step) {
  return std::tuple(step.number, step.step, step.on_device, step.begin, step.last_gradient_ready, step.end, step.waited,
                    step.hidden, step.weight, step.loss);
}

TEST(RankTrace, SpansComeBackWithTheBeginningOfTheirNames) {
  const RankTrace trace = decode(contents_of({words_of_span(SpanKind::data, 4, -5, 12, ""),
                                              words_of_span(SpanKind::program, 0, 1, 2, std::string(100, 'n'))}));
  EXPECT_EQ(trace.identity.rank, 2);
  EXPECT_EQ(trace.wall_clock, 77);
  ASSERT_EQ(trace.spans.size(), 2u);
  EXPECT_EQ(fields(trace.spans[0]), std::tuple(SpanKind::data, 4, -5, 12, ""));
  EXPECT_EQ(fields(trace.spans[1]), std::tuple(SpanKind::program, 0, 1, 2, std::string(31, 'n')));
}

TEST(RankTrace, FindingsComeBackWithTheEndOfTheirNames) {
  const Finding nan{
      .kind = FindingKind::nan, .rank = 300, .step = std::int64_t{1} << 40, .parameter = "fc.weight", .time = 77};
  Finding apart{.kind = FindingKind::apart, .rank = -1, .step = 7, .parameter = std::string(40, 'x') + ".weight"};
  TraceRing::Contents contents;
  contents.findings = {words_of(nan), words_of(apart), TraceRing::Words{}};
  const RankTrace trace = decode(contents);
  ASSERT_EQ(trace.findings.size(), 2u) << "one is of no known kind";
  EXPECT_EQ(trace.findings[0], nan);
  apart.parameter = ".." + std::string(22, 'x') + ".weight";
  EXPECT_EQ(trace.findings[1], apart);
  EXPECT_EQ(describe(nan), "NaN in rank 300's gradient of 'fc.weight' in step 1099511627776");
  EXPECT_EQ(describe({.kind = FindingKind::apart, .rank = 2, .step = 9, .parameter = "b"}),
            "replicas differ in step 9, from parameter 'b' on: rank 2 differs");
}

TEST(RankTrace, AStepHasItsBucketsAndWhatIsKnownOfItLater) {
  TracedStep step{.number = 9,
                  .step = 4,
                  .on_device = true,
                  .begin = 100,
                  .last_gradient_ready = 150,
                  .end = 180,
                  .waited = 30,
                  .hidden = 11};
  const TracedBucket bucket{.bytes = 64, .ready = 110, .launched = 120, .finished = 170, .gradients_ready = 3};
  const TracedStep next{.number = 10, .step = 5, .begin = 200, .end = 210};
  const RankTrace trace = decode(contents_of({words_of(step), words_of(bucket, 9), words_of(bucket, 9), words_of(next),
                                              words_of_batch(4, 256, 0.5), words_of_batch(77, 1, 2.0)}));
  EXPECT_EQ(trace.lost, 0u);
  ASSERT_EQ(trace.steps.size(), 2u);
  step.weight = 256;
  step.loss = 0.5;
  EXPECT_EQ(fields(trace.steps[0]), fields(step));
  EXPECT_EQ(fields(trace.steps[1]), fields(next));
  ASSERT_EQ(trace.steps[0].buckets.size(), 2u);
  EXPECT_EQ(fields(trace.steps[0].buckets[1]), fields(bucket));
}

TEST(RankTrace, NumbersThatCanNotBeAddedCountAsLost) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const TracedStep step{.number = 3, .step = 3, .begin = 100, .end = 180};
  TracedStep odd = step;
  odd.step = kMost;
  TraceRing::Contents contents = contents_of(
      {words_of(step), words_of_span(SpanKind::data, 0, -kMost, 5, ""), words_of_span(SpanKind::data, 0, 5, kMost, ""),
       words_of(TracedBucket{.bytes = 1, .ready = 1, .launched = -kMost, .finished = 2}, 3), words_of(odd)});
  contents.findings = {words_of(Finding{.kind = FindingKind::nan, .time = -kMost}),
                       words_of(Finding{.kind = FindingKind::nan, .parameter = "a\x1b[2J"})};
  const RankTrace trace = decode(contents);
  EXPECT_EQ(trace.lost, 4u);
  ASSERT_EQ(trace.steps.size(), 1u);
  EXPECT_TRUE(trace.steps[0].buckets.empty());
  EXPECT_TRUE(trace.spans.empty());
  ASSERT_EQ(trace.findings.size(), 1u);
  EXPECT_EQ(trace.findings[0].parameter, "a?[2J");
}

TEST(RankTrace, WhatIsNoEventCountsAsLost) {
  const TracedBucket bucket{.bytes = 64, .ready = 110, .launched = 120, .finished = 170};
  TraceRing::Words nonsense{};
  nonsense.fill(0x7f);
  TraceRing::Words no_span_kind = words_of_span(SpanKind::data, 0, 1, 2, "");
  no_span_kind[0] = 1 | 200 << 8;
  const RankTrace trace = decode(
      contents_of({words_of(bucket, 3),                                                    // its step has left the ring
                   nonsense, no_span_kind, words_of_span(SpanKind::data, 0, 5, 4, "")}));  // ends before it begins
  EXPECT_EQ(trace.lost, 4u);
  EXPECT_TRUE(trace.spans.empty());
  EXPECT_TRUE(trace.steps.empty());
}

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
  RankTrace trace = decode(*contents_of_trace());
  ASSERT_EQ(trace.spans.size(), 4u);
  EXPECT_EQ(trace.spans[0].name, "tokenize");
  EXPECT_EQ(trace.spans[1].name, "tokenize");
  EXPECT_EQ(trace.spans[2].kind, SpanKind::data);
  EXPECT_LE(trace.spans[2].begin, trace.spans[0].begin);
  EXPECT_GE(trace.spans[2].end, trace.spans[0].end);
  EXPECT_EQ(trace.spans[3].name, "on a thread");
  EXPECT_NE(trace.spans[3].thread, trace.spans[2].thread);

  const auto at = [](std::int64_t ns) { return Time(std::chrono::nanoseconds(ns)); };
  StepRecord record;
  record.step = 41;
  record.begin = at(1000);
  record.last_gradient_ready = at(1500);
  record.end = at(2000);
  record.waited = std::chrono::nanoseconds(400);
  record.hidden = std::chrono::nanoseconds(30);
  record.buckets = {{.bytes = 64, .ready = at(1100), .launched = at(1200), .finished = at(1900), .gradients_ready = 2}};
  keep_step(record, false);
  keep_batch(41, 12, 0.25);
  // Of every step, also of one that is not kept, so that the ranks' numbers are the same.
  switch_trace(false);
  keep_step(record, false);
  switch_trace(true);
  keep_step(record, true);
  keep_span(SpanKind::backward, record.begin, record.end);
  trace = decode(*contents_of_trace());
  ASSERT_EQ(trace.steps.size(), 2u);
  EXPECT_EQ(trace.steps[1].number, 2);
  EXPECT_TRUE(trace.steps[1].on_device);
  EXPECT_EQ(fields(trace.steps[0]), std::tuple(0, 41, false, 1000, 1500, 2000, 400, 30, 12, 0.25));
  ASSERT_EQ(trace.steps[0].buckets.size(), 1u);
  EXPECT_EQ(fields(trace.steps[0].buckets[0]), std::tuple(64, 1100, 1200, 1900, 2));
  EXPECT_EQ(trace.spans.back().kind, SpanKind::backward);

  keep_steps_done(50, 8);
  keep_scalar("lr", 0.1);
  keep_scalar("epoch/loss", 3, 2);
  keep_batch(42, 12, 0.75);  // of the process's 43rd step
  trace = decode(*contents_of_trace());
  EXPECT_EQ(trace.steps_before, 8);
  ASSERT_EQ(trace.scalars.size(), 3u);
  ASSERT_EQ(trace.scalars[0].points.size(), 2u);
  EXPECT_EQ(trace.scalars[0].points[0].value, 0.25);
  EXPECT_EQ(totals().scalars, (std::vector<Scalar>{{"loss", 51, 0.75}, {"epoch/loss", 2, 3}, {"lr", 50, 0.1}}));
  // Of names without room the 1st, 2nd, 4th ... value is a warning.
  for (std::size_t i = 3; i < ScalarTable::kMostNames; ++i) keep_scalar("name" + std::to_string(i), 1);
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 5; ++i) keep_scalar("other" + std::to_string(i), 1);
  const std::string said = ::testing::internal::GetCapturedStderr();
  testing::expect_text(said,
                       {"a value is dropped, the last of 'other0': a rank keeps only the values of the first 64 names",
                        "2 values are dropped, the last of 'other1'", "4 values are dropped, the last of 'other3'"});
  EXPECT_EQ(said.find("3 values"), said.npos) << said;
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

StepRecord step_of(std::int64_t begin, std::int64_t end, std::int64_t waited, std::int64_t hidden) {
  const auto at = [](std::int64_t ns) { return Time(std::chrono::nanoseconds(ns)); };
  StepRecord record;
  record.begin = record.last_gradient_ready = at(begin);
  record.end = at(end);
  record.waited = std::chrono::nanoseconds(waited);
  record.hidden = std::chrono::nanoseconds(hidden);
  return record;
}

TEST(TotalsKeeper, AddsUpWhatWasOverWhenTheLastStepEnded) {
  TotalsKeeper keeper;
  EXPECT_EQ(keeper.totals(0).steps, 0);
  keeper.begin_span(10);
  keeper.end_span(SpanKind::data, 5, 15);
  EXPECT_EQ(keeper.totals(20).of(SpanKind::data), 0) << "of no step that has ended";
  keeper.end_step(step_of(100, 180, 30, 7), false);
  keeper.add_batch(32, 0.5);
  keeper.begin_span(200);
  keeper.begin_span(250);
  keeper.end_span(SpanKind::data, 11, 260);
  keeper.end_step(step_of(300, 400, 20, 3), true);
  keeper.add_batch(16, std::nullopt);
  const RankTotals totals = keeper.totals(500);
  EXPECT_EQ(totals.steps, 2);
  EXPECT_EQ(totals.on_device, 1);
  EXPECT_EQ(totals.until, 400);
  EXPECT_EQ(totals.in_steps, 180);
  EXPECT_EQ(totals.waited, 50);
  EXPECT_EQ(totals.hidden, 10);
  EXPECT_EQ(totals.after_steps, 20) << "from 180 to the first span behind it";
  EXPECT_EQ(totals.rows, 48);
  EXPECT_EQ(totals.loss, 0.5);
  EXPECT_EQ(totals.of(SpanKind::data), 16);
  EXPECT_GT(totals.resident, 1 << 20);
  EXPECT_EQ(totals.snapshot_age, -1);
  keeper.end_span(SpanKind::snapshot, 4, 600);
  EXPECT_EQ(keeper.totals(650).snapshot_age, 50);
  EXPECT_FALSE(totals.finding);
  keeper.add_wrong_step();
  keeper.add_wrong_step();
  keeper.add_finding({.step = 4, .parameter = "a", .time = 7});
  keeper.add_finding({.step = 9, .parameter = "b"});
  keeper.set_equal_in(200);
  EXPECT_EQ(keeper.totals(650).left, -1);
  keeper.set_left(47'000'000'000);
  EXPECT_EQ(keeper.totals(650).left, 47'000'000'000);
  EXPECT_EQ(keeper.totals(650).wrong_steps, 2);
  EXPECT_EQ(keeper.totals(650).equal_in, 200);
  EXPECT_EQ(keeper.totals(650).finding, (Finding{.step = 4, .parameter = "a"})) << "the first";
}

TEST(RankTotals, GoThroughAWord) {
  RankTotals totals{.steps = 3,
                    .until = std::numeric_limits<std::int64_t>::max(),
                    .waited = 5,
                    .after_steps = 6,
                    .rows = 7,
                    .snapshot_age = -1};
  totals.spans[2] = 9;
  for (const std::optional<double> loss : {std::optional<double>(), std::optional(0.1), std::optional(-1e300)}) {
    totals.loss = loss;
    const std::string word = encode(totals);
    EXPECT_EQ(word.find(' '), std::string::npos);
    EXPECT_EQ(decode_rank_totals(word), totals);
    EXPECT_EQ(decode_rank_totals(word + ",of a later version"), totals);
  }
  totals.wrong_steps = 3;
  totals.equal_in = 100;
  totals.left = 47;
  totals.finding = {.kind = FindingKind::infinity, .rank = 2, .step = 12, .parameter = "fc.weight"};
  EXPECT_EQ(decode_rank_totals(encode(totals)), totals);
  totals.finding->parameter = "of my own, with: all";
  const auto read = decode_rank_totals(encode(totals));
  ASSERT_TRUE(read && read->finding);
  EXPECT_EQ(read->finding->parameter, "of_my_own__with:_all");
  totals.finding.reset();
  totals.scalars = {{"val/loss", 500, 0.1}, {"of my own, with: all \xc3\xa9", 1, -INFINITY}, {"lr", 2, 1e-300}};
  EXPECT_EQ(decode_rank_totals(encode(totals)), totals);
  EXPECT_EQ(encode(totals).find(' '), std::string::npos);
  totals.scalars = {{"nan", 1, std::numeric_limits<double>::quiet_NaN()}};
  EXPECT_TRUE(std::isnan(decode_rank_totals(encode(totals))->scalars.at(0).value));
  // The longest that there can be.
  constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
  RankTotals longest;
  longest.spans.fill(kLeast);
  longest.held.fill(kLeast);
  for (auto* const number : {&longest.steps, &longest.until, &longest.on_device, &longest.in_steps, &longest.waited,
                             &longest.hidden, &longest.after_steps, &longest.rows, &longest.resident,
                             &longest.snapshot_age, &longest.wrong_steps, &longest.equal_in, &longest.left}) {
    *number = kLeast;
  }
  longest.loss = -std::numeric_limits<double>::denorm_min();
  longest.finding = {.kind = FindingKind::apart,
                     .rank = std::numeric_limits<int>::min(),
                     .step = kLeast,
                     .parameter = std::string(Finding::kMostNameBytes, 'n')};
  for (std::size_t i = 0; i < ScalarTable::kMostNames; ++i) {
    longest.scalars.push_back({std::string(ScalarTable::kMostNameBytes - 2, 'n') + std::to_string(10 + i),
                               std::numeric_limits<std::int64_t>::max(), -std::numeric_limits<double>::denorm_min()});
  }
  EXPECT_EQ(decode_rank_totals(encode(longest)), longest);
}

TEST(RankTotals, WhatIsNoneOfThemIsNotTaken) {
  const std::string word = encode({});
  EXPECT_TRUE(decode_rank_totals(word));
  const std::string all_but_the_end = word.substr(0, word.size() - 1);
  for (const std::string& none : {std::string(), word.substr(2), all_but_the_end, "x" + word, all_but_the_end + "much",
                                  word + "," + std::string(kMostTotalsCharacters, '1')}) {
    EXPECT_FALSE(decode_rank_totals(none)) << none;
  }
  for (const std::string& none :
       std::vector<std::string>{":1:2", "6c72:1", "6c72:x:2", "6c72:1:x", "6c72", "6c72:-1:2", "-1:1:2", "6c7:1:2",
                                "6c7x:1:2", "0x6c:1:2", "ff:1:2", "0a:1:2", "00:1:2", std::string(128, '6') + ":1:2"}) {
    EXPECT_TRUE(decode_rank_totals(word + "," + none)->scalars.empty()) << none;
  }
  EXPECT_EQ(decode_rank_totals(word + ",6c72:1:2,6c72:3:4")->scalars, (std::vector<Scalar>{{"lr", 1, 2}}));
}

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
  for (int twice = 0; twice < 2; ++twice) summary.add(record_of(3, milliseconds(4), milliseconds(40)));
  EXPECT_EQ(summary.waited().median, milliseconds(3));
  EXPECT_EQ(summary.line(), "communication: 3.0 ms waited, 30.0 ms hidden");
  EXPECT_EQ(summary.report(),
            "4 steps, communication in each: 3.0 ms waited (mean 4.0 ms, longest 9.0 ms), 30.0 ms hidden by backward "
            "(mean 40.0 ms)");
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
}  // namespace lockstep::trace::rank_trace_test
