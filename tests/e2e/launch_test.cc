// SPDX-License-Identifier: Apache-2.0
// The same binary, started in every way, finds out who it is.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/e2e/launch.h"
#include "tests/e2e/mpi.h"
#include "tests/support/rank_processes.h"

namespace lockstep::e2e::launch_test {
namespace {

namespace fs = std::filesystem;
using testing::RankOptions;
using testing::RankProcesses;
using testing::run;

// 1 + 2 + ... + n, as every rank must have it.
std::string sum_line(int world) {
  return "sum " + std::to_string(world * (world + 1) / 2) + " of " + std::to_string(world) + "\n";
}

int count(const std::string& text, const std::string& wanted) {
  int found = 0;
  for (auto at = text.find(wanted); at != std::string::npos; at = text.find(wanted, at + 1)) ++found;
  return found;
}

TEST(Launch, Alone) {
  const auto result = run({RANK_PROGRAM, "init", "sum"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, sum_line(1));
  EXPECT_TRUE(contains(result.err, "rank 0/1 (local 0/1) alone")) << result.err;
}

TEST(Launch, UnderLockstepRun) {
  for (const int world : {1, 2, 3, 4, 8}) {
    const auto result = run(run_command({"-n", std::to_string(world)}, RANK_PROGRAM, {"init", "sum"}));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(count(result.out, sum_line(world)), world) << result.out;
    for (int rank = 0; rank < world; ++rank) {
      const auto who = std::to_string(rank) + "/" + std::to_string(world);
      EXPECT_TRUE(contains(result.err, "rank " + who + " (local " + who + ") from lockstep run")) << result.err;
    }
  }
}

TEST(Launch, UnderLockstepRunBehindAWrapperScript) {
  const auto result = run(run_command({"-n", "3"}, "sh", {"-c", "\"$0\" init sum; exit $?", RANK_PROGRAM}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(count(result.out, sum_line(3)), 3);
}

TEST(Launch, UnderLockstepRunInsideAnotherLaunchersJob) {
  // As in an sbatch script or under mpirun -n 1: their variables are seen and not used.
  const auto result =
      run(run_command({"-n", "2"}, RANK_PROGRAM, {"init", "sum"}), {{"OMPI_COMM_WORLD_RANK", "0"},
                                                                    {"OMPI_COMM_WORLD_SIZE", "1"},
                                                                    {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                                                    {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(count(result.out, sum_line(2)), 2);
}

TEST(Launch, VariablesSetByHand) {
  for (const auto* url : {"init", "init:env://"}) {
    RankProcesses ranks(3, {.command = {RANK_PROGRAM, url, "sum"}});
    for (const auto& result : ranks.wait()) {
      EXPECT_EQ(result.exit_code, 0) << result.err;
      EXPECT_EQ(result.out, sum_line(3));
      EXPECT_TRUE(contains(result.err, "from RANK and WORLD_SIZE")) << result.err;
    }
  }
}

TEST(Launch, TcpUrl) {
  const auto base = "init:tcp://127.0.0.1:" + std::to_string(testing::free_port()) + "?world_size=2&rank=";
  Process zero({.command = {RANK_PROGRAM, base + "0", "sum"}});
  Process one({.command = {RANK_PROGRAM, base + "1", "sum"}});
  EXPECT_EQ(zero.wait().out, sum_line(2));
  EXPECT_EQ(one.wait().out, sum_line(2));
}

TEST(Launch, FileUrl) {
  const fs::path path = fs::path(::testing::TempDir()) / ("meeting-" + testing::job());
  for (int attempt = 0; attempt < 2; ++attempt) {  // twice with one path: the first job leaves nothing that hurts
    const auto base = "init:file://" + path.native() + "?world_size=2&rank=";
    Process one({.command = {RANK_PROGRAM, base + "1", "sum"}});
    Process zero({.command = {RANK_PROGRAM, base + "0", "sum"}});
    EXPECT_EQ(zero.wait().out, sum_line(2));
    EXPECT_EQ(one.wait().out, sum_line(2));
  }
  fs::remove(path);
}

TEST(Launch, UnderMpirun) {
  LOCKSTEP_NEEDS_MPIRUN();
  const auto result = run({"mpirun", "-n", "4", RANK_PROGRAM, "init", "sum"}, mpi_variables());
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(count(result.out, sum_line(4)), 4) << result.out;
  for (int rank = 0; rank < 4; ++rank) {
    const auto who = std::to_string(rank) + "/4";
    EXPECT_TRUE(contains(result.err, "rank " + who + " (local " + who + ") from Open MPI")) << result.err;
  }
}

TEST(Launch, TwoJobsAtOnceDoNotMeet) {
  Process first({.command = run_command({"-n", "2"}, RANK_PROGRAM, {"init", "sum", "ready", "wait-signal:10", "sum"})});
  ASSERT_TRUE(first.await_output("ready", 2));
  const auto second = run(run_command({"-n", "3"}, RANK_PROGRAM, {"init", "sum"}));
  EXPECT_EQ(count(second.out, sum_line(3)), 3) << second.err;
  first.send(SIGUSR1);
  EXPECT_EQ(count(first.wait().out, sum_line(2)), 4);
}

}  // namespace
}  // namespace lockstep::e2e::launch_test
