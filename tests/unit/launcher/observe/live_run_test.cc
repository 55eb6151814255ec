// SPDX-License-Identifier: Apache-2.0
#include "launcher/observe/live_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <sstream>
#include <string>

#include "launcher/client/gpu_use.h"
#include "launcher/client/top.h"
#include "launcher/live/live_report.h"
#include "launcher/live/metrics_text.h"
#include "tests/support/error_of.h"

namespace lockstep::launcher::live_run_test {
namespace {

using lockstep::testing::expect_text;
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
  EXPECT_EQ(row[Phase::data], 4 * 18 * kMs);
  EXPECT_EQ(row[Phase::forward], 4 * 20 * kMs);
  EXPECT_EQ(row[Phase::backward], 4 * 30 * kMs);
  EXPECT_EQ(row[Phase::hidden], 4 * 2 * kMs);
  EXPECT_EQ(row[Phase::waited], 4 * 25 * kMs);
  EXPECT_EQ(row[Phase::other], 0);
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
  expect_text(as_metrics(report), {"name=\"a\\\"b\\\\\"} inf\n"});
  report.scalars[0].name = "a\"b\n";
  EXPECT_EQ(report.scalars[2], (Scalar{"lr", 20, 0.1})) << "rank 2 is behind";
  EXPECT_EQ(report.scalars[4], (Scalar{"val/loss", 20, 2}));
  const auto read = read_live_report(as_json(report));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->scalars[4], report.scalars[4]);
  EXPECT_EQ(read->scalars[0].name, "a\"b ") << "it may be printed";
  EXPECT_EQ(read->scalars[0].value, INFINITY);
  EXPECT_TRUE(std::isnan(read->scalars[3].value));
  expect_text(as_screen(*read, {}),
              {"\na\"b  inf (step 1), lr 0.1 (step 20), odd nan (step 1), val/loss 2 (step 20)\n"});
  expect_text(as_metrics(report), {"lockstep_scalar{run=\"run-1\",name=\"val/loss\"} 2\n",
                                   "lockstep_scalar{run=\"run-1\",name=\"a\\\"b \"} inf\n",
                                   "lockstep_scalar{run=\"run-1\",name=\"odd\"} NaN\n"});
}

