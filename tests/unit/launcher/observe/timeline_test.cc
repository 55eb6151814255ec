// SPDX-License-Identifier: Apache-2.0
#include "launcher/observe/timeline.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "tests/unit/launcher/observe/traces.h"

namespace lockstep::launcher::timeline_test {
namespace {

using nlohmann::json;
using testing_traces::trace_of;
using trace::SpanKind;

std::vector<json> events_of(const json& timeline, const std::string& phase) {
  std::vector<json> events;
  for (const json& event : timeline["traceEvents"]) {
    if (event["ph"] == phase) events.push_back(event);
  }
  return events;
}

TEST(Timeline, HasAFlagWhereNumbersWentWrong) {
  RunTrace one{0, trace_of(1, 3, {}, 10'000)};
  const std::int64_t time = one.rank.steps[1].end;
  one.rank.findings = {
      {.kind = trace::FindingKind::nan, .rank = 1, .step = 1, .parameter = "fc.\"weight\"", .time = time}};
  const json timeline = json::parse(timeline_of({one}));
  const auto flags = events_of(timeline, "i");
  ASSERT_EQ(flags.size(), 1u);
  EXPECT_EQ(flags[0]["name"], "NaN in rank 1's gradient of 'fc.\"weight\"' in step 1");
  EXPECT_EQ(flags[0]["pid"], 1);
  EXPECT_EQ(flags[0]["s"], "p");
  double end = 0;
  for (const json& span : events_of(timeline, "X")) {
    if (span["name"] == "bucket 0" && span["args"]["step"] == 1) {
      end = span["ts"].get<double>() + span["dur"].get<double>();
    }
  }
  EXPECT_NEAR(flags[0]["ts"].get<double>(), end, 0.002);
}

// Spans of a lane lie within each other or apart.
void expect_nesting(const std::vector<json>& spans) {
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> lanes;
  for (const json& span : spans) {
    EXPECT_GE(span["dur"].get<double>(), 0);
    const double begin = span["ts"];
    lanes[{span["pid"], span["tid"]}].emplace_back(begin, begin + span["dur"].get<double>());
  }
  for (auto& [lane, all] : lanes) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      for (std::size_t j = i + 1; j < all.size(); ++j) {
        const auto& [a, b] = all[i];
        const auto& [c, d] = all[j];
        const bool apart = b <= c + 1e-6 || d <= a + 1e-6;
        const bool within = (a <= c + 1e-6 && d <= b + 1e-6) || (c <= a + 1e-6 && b <= d + 1e-6);
        EXPECT_TRUE(apart || within) << lane.first << " lane " << lane.second;
      }
    }
  }
}

TEST(Timeline, HasALaneForEachKindOfTimeOfEachRank) {
  const json timeline =
      json::parse(timeline_of({{0, trace_of(0, 4, {}, 10'000)}, {0, trace_of(1, 4, {.data = 900}, 10'000)}}));
  EXPECT_EQ(timeline["otherData"]["run_id"], "run-1");
  std::map<std::pair<int, std::string>, int> lanes;
  for (const json& event : events_of(timeline, "M")) {
    if (event["name"] == "thread_name") lanes[{event["pid"], event["args"]["name"]}] = event["tid"];
    if (event["name"] == "process_name") {
      EXPECT_EQ(event["args"]["name"], event["pid"] == 0 ? "rank 0 (host n0)" : "rank 1 (host n0)");
    }
  }
  const auto spans = events_of(timeline, "X");
  expect_nesting(spans);
  for (const int rank : {0, 1}) {
    const auto count = [&](const std::string& lane, const std::string& name) {
      return std::count_if(spans.begin(), spans.end(), [&](const json& span) {
        return span["pid"] == rank && span["tid"] == lanes.at({rank, lane}) && span["name"] == name;
      });
    };
    EXPECT_EQ(count("compute", "forward"), 4);
    EXPECT_EQ(count("compute", "backward"), 4);
    EXPECT_EQ(count("compute", "optimizer"), 3);
    EXPECT_EQ(count("data", "data"), 4);
    EXPECT_EQ(count("waiting", "wait for buckets"), 4);
    EXPECT_EQ(count("communication", "bucket 0"), 4);
    EXPECT_EQ(count("communication 2", "bucket 1"), 4) << "on its way beside bucket 0";
  }
  double first = 1e300;
  for (const json& span : spans) {
    first = std::min(first, span["ts"].get<double>());
    if (span["pid"] != 0) continue;
    // A backward's lane ends with its last gradient.
    if (span["name"] == "backward") {
      EXPECT_NEAR(span["dur"].get<double>(), 4.3, 1e-9);
    } else if (span["name"] == "wait for buckets") {
      EXPECT_NEAR(span["dur"].get<double>(), span["ts"] < 10 ? 3.0 : 2.0, 1e-9) << "an optimizer is in later steps";
    } else if (span["name"] == "bucket 0") {
      EXPECT_EQ(span["args"]["bytes"], 1 << 20);
      EXPECT_NEAR(span["args"]["ready_before_launch_us"].get<double>(), 0.1, 1e-9);
    }
  }
  EXPECT_EQ(first, 0);
}

// Hosts whose monotonic clocks are hours apart: what happened at one time stands at one time.
TEST(Timeline, HostsArePutTogetherByTheirBuckets) {
  const json timeline = json::parse(
      timeline_of({{0, trace_of(0, 3, {}, 10'000)}, {0, trace_of(2, 3, {}, 10'000, std::int64_t{7'200'000'000'000})}}));
  const auto& about = timeline["otherData"];
  EXPECT_NE(about["clock"].get<std::string>().find("that of host n0; other hosts' times are right to "),
            std::string::npos)
      << about;
  const double error = about["clock_error_us"];
  EXPECT_GT(error, 0);
  EXPECT_LE(error, 4) << "a bucket takes 3 to 6 us";
  std::map<std::pair<int, int>, double> begins;
  for (const json& span : events_of(timeline, "X")) {
    if (span["name"] == "bucket 1") begins[{span["pid"], span["args"]["step"]}] = span["ts"];
  }
  ASSERT_EQ(begins.size(), 6u);
  for (const int step : {0, 1, 2}) EXPECT_NEAR((begins[{0, step}]), (begins[{2, step}]), error);
}

TEST(Timeline, NamesOfTheProgramsOwnAreTextWhateverTheyHold) {
  auto trace = trace_of(0, 2, {}, 10'000);
  const std::string name = "a \"b\"\n\\ \xff";
  trace.spans.push_back({.kind = SpanKind::program, .thread = 5, .begin = 1'000'000, .end = 1'000'100, .name = name});
  const json timeline = json::parse(timeline_of({{0, trace}}));
  const auto spans = events_of(timeline, "X");
  EXPECT_EQ(std::count_if(spans.begin(), spans.end(),
                          [](const json& span) { return span["name"].get<std::string>().starts_with("a \"b\"\n\\ "); }),
            1);
}

TEST(Timeline, OfNothingIsATimelineToo) {
  EXPECT_TRUE(json::parse(timeline_of({}))["traceEvents"].empty());
  EXPECT_FALSE(json::parse(timeline_of({{0, trace::RankTrace{}}}))["traceEvents"].empty()) << "the rank's name";
}

TEST(Timeline, EachOfSeveralHostsHasAFileOfItsOwn) {
  EXPECT_EQ(timeline_file("out/run.json", 1, 0), "out/run.json");
  EXPECT_EQ(timeline_file("out/run.json", 3, 2), "out/run.node2.json");
  EXPECT_EQ(timeline_file("run", 2, 0), "run.node0");
}

}  // namespace
}  // namespace lockstep::launcher::timeline_test
