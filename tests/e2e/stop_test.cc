// SPDX-License-Identifier: Apache-2.0
// An agreed stop of real processes: by signals to a rank, or to the launcher; exit codes; what does not stop.
#include <gtest/gtest.h>
#include <signal.h>

#include <random>
#include <utility>

#include "runtime/job/exit_code.h"
#include "tests/e2e/launch.h"
#include "tests/support/error_of.h"
#include "tests/support/leftovers.h"
#include "tests/support/rank_processes.h"
#include "tests/support/wait_until.h"

namespace lockstep::e2e::stop_test {
namespace {

using testing::live_ranks;
using testing::RankProcesses;
using testing::wait_until;

const Words kTraining = {"init", "listen", "train", "finish"};

Words training(int ranks, const Words& actions = kTraining, const Words& flags = {}) {
  return run_command(joined({"-n", std::to_string(ranks)}, flags), RANK_PROGRAM, actions);
}

// "17: rank 2 got SIGTERM", which all ranks say alike; empty if they don't, or another number of them.
std::string trained(const std::string& out, int ranks) {
  std::string first;
  int count = 0;
  for (const auto& line : lines_of(out)) {
    const auto at = line.find("trained ");
    if (at == std::string::npos) continue;
    const std::string said = line.substr(at + 8);
    if (count++ == 0) first = said;
    EXPECT_EQ(said, first) << out;
  }
  EXPECT_EQ(count, ranks) << out;
  return first;
}

// The launcher's last line, with the step that the ranks speak of.
void expect_summary(const Result& result, const std::string& said, int code) {
  const auto colon = said.find(':');
  ASSERT_NE(colon, std::string::npos) << result.out << result.err;
  const std::string line = "lockstep run: stopped after " + said.substr(0, colon) + " steps" + said.substr(colon) +
                           "; exit code " + std::to_string(code);
  EXPECT_TRUE(contains(result.err, line)) << line << "\n" << result.err;
  EXPECT_FALSE(contains(result.err, "failed")) << result.err;
  EXPECT_EQ(result.exit_code, code);
}

// By backend.
class StopOn : public ::testing::TestWithParam<std::string> {
 protected:
  static Words training(const Words& actions, const Words& flags = {}) {
    return run_command(joined({"-n", "3"}, flags), RANK_PROGRAM, joined({"backend:" + GetParam()}, actions));
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, StopOn, ::testing::Values("shm", "tcp"), [](const auto& of) { return of.param; });

TEST_P(StopOn, OfOneRankEndsAllAfterTheSameStep) {
  std::mt19937 random(11);
  for (int round = 0; round < 2; ++round) {
    for (const auto& [signal, name] : {std::pair{SIGTERM, "SIGTERM"}, {SIGUSR1, "SIGUSR1"}, {SIGINT, "SIGINT"}}) {
      SCOPED_TRACE(name);
      const int who = static_cast<int>(random() % 3);
      Process launcher({.command = training(kTraining)});
      ASSERT_TRUE(launcher.await_output("training", 3));
      ASSERT_EQ(kill(live_ranks(RANK_PROGRAM).at(who), signal), 0);
      const auto result = launcher.wait();
      const auto said = trained(result.out, 3);
      EXPECT_TRUE(said.ends_with(": rank " + std::to_string(who) + " got " + name)) << said;
      expect_summary(result, said, kExitRequeue);
    }
  }
}

TEST(Stop, OfTheLauncherIsPassedOn) {
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) {
    SCOPED_TRACE(signal);
    Process launcher({.command = training(3)});
    ASSERT_TRUE(launcher.await_output("training", 3));
    launcher.send(signal);
    const auto result = launcher.wait();
    expect_summary(result, trained(result.out, 3), kExitRequeue);
  }
}

TEST(Stop, OfAWorldOfOneHasTheSameCode) {
  Process launcher({.command = training(1)});
  ASSERT_TRUE(launcher.await_output("training"));
  ASSERT_EQ(kill(live_ranks(RANK_PROGRAM).at(0), SIGTERM), 0);
  const auto result = launcher.wait();
  EXPECT_TRUE(trained(result.out, 1).ends_with(": rank 0 got SIGTERM"));
  EXPECT_EQ(result.exit_code, kExitRequeue) << result.err;
  EXPECT_TRUE(contains(result.err, "lockstep run: stopped; exit code 75")) << result.err;
}

TEST(Stop, WithoutALauncherEndsEachRankWithTheCode) {
  RankProcesses ranks(3, {.command = joined({RANK_PROGRAM}, kTraining)});
  ASSERT_TRUE(ranks.await_output("training"));
  ranks.kill(1, SIGTERM);
  for (const Result& result : ranks.wait()) {
    EXPECT_EQ(result.exit_code, kExitRequeue) << result.err;
    EXPECT_TRUE(contains(result.out, ": rank 1 got SIGTERM")) << result.out;
  }
}

TEST(Stop, TheCodeIsTheUsersOrZeroForTheProgramsOwnEnd) {
  for (const auto& [flags, variables] : {std::pair{Words{"--requeue-exit-code", "42"}, Variables{}},
                                         {Words{}, Variables{{"LOCKSTEP_REQUEUE_EXIT_CODE", "42"}}}}) {
    Process launcher({.command = training(2, kTraining, flags), .environment = variables});
    ASSERT_TRUE(launcher.await_output("training", 2));
    launcher.send(SIGTERM);
    const auto result = launcher.wait();
    expect_summary(result, trained(result.out, 2), 42);
  }
  const auto result = testing::run(training(2, {"init", "listen", "enough:3@1", "train", "finish"}));
  EXPECT_EQ(trained(result.out, 2), "4: good enough");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto refused =
      testing::run_process({.command = training(2), .environment = {{"LOCKSTEP_REQUEUE_EXIT_CODE", "many"}}});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_TRUE(contains(refused.err, "LOCKSTEP_REQUEUE_EXIT_CODE='many'")) << refused.err;
}

TEST(Stop, ARankThatStillSavesIsGivenTheTime) {
  Process launcher(
      {.command = training(2, {"init", "listen", "train", "ready", "wait-signal:12@1", "print:saved@1", "finish"},
                           {"--grace", "0"})});
  ASSERT_TRUE(launcher.await_output("training", 2));
  launcher.send(SIGTERM);
  ASSERT_TRUE(launcher.await_output("ready", 2));
  ASSERT_TRUE(wait_until([] { return live_ranks(RANK_PROGRAM).size() == 1; }));
  launcher.send(SIGUSR2);
  const auto result = launcher.wait();
  EXPECT_TRUE(contains(result.out, "[rank 1] saved")) << result.out;
  expect_summary(result, trained(result.out, 2), kExitRequeue);
}

TEST_P(StopOn, WhoDoesNotComeToTheEndOfAStepIsNamedByItselfAndByTheLauncher) {
  Process launcher(
      {.command = training({"init", "listen", "train:5@2", "hang@2", "train", "finish"}, {"--stop-timeout", "2"})});
  ASSERT_TRUE(launcher.await_output("trained 5", 1));
  launcher.send(SIGTERM);
  const auto result = launcher.wait();
  EXPECT_EQ(result.exit_code, 128 + SIGTERM) << result.err;
  // The others are within the backward that waits for it; which of them speaks before it loses a peer is not known.
  testing::expect_text(
      result.err,
      {"[rank 2] [lockstep] did not stop: it got SIGTERM, and no step of its training has ended in the 2.0 s since; it "
       "has done 5 steps, and is outside of a backward",
       "lockstep run: 1.8 s after SIGTERM no step has ended for all to stop, and after 2.0 s the ranks end by the "
       "signal: rank 2 (host ",
       ") holds the others up: the last that it started is collective ",
       "step 4); ranks 0 and 1 have started collective "});
}

// The SIGTERM by which the launcher ends the others comes behind the one that it has passed on.
TEST(Stop, ARankThatDiesOnTheWayLeavesTheOthersTheirTime) {
  const Words actions{"init",     "listen",           "train:5@2",     "ready@2", "hang@2",
                      "train-on", "wait-signal:12@0", "print:saved@0", "finish"};
  Process launcher({.command = training(3, actions, {"--grace", "0"})});
  ASSERT_TRUE(launcher.await_output("ready", 1));
  launcher.send(SIGTERM);
  ASSERT_TRUE(launcher.await_output("passed on", 1));
  // What comes within 200 ms is the same request.
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_TRUE(wait_until([&] { return std::chrono::steady_clock::now() - begin > std::chrono::milliseconds(300); }));
  const auto ranks = live_ranks(RANK_PROGRAM);
  ASSERT_EQ(kill(ranks.at(2), SIGKILL), 0);
  ASSERT_TRUE(launcher.await_output("may be saving", 1));
  ASSERT_EQ(kill(ranks.at(0), SIGUSR2), 0);
  const auto result = launcher.wait();
  EXPECT_TRUE(contains(result.out, "[rank 0] saved")) << result.out << result.err;
  EXPECT_TRUE(contains(result.err, "rank 2 failed first")) << result.err;
}

}  // namespace
}  // namespace lockstep::e2e::stop_test
