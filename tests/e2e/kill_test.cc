// SPDX-License-Identifier: Apache-2.0
// kill -9 of every part of a job that trains: the others learn who it was, and nothing is left.
#include <gtest/gtest.h>
#include <signal.h>

#include "runtime/job/exit_code.h"
#include "tests/e2e/launch.h"
#include "tests/e2e/mpi.h"
#include "tests/support/leftovers.h"
#include "tests/support/rank_processes.h"

namespace lockstep::e2e::kill_test {
namespace {

using testing::Footprint;
using testing::leftover_deadline;
using testing::live_ranks;
using testing::RankProcesses;

// Ranks that have met, reduced once, and go on reducing for ever.
const Words kTraining = {"init", "sum", "ready", "loop"};

Words behind_a_wrapper(int ranks) {
  return run_command({"-n", std::to_string(ranks)}, "sh", {"-c", "\"$0\" init sum ready loop; exit $?", RANK_PROGRAM});
}

class Kill : public ::testing::Test {
 protected:
  void kill_rank(int rank) {
    const auto ranks = live_ranks(RANK_PROGRAM);
    ASSERT_TRUE(ranks.contains(rank));
    victim_ = ranks.at(rank);
    ASSERT_EQ(kill(victim_, SIGKILL), 0);
  }
  void expect_nothing_left() const { EXPECT_EQ(footprint_.left_after(leftover_deadline()), ""); }

  Footprint footprint_{{"mpirun", "mpiexec", "orterun", "orted", "prterun", "prted", "sh"}};
  pid_t victim_ = 0;
};

TEST_F(Kill, ARankOfLockstepRun) {
  Process launcher({.command = run_command({"-n", "4"}, RANK_PROGRAM, kTraining)});
  ASSERT_TRUE(launcher.await_output("ready", 4));
  footprint_.look();
  EXPECT_FALSE(footprint_.sockets().empty()) << "the store listens";
  kill_rank(2);
  const auto result = launcher.wait();
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_TRUE(contains(result.err, "lockstep run: rank 2 (host ")) << result.err;
  EXPECT_TRUE(contains(result.err, "pid " + std::to_string(victim_) + ") was killed by signal 9 (SIGKILL)"))
      << result.err;
  expect_nothing_left();
}

TEST_F(Kill, RankZeroOfLockstepRun) {
  Process launcher({.command = run_command({"-n", "3"}, RANK_PROGRAM, kTraining)});
  ASSERT_TRUE(launcher.await_output("ready", 3));
  footprint_.look();
  kill_rank(0);
  const auto result = launcher.wait();
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_TRUE(contains(result.err, "lockstep run: rank 0 (host ")) << result.err;
  expect_nothing_left();
}

TEST_F(Kill, ARankWhileTheOthersIgnoreSigterm) {
  // With an hour of grace only the library can be what ends them: they learn of it in the collective.
  Process launcher({.command = run_command({"-n", "3", "--grace", "3600"}, RANK_PROGRAM,
                                           {"ignore:15", "init", "sum", "ready", "loop"})});
  ASSERT_TRUE(launcher.await_output("ready", 3));
  footprint_.look();
  kill_rank(1);
  const auto result = launcher.wait();
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  for (const std::string rank : {"0", "2"}) {
    const auto word = last_word_of_rank(result, rank);
    EXPECT_TRUE(contains(word, "rank 1 (host ")) << word << "\n" << result.err;
    EXPECT_TRUE(contains(word, "pid " + std::to_string(victim_))) << word << "\n" << result.err;
  }
  expect_nothing_left();
}

TEST_F(Kill, TheLauncher) {
  Process launcher({.command = run_command({"-n", "4"}, RANK_PROGRAM, kTraining)});
  ASSERT_TRUE(launcher.await_output("ready", 4));
  footprint_.look();
  launcher.send(SIGKILL);
  expect_nothing_left();
}

TEST_F(Kill, TheLauncherOfRanksBehindAWrapper) {
  Process launcher({.command = behind_a_wrapper(3)});
  ASSERT_TRUE(launcher.await_output("ready", 3));
  footprint_.look();
  launcher.send(SIGKILL);
  expect_nothing_left();
}

TEST_F(Kill, TheLauncherAndItsGuardianOfRanksBehindAWrapper) {
  // Then the library's own watch is what is left.
  Process launcher({.command = behind_a_wrapper(3)});
  ASSERT_TRUE(launcher.await_output("ready", 3));
  footprint_.look();
  for (const auto& process : testing::processes_with("LOCKSTEP_TEST_JOB", testing::job())) {
    if (process.name == "lockstep-guard" || process.name == "job-guard") kill(process.pid, SIGKILL);
  }
  launcher.send(SIGKILL);
  expect_nothing_left();
}

TEST_F(Kill, TheLauncherAndItsGuardianOfWhatLeftItsSession) {
  Process launcher({.command = run_command({"-n", "2"}, "sh", {"-c", "setsid sleep 4321 & echo ready; wait"})});
  ASSERT_TRUE(launcher.await_output("ready", 2));
  footprint_.look();
  for (const auto& process : testing::processes_with("LOCKSTEP_TEST_JOB", testing::job())) {
    if (process.parent == launcher.pid()) kill(process.pid, SIGKILL);
  }
  launcher.send(SIGKILL);
  expect_nothing_left();
}

TEST_F(Kill, ARankBehindAWrapper) {
  Process launcher({.command = behind_a_wrapper(3)});
  ASSERT_TRUE(launcher.await_output("ready", 3));
  footprint_.look();
  kill_rank(1);
  const auto result = launcher.wait();
  EXPECT_NE(result.exit_code, 0);
  expect_nothing_left();
}

TEST_F(Kill, ARankOfMpirun) {
  LOCKSTEP_NEEDS_MPIRUN();
  Process launcher({.command = joined({"mpirun", "-n", "4", RANK_PROGRAM}, kTraining), .environment = mpi_variables()});
  ASSERT_TRUE(launcher.await_output("ready", 4));
  footprint_.look();
  kill_rank(2);
  expect_nothing_left();
  EXPECT_NE(launcher.wait().exit_code, 0);
}

TEST_F(Kill, Mpirun) {
  LOCKSTEP_NEEDS_MPIRUN();
  Process launcher({.command = joined({"mpirun", "-n", "3", RANK_PROGRAM}, kTraining), .environment = mpi_variables()});
  ASSERT_TRUE(launcher.await_output("ready", 3));
  footprint_.look();
  launcher.send(SIGKILL);
  expect_nothing_left();
}

TEST_F(Kill, ARankStartedByHand) {
  for (const int victim : {0, 1}) {  // rank 0 hosts the store
    RankProcesses ranks(3, {.command = joined({RANK_PROGRAM}, kTraining)});
    ASSERT_TRUE(ranks.await_output("ready"));
    footprint_.look();
    ranks.kill(victim, SIGKILL);
    const auto results = ranks.wait();
    for (int rank = 0; rank < 3; ++rank) {
      const auto& result = results[static_cast<std::size_t>(rank)];
      EXPECT_EQ(result.exit_code, rank == victim ? 137 : kExitPeerLost) << result.err;
      if (rank == victim) continue;
      EXPECT_TRUE(contains(result.err, "rank " + std::to_string(victim) + " (host ")) << result.err;
      EXPECT_TRUE(contains(result.err, "pid " + std::to_string(ranks[victim].pid()))) << result.err;
    }
    expect_nothing_left();
  }
}

}  // namespace
}  // namespace lockstep::e2e::kill_test
