// SPDX-License-Identifier: Apache-2.0
// What a report leaves for other programs: a timeline, and a file of events for TensorBoard.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "launcher/observe/event_file.h"
#include "launcher/observe/timeline.h"
#include "tests/support/temporary_folder.h"
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

TEST(EventFile, TheChecksumIsCastagnolis) {
  // RFC 3720, B.4.
  EXPECT_EQ(crc32c("123456789"), 0xe306'9283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a91'36aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8'ab43u);
  EXPECT_EQ(crc32c(""), 0u);
}

template <typename Number>
Number number_at(const std::string& text, std::size_t at) {
  Number number{};
  std::memcpy(&number, text.data() + at, sizeof number);
  return number;
}

struct Scalar {
  std::int64_t step = 0;
  double time = 0;
  float value = 0;
};

// A reader of its own, of messages that have fields in ascending order and lengths below 128.
std::map<std::string, std::vector<Scalar>> scalars_in(const std::string& text) {
  std::map<std::string, std::vector<Scalar>> scalars;
  for (std::size_t at = 0, record = 0; at < text.size(); ++record) {
    const auto length = number_at<std::uint64_t>(text, at);
    const std::string message = text.substr(at + 12, length);
    const std::uint32_t masked = number_at<std::uint32_t>(text, at + 12 + length) - 0xa282'ead8u;
    EXPECT_EQ(masked << 15 | masked >> 17, crc32c(message));
    at += length + 16;
    EXPECT_EQ(message[0], 0x09);
    const auto time = number_at<double>(message, 1);
    if (record == 0) {
      EXPECT_EQ(message.substr(9),
                "\x1a\x0d"
                "brain.Event:2");
      continue;
    }
    if (record == 1) {
      EXPECT_EQ(message.substr(9), "\x3a\x02\x08\x01") << "a restart, of step 0";
      continue;
    }
    EXPECT_EQ(message[9], 0x10);
    const std::int64_t step = message[10];
    EXPECT_EQ(message[11], 0x2a);
    EXPECT_EQ(message[13], 0x0a);
    EXPECT_EQ(message[15], 0x0a);
    const auto tag = static_cast<std::size_t>(message[16]);
    EXPECT_EQ(message[17 + tag], 0x15);
    EXPECT_EQ(message.size(), 18 + tag + 4);
    scalars[message.substr(17, tag)].push_back({step, time, number_at<float>(message, 18 + tag)});
  }
  return scalars;
}

TEST(EventFile, HasTheCurvesOfAllStartsByTheStepsThatTheyHaveDone) {
  auto one = trace_of(0, 4, {}, 10'000'000);
  auto two = trace_of(1, 4, {}, 10'000'000);
  auto again = trace_of(0, 3, {}, 20'000'000);
  for (auto* const trace : {&one, &two, &again}) trace->wall_clock = 5'000'000'000;
  again.steps_before = 3;  // step 4 is run again
  one.scalars = {{"val/loss", {{2, 0.75, 1'000'000'000}}}};
  two.scalars = {{"val/loss", {{2, 0.25, 1'000'000'000}}}};
  const auto scalars = scalars_in(as_event_file(report_of({.traces = {{0, one}, {0, two}, {1, again}}})));
  const auto& loss = scalars.at("loss");
  std::vector<std::int64_t> steps;
  for (const Scalar& scalar : loss) steps.push_back(scalar.step);
  ASSERT_EQ(steps, (std::vector<std::int64_t>{2, 3, 5, 6})) << "of step 4 the second start has no time";
  EXPECT_FLOAT_EQ(loss[0].value, 0.5);
  EXPECT_FLOAT_EQ(loss[2].value, 0.5) << "of the second start";
  EXPECT_FLOAT_EQ(scalars.at("step ms")[0].value, 10);
  EXPECT_FLOAT_EQ(scalars.at("step ms")[3].value, 20);
  EXPECT_FLOAT_EQ(scalars.at("samples per second")[0].value, 3200);
  EXPECT_EQ(scalars.at("own ms/rank 1").size(), 2u);
  EXPECT_EQ(scalars.at("waited ms/rank 0").size(), 4u);
  ASSERT_EQ(scalars.at("val/loss").size(), 1u);
  EXPECT_EQ(scalars.at("val/loss")[0].step, 2);
  EXPECT_EQ(scalars.at("val/loss")[0].value, 0.5f) << "the mean over the ranks";
  EXPECT_DOUBLE_EQ(scalars.at("val/loss")[0].time, 6);
  EXPECT_NEAR(loss[0].time, 5 + 0.021, 1e-9);
}

TEST(EventFile, OfALaterReportIsReadAfterTheEarlierOne) {
  const testing::TemporaryFolder folder;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  folder.write("events/events.out.tfevents." + std::to_string(micros - 3'700'000'000) + ".lockstep", "an hour old");
  folder.write("events/events.out.tfevents.of.another", "kept");
  write_event_file(folder / "events", {});
  write_event_file(folder / "events", {});
  std::map<std::string, std::uintmax_t> sizes;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "events")) {
    sizes[entry.path().filename().native()] = entry.file_size();
  }
  ASSERT_EQ(sizes.size(), 3u);
  EXPECT_EQ(sizes.begin()->second, 0u);
  EXPECT_EQ(std::next(sizes.begin())->second, as_event_file({}).size());
  EXPECT_EQ(sizes["events.out.tfevents.of.another"], 4u);
}

TEST(EventFile, OfNothingHasItsVersion) { EXPECT_TRUE(scalars_in(as_event_file({})).empty()); }

}  // namespace
}  // namespace lockstep::launcher::timeline_test
