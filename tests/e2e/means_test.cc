// SPDX-License-Identifier: Apache-2.0
// The ways to meet that need no launcher to be installed: its variables, and real processes.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/e2e/launch.h"
#include "tests/support/rank_processes.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::e2e::means_test {
namespace {

namespace fs = std::filesystem;
using testing::run;

constexpr const char* kSum = "sum 6 of 3\n";

// Task `rank` of three of a step of srun; `tasks_per_node` as Slurm writes it.
Variables task(int rank, const std::string& tasks_per_node, const std::string& job = testing::job()) {
  const bool second_node = tasks_per_node == "2,1" && rank == 2;
  return {{"SLURM_JOB_ID", job},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_NTASKS", "3"},
          {"SLURM_STEP_NUM_TASKS", "3"},
          {"SLURM_STEP_TASKS_PER_NODE", tasks_per_node},
          {"SLURM_PROCID", std::to_string(rank)},
          {"SLURM_LOCALID", second_node ? "0" : std::to_string(rank)},
          {"SLURM_NODEID", second_node ? "1" : "0"},
          {"SLURM_STEP_NODELIST", "127.0.0.1"},
          {"SLURM_LAUNCH_NODE_IPADDR", "203.0.113.7"}};
}

struct Ranks {
  std::vector<Process> processes;

  void start(const Words& command, const Variables& environment) {
    processes.emplace_back(
        testing::ProcessOptions{.command = command, .environment = environment, .name = environment.begin()->second});
  }
  std::vector<Result> wait() {
    std::vector<Result> results;
    for (Process& process : processes) results.push_back(process.wait());
    return results;
  }
};

TEST(Means, ThreeTasksOfSrunOnOneHost) {
  Ranks ranks;
  for (int rank = 2; rank >= 0; --rank) ranks.start({RANK_PROGRAM, "init", "sum"}, task(rank, "3"));
  for (const Result& result : ranks.wait()) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, kSum);
    EXPECT_TRUE(contains(result.err, "from srun, store 127.0.0.1:")) << result.err;
    EXPECT_FALSE(contains(result.err, "open as torch's")) << "rank 0 told the secret over the socket";
  }
}

TEST(Means, TasksOfSrunOnSeveralHostsMeetAtTheFirstOfTheNodeList) {
  Ranks ranks;
  for (int rank = 2; rank >= 0; --rank) ranks.start({RANK_PROGRAM, "init", "sum"}, task(rank, "2,1"));
  const auto results = ranks.wait();
  for (const Result& result : results) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, kSum);
  }
  const std::string& zero = results.back().err;
  EXPECT_TRUE(contains(zero, "no secret: anyone who reaches")) << zero;
  EXPECT_TRUE(contains(zero, "LOCKSTEP_STORE_SECRET")) << zero;
}

TEST(Means, TwoJobsOfSrunOnOneHostDoNotMeet) {
  Ranks ranks;
  for (int rank = 0; rank < 3; ++rank) {
    for (const char* job : {"1", "2"}) {
      ranks.start({RANK_PROGRAM, "init", "sum"}, task(rank, "3", testing::job() + job));
    }
  }
  for (const Result& result : ranks.wait()) EXPECT_EQ(result.out, kSum) << result.err;
}

TEST(Means, ABatchScriptWithoutSrunIsAWorldOfOneAndSaysWhatItSaw) {
  Variables script = task(0, "3");
  script.erase("SLURM_STEP_ID");
  script.erase("SLURM_STEP_NUM_TASKS");
  const auto result = run({RANK_PROGRAM, "init", "sum"}, script);
  EXPECT_EQ(result.out, "sum 1 of 1\n") << result.err;
  EXPECT_TRUE(contains(result.err, "Slurm (SLURM_PROCID=0 SLURM_NTASKS=3")) << result.err;
}

// Hydra gives its job no name: the pid of the proxy does, whatever scripts are between it and a rank.
TEST(Means, RanksOfHydraMeetByTheirProxy) {
  const testing::TemporaryFolder folder;
  fs::copy_file("/bin/sh", folder / "hydra_pmi_proxy");
  const std::string rank =
      "PMI_RANK=$r PMI_SIZE=3 MPI_LOCALRANKID=$r MPI_LOCALNRANKS=3 sh -c '\"$0\" init sum; exit $?' " RANK_PROGRAM;
  const std::string proxy = "for r in 0 1 2; do " + rank + " & done; wait";
  const std::string command = (folder / "hydra_pmi_proxy").native();
  Process first({.command = {command, "-c", proxy}});
  Process second({.command = {command, "-c", proxy}});
  for (Process* one : {&first, &second}) {
    const Result result = one->wait();
    EXPECT_EQ(result.out, std::string(kSum) + kSum + kSum) << result.err;
    EXPECT_TRUE(contains(result.err, "from Hydra (MPICH, Intel MPI)")) << result.err;
  }
}

// --- By hand, with a secret.

Variables by_hand(int rank, int port, const Variables& more = {}) {
  Variables variables = {{"RANK", std::to_string(rank)},
                         {"WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "127.0.0.1"},
                         {"MASTER_PORT", std::to_string(port)}};
  variables.insert(more.begin(), more.end());
  return variables;
}

TEST(Means, ByHandWithASecretWhoHasAnotherOrNoneGetsNothingAndTheJobGoesOn) {
  const int port = testing::free_port();
  const Variables right = {{"LOCKSTEP_STORE_SECRET", std::string(64, 'a')}};
  const Variables wrong = {{"LOCKSTEP_STORE_SECRET", std::string(64, 'b')}, {"LOCKSTEP_TIMEOUT", "30"}};
  Process zero({.command = {RANK_PROGRAM, "init", "sum"}, .environment = by_hand(0, port, right)});
  const auto other = run({RANK_PROGRAM, "init", "sum"}, by_hand(1, port, wrong));
  const auto none = run({RANK_PROGRAM, "init", "sum"}, by_hand(1, port, {{"LOCKSTEP_TIMEOUT", "30"}}));
  const auto one = run({RANK_PROGRAM, "init", "sum"}, by_hand(1, port, right));
  for (const Result& refused : {other, none}) {
    EXPECT_NE(refused.exit_code, 0);
    EXPECT_EQ(refused.out, "");
    EXPECT_TRUE(contains(refused.err, "LOCKSTEP_STORE_SECRET")) << refused.err;
    for (const char* digits : {"aaaaaaaa", "bbbbbbbb"}) EXPECT_FALSE(contains(refused.err, digits)) << refused.err;
  }
  EXPECT_EQ(one.out, "sum 3 of 2\n") << one.err;
  const Result first = zero.wait();
  EXPECT_EQ(first.out, "sum 3 of 2\n") << first.err;
  EXPECT_FALSE(contains(first.err, "open as torch's")) << first.err;
}

}  // namespace
}  // namespace lockstep::e2e::means_test
