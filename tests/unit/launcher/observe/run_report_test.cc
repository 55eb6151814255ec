// SPDX-License-Identifier: Apache-2.0
#include "launcher/observe/run_report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "launcher/observe/chart.h"
#include "tests/support/error_of.h"
#include "tests/support/markup.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/launcher/observe/traces.h"

namespace lockstep::launcher {
namespace {

using nlohmann::json;
using testing::count_of;
using testing::expect_text;
using testing::fault_of_markup;
using testing_traces::trace_of;

constexpr int kSteps = 40;

RunReport report(int starts = 1) {
  RunTraces traces;
  for (int start = 0; start < starts; ++start) {
    traces.traces.push_back({start, trace_of(0, kSteps, {}, 10'000)});
    traces.traces.push_back({start, trace_of(1, kSteps, {.data = 1900}, 10'000)});
  }
  return report_of(traces);
}

std::vector<json> lines_of(const RunReport& report) {
  std::vector<json> lines;
  std::istringstream text(as_json_lines(report));
  for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
  return lines;
}

TEST(RunReport, HasWhatWentWrongInTheOrderOfTheSteps) {
  const trace::Finding later{.kind = trace::FindingKind::infinity, .rank = 0, .step = 8, .parameter = "a<b"};
  const trace::Finding first{
      .kind = trace::FindingKind::nan, .rank = 1, .step = 7, .parameter = "fc.weight", .time = 5};
  const trace::Finding apart{.kind = trace::FindingKind::apart, .rank = 1, .step = 30, .parameter = "fc.bias"};
  RunTraces traces;
  traces.traces = {{0, trace_of(0, kSteps, {}, 10'000)}, {0, trace_of(1, kSteps, {}, 10'000)}};
  traces.traces[0].rank.findings = {later, apart};
  traces.traces[1].rank.findings = {first, apart};
  const RunReport report = report_of(traces);
  std::vector<json> found = lines_of(report);
  std::erase_if(found, [](const json& line) { return line["type"] != "finding"; });
  ASSERT_EQ(found.size(), 3u) << "what all ranks have found once";
  EXPECT_EQ(found[0], (json{{"type", "finding"},
                            {"generation", 0},
                            {"rank", 1},
                            {"step", 7},
                            {"kind", "nan"},
                            {"parameter", "fc.weight"}}));
  EXPECT_EQ(found[1]["kind"], "infinity");
  EXPECT_EQ(found[2]["kind"], "apart");
  const std::string page = as_page(report);
  EXPECT_EQ(fault_of_markup(page), "");
  expect_text(page, {"Numbers that went wrong", "NaN in rank 1's gradient of 'fc.weight' in step 7",
                     "infinity in rank 0's gradient of 'a&lt;b' in step 8",
                     "replicas not equal any more in step 30, from 'fc.bias' on: rank 1 differs"});
  EXPECT_EQ(count_of(as_page(lockstep::launcher::report_of({})), "Numbers that went wrong"), 0u);
}

TEST(RunReport, HasTheNumbersOfEachStepAsJsonLines) {
  const auto lines = lines_of(report());
  ASSERT_EQ(lines.size(), 2u + 2 * (kSteps - 1));
  EXPECT_EQ(lines[0]["type"], "run");
  EXPECT_EQ(lines[0]["steps"], kSteps - 1);
  EXPECT_EQ(lines[1]["straggler"]["rank"], 1);
  EXPECT_EQ(lines[1]["straggler"]["cause"], "data");
  const json& step = lines[2];
  EXPECT_EQ(step["type"], "step");
  EXPECT_EQ(step["rank"], 0);
  EXPECT_EQ(step["step"], 1);
  EXPECT_DOUBLE_EQ(step["ms"].get<double>(), 0.01);
  EXPECT_DOUBLE_EQ(step["loss"].get<double>(), 0.5);
  EXPECT_EQ(step["weight"], 32);
  double sum = 0;
  for (const auto& [phase, ms] : step["phases_ms"].items()) sum += ms.get<double>();
  EXPECT_NEAR(sum, 0.01, 1e-9) << "every nanosecond of a step is somewhere";
}

TEST(RunReport, ABucketsBandwidthCountsFromTheLastRanksLaunch) {
  const auto found = report();
  ASSERT_EQ(found.buckets.size(), 2u);
  // Rank 1 launches bucket 0 later, by as much as its data takes longer.
  EXPECT_EQ(found.buckets[0].bytes, 1 << 20);
  EXPECT_EQ(found.buckets[0].moving, 10'000 - (1000 + 1900 + 200 + 2000) - 200);
  EXPECT_GT(found.buckets[0].under_way, found.buckets[0].moving) << "rank 0 waits for rank 1";
  EXPECT_DOUBLE_EQ(found.buckets[0].bus_bandwidth, (1 << 20) / (4700 * 1e-9));
}

TEST(RunReport, ThePageIsWholeAndHasAPointForEachStep) {
  const std::string page = as_page(report());
  EXPECT_EQ(fault_of_markup(page), "");
  // Loss, samples per second; bars of 9 phases for 2 ranks; a cell for each step of each rank.
  EXPECT_EQ(count_of(page, "class=\"line\" viewBox=\"0 0 960 200\" role=\"img\" data-points=\"39\""), 2u);
  EXPECT_EQ(count_of(page, "<rect class=\"cell\""), 2u * (kSteps - 1));
  expect_text(page, {"data-points=\"18\"", "data-points=\"78\"", "run-1",
                     "rank 1 (host n0) costs 14 % of every step: data", "prefers-color-scheme: dark"});
  for (const std::string outside : {"http", "src=", "url(", "@import", "<script", "<link"}) {
    EXPECT_EQ(count_of(page, outside), 0u) << outside;
  }
}

TEST(RunReport, StartsFollowEachOtherInTheCurves) {
  const auto found = report(3);
  EXPECT_EQ(found.steps(), 3u * (kSteps - 1));
  expect_text(as_page(found), {"3 starts", "data-points=\"117\""});
}

TEST(RunReport, WhatComesFromOutsideIsTextInThePage) {
  RunTraces traces{.traces = {{0, trace_of(0, kSteps, {}, 10'000)}}, .problems = {"<b>&\"'"}};
  traces.traces[0].rank.identity.host = "<script>alert(1)</script>";
  traces.traces[0].rank.identity.run_id = "\"><svg onload=x>";
  auto found = report_of(traces);
  found.history = {.verdicts = {{.text = "a < b & c"}}, .lines = {{.time = "<i>", .text = "</td>"}}};
  const std::string page = as_page(found);
  EXPECT_EQ(fault_of_markup(page), "");
  EXPECT_EQ(count_of(page, "<script"), 0u);
  EXPECT_EQ(count_of(page, "<svg onload"), 0u);
  expect_text(page, {"a &lt; b &amp; c", "&lt;/td&gt;", "&lt;b&gt;&amp;&quot;'"});
}

TEST(RunReport, LossesThatAreNoNumbersHaveNoPoint) {
  const double nan = std::nan("");
  expect_text(line_chart({1, nan, 3, INFINITY}, "loss"), {"data-points=\"2\""});
  EXPECT_EQ(fault_of_markup(line_chart({}, "none")), "");
  expect_text(line_chart(std::vector<double>(2500, 1.0), "long"), {"data-points=\"834\""});
}

TEST(RunReport, HasTheVerdictsAndTheLaunchersWords) {
  const testing::TemporaryFolder folder;
  folder.write("generation0/verdict.json", R"({"outcome": "failed", "summary": "rank 1 failed first"})");
  folder.write("generation1/verdict.json", "cut");
  folder.write("job.log",
               "2026-11-23T13:28:23.1Z rank0.out: hello\n"
               "2026-11-23T13:28:24.1Z lockstep run: restart 1 of 2\n"
               "2026-11-23T13:28:25.1Z rank0.err: [lockstep rank 0] info: snapshots: step 25 is saved in 'run7'\n"
               "no time\n");
  const JobHistory history = read_history(folder);
  ASSERT_EQ(history.verdicts.size(), 2u);
  EXPECT_EQ(history.verdicts[0].text, "start 1: failed: rank 1 failed first");
  EXPECT_EQ(history.verdicts[1].text, "start 2: its verdict can't be read");
  ASSERT_EQ(history.lines.size(), 2u);
  EXPECT_EQ(history.lines[0].time, "2026-11-23T13:28:24.1Z");
  EXPECT_EQ(history.lines[0].text, "restart 1 of 2");
  EXPECT_EQ(history.lines[1].text, "rank0.err: [lockstep rank 0] info: snapshots: step 25 is saved in 'run7'");
}

TEST(RunReport, AFolderWithoutTracesIsSaid) {
  const testing::TemporaryFolder folder;
  expect_text(testing::error_of<InvalidArgument>([&] { read_report(folder); }),
              {"has no trace of a rank (generation0/rank0.trace); give the --log-dir of a run"});
}

}  // namespace
}  // namespace lockstep::launcher
