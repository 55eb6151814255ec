// SPDX-License-Identifier: Apache-2.0
#include "launcher/observe/run_report.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "launcher/observe/chart.h"
#include "launcher/observe/report.h"
#include "runtime/base/logging.h"
#include "tests/support/error_of.h"
#include "tests/support/markup.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/launcher/observe/traces.h"

namespace lockstep::launcher::run_report_test {
namespace {

using nlohmann::json;
using testing::count_of;
using testing::expect_text;
using testing::fault_of_markup;
using testing_traces::trace_of;

constexpr int kSteps = 40;

RunReport report(int starts = 1) {
  RunTraces traces;
  for (int start = 1; start <= starts; ++start) {
    traces.traces.push_back({start, trace_of(0, kSteps, {}, 10'000)});
    traces.traces.push_back({start, trace_of(1, kSteps, {.data = 1900}, 10'000)});
  }
  for (RunTrace& trace : traces.traces) trace.rank.steps_before = (trace.start - 1) * kSteps;
  traces.traces.back().rank.held = {3 << 20, 4 << 20, 0};
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
  traces.traces = {{1, trace_of(0, kSteps, {}, 10'000)}, {1, trace_of(1, kSteps, {}, 10'000)}};
  traces.traces[0].rank.findings = {later, apart};
  traces.traces[1].rank.findings = {first, apart};
  const RunReport report = report_of(traces);
  std::vector<json> found = lines_of(report);
  std::erase_if(found, [](const json& line) { return line["type"] != "finding"; });
  ASSERT_EQ(found.size(), 3u) << "what all ranks have found once";
  EXPECT_EQ(
      found[0],
      (json{{"type", "finding"}, {"start", 1}, {"rank", 1}, {"step", 7}, {"kind", "nan"}, {"parameter", "fc.weight"}}));
  EXPECT_EQ(found[1]["kind"], "infinity");
  EXPECT_EQ(found[2]["kind"], "apart");
  const std::string page = as_page(report);
  EXPECT_EQ(fault_of_markup(page), "");
  expect_text(page, {"Numbers that went wrong", "NaN in rank 1's gradient of 'fc.weight' in step 7",
                     "infinity in rank 0's gradient of 'a&lt;b' in step 8",
                     "replicas differ in step 30, from parameter 'fc.bias' on: rank 1 differs"});
  EXPECT_EQ(count_of(as_page(lockstep::launcher::report_of({})), "Numbers that went wrong"), 0u);
}

TEST(RunReport, HasTheNumbersOfEachStepAsJsonLines) {
  const auto lines = lines_of(report());
  ASSERT_EQ(lines.size(), 2u + 2 * (kSteps - 1) + 3 * (kSteps - 1));
  EXPECT_EQ(lines[0]["type"], "run");
  EXPECT_EQ(lines[0]["steps"], kSteps);
  EXPECT_EQ(lines[0]["timed_steps"], kSteps - 1);
  EXPECT_EQ(lines[1]["straggler"]["rank"], 1);
  EXPECT_EQ(lines[1]["straggler"]["cause"], "data");
  const json& step = lines[2];
  EXPECT_EQ(step["type"], "step");
  EXPECT_EQ(step["rank"], 0);
  EXPECT_EQ(step["step"], 1);
  EXPECT_EQ(step["steps_done"], 2);
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
  // Loss, samples per second, step time; bars of 9 phases for 2 ranks; a cell for each step of each rank.
  EXPECT_EQ(count_of(page, "class=\"line\" viewBox=\"0 0 760 240\" role=\"img\" data-points=\"39\""), 3u);
  EXPECT_EQ(count_of(page, "<rect class=\"cell\""), 2u * (kSteps - 1));
  expect_text(page, {"data-points=\"18\"", "data-points=\"78\"", "run-1",
                     "rank 1 (host n0) costs 14 % of every step: data", "prefers-color-scheme: dark",
                     "Memory of training by rank", "<td>rank 1 (n0)</td><td>3.0</td><td>4.0</td><td>-</td>"});
  for (const std::string outside : {"http", "src=", "url(", "@import", "<script", "<link"}) {
    EXPECT_EQ(count_of(page, outside), 0u) << outside;
  }
}

TEST(RunReport, StartsFollowEachOtherInTheCurves) {
  const auto found = report(3);
  EXPECT_EQ(found.steps(), 3u * (kSteps - 1));
  const std::string page = as_page(found);
  expect_text(page, {"<tr><td>starts</td><td class=\"text\">3</td></tr>", "<td>steps</td><td class=\"text\">120</td>"});
  EXPECT_EQ(count_of(page, "data-points=\"117\""), 3u);
}

TEST(RunReport, WhatComesFromOutsideIsTextInThePage) {
  RunTraces traces{.traces = {{1, trace_of(0, kSteps, {}, 10'000)}}, .problems = {"<b>&\"'"}};
  traces.traces[0].rank.identity.host = "<script>alert(1)</script>";
  traces.traces[0].rank.identity.run_id = "\"><svg onload=x>";
  auto found = report_of(traces);
  found.history = {.verdicts = {{.text = "a < b & c"}}, .is_over = true, .lines = {{.time = "<i>", .text = "</td>"}}};
  const std::string page = as_page(found);
  EXPECT_EQ(fault_of_markup(page), "");
  EXPECT_EQ(count_of(page, "<script"), 0u);
  EXPECT_EQ(count_of(page, "<svg onload"), 0u);
  expect_text(page, {"a &lt; b &amp; c", "&lt;/td&gt;", "&lt;b&gt;&amp;&quot;'"});
}

TEST(RunReport, ValuesThatAreNoNumbersHaveAMarkAndNoPoint) {
  const double nan = std::nan("");
  const std::string chart = line_chart({{"loss", {{1, 1}, {2, nan}, {3, 3}, {4, INFINITY}}}}, {"loss"}, "loss");
  expect_text(chart, {"data-points=\"2\"", "<title>loss nan, step 2</title>", "<title>loss inf, step 4</title>"});
  EXPECT_EQ(count_of(chart, "class=\"bad\""), 2u);
  for (const std::vector<Curve>& curves :
       {std::vector<Curve>{}, {{"none", {}}}, {{"nan", {{7, nan}}}}, {{"one", {{7, 0.001}}}}}) {
    EXPECT_EQ(fault_of_markup(line_chart(curves, {"loss"}, "none")), "");
  }
}

// The numbers of an axis are round ones around all values, and begin at 0 where that is asked for.
TEST(RunReport, AnAxisHasRoundNumbersAroundItsValues) {
  const std::vector<Curve> curves{{"a", {{100, 2.21}, {500, 3.96}}}};
  const std::string chart = line_chart(curves, {"loss"}, "loss");
  for (const char* number : {"2", "2.5", "3", "3.5", "4", "100", "200", "300", "400", "500"}) {
    EXPECT_EQ(count_of(chart, fmt::format(">{}</text>", number)), 1u) << number;
  }
  expect_text(chart, {">loss</text>", ">step</text>"});
  const std::string rates = line_chart(curves, {"samples/s", true}, "rate");
  for (const char* number : {"0", "1", "2", "3", "4"}) {
    EXPECT_EQ(count_of(rates, fmt::format(">{}</text>", number)), 1u) << number;
  }
  // A constant has a line within the chart.
  expect_text(line_chart({{"lr", {{1, 0.01}, {2, 0.01}}}}, {"lr"}, "lr"), {">0.009</text>", ">0.011</text>"});
}

// Doubles near each other, and those whose difference is none.
TEST(RunReport, AnAxisEndsWhateverItsValuesAre) {
  constexpr double kMost = std::numeric_limits<double>::max();
  const std::pair<double, double> ranges[] = {{1, std::nextafter(1, 2)},
                                              {-1e-300, -1e-300 * (1 + 1e-15)},
                                              {1e308, -1e308},
                                              {kMost, -kMost},
                                              {kMost, 0},
                                              {kMost, std::nextafter(kMost, 0)},
                                              {1e300, 1e300},
                                              {5e-324, 1e-323},
                                              {1.7e18, 1.7e18 + 256}};
  for (const auto& [low, high] : ranges) {
    for (const std::string& chart :
         {line_chart({{"x", {{1, low}, {2, high}}}}, {"x"}, "x"),
          line_chart({{"x", {{low, 1}, {high, 2}}}}, {"x"}, "x"),
          line_chart({{"x", {{1, low}, {2, high}}}}, {"x", true}, "x"), heat_map({{"x", {1}}}, low, high, "x")}) {
      EXPECT_EQ(fault_of_markup(chart), "");
      EXPECT_LT(count_of(chart, "class=\"grid\""), 30u) << low << " to " << high;
      for (const char* const text : {"nan,", "inf,", ",nan", ",inf"}) EXPECT_EQ(count_of(chart, text), 0u) << chart;
    }
  }
}

trace::ScalarSeries series(const std::string& name, std::vector<trace::ScalarPoint> points) {
  return {name, std::move(points)};
}

TEST(RunReport, ScalarsAreTheMeanOverTheRanksThatLoggedThem) {
  RunTraces traces;
  traces.traces = {{1, trace_of(0, 3, {}, 10'000)}, {1, trace_of(1, 3, {}, 10'000)}};
  for (RunTrace& trace : traces.traces) trace.rank.wall_clock = 1000;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  // Logged twice in step 2: the last one counts.
  traces.traces[0].rank.scalars = {series("val/acc", {{1, 0.5, 70}, {2, 9, 80}, {2, 0.25, 90}}),
                                   series("lr", {{1, 0.1, 70}, {2, INFINITY, 90}})};
  traces.traces[1].rank.scalars = {series("val/acc", {{2, 0.75, 95}, {3, nan, 99}}),
                                   series("lr", {{1, 0.1, 75}, {2, INFINITY, 90}})};
  const RunReport report = report_of(traces);
  const ScalarCurve& accuracy = report.scalars.at("val/acc");
  ASSERT_EQ(accuracy.size(), 3u);
  EXPECT_EQ(accuracy.at(1).value, 0.5);
  EXPECT_EQ(accuracy.at(1).ranks, 1);
  EXPECT_EQ(accuracy.at(1).time, 1070);
  EXPECT_EQ(accuracy.at(2).value, 0.5);
  EXPECT_EQ(accuracy.at(2).ranks, 2);
  EXPECT_EQ(report.scalars.at("lr").at(1).value, 0.1) << "equal values have no other mean";
  std::vector<json> found = lines_of(report);
  std::erase_if(found, [](const json& line) { return line["type"] != "scalar" || line["name"] == "step ms"; });
  const auto line = [](const char* name, int step, const json& value, int ranks) {
    return json{{"type", "scalar"}, {"name", name}, {"steps_done", step}, {"value", value}, {"ranks", ranks}};
  };
  EXPECT_NE(std::find(found.begin(), found.end(), line("val/acc", 3, "nan", 1)), found.end());
  EXPECT_NE(std::find(found.begin(), found.end(), line("lr", 2, "inf", 2)), found.end());
  EXPECT_NE(std::find(found.begin(), found.end(), line("val/acc", 2, 0.5, 2)), found.end());
}

// The first start fails after step 5, and the next one begins at the snapshot of step 3.
TEST(RunReport, AStartReplacesTheStepsThatItRunsAgain) {
  RunTraces traces;
  traces.traces = {{1, trace_of(0, 5, {}, 10'000)}, {2, trace_of(0, 4, {}, 20'000)}, {3, {}}};
  traces.traces[2].rank.identity = traces.traces[0].rank.identity;  // fails before its first step
  traces.traces[1].rank.steps_before = 3;
  traces.traces[0].rank.scalars = {series("val/loss", {{2, 2.0, 1}, {4, 4.0, 1}, {5, 5.0, 1}}),
                                   series("only/first", {{5, 1.0, 1}})};
  traces.traces[1].rank.scalars = {series("val/loss", {{4, 40.0, 9}, {6, 60.0, 9}})};
  const RunReport report = report_of(traces);
  std::vector<std::pair<std::int64_t, double>> found;
  for (const auto& [step, scalar] : report.scalars.at("val/loss")) found.emplace_back(step, scalar.value);
  EXPECT_EQ(found, (std::vector<std::pair<std::int64_t, double>>{{2, 2.0}, {4, 40.0}, {6, 60.0}}));
  EXPECT_FALSE(report.scalars.contains("only/first")) << "its step is run again";
  EXPECT_EQ(report.scalars.at("step ms").at(5).value, 0.02) << "of the second start";
  EXPECT_EQ(report.totals().steps, 7);
}

// The third start logs a value before restore(), resumes at step 4 and ends one step.
TEST(RunReport, AStartReplacesNothingBeforeTheStepThatItResumesFrom) {
  RunTraces traces;
  traces.traces = {{1, trace_of(0, 5, {}, 10'000)}, {2, trace_of(0, 4, {}, 20'000)}, {3, trace_of(0, 1, {}, 20'000)}};
  traces.traces[1].rank.steps_before = 3;
  traces.traces[2].rank.steps_before = 4;
  traces.traces[0].rank.scalars = {series("val/loss", {{0, 9.0, 1}, {2, 2.0, 1}, {4, 4.0, 1}})};
  traces.traces[1].rank.scalars = {series("val/loss", {{4, 40.0, 9}, {6, 60.0, 9}})};
  traces.traces[2].rank.scalars = {series("val/loss", {{0, 0.5, 9}}), series("loss", {{5, 0.25, 9}})};
  const RunReport report = report_of(traces);
  std::vector<std::pair<std::int64_t, double>> found;
  for (const auto& [step, scalar] : report.scalars.at("val/loss")) found.emplace_back(step, scalar.value);
  EXPECT_EQ(found, (std::vector<std::pair<std::int64_t, double>>{{0, 0.5}, {2, 2.0}, {4, 40.0}}));
  EXPECT_EQ(report.starts[0].until, 3);
  EXPECT_EQ(report.starts[1].until, 4);
  EXPECT_EQ(report.totals().steps, 5);
  EXPECT_EQ(report.totals().final_loss, (std::pair<std::int64_t, double>{5, 0.25}));
}

TEST(RunReport, TheFinalLossIsTheLastOneWhateverItIs) {
  RunTraces traces{.traces = {{1, trace_of(0, 3, {}, 10'000)}}};
  traces.traces[0].rank.steps.back().loss = std::copysign(NAN, -1.0);
  traces.traces[0].rank.scalars = {series("loss", {{1, 1.0, 1}, {2, 0.5, 1}, {3, NAN, 1}})};
  const RunReport report = report_of(traces);
  const auto lines = lines_of(report);
  EXPECT_EQ(lines[0]["final_loss"], "nan");
  EXPECT_EQ(lines[0]["best_loss"], 0.5);
  EXPECT_EQ(lines[2]["loss"], 0.5);
  EXPECT_EQ(lines[3]["loss"], "nan");
  expect_text(as_page(report), {"<td>final loss</td><td class=\"text\">nan (step 3)</td>",
                                "<td>best loss</td><td class=\"text\">0.5 (step 2)</td>"});
}

RunReport failed_report() {
  RunReport report = lockstep::launcher::report_of({.traces = {{1, trace_of(0, kSteps, {}, 10'000'000)}}});
  report.command = "./train --lr <0.1>";
  report.began = 1'795'798'800'000'000'000;
  report.ended = report.began + 318'000'000'000;
  report.history = {.verdicts = {{.text = "start 1: failed: rank 1 failed first"}},
                    .is_over = true,
                    .has_failed = true,
                    .outcome = "failed",
                    .summary = "rank 1 failed first"};
  return report;
}

TEST(RunReport, BeginsWithHowTheRunEnded) {
  const std::string page = as_page(failed_report());
  EXPECT_EQ(fault_of_markup(page), "");
  const auto at = [&](const std::string& text) {
    EXPECT_NE(page.find(text), std::string::npos) << text;
    return page.find(text);
  };
  EXPECT_LT(at("<title>train failed after 5 min 18 s</title>"), at("<h1>train failed after 5 min 18 s</h1>"));
  EXPECT_LT(at("<b class=\"failed\">rank 1 failed first.</b> "), at("of a step waits for other ranks.</p>"));
  expect_text(as_page(report()), {"<p class=\"straggler\">rank 1 (host n0) costs 14 % of every step: data. "});
  EXPECT_LT(at("Where a step's time goes"), at("<h2>Loss</h2>"));
  EXPECT_LT(at("<b class=\"failed\">start 1: failed: rank 1 failed first</b>"), at("./train --lr &lt;0.1&gt;"));
  EXPECT_LT(at("2026-11-27 17:00:00 UTC"), at("<td>duration</td><td class=\"text\">5 min 18 s"));
  EXPECT_LT(at("<td>samples per second</td><td class=\"text\">3200</td>"), at("<svg"));
  at("<td>final loss</td><td class=\"text\">0.025 (step 40)</td>");
  at("2 on 1 host: n0");
  RunReport good = failed_report();
  good.history = {.verdicts = {{.text = "start 1: finished: in 5 s"}}, .is_over = true, .outcome = "finished"};
  expect_text(as_page(good), {"<h1>train finished after 5 min 18 s</h1>",
                              "<td>verdict</td><td class=\"text\">start 1: finished: in 5 s</td>"});
  good.command = "/usr/bin/python3 -u tools/train.py --lr 0.1";
  expect_text(as_page(good), {"<h1>train.py finished after 5 min 18 s</h1>"});
  expect_text(as_page(report_of({})), {"<td>verdict</td><td class=\"text\">none: "});
}

TEST(RunReport, RunsStandSideBySide) {
  RunReport other = report(2);
  other.scalars["val/loss"] = {{10, {.value = 0.5, .ranks = 1}}};
  other.problems = {"rank 1 <left> no trace"};
  const std::string page = as_page({{"logs/<a>", failed_report()}, {"logs/b", other}});
  EXPECT_EQ(fault_of_markup(page), "");
  // Of both runs in one chart, and one of the name that the second run alone has.
  expect_text(
      page,
      {"logs/&lt;a&gt;</span>", "<th class=\"text\">logs/&lt;a&gt;</th><th class=\"text\">logs/b</th></tr>",
       "logs/b: rank 1 &lt;left&gt; no trace", "<td>steps</td><td class=\"text\">40</td><td class=\"text\">80</td>",
       "data-points=\"117\"><title>loss by step</title>", "data-points=\"1\"><title>val/loss by step</title>",
       "<polyline class=\"l0\"", "<polyline class=\"l1\""});
}

TEST(RunReport, HasTheVerdictsAndTheLaunchersWords) {
  const testing::TemporaryFolder folder;
  folder.write("start1/verdict.json", R"({"outcome": "failed", "summary": "rank 1 failed first"})");
  folder.write("start2/verdict.json", "cut");
  folder.write("job.log",
               "2026-11-23T13:28:23.1Z rank0.out: hello\n"
               "2026-11-23T13:28:24.1Z lockstep run: restart 1 of 2\n"
               "2026-11-23T13:28:25.1Z rank0.err: [lockstep rank 0] info: snapshots: step 25 is saved in 'run7'\n"
               "no time\n");
  const JobHistory history = read_history(folder, "run");
  ASSERT_EQ(history.verdicts.size(), 2u);
  EXPECT_EQ(history.verdicts[0].text, "start 1: failed: rank 1 failed first");
  EXPECT_EQ(history.verdicts[1].text, "start 2: its verdict can't be read");
  EXPECT_FALSE(history.has_failed);
  folder.write("start3/verdict.json", R"({"outcome": "host lost", "summary": "host b is gone"})");
  EXPECT_TRUE(read_history(folder, "run").has_failed);
  // While another start runs, the run has not failed.
  folder.write("start4/rank0.out", "");
  RunReport running = failed_report();
  EXPECT_EQ(lines_of(running)[0]["verdict"], "start 1: failed: rank 1 failed first");
  running.history = read_history(folder, "run");
  EXPECT_EQ(running.history.verdicts.size(), 3u);
  EXPECT_EQ(lines_of(running)[0]["verdict"], json());
  expect_text(as_page(running), {"<td>verdict</td><td class=\"text\">none: it has not ended"});
  // A second run in the folder, whose first start has failed, where the first run needed two.
  folder.write("start1/verdict.json",
               R"({"run_id": "b", "outcome": "failed", "summary": "rank 0 failed first", "starts_again": false})");
  folder.write("start2/verdict.json", R"({"run_id": "a", "outcome": "finished", "summary": "in 5 s"})");
  const JobHistory second = read_history(folder, "b");
  ASSERT_EQ(second.verdicts.size(), 1u);
  EXPECT_TRUE(second.is_over && second.has_failed);
  std::filesystem::remove(folder / "start2/verdict.json");  // as if the first run had been killed in it
  EXPECT_TRUE(read_history(folder, "b").is_over);
  folder.write("start1/verdict.json",
               R"({"run_id": "b", "outcome": "failed", "summary": "rank 0 failed first", "starts_again": true})");
  EXPECT_FALSE(read_history(folder, "b").is_over);
  EXPECT_TRUE(read_history(folder, "c").verdicts.empty());
  ASSERT_EQ(history.lines.size(), 2u);
  EXPECT_EQ(history.lines[0].time, "2026-11-23T13:28:24.1Z");
  EXPECT_EQ(history.lines[0].text, "restart 1 of 2");
  EXPECT_EQ(history.lines[1].text, "rank0.err: [lockstep rank 0] info: snapshots: step 25 is saved in 'run7'");
}

TEST(RunReport, ThePageOfOneRunIsWrittenWhereItIsWanted) {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "rank0.trace";
  { const trace::TraceRing ring(path, {.host = "n0", .run_id = "run-1"}, 16); }
  const std::string page = folder / "page.html";
  const auto report = [&](const std::string& file) {
    ::testing::internal::CaptureStdout();
    EXPECT_EQ(report_command({.folders = {std::string(folder / "")}, .file = file}), 0);
    set_log_label("");
    return ::testing::internal::GetCapturedStdout();
  };
  EXPECT_EQ(report(page), page + ": 1 rank, 0 steps\n");
  EXPECT_TRUE(std::filesystem::exists(page));
  EXPECT_FALSE(std::filesystem::exists(std::string(folder / "report.html")));
  expect_text(report(""), {"report.html: 1 rank, 0 steps\n"});
  EXPECT_TRUE(std::filesystem::exists(std::string(folder / "report.html")));
}

TEST(RunReport, AFolderWithoutTracesIsSaid) {
  const testing::TemporaryFolder folder;
  expect_text(testing::error_of<InvalidArgument>([&] { read_report(folder); }),
              {"has no trace of a rank (start1/rank0.trace); give the --log-dir of a run"});
}

}  // namespace
}  // namespace lockstep::launcher::run_report_test
