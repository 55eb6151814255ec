// SPDX-License-Identifier: Apache-2.0
// What ranks that host their store themselves do at the end of a group: leave it for the next one, or with an error.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>

#include "tests/e2e/launch.h"
#include "tests/e2e/mpi.h"
#include "tests/support/leftovers.h"
#include "tests/support/rank_processes.h"

namespace lockstep::e2e::groups_test {
namespace {

using testing::RankProcesses;

// Rank `slow` leaves its first group only when it is told to, the other one is in its second init_process_group then.
Words two_groups(const std::string& init, int slow) {
  const std::string fast = std::to_string(1 - slow);
  return {init,
          "sum",
          "print:in the first@" + std::to_string(slow),
          "wait-signal:10@" + std::to_string(slow),
          "leave",
          "print:left the first@" + fast,
          init,
          "sum"};
}

// Of each group and each of `ranks`.
void expect_sums(const testing::Result& result, int ranks) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto lines = lines_of(result.out);
  const auto sums =
      std::count_if(lines.begin(), lines.end(), [](const auto& line) { return line.ends_with("sum 3 of 2"); });
  EXPECT_EQ(sums, 2 * ranks) << result.out;
}

void run_two_groups(const std::string& init, int slow) {
  RankProcesses ranks(2, {.command = joined({RANK_PROGRAM}, two_groups(init, slow))});
  ASSERT_TRUE(ranks[slow].await_output("in the first"));
  // A rank 0 that is the faster one leaves after the other has.
  if (slow == 0) {
    ASSERT_TRUE(ranks[1].await_output("left the first"));
  }
  ranks.kill(slow, SIGUSR1);
  for (const auto& result : ranks.wait()) expect_sums(result, 1);
}

TEST(Groups, FollowEachOtherAtAnAddress) {
  run_two_groups("init", 0);
  run_two_groups("init", 1);
}

TEST(Groups, FollowEachOtherAtAFile) {
  const auto path = std::filesystem::path(::testing::TempDir()) / ("groups-" + testing::job());
  run_two_groups("init:file://" + path.native(), 0);
  run_two_groups("init:file://" + path.native(), 1);
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(Groups, FollowEachOtherUnderMpirun) {
  LOCKSTEP_NEEDS_MPIRUN();
  for (const char* bootstrap : {"socket", "pmix"}) {
    auto variables = mpi_variables();
    variables["LOCKSTEP_BOOTSTRAP"] = bootstrap;
    Process job(
        {.command = joined({"mpirun", "-n", "2", RANK_PROGRAM}, two_groups("init", 0)), .environment = variables});
    ASSERT_TRUE(job.await_output("in the first"));
    ASSERT_TRUE(job.await_output("left the first"));
    int told = 0;
    for (const auto& process : testing::processes_with("LOCKSTEP_TEST_JOB", testing::job())) {
      const auto rank = process.environment.find("OMPI_COMM_WORLD_RANK");
      if (rank == process.environment.end() || rank->second != "0") continue;
      ASSERT_EQ(::kill(process.pid, SIGUSR1), 0);
      ++told;
    }
    EXPECT_EQ(told, 1);
    expect_sums(job.wait(), 2);
  }
}

// As `group = init_process_group()` does in a program that has one: the new group is made before the old one goes.
TEST(Groups, MayBeMadeWhileAnotherLives) {
  const auto path = std::filesystem::path(::testing::TempDir()) / ("beside-" + testing::job());
  for (const std::string& init : {std::string("init"), "init:file://" + path.native()}) {
    RankProcesses ranks(2, {.command = {RANK_PROGRAM, init, "sum", init, "sum"}});
    for (const auto& result : ranks.wait()) expect_sums(result, 1);
  }
  expect_sums(testing::run(run_command({"-n", "2"}, RANK_PROGRAM, {"init", "sum", "init", "sum"})), 2);
}

TEST(Groups, MayBeMadeWhileAnotherLivesUnderMpirun) {
  LOCKSTEP_NEEDS_MPIRUN();
  for (const char* bootstrap : {"socket", "pmix"}) {
    auto variables = mpi_variables();
    variables["LOCKSTEP_BOOTSTRAP"] = bootstrap;
    expect_sums(testing::run({"mpirun", "-n", "2", RANK_PROGRAM, "init", "sum", "init", "sum"}, variables), 2);
  }
}

std::ptrdiff_t count_of(const std::string& output, std::string_view ending) {
  const auto lines = lines_of(output);
  return std::count_if(lines.begin(), lines.end(), [&](const std::string& line) { return line.ends_with(ending); });
}

// Groups within the job's, with the job's group in between, and after it: 1 + 2 and 3 + 4.
TEST(Subgroups, WorkBesideTheJobsGroupAndAfterIt) {
  const auto result = testing::run(
      run_command({"-n", "4"}, RANK_PROGRAM, {"init", "split", "half:sum", "sum", "half:sum", "leave", "half:sum"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(count_of(result.out, "half sum 3 of 2"), 6) << result.out;
  EXPECT_EQ(count_of(result.out, "half sum 7 of 2"), 6) << result.out;
  EXPECT_EQ(count_of(result.out, " sum 10 of 4"), 4) << result.out;
  EXPECT_EQ(result.err.find("warning"), std::string::npos) << result.err;
}

// Rank 1 is in the job's group and in one half of it. The other half, which has been made by then, goes on, as far as
// its ranks live.
TEST(Subgroups, ADeathEndsEveryGroupThatHasTheRankAndNoOther) {
  RankProcesses ranks(4, {.command = {RANK_PROGRAM, "init", "split", "half:sum", "sum", "kill@1", "lost:half@0",
                                      "lost:job", "half:sum@2", "half:sum@3"}});
  const std::string dead = "pid " + std::to_string(ranks[1].pid());
  const auto results = ranks.wait();
  EXPECT_EQ(results[1].signal, SIGKILL);
  for (const std::size_t rank : {0u, 2u, 3u}) {
    const std::string& out = results[rank].out;
    const std::string& err = results[rank].err;
    EXPECT_EQ(results[rank].exit_code, 0) << out << err;
    EXPECT_TRUE(contains(out, "job: rank 1 (host ") && contains(out, dead)) << out << err;
    EXPECT_EQ(count_of(out, rank == 0 ? "half sum 3 of 2" : "half sum 7 of 2"), rank == 0 ? 1 : 2) << out << err;
  }
  EXPECT_TRUE(contains(results[0].out, "half: group 'split 1, color 0' (ranks 0 and 1): rank 1 (host "))
      << results[0].out;
}

// Nobody catches it, so rank 0 ends with the store in it: the others must have read what they say by then.
TEST(Groups, RanksWithDifferentModelsAllSaySo) {
  for (int round = 0; round < 5; ++round) {
    RankProcesses ranks(4, {.command = {RANK_PROGRAM, "init", "model:3@0", "model:4@1", "model:4@2", "model:4@3"}});
    for (const auto& result : ranks.wait()) {
      EXPECT_EQ(result.exit_code, 1);
      EXPECT_TRUE(contains(result.err, "fatal: Reducer: the ranks train different models")) << result.err;
    }
  }
}

// A child of fork() that calls exit() destroys its copy of the group, and a rank 0 that hosts the store is copied with
// the server.
TEST(Groups, AreTheirProcesssAndNoForkedChilds) {
  for (const std::string rank : {"@0", "@1"}) {
    RankProcesses ranks(
        2, {.command = joined({RANK_PROGRAM}, {"init", "sum", "fork:exit" + rank, "sum", "fork:sum" + rank, "sum"})});
    for (const auto& result : ranks.wait()) {
      EXPECT_EQ(result.exit_code, 0) << result.err;
      const auto lines = lines_of(result.out);
      EXPECT_EQ(std::count(lines.begin(), lines.end(), "sum 3 of 2"), 3) << result.out << result.err;
      if (!contains(result.out, "child")) continue;
      EXPECT_EQ(std::count(lines.begin(), lines.end(), "child ended with 0"), 2) << result.out;
      EXPECT_TRUE(contains(result.out, "child: barrier: this object belongs to process ")) << result.out;
      EXPECT_TRUE(contains(result.out, "fork before init_process_group")) << result.out;
    }
  }
}

}  // namespace
}  // namespace lockstep::e2e::groups_test
