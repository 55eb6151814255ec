// SPDX-License-Identifier: Apache-2.0
// The same binary, started in every way, finds out who it is and whom it meets; the ways that need no launcher to be
// installed by its variables.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/e2e/launch.h"
#include "tests/e2e/mpi.h"
#include "tests/support/error_of.h"
#include "tests/support/rank_processes.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::e2e::launch_test {
namespace {

namespace fs = std::filesystem;
using lockstep::testing::expect_text;
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
  expect_text(result.err, {"rank 0/1 (local 0/1) alone"});
}

TEST(Launch, UnderLockstepRunAndMpirun) {
  struct Case {
    std::string launcher;
    Words command;
    int world;
    Variables variables = {};
  };
  std::vector<Case> cases;
  for (const int world : {1, 2, 3, 8}) {
    cases.push_back({"lockstep run", {LOCKSTEP_PROGRAM, "run", "-n", std::to_string(world), "--"}, world});
  }
  // As in an sbatch script or under mpirun -n 1: their variables are seen and not used.
  cases.push_back({"lockstep run",
                   {LOCKSTEP_PROGRAM, "run", "-n", "2", "--"},
                   2,
                   {{"OMPI_COMM_WORLD_RANK", "0"},
                    {"OMPI_COMM_WORLD_SIZE", "1"},
                    {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                    {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}}});
  cases.push_back({"lockstep run", {LOCKSTEP_PROGRAM, "run", "-n", "3", "sh", "-c", "\"$@\"; exit $?", "sh"}, 3});
  if (testing::has_program("mpirun")) cases.push_back({"Open MPI", {"mpirun", "-n", "4"}, 4, mpi_variables()});
  for (const auto& [launcher, command, world, variables] : cases) {
    SCOPED_TRACE(command.front() + " " + std::to_string(world));
    const auto result = run(joined(command, {RANK_PROGRAM, "init", "sum"}), variables);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(count(result.out, sum_line(world)), world) << result.out;
    for (int rank = 0; rank < world; ++rank) {
      const auto who = std::to_string(rank) + "/" + std::to_string(world);
      expect_text(result.err, {"rank " + who + " (local " + who + ") from " + launcher});
    }
  }
}

TEST(Launch, VariablesSetByHand) {
  for (const auto* url : {"init", "init:env://"}) {
    RankProcesses ranks(3, {.command = {RANK_PROGRAM, url, "sum"}});
    for (const auto& result : ranks.wait()) {
      EXPECT_EQ(result.exit_code, 0) << result.err;
      EXPECT_EQ(result.out, sum_line(3));
      expect_text(result.err, {"from RANK and WORLD_SIZE"});
    }
  }
}

TEST(Launch, TcpAndFileUrls) {
  const testing::TemporaryFolder folder;
  const std::string file = "file://" + (folder / "meeting").native();
  // Twice with one path: the first job leaves nothing that hurts.
  for (const auto& place : {"tcp://127.0.0.1:" + std::to_string(testing::free_port()), file, file}) {
    const auto base = "init:" + place + "?world_size=2&rank=";
    Process one({.command = {RANK_PROGRAM, base + "1", "sum"}});
    Process zero({.command = {RANK_PROGRAM, base + "0", "sum"}});
    EXPECT_EQ(zero.wait().out, sum_line(2));
    EXPECT_EQ(one.wait().out, sum_line(2));
  }
}

// Tasks of three of a step of srun, on one host or, as Slurm has it, on two.
TEST(Launch, TasksOfSrun) {
  for (const std::string tasks_per_node : {"3", "2,1"}) {
    std::vector<Process> tasks;
    for (int rank = 2; rank >= 0; --rank) {
      const bool is_on_second = tasks_per_node == "2,1" && rank == 2;
      const Variables task = {{"SLURM_JOB_ID", testing::job()},
                              {"SLURM_STEP_ID", "0"},
                              {"SLURM_NTASKS", "3"},
                              {"SLURM_STEP_NUM_TASKS", "3"},
                              {"SLURM_STEP_TASKS_PER_NODE", tasks_per_node},
                              {"SLURM_PROCID", std::to_string(rank)},
                              {"SLURM_LOCALID", is_on_second ? "0" : std::to_string(rank)},
                              {"SLURM_NODEID", is_on_second ? "1" : "0"},
                              {"SLURM_STEP_NODELIST", "127.0.0.1"},
                              {"SLURM_LAUNCH_NODE_IPADDR", "203.0.113.7"}};
      tasks.emplace_back(testing::ProcessOptions{.command = {RANK_PROGRAM, "init", "sum"}, .environment = task});
    }
    std::string err;
    for (Process& one : tasks) {
      const Result result = one.wait();
      EXPECT_EQ(result.out, sum_line(3)) << result.err;
      expect_text(result.err, {"from srun, store 127.0.0.1:"});
      err += result.err;
    }
    // On one host rank 0 tells the others a secret over a socket.
    EXPECT_EQ(contains(err, "no secret: anyone who reaches"), tasks_per_node == "2,1") << err;
    EXPECT_FALSE(contains(err, "open as torch's")) << err;
  }
}

// Hydra gives its job no name: the pid of the proxy does, whatever scripts are between it and a rank.
TEST(Launch, RanksOfHydraMeetByTheirProxy) {
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
    EXPECT_EQ(result.out, sum_line(3) + sum_line(3) + sum_line(3)) << result.err;
    expect_text(result.err, {"from Hydra (MPICH, Intel MPI)"});
  }
}

// One line of the library's, for an error nobody caught.
TEST(Launch, WhatIsWrongIsOneLineOfTheRanks) {
  const Variables one_of_two = {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCKSTEP_TIMEOUT", "5"}};
  const std::string nobody = "127.0.0.1:" + std::to_string(testing::free_port());
  struct Case {
    Words actions;
    Variables variables;
    std::string says;
  };
  const std::vector<Case> cases = {
      {{"init"}, one_of_two, "MASTER_PORT"},
      {{"init"}, {{"RANK", "first"}, {"WORLD_SIZE", "2"}}, "RANK='first'"},
      {{"init"}, {{"RANK", "4"}, {"WORLD_SIZE", "4"}}, "RANK=4"},
      {{"init:ftp://x"}, {}, "ftp://x"},
      {{"init:file:///no/such/folder/x?world_size=2&rank=0"}, {}, "/no/such/folder"},
      {{"init:tcp://" + nobody + "?world_size=2&rank=1"}, {{"LOCKSTEP_TIMEOUT", "5"}}, nobody},
      {{"init:tcp://no-such-host.invalid:1?world_size=2&rank=1"}, {{"LOCKSTEP_TIMEOUT", "5"}}, "no-such-host.invalid"},
      {{"backend:bogus", "init"}, {}, "bogus"},
      {{"backend:nccl", "init"}, {}, "nccl"}};
  for (const auto& [actions, variables, says] : cases) {
    SCOPED_TRACE(says);
    const auto result = run(joined({RANK_PROGRAM}, actions), variables);
    EXPECT_EQ(result.exit_code, 1) << result.err;
    EXPECT_EQ(count(result.err, "fatal: "), 1) << result.err;
    expect_text(result.err, {says});
  }
}

}  // namespace
}  // namespace lockstep::e2e::launch_test
