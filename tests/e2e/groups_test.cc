// SPDX-License-Identifier: Apache-2.0
// What ranks that host their store themselves do at the end of a group: leave it for the next one, or with an error.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>

#include "tests/e2e/launch.h"
#include "tests/e2e/mpi.h"
#include "tests/support/error_of.h"
#include "tests/support/leftovers.h"
#include "tests/support/rank_processes.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::e2e::groups_test {
namespace {

using lockstep::testing::expect_text;
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

std::ptrdiff_t count_of(const std::string& output, std::string_view ending) {
  const auto lines = lines_of(output);
  return std::count_if(lines.begin(), lines.end(), [&](const std::string& line) { return line.ends_with(ending); });
}

// Of each group and each of `ranks`.
void expect_sums(const testing::Result& result, int ranks) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(count_of(result.out, "sum 3 of 2"), 2 * ranks) << result.out;
}

// After each other, and one beside the other.
TEST(Groups, UnderMpirun) {
  LOCKSTEP_NEEDS_MPIRUN();
  for (const char* bootstrap : {"socket", "pmix"}) {
    auto variables = mpi_variables();
    variables["LOCKSTEP_BOOTSTRAP"] = bootstrap;
    const Words mpirun = {"mpirun", "-n", "2", RANK_PROGRAM};
    Process job({.command = joined(mpirun, two_groups("init", 0)), .environment = variables});
    ASSERT_TRUE(job.await_output("in the first"));
    ASSERT_TRUE(job.await_output("left the first"));
    ASSERT_EQ(::kill(testing::live_ranks(RANK_PROGRAM).at(0), SIGUSR1), 0);
    expect_sums(job.wait(), 2);
    expect_sums(testing::run(joined(mpirun, {"init", "sum", "init", "sum"}), variables), 2);
  }
}

// As `group = init_process_group()` does in a program that has one: the new group is made before the old one goes.
TEST(Groups, MayBeMadeWhileAnotherLives) {
  const testing::TemporaryFolder folder;
  for (const std::string& init : {std::string("init"), "init:file://" + (folder / "meeting").native()}) {
    RankProcesses ranks(2, {.command = {RANK_PROGRAM, init, "sum", init, "sum"}});
    for (const auto& result : ranks.wait()) expect_sums(result, 1);
  }
  expect_sums(testing::run(run_command({"-n", "2"}, RANK_PROGRAM, {"init", "sum", "init", "sum"})), 2);
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
      EXPECT_EQ(count_of(result.out, "sum 3 of 2"), 3) << result.out << result.err;
      if (!contains(result.out, "child")) continue;
      EXPECT_EQ(count_of(result.out, "child ended with 0"), 2) << result.out;
      expect_text(result.out, {"child: barrier: this object belongs to process ", "fork before init_process_group"});
    }
  }
}

}  // namespace
}  // namespace lockstep::e2e::groups_test
