// SPDX-License-Identifier: Apache-2.0
// The mpi backend under mpirun: the same suite, what it refuses, and how a death ends the job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/e2e/mpi.h"
#include "tests/support/leftovers.h"
#include "tests/support/rank_processes.h"

#ifndef CONFORMANCE_RANK
#error "the path of the rank program"
#endif

namespace lockstep::testing::mpi_processes_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Variables under_mpirun() {
  Variables variables = e2e::mpi_variables();
  variables["CONFORMANCE_BACKEND"] = "mpi";
  return variables;
}

ProcessOptions job(int ranks, std::vector<std::string> program, Variables environment = under_mpirun()) {
  ProcessOptions options;
  options.command = {"mpirun", "-n", std::to_string(ranks)};
  options.command.insert(options.command.end(), program.begin(), program.end());
  options.environment = std::move(environment);
  return options;
}

int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

class Suite : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Processes, Suite, ::testing::Values(3));

TEST_P(Suite, Passes) {
  LOCKSTEP_NEEDS_MPIRUN();
  const Result result =
      run_process(job(GetParam(), {CONFORMANCE_RANK, "suite"}), Deadline::after(std::chrono::seconds(200)));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(count_of(result.out, "backend mpi"), GetParam()) << result.out;
  EXPECT_EQ(count_of(result.out, "suite passed"), GetParam()) << result.out;
}

TEST(Mpi, IsStartedOnceAndServesOneGroupAfterTheOther) {
  LOCKSTEP_NEEDS_MPIRUN();
  const Result result = run_process(job(3, {CONFORMANCE_RANK, "groups"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(count_of(result.out, "3 groups done"), 3) << result.out;
}

TEST(Mpi, GroupsWithinItShareMemoryOnOneHost) {
  LOCKSTEP_NEEDS_MPIRUN();
  const Result result = run_process(job(4, {CONFORMANCE_RANK, "split", "halves"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(count_of(result.out, "backend mpi"), 4) << result.out;
  EXPECT_EQ(count_of(result.out, "subgroup over shm"), 4) << result.out;
}

// MPI would start, and each rank would be alone in its world.
TEST(Mpi, IsRefusedUnderAnyOtherLauncher) {
  RankProcesses ranks(2, {.command = {CONFORMANCE_RANK, "suite"}, .environment = {{"CONFORMANCE_BACKEND", "mpi"}}});
  for (const Result& result : ranks.wait()) {
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.err, AllOf(HasSubstr("backend 'mpi' needs ranks that mpirun started"),
                                  HasSubstr("RANK and WORLD_SIZE"), HasSubstr("start with mpirun")));
  }
}

TEST(Mpi, OnOneHostAutoTakesSharedMemory) {
  LOCKSTEP_NEEDS_MPIRUN();
  const Result result = run_process(job(2, {CONFORMANCE_RANK, "groups"}, e2e::mpi_variables()));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(count_of(result.out, "backend shm"), 2) << result.out;
}

// mpirun ends the others, so what they had to say may be cut off; what is left must name the one that died.
TEST(Mpi, AKilledRankEndsTheJobAndNothingIsLeft) {
  LOCKSTEP_NEEDS_MPIRUN();
  Footprint footprint;
  {
    Process mpirun(job(3, {CONFORMANCE_RANK, "loop", "kill"}));
    const Result result = mpirun.wait();
    EXPECT_NE(result.exit_code, 0);
    EXPECT_THAT(result.out + result.err, HasSubstr("at step 100"));
    EXPECT_THAT(result.err, HasSubstr("noticed that process rank 1")) << result.out;
  }
  EXPECT_EQ(footprint.left_after(leftover_deadline()), "");
}

// exit() runs what ends MPI, which must not wait for the other ranks: they wait for this one.
class ExitInTraining : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Mpi, ExitInTraining, ::testing::Values("exit7", "quick7"));

TEST_P(ExitInTraining, EndsTheJobAtOnceWithItsExitCode) {
  LOCKSTEP_NEEDS_MPIRUN();
  Footprint footprint;
  const Result result = run_process(job(3, {CONFORMANCE_RANK, "loop", GetParam()}));
  EXPECT_EQ(result.exit_code, 7) << result.out << result.err;
  EXPECT_THAT(result.err, Not(HasSubstr("MPI_Finalize has not returned"))) << result.out;
  EXPECT_EQ(footprint.left_after(leftover_deadline()), "");
}

TEST(Mpi, AGroupThatAStaticHoldsEndsInOrder) {
  LOCKSTEP_NEEDS_MPIRUN();
  const Result result = run_process(job(3, {CONFORMANCE_RANK, "global"}));
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_EQ(count_of(result.out, "returning"), 3) << result.out;
  EXPECT_THAT(result.err, Not(HasSubstr("warning"))) << result.err;
}

TEST(Mpi, AnAbortIsEveryRanksFirstCause) {
  LOCKSTEP_NEEDS_MPIRUN();
  const Result result = run_process(job(3, {CONFORMANCE_RANK, "loop", "abort"}));
  EXPECT_EQ(count_of(result.out, "cause kind=aborted rank=1 "), 3) << result.out << result.err;
  EXPECT_EQ(count_of(result.out, "PeerLost: rank 1 is out of disk"), 3) << result.out << result.err;
}

// MPI_Init waits for every rank, and knows no deadline. The job's does not help rank 0: it is five minutes.
TEST(Mpi, ARankThatStandsStillBeforeMpiStartsIsNamed) {
  LOCKSTEP_NEEDS_MPIRUN();
  Variables variables = under_mpirun();
  variables["LOCKSTEP_LIVENESS"] = "on";
  const Result result = run_process(job(2, {STANDING_RANK, "suite"}, std::move(variables)));
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, AllOf(HasSubstr("failed: rank 1 (host "), HasSubstr("stopped answering")));
}

TEST(Mpi, WhoWaitsForMpiToStartDoesSoUntilTheTimeout) {
  LOCKSTEP_NEEDS_MPIRUN();
  Variables variables = under_mpirun();
  variables["LOCKSTEP_LIVENESS"] = "off";
  variables["LOCKSTEP_TIMEOUT"] = "8";  // of the start too, which may take a while
  const Result result = run_process(job(2, {STANDING_RANK, "suite"}, std::move(variables)));
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, AllOf(HasSubstr("rank 0 (host "), HasSubstr("MPI_Init, which waits for every rank"),
                                HasSubstr("of 8 s"), HasSubstr("raise the timeout")));
}

TEST(Mpi, AProcessWhoseGroupHasFailedGetsNoOther) {
  LOCKSTEP_NEEDS_MPIRUN();
  const Result result = run_process(job(2, {CONFORMANCE_RANK, "again"}));
  EXPECT_THAT(result.out, AllOf(HasSubstr("refused: "), HasSubstr("a group of this process has failed"),
                                HasSubstr("restart the process")))
      << result.err;
  EXPECT_EQ(count_of(result.out, "another group"), 0);
}

}  // namespace
}  // namespace lockstep::testing::mpi_processes_test