LiveReport report_of_three() {
  return live_report(
      {.run_id = "run-1", .world_size = 3, .hosts = 2, .start = 2, .age_ms = 90'000, .command = "./train"},
      seen(20, 14));
}

TEST(LiveReport, GoesThroughJson) {
  const LiveReport report = report_of_three();
  const auto read = read_live_report(as_json(report));
  ASSERT_TRUE(read);
  EXPECT_EQ(as_json(*read), as_json(report));
  ASSERT_EQ(read->ranks.size(), 3u);
  const ReportedRank& rank = read->ranks[2];
  EXPECT_EQ(rank.host, "n1");
  EXPECT_EQ(rank.pid, 102);
  EXPECT_EQ(rank.state, "training");
  EXPECT_DOUBLE_EQ(rank.step_s, 0.1);
  EXPECT_DOUBLE_EQ(rank.rows_per_s, 640);
  EXPECT_DOUBLE_EQ(rank.shares.at(static_cast<std::size_t>(Phase::data)), 0.24);
  EXPECT_EQ(rank.loss, 1.5);
  EXPECT_FALSE(rank.snapshot_age_s);
  EXPECT_EQ(read->straggler, 2);
  EXPECT_FALSE(read_live_report("{}"));
  EXPECT_FALSE(read_live_report("lockstep run 1\n"));
  EXPECT_TRUE(read_live_report(as_json(LiveReport{})));
}

TEST(LiveReport, IsAScreenThatFitsItsTerminal) {
  LiveReport report = report_of_three();
  const std::string all = as_screen(report, {});
  expect_text(all,
              {"run-1  3 ranks on 2 hosts, start 2, 90 s: ./train\n", "step 20, 100.0 ms each, 640 samples/s, loss 1.5",
               "rank 2 (host n1) costs 14 % of every step: data\n", "RANK  HOST", "24%", "64M", "9 all_reduce"});
  EXPECT_EQ(all.find('\x1b'), std::string::npos);
  report.ranks[1].state = "lost";
  const std::string small = as_screen(report, {.columns = 60, .rows = 8, .has_colours = true});
  EXPECT_EQ(std::count(small.begin(), small.end(), '\n'), 8) << small;
  expect_text(small, {"\x1b[1;38;5;208m1 !", "lost", "\x1b[1;38;5;39m2 *", "and 1 more"});
  for (std::size_t begin = 0; begin < small.size();) {
    const auto end = small.find('\n', begin);
    EXPECT_LE(end - begin, 60u + 17u) << "with a colour";
    begin = end + 1;
  }
  expect_text(as_screen(live_report({.run_id = "run-1"}, {}), {}), {"no rank has reported yet"});
}

TEST(LiveReport, HasCpuTimeAndMemoryOfRanksInNoGroup) {
  LiveReport report = report_of_three();
  EXPECT_EQ(as_screen(report, {}).find("CPU"), std::string::npos);
  report.ranks[1] = {.rank = 1, .host = "n0", .pid = 7, .state = "no group", .resident_bytes = 1 << 20, .cpu_s = 2.5};
  EXPECT_EQ(read_live_report(as_json(report))->ranks[1].cpu_s, 2.5);
  const std::string screen = as_screen(report, {});
  expect_text(screen, {"MEMORY  CPU    PID", "1M      2.5 s  7  ", "64M     -      102"});
  report.ranks[0] = report.ranks[2] = report.ranks[1];
  expect_text(as_screen(report, {}), {"no rank has reported yet"});
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
  for (const int hosts : {1, 2}) {
    report.facts.hosts = hosts;
    const std::string screen = as_screen(report, {.columns = 80, .rows = 24});
    expect_text(screen,
                {"RANK  ", "STEP", "TIME", "WAITED", "DATA", "MEMORY", "PID\n", "4001000\n", "1002 *", "24%", "64M"});
    EXPECT_EQ(screen.find("0123456789ab") != screen.npos, hosts == 2) << screen;
    EXPECT_EQ(screen.find("LAST COLLECTIVE"), screen.npos) << screen;
    std::istringstream lines(screen);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
  }
  const std::string narrow = as_screen(report, {.columns = 44, .rows = 24});
  expect_text(narrow, {"MEMORY", "PID\n", "4001000\n"});
}

TEST(LiveReport, HasTheTimeLeftAndTheKeys) {
  LiveReport report = report_of_three();
  EXPECT_EQ(as_screen(report, {}).find(" left"), std::string::npos);
  report.ranks[0].left_s = 12007;
  EXPECT_EQ(read_live_report(as_json(report))->ranks[0].left_s, 12007);
  for (ReportedRank& rank : report.ranks) rank.left_s = 132.4;
  expect_text(as_screen(report, {}), {"\nstep 20, 2:12 left, 100.0 ms each, "});
  EXPECT_EQ(as_screen(report, {}).find("q: quit"), std::string::npos) << "nobody types";
  EXPECT_TRUE(as_screen(report, {.columns = 80, .rows = 24, .has_keys = true}).ends_with("\nq: quit  ?: help\n"));
  const std::string help = as_screen(report, {.columns = 80, .rows = 9, .has_keys = true, .shows_keys = true});
  expect_text(help, {"q: quit  ?: hide this", "*: the others wait for this rank", "AGO: since it started\n"});
  EXPECT_LE(std::count(help.begin(), help.end(), '\n'), 11) << "a rank at least";
  for (ReportedRank& rank : report.ranks) rank.left_s = std::numeric_limits<double>::infinity();
  expect_text(as_screen(report, {}), {", 2500000:00:00 left, "});
  for (ReportedRank& rank : report.ranks) rank.left_s = std::numeric_limits<double>::quiet_NaN();
  expect_text(as_screen(report, {}), {", 2500000:00:00 left, "});
}

TEST(LiveReport, IsCutByLettersAndSoAreTheKeys) {
  LiveReport report = report_of_three();
  report.scalars = {{.name = "\u00fc\u00fc\u00fc\u00fc\u00fc\u00fc", .step = 1, .value = 0.5}};
  expect_text(as_screen(report, {.columns = 5, .rows = 24}), {"\n\u00fc\u00fc\u00fc\u00fc\u00fc\n"});
  const std::string screen = as_screen(report, {.columns = 30, .rows = 40, .has_keys = true, .shows_keys = true});
  expect_text(screen, {"\nWAITED: for others  HIDDEN: co\n"});
}

TEST(LiveReport, BlamesNoRankWhereTheyTakeTurnsOnTheCores) {
  EXPECT_EQ(report_of_three().straggler, 2);
  const LiveReport report = live_report({.run_id = "run-1", .world_size = 3, .is_crowded = true}, seen(20, 14));
  EXPECT_EQ(report.straggler, -1);
  EXPECT_EQ(report.straggler_text, "");
}

// Rank 1 brought the first NaN; a step later rank 0 has it from the sum.
LiveReport report_of_nan() {
  RankTotals one = totals_of(20);
  one.wrong_steps = 8;
  one.equal_in = 10;
  one.finding = {.kind = trace::FindingKind::nan, .rank = 1, .step = 12, .parameter = "fc2.\"weight\""};
  RankTotals other = totals_of(20);
  other.wrong_steps = 7;
  other.finding = {.kind = trace::FindingKind::nan, .rank = 0, .step = 13, .parameter = "fc3.bias"};
  LiveRun run;
  run.look(job_of({other, one, totals_of(20)}));
  return live_report({.run_id = "run-1", .world_size = 3}, run);
}

TEST(LiveReport, SaysWhereNumbersWentWrongFirst) {
  const LiveReport report = report_of_nan();
  const auto first = first_finding(report);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->rank, 1);
  const auto read = read_live_report(as_json(report));
  ASSERT_TRUE(read);
  EXPECT_EQ(first_finding(*read), first);
  EXPECT_EQ(as_json(*read), as_json(report));
  EXPECT_EQ(read->ranks[1].wrong_steps, 8);
  EXPECT_EQ(read->ranks[1].equal_in, 10);
  const std::string text = "NaN in rank 1's gradient of 'fc2.\"weight\"' in step 12; by now 2 ranks have had some\n";
  expect_text(as_screen(report, {}), {"\n" + text});
  expect_text(as_screen(report, {.columns = 200, .rows = 50, .has_colours = true}),
              {"\x1b[1;38;5;208m" + text.substr(0, 20)});
  const std::string metrics = as_metrics(report);
  expect_text(metrics,
              {"lockstep_wrong_gradient_steps_total{run=\"run-1\",rank=\"1\",host=\"n0\"} 8\n",
               "lockstep_first_finding_step{run=\"run-1\",rank=\"1\",host=\"n0\",kind=\"nan\","
               "parameter=\"fc2.\\\"weight\\\"\"} 12\n",
               "lockstep_replicas_equal_step{run=\"run-1\",rank=\"1\",host=\"n0\"} 10\n",
               "lockstep_held_memory_bytes{run=\"run-1\",rank=\"1\",host=\"n0\",for=\"gradients\"} 4194304\n"});
  EXPECT_FALSE(first_finding(report_of_three()));
}

