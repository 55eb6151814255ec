// SPDX-License-Identifier: Apache-2.0
// Ranks that stand still without being dead: stopped, missing at the start, or hung in code of their own. Nobody waits
// for them in silence.
#include <gtest/gtest.h>
#include <signal.h>

#include <regex>

#include "tests/e2e/launch.h"
#include "tests/support/leftovers.h"
#include "tests/support/rank_processes.h"

namespace lockstep::e2e::standstill_test {
namespace {

using testing::Footprint;
using testing::leftover_deadline;
using testing::live_ranks;
using testing::process_state;
using testing::run;
using testing::wait_until;

const Variables kLiveness = {{"LOCKSTEP_LIVENESS", "on"}};

void expect_part(const std::string& text, const std::string& part) {
  EXPECT_TRUE(contains(text, part)) << "no '" << part << "' in: " << text;
}

Words ranks(int count, const Words& actions, const Words& flags = {}) {
  return run_command(joined({"-n", std::to_string(count)}, flags), RANK_PROGRAM, actions);
}

Words behind_shell(int count, const std::string& program, const std::string& wrapper) {
  return run_command({"-n", std::to_string(count)}, "sh", {"-c", wrapper, program});
}

TEST(Standstill, ARankThatIsStoppedBeforeItComesEndsTheJobUnderItsName) {
  Footprint footprint;
  const auto result = run(ranks(3, {"raise:19@1", "init", "sum"}), kLiveness);
  EXPECT_EQ(result.exit_code, 75) << result.err;
  expect_part(result.err, "lockstep run: rank 1 (host ");
  expect_part(result.err, ") is stopped (SIGSTOP) for ");
  expect_part(result.err, "; ending the other 2 ranks");
  expect_part(result.err, "rank 1 failed first: it did not continue: rank 1 (host ");
  EXPECT_EQ(footprint.left_after(leftover_deadline()), "");
}

TEST(Standstill, AStoppedProgramBehindAWrapperIsNamedWithItsRank) {
  const auto result = run(behind_shell(3, RANK_PROGRAM, "\"$0\" raise:19@2 init sum; true"), kLiveness);
  EXPECT_EQ(result.exit_code, 75) << result.err;
  expect_part(result.err, "lockstep run: rank 2 (host ");
  expect_part(result.err, "): its process e2e_rank (pid ");
  expect_part(result.err, "rank 2 failed first: ");
}

TEST(Standstill, AStoppedWrapperWhoseProgramHasEndedIsNamed) {
  Process launcher(
      {.command = behind_shell(2, PLAIN_PROGRAM, "\"$0\" ready wait-signal:10; true"), .environment = kLiveness});
  ASSERT_TRUE(launcher.await_output("ready", 2));
  const auto programs = live_ranks(PLAIN_PROGRAM);
  kill(live_ranks("sh").at(1), SIGSTOP);
  kill(programs.at(0), SIGUSR1);
  kill(programs.at(1), SIGUSR1);
  const auto result = launcher.wait();
  EXPECT_EQ(result.exit_code, 75) << result.err;
  expect_part(result.err, "lockstep run: rank 1 (host ");
  expect_part(result.err, ") is stopped (SIGSTOP) for ");
}

TEST(Standstill, ARankThatIsStoppedInACollectiveIsNamedAndNotWhoWaitsForIt) {
  Process launcher({.command = ranks(3, {"init", "sum", "print:reducing", "loop"}), .environment = kLiveness});
  ASSERT_TRUE(launcher.await_output("reducing", 3));
  kill(live_ranks(RANK_PROGRAM).at(1), SIGSTOP);
  const auto result = launcher.wait();
  EXPECT_EQ(result.exit_code, 75) << result.err;
  expect_part(result.err, "rank 1 failed first: it did not continue: rank 1 (host ");
}

TEST(Standstill, WithoutLivenessAStoppedRankIsSaidAndWaitedForAndSoAreTheMissing) {
  Process launcher({.command = ranks(2, {"raise:19@1", "init", "sum"})});
  ASSERT_TRUE(launcher.await_output(") is stopped (SIGSTOP) for "));
  ASSERT_TRUE(launcher.await_output("1 of 2 ranks has waited for 10 s in init_process_group; missing: rank 1 (pid "));
  const pid_t stopped = live_ranks(RANK_PROGRAM).at(1);
  expect_part(launcher.err(), ", e2e_rank) is stopped (SIGSTOP or Ctrl-Z)\n");
  expect_part(launcher.err(), "and is waited for, as LOCKSTEP_LIVENESS=off says; 'kill -CONT " +
                                  std::to_string(stopped) + "' resumes it");
  kill(stopped, SIGCONT);
  const auto result = launcher.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_part(result.out, "[rank 1] sum 3 of 2");
}

TEST(Standstill, CtrlZOfTheJobEndsNobody) {
  Process launcher(
      {.command = ranks(2, {"init", "sum", "print:ready", "wait-signal:10", "sum"}), .environment = kLiveness});
  ASSERT_TRUE(launcher.await_output("ready", 2));
  const auto all = live_ranks(RANK_PROGRAM);
  launcher.send(SIGTSTP);
  ASSERT_TRUE(wait_until([&] {
    return process_state(launcher.pid()) == 'T' && process_state(all.at(0)) == 'T' && process_state(all.at(1)) == 'T';
  }));
  const Deadline longer_than_allowed = Deadline::after(std::chrono::milliseconds(3500));
  EXPECT_FALSE(wait_until([&] { return process_state(all.at(0)) != 'T'; }, longer_than_allowed));
  launcher.send(SIGCONT);
  launcher.send(SIGUSR1);
  const auto result = launcher.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_FALSE(contains(result.err, "is stopped")) << result.err;
}

// On the other backends: tests/conformance/processes_test.cc.
TEST(Standstill, AHungRankFailsTheJobUnderItsName) {
  const auto result = run(ranks(3, {"init", "sum", "hang@1", "loop"}, {"--hang-timeout", "2"}));
  EXPECT_EQ(result.exit_code, 75) << result.err;
  expect_part(result.err, "lockstep run: rank 1 (host ");
  expect_part(result.err, ") hangs: the last that it started is collective 1 (all_reduce), and nothing since for ");
  expect_part(result.err, "rank 1 failed first: it did not continue: rank 1 (host ");
  if (testing::has_program("gdb") || testing::has_program("eu-stack")) {
    expect_part(result.err, "\n  where it is:\n");
    EXPECT_TRUE(std::regex_search(result.err, std::regex("\n  \\| #0 [^\n]*pause"))) << result.err;
  }
}

TEST(Standstill, AHungRankIsNamedWhereRankZeroHostsTheStore) {
  testing::RankProcesses ranks(3, {.command = {RANK_PROGRAM, "init", "sum", "print:summed", "hang@1", "loop"},
                                   .environment = {{"LOCKSTEP_HANG_TIMEOUT", "2"}}});
  ASSERT_TRUE(ranks.await_output("summed"));
  for (const int rank : {0, 2}) {
    const Result result = ranks[rank].wait();
    EXPECT_EQ(result.exit_code, 75) << result.err;
    expect_part(result.err, "rank 1 (host ");
    expect_part(result.err, ", pid " + std::to_string(ranks[1].pid()) + ") hangs: ");
  }
}

TEST(Standstill, AHangTimeoutThatIsNoneIsRefused) {
  const auto flag = run(ranks(2, {"init"}, {"--hang-timeout", "1"}));
  EXPECT_EQ(flag.exit_code, 2);
  expect_part(flag.err, "--hang-timeout 1: give seconds from 2 to 86400, or off");
  const auto variable = run({RANK_PROGRAM, "init"}, {{"LOCKSTEP_HANG_TIMEOUT", "0.5"}});
  EXPECT_EQ(variable.exit_code, 1);
  expect_part(variable.err, "LOCKSTEP_HANG_TIMEOUT='0.5' is too short");
}

}  // namespace
}  // namespace lockstep::e2e::standstill_test
