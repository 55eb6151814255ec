// SPDX-License-Identifier: Apache-2.0
#include "runtime/trace/rank_trace.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace lockstep::trace::rank_trace_test {
namespace {

TraceRing::Contents contents_of(std::vector<TraceRing::Words> events) {
  return {.identity = {.rank = 2}, .wall_clock = 77, .lost = 0, .events = std::move(events)};
}

TEST(RankTrace, SpansComeBack) {
  const RankTrace trace = decode(contents_of(
      {words_of_span(SpanKind::data, 4, -5, 12, ""), words_of_span(SpanKind::program, 0, 1, 2, "tokenize")}));
  EXPECT_EQ(trace.identity.rank, 2);
  EXPECT_EQ(trace.wall_clock, 77);
  ASSERT_EQ(trace.spans.size(), 2u);
  EXPECT_EQ(trace.spans[0].kind, SpanKind::data);
  EXPECT_EQ(trace.spans[0].thread, 4);
  EXPECT_EQ(trace.spans[0].begin, -5);
  EXPECT_EQ(trace.spans[0].end, 12);
  EXPECT_EQ(trace.spans[1].name, "tokenize");
}

TEST(RankTrace, NamesAreCutAt31Bytes) {
  const auto trace = decode(contents_of({words_of_span(SpanKind::program, 0, 1, 2, std::string(100, 'n'))}));
  ASSERT_EQ(trace.spans.size(), 1u);
  EXPECT_EQ(trace.spans[0].name, std::string(31, 'n'));
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
  const TracedStep step{.number = 9,
                        .step = 4,
                        .on_device = true,
                        .begin = 100,
                        .last_gradient_ready = 150,
                        .end = 180,
                        .waited = 30,
                        .hidden = 11};
  const TracedBucket bucket{.bytes = 64, .ready = 110, .launched = 120, .finished = 170, .gradients_ready = 3};
  const RankTrace trace = decode(contents_of({words_of(step), words_of(bucket, 9), words_of(bucket, 9),
                                              words_of(TracedStep{.number = 10, .step = 5, .begin = 200, .end = 210}),
                                              words_of_batch(4, 256, 0.5), words_of_batch(77, 1, 2.0)}));
  EXPECT_EQ(trace.lost, 0u);
  ASSERT_EQ(trace.steps.size(), 2u);
  const TracedStep& read = trace.steps[0];
  EXPECT_EQ(read.number, 9);
  EXPECT_EQ(read.step, 4);
  EXPECT_TRUE(read.on_device);
  EXPECT_EQ(read.begin, 100);
  EXPECT_EQ(read.last_gradient_ready, 150);
  EXPECT_EQ(read.end, 180);
  EXPECT_EQ(read.waited, 30);
  EXPECT_EQ(read.hidden, 11);
  EXPECT_EQ(read.weight, 256);
  EXPECT_EQ(read.loss, 0.5);
  ASSERT_EQ(read.buckets.size(), 2u);
  EXPECT_EQ(read.buckets[1].bytes, 64);
  EXPECT_EQ(read.buckets[1].ready, 110);
  EXPECT_EQ(read.buckets[1].launched, 120);
  EXPECT_EQ(read.buckets[1].finished, 170);
  EXPECT_EQ(read.buckets[1].gradients_ready, 3);
  EXPECT_FALSE(trace.steps[1].loss);
  EXPECT_FALSE(trace.steps[1].on_device);
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

}  // namespace
}  // namespace lockstep::trace::rank_trace_test