TEST(GpuUse, IsThatOfTheRanksProcesses) {
  LiveReport report = report_of_three();
  EXPECT_EQ(as_screen(report, {}).find("GPU"), std::string::npos) << "none has one";
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
  expect_text(as_screen(report, {}), {"WEIGHTS  GRADS  OPTSTATE  MEMORY  GPU        PID",
                                      "3M       4M     -         64M     87% 13.3G  100", "64M     -          101"});
  EXPECT_EQ(as_json(*read_live_report(as_json(report))), as_json(report));
  for (const char* const none : {"", "{", R"({"no_gpu": "why"})", R"({"gpus": [{"processes": [{"pid": "x"}]}]})"}) {
    EXPECT_FALSE(read_gpu_use(none)) << none;
  }
  const auto idle = read_gpu_use(R"({"gpus": [{"unknown": "why", "processes": []}]})");
  ASSERT_TRUE(idle) << "a GPU that nobody uses yet";
  EXPECT_TRUE(idle->empty());
}

TEST(Metrics, AreLinesThatPrometheusReads) {
  const std::string text = as_metrics(report_of_three());
  expect_text(text,
              {"# TYPE lockstep_steps_total counter\nlockstep_steps_total{run=\"run-1\",rank=\"0\",host=\"n0\"} 20\n",
               "lockstep_members{run=\"run-1\",state=\"training\"} 3\n", "lockstep_restarts_total{run=\"run-1\"} 1\n",
               "lockstep_step_share{run=\"run-1\",rank=\"2\",host=\"n1\",phase=\"data\"} 0.24\n",
               "lockstep_straggler_share{run=\"run-1\",rank=\"2\"} 0.14"});
  EXPECT_TRUE(text.ends_with("\n"));
  // A family's lines stand together, behind its help and type, and no name comes twice.
  std::string family;
  std::set<std::string> families;
  for (std::size_t begin = 0; begin < text.size();) {
    const auto end = text.find('\n', begin);
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.starts_with("# HELP ")) {
      family = line.substr(7, line.find(' ', 7) - 7);
      EXPECT_TRUE(families.insert(family).second) << family;
    } else if (!line.starts_with("# TYPE " + family + " ")) {
      EXPECT_TRUE(line.starts_with(family + "{")) << line;
    }
  }
  LiveReport odd;
  odd.facts.run_id = "a\"b\\c\nd";
  expect_text(as_metrics(odd), {R"(lockstep_world_size{run="a\"b\\c d"} 1)"});
}

TEST(Metrics, AreAnsweredToHttp) {
  const LiveReport report = report_of_three();
  const std::string answer = http_answer("GET /metrics HTTP/1.1", report);
  expect_text(answer, {"HTTP/1.1 200 OK\r\n", "text/plain; version=0.0.4",
                       "Content-Length: " + std::to_string(as_metrics(report).size()) + "\r\n"});
  EXPECT_TRUE(answer.ends_with("\r\n\r\n" + as_metrics(report)));
  EXPECT_TRUE(http_answer("GET /metrics?x=1 HTTP/1.0", report).starts_with("HTTP/1.1 200 "));
  EXPECT_TRUE(http_answer("GET / HTTP/1.1", report).starts_with("HTTP/1.1 404 "));
  EXPECT_TRUE(http_answer("GET /metricsx HTTP/1.1", report).starts_with("HTTP/1.1 404 "));
  EXPECT_TRUE(http_answer("POST /metrics HTTP/1.1", report).starts_with("HTTP/1.1 405 "));
  EXPECT_TRUE(http_answer("hello", report).starts_with("HTTP/1.1 400 "));
}

}  // namespace
}  // namespace lockstep::launcher::live_run_test
