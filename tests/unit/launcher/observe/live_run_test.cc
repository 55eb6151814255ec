// SPDX-License-Identifier: Apache-2.0
#include "launcher/observe/live_run.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "launcher/client/gpu_use.h"
#include "launcher/client/top.h"
#include "launcher/live/live_report.h"
#include "launcher/live/metrics_text.h"
#include "tests/support/messages.h"

namespace lockstep::launcher::live_run_test {
namespace {

using lockstep::testing::expect_message;
using membership::MemberState;
using membership::MemberView;
using trace::RankTotals;
using trace::SpanKind;

constexpr std::int64_t kMs = 1'000'000;
constexpr std::int64_t kStep = 100 * kMs;

// Of a rank that has ended so many steps of 100 ms: 10 of data, 20 of forward, 30 of backward, 5 of optimizer, 2 of
// hidden communication, and the rest waited for; `slow` ms more of data each, and of waiting less.
RankTotals totals_of(std::int64_t steps, std::int64_t slow = 0) {
  RankTotals totals{.steps = steps,
                    .until = 7'000'000 + steps * kStep,
                    .in_steps = steps * (65 - slow) * kMs,
                    .waited = steps * (33 - slow) * kMs,
                    .hidden = steps * 2 * kMs,
                    .rows = steps * 64,
                    .resident = 64 << 20,
                    .held = {3 << 20, 4 << 20, 0},
                    .loss = 1.5};
  const auto spend = [&](SpanKind kind, std::int64_t ms) {
    totals.spans[static_cast<std::size_t>(kind)] = steps * ms * kMs;
  };
  spend(SpanKind::data, 10 + slow);
  spend(SpanKind::forward, 20);
  spend(SpanKind::backward, 30 + 2 + 33 - slow);
  spend(SpanKind::optimizer, 5);
  return totals;
}

std::vector<MemberView> job_of(const std::vector<RankTotals>& totals) {
  std::vector<MemberView> members;
  for (std::size_t i = 0; i < totals.size(); ++i) {
    MemberView member{.scope = "job",
                      .info = {.rank = static_cast<int>(i), .world_size = static_cast<int>(totals.size())},
                      .position = {.sequence = 9, .collective = "all_reduce", .step = totals[i].steps}};
    member.info.process.host = "n" + std::to_string(i / 2);
    member.info.process.pid = 100 + static_cast<int>(i);
    if (totals[i].steps > 0) member.position.totals = encode(totals[i]);
    members.push_back(std::move(member));
  }
  return members;
}

// Three ranks, of which rank 2 takes `slow` ms longer for its data, seen `windows` times, a step each.
LiveRun seen(std::int64_t windows, std::int64_t slow) {
  LiveRun run;
  for (std::int64_t step = 1; step <= windows; ++step) {
    run.look(job_of({totals_of(step), totals_of(step), totals_of(step, slow)}));
  }
  return run;
}

// A cable loses packets: a step waits ten times as long as its own work takes. Ranks' heartbeats come at different
// times, so that such a step is the last one in a window of one rank, and the first one in a window of another.
TEST(LiveRun, AWaitAtTheEndOfAWindowIsNoRanksOwnWork) {
  const std::int64_t wait = 10 * kStep;
  const RankTotals before = totals_of(10);
  RankTotals after = totals_of(11);
  after.until += wait;
  after.in_steps += wait;
  after.waited += wait;  // the backward's span, which has it too, ends behind the step
  const auto last = steps_between(before, after);
  ASSERT_TRUE(last);
  EXPECT_EQ(last->own(), kStep - 35 * kMs);
  EXPECT_EQ((*last)[Phase::waited], wait + 33 * kMs);
  RankTotals later = totals_of(12);
  later.until += wait;
  later.in_steps += wait;
  later.waited += wait;
  later.spans[static_cast<std::size_t>(SpanKind::backward)] += wait;
  const auto next = steps_between(after, later);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->own(), kStep - 35 * kMs);
}

TEST(LiveRun, SaysWhatTheLastStepsTimeWentTo) {
  const auto ranks = seen(5, 8).ranks();
  ASSERT_EQ(ranks.size(), 3u);
  ASSERT_TRUE(ranks[2].recent);
  const StepRow& row = *ranks[2].recent;
  EXPECT_EQ(row.number, 4);
  EXPECT_EQ(row.length(), 4 * kStep);
  for (const auto& [phase, ms] : {std::pair(Phase::data, 18),
                                  {Phase::forward, 20},
                                  {Phase::backward, 30},
                                  {Phase::hidden, 2},
                                  {Phase::waited, 25},
                                  {Phase::other, 0}}) {
    EXPECT_EQ(row[phase], 4 * ms * kMs) << name_of(phase);
  }
  EXPECT_EQ(row.weight, 4 * 64);
}

TEST(LiveRun, EnginesAndOptimizersOfOthersAreWhatIsLeft) {
  RankTotals before{.steps = 1, .until = 1000, .in_steps = 600, .after_steps = 50};
  RankTotals after{.steps = 3, .until = 3000, .in_steps = 1800, .waited = 200, .after_steps = 250};
  const auto row = steps_between(before, after);
  ASSERT_TRUE(row);
  EXPECT_EQ((*row)[Phase::backward], 1000);
  EXPECT_EQ((*row)[Phase::waited], 200);
  EXPECT_EQ((*row)[Phase::optimizer], 200);
  EXPECT_EQ((*row)[Phase::other], 600);
  EXPECT_FALSE(steps_between(after, after));
  EXPECT_FALSE(steps_between(after, before)) << "of another process";
}

TEST(LiveRun, NamesTheRankThatCostsTheOthersOnceItHasSeenEnough) {
  const auto windows = static_cast<std::int64_t>(LiveRun::kWindows);
  EXPECT_FALSE(seen(windows, 14).straggler(0.1));
  const auto slow = seen(windows + 1, 14).straggler(0.1);
  ASSERT_TRUE(slow);
  EXPECT_EQ(describe(*slow), "rank 2 (host n1) costs 14 % of every step: data");
  EXPECT_FALSE(seen(windows + 1, 14).straggler(0.15));
  EXPECT_FALSE(seen(windows + 1, 0).straggler(0.01));
}

TEST(LiveRun, OnePauseIsNoCostOfEveryStep) {
  LiveRun run;
  for (std::int64_t step = 1; step <= 20; ++step) {
    RankTotals paused = totals_of(step);
    if (step > 15) {
      paused.spans[static_cast<std::size_t>(SpanKind::data)] += 30 * kMs;
      paused.waited -= 30 * kMs;
    }
    run.look(job_of({totals_of(step), paused}));
  }
  EXPECT_FALSE(run.straggler(0.05));
}

TEST(LiveRun, AWindowLastsUntilEachRankHasEndedAStep) {
  LiveRun run;
  for (std::int64_t step = 1; step <= 30; ++step) run.look(job_of({totals_of(step), totals_of(1, 14)}));
  EXPECT_FALSE(run.straggler(0.01)) << "of one window that does not end";
}

TEST(LiveRun, OtherRanksAndMissingOnesBeginAnew) {
  LiveRun run = seen(20, 14);
  ASSERT_TRUE(run.straggler(0.1));
  auto lost = job_of({totals_of(21), totals_of(21), totals_of(21, 14)});
  lost[0].state = MemberState::lost;
  run.look(lost);
  EXPECT_FALSE(run.straggler(0.1));
  run = seen(20, 14);
  auto restarted = job_of({totals_of(21), totals_of(21), totals_of(21, 14)});
  for (auto& member : restarted) member.info.process.pid += 1000;
  run.look(restarted);
  EXPECT_FALSE(run.straggler(0.1));
  EXPECT_EQ(run.ranks().size(), 3u);
  run.look({});
  EXPECT_TRUE(run.ranks().empty());
}

TEST(LiveRun, OfSeveralScopesTheJobsCounts) {
  LiveRun run;
  auto members = job_of({totals_of(3), totals_of(3)});
  members.push_back({.scope = "job/child", .info = {.rank = 0, .world_size = 1}});
  run.look(members);
  EXPECT_EQ(run.ranks().size(), 2u);
}

// What one launcher sends to another comes back whole, and is what is shown.
LiveReport sent(const LiveReport& report) {
  const auto read = read_live_report(as_json(report));
  EXPECT_TRUE(read);
  EXPECT_EQ(as_json(read.value_or(LiveReport{})), as_json(report));
  return read.value_or(LiveReport{});
}

// `what` names a page of tests/messages/launcher.txt. No line is longer than the terminal.
void expect_screen(const char* what, const LiveReport& report, const Screen& view = {},
                   const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  static const std::regex colour("\x1b\\[[0-9;]*m"), letter("[\x80-\xbf]");
  const std::string screen = as_screen(report, view);
  std::istringstream lines(std::regex_replace(screen, colour, ""));
  std::size_t count = 0;
  for (std::string one; std::getline(lines, one); ++count) {
    EXPECT_LE(std::regex_replace(one, letter, "").size(), view.columns == 0 ? 1000 : view.columns) << one;
  }
  const std::size_t help = view.shows_keys ? 2 : 0;  // a rank at least
  EXPECT_LE(count, view.rows == 0 ? 1000 : view.rows + help);
  expect_message("launcher", what, std::regex_replace(screen, std::regex("\x1b"), "ESC"), file, line);
}

LiveReport report_of_three() {
  return live_report(
      {.run_id = "run-1", .world_size = 3, .hosts = 2, .start = 2, .age_ms = 90'000, .command = "./train"},
      seen(20, 14));
}

TEST(LiveReport, ScalarsAreTheMeanOfTheNewestValueOfEachRankThatHasOne) {
  auto totals = std::vector<RankTotals>{totals_of(20), totals_of(20), totals_of(19)};
  totals[0].scalars = {{"loss", 20, 1.5}, {"lr", 20, 0.1}, {"val/loss", 10, 3}, {"a\"b\\", 1, INFINITY}};
  totals[1].scalars = {{"lr", 20, 0.1}, {"val/loss", 20, 1}};
  totals[2].scalars = {{"lr", 19, 0.1}, {"val/loss", 20, 2}, {"odd", 1, std::numeric_limits<double>::quiet_NaN()}};
  LiveRun run;
  run.look(job_of(totals));
  LiveReport report = live_report({.run_id = "run-1", .world_size = 3}, run);
  using trace::Scalar;
  ASSERT_EQ(report.scalars.size(), 5u);
  EXPECT_EQ(report.scalars[0], (Scalar{"a\"b\\", 1, INFINITY}));
  EXPECT_EQ(report.scalars[2], (Scalar{"lr", 20, 0.1})) << "rank 2 is behind";
  EXPECT_EQ(report.scalars[4], (Scalar{"val/loss", 20, 2}));
  expect_message("launcher", "metrics", as_metrics(report));
  report.scalars[0].name = "a\"b\n";  // "a\"b " where it may be printed
  const auto read = read_live_report(as_json(report));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->scalars[4], report.scalars[4]);
  EXPECT_EQ(read->scalars[0].value, INFINITY);
  EXPECT_TRUE(std::isnan(read->scalars[3].value));
  expect_screen("screen", *read);
}

TEST(LiveReport, GoesThroughJson) {
  const LiveReport report = sent(report_of_three());
  expect_message("launcher", "json", as_json(report));
  EXPECT_EQ(report.ranks.at(2).loss, 1.5);
  EXPECT_FALSE(report.ranks[2].snapshot_age_s);
  EXPECT_EQ(report.straggler, 2);
  EXPECT_FALSE(read_live_report("{}"));
  EXPECT_FALSE(read_live_report("lockstep run 1\n"));
  sent({});
}

TEST(LiveReport, IsAScreenThatFitsItsTerminal) {
  LiveReport report = report_of_three();
  expect_screen("no terminal", report);
  expect_screen("no rank", live_report({.run_id = "run-1"}, {}));
  expect_screen("keys", report, {.columns = 80, .rows = 24, .has_keys = true});
  expect_screen("keys explained", report, {.columns = 80, .rows = 9, .has_keys = true, .shows_keys = true});
  report.ranks[1].state = "lost";
  expect_screen("small, with colours", report, {.columns = 60, .rows = 8, .has_colours = true});
  report.scalars = {{.name = "\u00fc\u00fc\u00fc\u00fc\u00fc\u00fc", .step = 1, .value = 0.5}};
  expect_screen("cut by letters", report, {.columns = 5, .rows = 24});
  expect_screen("keys are cut too", report, {.columns = 30, .rows = 40, .has_keys = true, .shows_keys = true});
}

TEST(LiveReport, HasCpuTimeAndMemoryOfRanksInNoGroup) {
  LiveReport report = report_of_three();
  report.ranks[1] = {.rank = 1, .host = "n0", .pid = 7, .state = "no group", .resident_bytes = 1 << 20, .cpu_s = 2.5};
  EXPECT_EQ(sent(report).ranks[1].cpu_s, 2.5);
  expect_screen("one rank", report);
  report.ranks[0] = report.ranks[2] = report.ranks[1];
  expect_screen("all ranks", report);
}

// Hosts' names as containers have them, and the longest numbers of a job of many ranks.
TEST(LiveReport, LeavesColumnsOutOfAnEightyColumnsTerminalButNotMemoryAndPid) {
  LiveReport report = report_of_three();
  for (ReportedRank& rank : report.ranks) {
    rank.rank += 1000;
    rank.host = "0123456789ab";
    rank.pid = 4'000'000 + rank.rank;
    rank.step = 1'234'567;
  }
  report.straggler = 1002;
  expect_screen("two hosts", report, {.columns = 80, .rows = 24});
  report.facts.hosts = 1;
  expect_screen("one host", report, {.columns = 80, .rows = 24});
  expect_screen("narrow", report, {.columns = 44, .rows = 24});
}

TEST(LiveReport, HasTheTimeLeftOfAllRanks) {
  LiveReport report = report_of_three();
  report.ranks[0].left_s = 12007;
  EXPECT_EQ(sent(report).ranks[0].left_s, 12007);
  for (const double left : {132.4, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    for (ReportedRank& rank : report.ranks) rank.left_s = left;
    expect_screen(fmt::format("{}", left).c_str(), report);
  }
}

TEST(LiveReport, BlamesNoRankWhereTheyTakeTurnsOnTheCores) {
  const LiveReport report = live_report({.run_id = "run-1", .world_size = 3, .is_crowded = true}, seen(20, 14));
  EXPECT_EQ(report.straggler, -1);
  EXPECT_EQ(report.straggler_text, "");
}

// Rank 1 brought the first NaN; a step later rank 0 has it from the sum.
TEST(LiveReport, SaysWhereNumbersWentWrongFirst) {
  RankTotals one = totals_of(20);
  one.wrong_steps = 8;
  one.equal_in = 10;
  one.finding = {.kind = trace::FindingKind::nan, .rank = 1, .step = 12, .parameter = "fc2.\"weight\""};
  RankTotals other = totals_of(20);
  other.wrong_steps = 7;
  other.finding = {.kind = trace::FindingKind::nan, .rank = 0, .step = 13, .parameter = "fc3.bias"};
  LiveRun run;
  run.look(job_of({other, one, totals_of(20)}));
  const LiveReport report = sent(live_report({.run_id = "run-1", .world_size = 3}, run));
  const auto first = first_finding(report);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->rank, 1);
  EXPECT_EQ(report.ranks[1].wrong_steps, 8);
  EXPECT_EQ(report.ranks[1].equal_in, 10);
  expect_screen("screen", report);
  expect_screen("colours", report, {.columns = 200, .rows = 50, .has_colours = true});
  expect_message("launcher", "metrics", as_metrics(report));
  EXPECT_FALSE(first_finding(report_of_three()));
}

TEST(GpuUse, IsThatOfTheRanksProcesses) {
  LiveReport report = report_of_three();
  const auto processes = read_gpu_use(
      R"({"gpus": [{"uuid": "a", "use": 0.87, "processes": [{"pid": 100, "memory_bytes": 13207024435}, {"pid": 7}]},
                   {"uuid": "b", "processes": [{"pid": 100, "memory_bytes": 1073741824}, {"pid": 101}, {"pid": 102}]}]})");
  ASSERT_TRUE(processes);
  ASSERT_EQ(processes->size(), 5u);
  add_gpu_use(report, "n0", *processes);
  EXPECT_EQ(report.ranks[0].gpu_use, 0.87);
  EXPECT_EQ(report.ranks[0].gpu_memory_bytes, 13207024435.0 + 1073741824.0) << "of both GPUs";
  EXPECT_FALSE(report.ranks[1].gpu_use);
  EXPECT_FALSE(report.ranks[2].gpu_memory_bytes) << "it is on another host";
  expect_screen("screen", sent(report));
  for (const char* const none : {"", "{", R"({"no_gpu": "why"})", R"({"gpus": [{"processes": [{"pid": "x"}]}]})"}) {
    EXPECT_FALSE(read_gpu_use(none)) << none;
  }
  const auto idle = read_gpu_use(R"({"gpus": [{"unknown": "why", "processes": []}]})");
  ASSERT_TRUE(idle) << "a GPU that nobody uses yet";
  EXPECT_TRUE(idle->empty());
}

