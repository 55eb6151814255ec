// SPDX-License-Identifier: Apache-2.0
// `lockstep run --trace` and `lockstep report`: what the ranks did, as they left it.
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <tuple>
#include <utility>

#include "runtime/trace/rank_trace.h"
#include "tests/e2e/training_job.h"
#include "tests/support/error_of.h"
#include "tests/support/markup.h"

namespace lockstep::e2e::trace_test {
namespace {

using lockstep::testing::count_of;
using lockstep::testing::expect_text;
using nlohmann::json;
using testing::run;

// Steps of a job, and those that its report has: what was before the first is not known.
constexpr int kTraced = 60;
constexpr int kReported = kTraced - 1;

class Trace : public TrainingJob {
 protected:
  Words short_job(int ranks, const Words& flags) const { return job(ranks, program("job", "", kTraced), flags); }
  std::string text_of(const std::string& name) const { return content(file(name)); }
  json timeline() const { return json::parse(text_of("run.json")); }
  std::vector<json> report_lines(const std::string& folder) const {
    std::vector<json> lines;
    std::istringstream text(text_of(folder + "/report.jsonl"));
    for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
    return lines;
  }
};

TEST_F(Trace, HasEveryRankInOneFileAndBucketsThatOverlap) {
  const auto result = run(short_job(2, {"--trace", file("run.json")}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  expect_text(result.err, {"lockstep run: the timeline of 2 ranks is in " + file("run.json")});
  std::map<std::tuple<int, std::string, int>, std::pair<double, double>> buckets;  // from, to, by rank, name, step
  std::map<std::pair<int, std::string>, int> counts;
  const json whole = timeline();
  for (const json& event : whole["traceEvents"]) {
    if (event["ph"] != "X") continue;
    const int rank = event["pid"];
    const auto name = event["name"].get<std::string>();
    const double begin = event["ts"];
    ++counts[{rank, name}];
    if (name.starts_with("bucket")) {
      buckets[{rank, name, event["args"]["step"].get<int>()}] = {begin, begin + event["dur"].get<double>()};
    }
  }
  for (const int rank : {0, 1}) {
    for (const std::string name : {"forward", "backward", "optimizer", "training loop", "bucket 0"}) {
      EXPECT_EQ((counts[{rank, name}]), kTraced) << rank << " " << name;
    }
    EXPECT_GE((counts[{rank, "data"}]), kTraced);
    EXPECT_GE((counts[{rank, "snapshot"}]), 1);
  }
  for (const auto& [key, one] : buckets) {
    const auto& [rank, name, step] = key;
    if (rank != 0) continue;
    ASSERT_TRUE(buckets.contains({1, name, step})) << name << " of step " << step;
    const auto& other = buckets[{1, name, step}];
    EXPECT_LE(std::max(one.first, other.first), std::min(one.second, other.second)) << name << " of step " << step;
  }
}

// By step, of the lines of one scalar; each step comes once.
std::map<std::int64_t, json> scalar_in(const std::vector<json>& lines, const std::string& name) {
  std::map<std::int64_t, json> values;
  for (const json& line : lines) {
    if (line["type"] != "scalar" || line["name"] != name) continue;
    EXPECT_TRUE(values.emplace(line["steps_done"], line).second) << line;
  }
  return values;
}

TEST_F(Trace, WhatRanksHaveLoggedIsInTheReport) {
  const auto result = run(short_job(2, {"--log-dir", file("logs")}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  ASSERT_EQ(run({LOCKSTEP_PROGRAM, "report", file("logs")}).exit_code, 0);
  const auto lines = report_lines("logs");
  EXPECT_EQ(lines[0]["steps"], kTraced);
  EXPECT_TRUE(contains(lines[0]["command"].get<std::string>(), TRAINING_PROGRAM)) << lines[0];
  for (const auto& [name, value] : {std::pair("lr", 0.001), std::pair("rank", 0.5), std::pair("start", 0.0)}) {
    const auto found = scalar_in(lines, name);
    ASSERT_EQ(found.size(), static_cast<std::size_t>(kTraced)) << name;
    for (const auto& [step, line] : found) {
      EXPECT_EQ(line["value"], value) << line;
      EXPECT_EQ(line["ranks"], 2) << line;
    }
    EXPECT_EQ(found.begin()->first, 1);
    EXPECT_EQ(found.rbegin()->first, kTraced);
  }
  EXPECT_EQ(scalar_in(lines, "loss").size(), static_cast<std::size_t>(kTraced));
  const auto evaluated = scalar_in(lines, "val/loss");
  ASSERT_EQ(evaluated.size(), 2u) << "after 40 steps, and at the end";
  for (const int step : {40, kTraced}) {
    ASSERT_TRUE(evaluated.contains(step)) << step;
    EXPECT_EQ(evaluated.at(step)["ranks"], 1);
    EXPECT_GT(evaluated.at(step)["value"], 0);
  }
  EXPECT_EQ(std::count_if(lines.begin(), lines.end(), [](const json& line) { return line["type"] == "step"; }),
            2 * kReported);
  const std::string page = text_of("logs/report.html");
  EXPECT_EQ(testing::fault_of_markup(page), "");
  EXPECT_EQ(count_of(page, "<rect class=\"cell\""), 2u * kReported);
  expect_text(page, {"<h2>val/loss</h2>", "data-points=\"2\"><title>val/loss by step</title>", "start 1: finished",
                     "snapshots: step 25 is saved", "Memory of training by rank, at most"});
  const auto compared = run({LOCKSTEP_PROGRAM, "report", "-o", file("both.html"), file("logs"), file("logs")});
  EXPECT_EQ(compared.exit_code, 0) << compared.err;
  expect_text(compared.out, {file("both.html") + ": 2 runs side by side\n"});
  EXPECT_EQ(testing::fault_of_markup(text_of("both.html")), "");
  expect_text(text_of("both.html"), {"data-points=\"120\"><title>loss by step</title>"});
  // A page that was asked for elsewhere needs nothing of the folder.
  std::filesystem::remove(file("logs/report.jsonl"));
  std::filesystem::create_directory(file("logs/report.jsonl"));
  expect_text(run({LOCKSTEP_PROGRAM, "report", "-o", file("page.html"), file("logs")}).out,
              {file("page.html") + ": ", "without report.jsonl and ", file("logs/report.jsonl")});
  EXPECT_EQ(run({LOCKSTEP_PROGRAM, "report", file("logs")}).exit_code, 2);
  // What it has left, as one timeline again.
  const auto left = run({LOCKSTEP_PROGRAM, "trace", file("logs"), "--steps", "5", "-o", file("left.json")});
  EXPECT_EQ(left.exit_code, 0) << left.err;
  const json last = json::parse(text_of("left.json"));
  EXPECT_EQ(std::count_if(last["traceEvents"].begin(), last["traceEvents"].end(),
                          [](const json& event) { return event["name"] == "backward"; }),
            2 * 5);
  std::filesystem::remove(file("logs/start1/rank1.trace"));
  expect_text(run({LOCKSTEP_PROGRAM, "report", "-o", file("page.html"), file("logs")}).out,
              {"start 1: no trace of rank 1 is here"});
  expect_text(text_of("page.html"), {"start 1: no trace of rank 1 is here"});
}

TEST_F(Trace, ARankThatDiesLeavesItsOwnAndStartsAreToldApart) {
  const auto result =
      run(short_job(2, {"--trace", file("run.json"), "--max-restarts", "1"}), {{"LOCKSTEP_TEST_FAIL_AT", "30"}});
  EXPECT_EQ(result.exit_code, 9) << result.err;
  const auto steps_of = [&](const std::string& name) {
    return trace::decode(trace::TraceRing::read_file(file("run.json.ranks/" + name))).steps.size();
  };
  EXPECT_EQ(steps_of("start1/rank1.trace"), 30u) << "it ended by _exit(), between two steps";
  EXPECT_EQ(steps_of("start1/rank0.trace"), 30u);
  // The second start goes on from what the survivor of the first has saved, and fails there.
  const std::size_t again = steps_of("start2/rank1.trace");
  EXPECT_LE(again, 5u);
  const json all = timeline();
  EXPECT_EQ(std::count_if(all["traceEvents"].begin(), all["traceEvents"].end(),
                          [](const json& event) { return event["name"] == "backward" && event["pid"] == 1; }),
            static_cast<std::ptrdiff_t>(30 + again));
  EXPECT_EQ(run({LOCKSTEP_PROGRAM, "report", file("run.json.ranks")}).exit_code, 0);
  // In the report the second start has the steps from the one that it resumes from.
  std::map<std::int64_t, json> values = scalar_in(report_lines("run.json.ranks"), "start");
  EXPECT_EQ(values.size(), 30u);
  EXPECT_EQ(values[1]["value"], 0);
}

// Fixed micro-batches: the same bits at any number of ranks.
TEST_F(Trace, BisectStepSaysWhetherStepsAreEqualOrCantBeCompared) {
  const auto digests_of = [&](int ranks, const std::string& micro_batches) {
    const std::string name = std::to_string(ranks) + "-" + micro_batches;
    const auto result = run(job(ranks, program(name, "", kTraced)), {{"LOCKSTEP_TEST_MICRO_BATCHES", micro_batches},
                                                                     {"LOCKSTEP_STEP_DIGESTS", file(name + "d")}});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return file(name + "d");
  };
  const std::string alone = digests_of(1, "6");
  const auto equal = run({LOCKSTEP_PROGRAM, "bisect-step", alone, digests_of(3, "6")});
  EXPECT_EQ(equal.exit_code, 0) << equal.err;
  expect_text(equal.out, {"of 6 fixed micro-batches"});
  EXPECT_EQ(bytes_of("3-6"), bytes_of("1-6"));
  const auto of_another = run({LOCKSTEP_PROGRAM, "bisect-step", alone, digests_of(2, "4")});
  EXPECT_EQ(of_another.exit_code, 2);
  expect_text(of_another.err, {"their steps can't be compared"});
}

TEST_F(Trace, WithoutTheLauncherAFolderIsNamedByAVariable) {
  const auto result = run(program("job", "", kTraced), {{"LOCKSTEP_TRACE_DIR", file("t")}});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(trace::decode(trace::TraceRing::read_file(file("t/rank0.trace"))).steps.size(),
            static_cast<std::size_t>(kTraced));
}

TEST_F(Trace, AFolderThatCantBeMadeEndsNoTraining) {
  std::ofstream(file("file")) << "x";
  const auto result = run(program("job", "", kTraced), {{"LOCKSTEP_TRACE_DIR", file("file/t")}});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_text(result.err, {"warning: trace: make the folder " + file("file/t"),
                           "is not written to a file: set LOCKSTEP_TRACE_DIR"});
}

TEST_F(Trace, ALinkOrAPipeInItsPlaceIsRefusedBeforeTheTraining) {
  std::ofstream(file("precious")) << "mine";
  std::filesystem::create_symlink(file("precious"), file("link.json"));
  ASSERT_EQ(mkfifo(file("pipe.json").c_str(), 0600), 0);
  for (const auto& [name, kind] : {std::pair("link.json", "a symbolic link"), std::pair("pipe.json", "a pipe")}) {
    const auto result = run(plain(1, {"print:hello"}, {"--trace", file(name)}));
    EXPECT_EQ(result.exit_code, 2);
    expect_text(result.err, {"'" + file(name) + "' is " + kind});
    EXPECT_EQ(result.out, "");
  }
  EXPECT_EQ(text_of("precious"), "mine");
}

// A report looks into a folder where others may have put anything.
TEST_F(Trace, AReportWaitsForNoPipe) {
  const auto result = run(short_job(1, {"--log-dir", file("logs")}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto pipe_at = [&](const std::string& name) {
    std::filesystem::remove(file("logs/" + name));
    ASSERT_EQ(mkfifo(file("logs/" + name).c_str(), 0600), 0);
  };
  for (const char* name : {"job.log", "start1/verdict.json", "start1/rank7.trace"}) pipe_at(name);
  const auto report = run({LOCKSTEP_PROGRAM, "report", file("logs")});
  EXPECT_EQ(report.exit_code, 0) << report.err;
  pipe_at("report.html");
  const auto refused = run({LOCKSTEP_PROGRAM, "report", file("logs")});
  EXPECT_EQ(refused.exit_code, 2);
  expect_text(refused.err, {"report.html' is a pipe"});
  EXPECT_EQ(run({LOCKSTEP_PROGRAM, "report", file("logs/report.html")}).exit_code, 2);
}

TEST_F(Trace, WhatHasNoneIsSaid) {
  const auto plain_job = run(plain(2, {"print:hello"}, {"--trace", file("run.json")}));
  EXPECT_EQ(plain_job.exit_code, 0) << plain_job.err;
  expect_text(plain_job.err, {"no trace in " + file("run.json") + ": no rank has called init_process_group"});
  EXPECT_FALSE(std::filesystem::exists(file("run.json.ranks")));
  const auto report = run({LOCKSTEP_PROGRAM, "report", file("gone")});
  EXPECT_EQ(report.exit_code, 2);
  expect_text(report.err, {"lockstep report: there is no folder " + file("gone")});
  EXPECT_EQ(run({LOCKSTEP_PROGRAM, "report"}).exit_code, 2);
  std::filesystem::create_directory(file("empty"));
  const auto onto = run(plain(1, {"print:hello"}, {"--trace", file("empty")}));
  EXPECT_EQ(onto.exit_code, 2);
  expect_text(onto.err, {"--trace " + file("empty") + ": that is a folder; give the name of a file in this folder"});
  EXPECT_EQ(onto.out, "");
  const auto none = run({LOCKSTEP_PROGRAM, "trace", file("empty")});
  EXPECT_EQ(none.exit_code, 1);
  expect_text(none.err, {"lockstep trace: no rank has left a trace in " + file("empty")});
}

}  // namespace
}  // namespace lockstep::e2e::trace_test
