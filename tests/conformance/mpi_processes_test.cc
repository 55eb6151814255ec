// SPDX-License-Identifier: Apache-2.0
// The mpi backend under mpirun: the same suite, what it refuses, and how a death ends the job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "tests/e2e/mpi.h"
#include "tests/support/error_of.h"
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

// A run under mpirun, and the lines that each rank must print once.
struct Launch {
  const char* name;
  int ranks;
  std::vector<std::string> what;
  std::vector<std::string> says;
  std::optional<int> exit_code = 0;
  bool is_asked_for = true;  // the backend is
};
class MpiRun : public ::testing::TestWithParam<Launch> {};
INSTANTIATE_TEST_SUITE_P(
    Processes, MpiRun,
    ::testing::Values(
        Launch{"PassesTheSuite", 3, {"suite"}, {"backend mpi", "suite passed"}},
        Launch{"IsStartedOnceAndServesOneGroupAfterTheOther", 3, {"groups"}, {"3 groups done"}},
        Launch{"GroupsWithinItShareMemoryOnOneHost", 4, {"split", "halves"}, {"backend mpi", "subgroup over shm"}},
        Launch{"OnOneHostAutoTakesSharedMemory", 2, {"groups"}, {"backend shm"}, 0, false},
        Launch{"AGroupThatAStaticHoldsEndsInOrder", 3, {"global"}, {"returning"}},
        Launch{"AnAbortIsEveryRanksFirstCause",
               3,
               {"loop", "abort"},
               {"cause kind=aborted rank=1 ", "PeerLost: rank 1 is out of disk"},
               {}},
        Launch{"AProcessWhoseGroupHasFailedGetsNoOther",
               2,
               {"again"},
               {"refused: ", "a group of this process has failed", "restart the process"},
               {}}),
    [](const auto& test) { return std::string(test.param.name); });

TEST_P(MpiRun, SaysOnEachRankWhatItShould) {
  LOCKSTEP_NEEDS_MPIRUN();
  const Launch& wanted = GetParam();
  std::vector<std::string> program{CONFORMANCE_RANK};
  program.insert(program.end(), wanted.what.begin(), wanted.what.end());
  const Result result =
      run_process(job(wanted.ranks, std::move(program), wanted.is_asked_for ? under_mpirun() : e2e::mpi_variables()),
                  Deadline::after(std::chrono::seconds(200)));
  if (wanted.exit_code) {
    EXPECT_EQ(result.exit_code, *wanted.exit_code) << result.out << result.err;
    EXPECT_THAT(result.err, Not(HasSubstr("warning")));
  }
  for (const std::string& text : wanted.says) {
    EXPECT_EQ(count_of(result.out, text), wanted.ranks) << text << " in " << result.out << result.err;
  }
  EXPECT_EQ(count_of(result.out, "another group"), 0);
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
TEST(Mpi, AnExitInTrainingEndsTheJobAtOnceWithItsExitCode) {
  LOCKSTEP_NEEDS_MPIRUN();
  for (const std::string how : {"exit7", "quick7"}) {
    Footprint footprint;
    const Result result = run_process(job(3, {CONFORMANCE_RANK, "loop", how}));
    EXPECT_EQ(result.exit_code, 7) << result.out << result.err;
    EXPECT_THAT(result.err, Not(HasSubstr("MPI_Finalize has not returned"))) << result.out;
    EXPECT_EQ(footprint.left_after(leftover_deadline()), "");
  }
}

// MPI_Init waits for every rank, and knows no deadline. Where liveness does not name the rank the timeout does, which
// is else five minutes.
TEST(Mpi, ARankThatStandsStillBeforeMpiStartsIsNamedOrWaitedForUntilTheTimeout) {
  LOCKSTEP_NEEDS_MPIRUN();
  const auto error_with = [](Variables variables) {
    variables.merge(under_mpirun());
    const Result result = run_process(job(2, {STANDING_RANK, "suite"}, std::move(variables)));
    EXPECT_NE(result.exit_code, 0);
    return result.err;
  };
  expect_text(error_with({{"LOCKSTEP_LIVENESS", "on"}}), {"failed: rank 1 (host ", "stopped answering"});
  // The timeout covers the start too, which may take a while.
  expect_text(error_with({{"LOCKSTEP_LIVENESS", "off"}, {"LOCKSTEP_TIMEOUT", "8"}}),
              {"rank 0 (host ", "MPI_Init, which waits for every rank", "of 8 s", "raise the timeout"});
}

}  // namespace
}  // namespace lockstep::testing::mpi_processes_test