TEST(Metrics, AreLinesThatPrometheusReads) {
  const std::string text = as_metrics(report_of_three());
  expect_message("launcher", "metrics", text);
  EXPECT_TRUE(text.ends_with("\n"));
  // A family's lines stand together, behind its help and type, and no name comes twice.
  std::string family;
  std::set<std::string> families;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# HELP ")) {
      family = line.substr(7, line.find(' ', 7) - 7);
      EXPECT_TRUE(families.insert(family).second) << family;
    } else if (!line.starts_with("# TYPE " + family + " ")) {
      EXPECT_TRUE(line.starts_with(family + "{")) << line;
    }
  }
  LiveReport odd;
  odd.facts.run_id = "a\"b\\c\nd";
  EXPECT_NE(as_metrics(odd).find(R"(lockstep_world_size{run="a\"b\\c d"} 1)"), std::string::npos);
}

TEST(Metrics, AreAnsweredToHttp) {
  const LiveReport report = report_of_three();
  const std::string metrics = as_metrics(report);
  EXPECT_EQ(
      http_answer("GET /metrics HTTP/1.1", report),
      fmt::format("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n"
                  "Connection: close\r\nCache-Control: no-store\r\n\r\n{}",
                  metrics.size(), metrics));
  const std::pair<const char*, const char*> requests[] = {{"GET /metrics?x=1 HTTP/1.0", "200"},
                                                          {"GET / HTTP/1.1", "404"},
                                                          {"GET /metricsx HTTP/1.1", "404"},
                                                          {"POST /metrics HTTP/1.1", "405"},
                                                          {"hello", "400"}};
  for (const auto& [request, status] : requests) {
    EXPECT_TRUE(http_answer(request, report).starts_with(fmt::format("HTTP/1.1 {} ", status))) << request;
  }
}

}  // namespace
}  // namespace lockstep::launcher::live_run_test
