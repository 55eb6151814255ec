// SPDX-License-Identifier: Apache-2.0
// Who is named when a job fails, whatever its ranks make of the errors that they get: docs/FAILURES.md.
//
// scripts/test --extra soak attribution runs these again and again.
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/e2e/launch.h"
#include "tests/support/fault_plan.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::e2e::attribution_test {
namespace {

// Three ranks that catch every error and return 1, as careful programs do.
Result careful(const Words& actions, const std::string& faults = {}, const Words& flags = {}) {
  Process launcher(
      {.command = run_command(joined({"-n", "3"}, flags), RANK_PROGRAM, joined({"catch", "init"}, actions)),
       .environment = {{testing::kFaultsVariable, faults}, {"LOCKSTEP_LIVENESS", "on"}}});
  return launcher.wait();
}

std::string last_line(const Result& result) {
  const auto lines = lines_of(result.err);
  return lines.empty() ? std::string() : lines.back();
}

std::string first_line_of_launcher(const Result& result) {
  for (const auto& line : lines_of(result.err)) {
    if (line.starts_with("lockstep run: ") && !contains(line, ": the threads take turns, ")) return line;
  }
  return {};
}

class Attribution : public ::testing::TestWithParam<int> {};

// Short jobs, each several times: the order in which their ends are heard of is another one each time.
INSTANTIATE_TEST_SUITE_P(Again, Attribution, ::testing::Range(0, 2));

TEST_P(Attribution, AKilledRankIsNamedThoughTheOthersCatchEverything) {
  const auto result = careful({"steps:9"}, "kill:rank=1,step=5");
  EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.err;
  EXPECT_TRUE(last_line(result).starts_with("lockstep run: rank 1 failed first: it was killed by signal 9 (SIGKILL)"))
      << result.err;
}

TEST_P(Attribution, ARankThatLeavesWithZeroIsNamed) {
  const auto result = careful({"steps:3", "exit:0@1", "loop"});
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_TRUE(last_line(result).starts_with(
      "lockstep run: rank 1 failed first: it exited with code 0 while the others still needed it"))
      << result.err;
}

// Between two collectives, where the others ask about it: they compare their models.
TEST_P(Attribution, ARankThatReturnsBeforeTheOthersMakeTheirReducersIsNamed) {
  for (const Words& first : {Words{}, Words{"catch"}}) {
    for (const std::string backend : {"shm", "tcp"}) {
      const Words actions = {"backend:" + backend, "init", "model:3@0", "model:3@2"};
      const auto result =
          Process({.command = run_command({"-n", "3", "--timeout", "600"}, RANK_PROGRAM, joined(first, actions))})
              .wait();
      EXPECT_EQ(result.exit_code, 1) << result.err;
      EXPECT_TRUE(last_line(result).starts_with(
          "lockstep run: rank 1 failed first: it exited with code 0 while the others still needed it"))
          << result.err;
    }
  }
}

// The others would wait for it until the group's timeout.
TEST_P(Attribution, ARankThatEndsBeforeItComesIsNamedWhileOthersWait) {
  const auto result =
      Process({.command = run_command({"-n", "3", "--timeout", "600"}, RANK_PROGRAM, {"exit:0@1", "init", "sum"})})
          .wait();
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_TRUE(
      contains(first_line_of_launcher(result), "exited with code 0 before it came to init_process_group, where "))
      << result.err;
  EXPECT_TRUE(last_line(result).starts_with("lockstep run: rank 1 failed first: it exited with code 0 before it came"))
      << result.err;
}

TEST_P(Attribution, OfAMismatchNobodyIsAccused) {
  const Words actions = {"init", "model:3@0", "model:4@1", "model:3@2"};
  for (const Words& first : {Words{}, Words{"catch"}}) {
    const auto result = Process({.command = run_command({"-n", "3"}, RANK_PROGRAM, joined(first, actions))}).wait();
    EXPECT_EQ(result.exit_code, 1) << result.err;
    EXPECT_TRUE(first_line_of_launcher(result).starts_with("lockstep run: the ranks disagree")) << result.err;
    EXPECT_TRUE(last_line(result).starts_with(
        "lockstep run: the ranks disagree: Reducer: the ranks train different models. First difference, "))
        << result.err;
    EXPECT_TRUE(last_line(result).ends_with("; exit code 1")) << result.err;
  }
}

// An error of the program, which each rank reports in the same words.
TEST_P(Attribution, OfOneErrorOnAllRanksNobodyIsAccused) {
  const testing::TemporaryFolder folder;
  // On a slow machine the SIGTERM for the first end must not hide another's.
  const auto result =
      Process({.command = run_command({"-n", "3", "--grace", "60", "--log-dir", folder.native(), "--tee"}, RANK_PROGRAM,
                                      {"ignore:15", "init", "sum", "throw:mine"})})
          .wait();
  EXPECT_EQ(result.exit_code, 128 + SIGABRT) << result.err;
  EXPECT_EQ(last_line(result),
            "lockstep run: all 3 ranks failed with the same error: 'std::runtime_error': mine; exit code 134");
  EXPECT_FALSE(contains(result.err, "failed at the same time")) << result.err;
  std::ifstream file(folder / "verdict.json");
  EXPECT_TRUE(nlohmann::json::parse(file)["first_failure"]["rank"].is_null());
}

TEST_P(Attribution, ARankThatAbortsIsNamed) {
  const auto result = careful({"steps:3", "abort:the disk is full@1", "loop"});
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_TRUE(last_line(result).starts_with("lockstep run: rank 1 failed first: it exited with code 1")) << result.err;
  EXPECT_TRUE(contains(last_line(result), ": the disk is full; ")) << "its own word: " << result.err;
}

TEST_P(Attribution, ARankThatThrowsOutsideOfTheLibraryIsNamed) {
  const auto result = careful({"steps:3", "fail:no such file@1", "loop"});
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_TRUE(last_line(result).starts_with("lockstep run: rank 1 failed first: it exited with code 1")) << result.err;
}

// Rank 0 is in a group with rank 1 alone, and hears of it there: as an error that ends it, caught or not.
TEST_P(Attribution, ARankThatThrowsIsNamedThoughAnotherHeardOfItInASmallerGroup) {
  for (const Words& first : {Words{}, Words{"catch@0"}}) {
    const Words actions = {"init", "split", "half:sum", "fail:no such file@1", "half:loop@0", "loop"};
    const auto result = Process({.command = run_command({"-n", "4"}, RANK_PROGRAM, joined(first, actions))}).wait();
    EXPECT_EQ(result.exit_code, 1) << result.err;
    EXPECT_TRUE(last_line(result).starts_with("lockstep run: rank 1 failed first: it exited with code 1"))
        << result.err;
  }
}

// A disk that is full when rank 0 saves. The others hear of it, and may end first.
TEST_P(Attribution, ARankThatFailsForAllIsNamed) {
  for (const bool catches : {true, false}) {
    const Words actions = {"init", "sum", "rank0:28", "loop"};
    const auto result = catches ? careful({"sum", "rank0:28", "loop"})
                                : Process({.command = run_command({"-n", "3"}, RANK_PROGRAM, actions)}).wait();
    EXPECT_EQ(result.exit_code, 1) << result.err;
    EXPECT_TRUE(last_line(result).starts_with("lockstep run: rank 0 failed first: it exited with code 1"))
        << result.err;
    EXPECT_TRUE(contains(result.err, "No space left on device")) << result.err;
  }
}

// exit(0) with the group still there, as many programs end.
TEST_P(Attribution, NobodyIsNamedWhereAllEndWithZero) {
  const auto result = careful({"steps:3", "exit:0"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

// They give a group up and make another, in which rank 2 is killed.
TEST_P(Attribution, WhatRanksSurvivedIsNotHeldAgainstThem) {
  const auto result = careful({"sum", "give-up:0", "init", "sum", "kill@2", "loop"});
  EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.err;
  EXPECT_TRUE(last_line(result).starts_with("lockstep run: rank 2 failed first: it was killed by signal 9"))
      << result.err;
}

TEST_P(Attribution, AStoppedRankIsNamedThoughTheOthersCatchEverything) {
  const auto result = careful({"steps:9"}, "stop:rank=1,step=3");
  EXPECT_EQ(result.exit_code, 75) << result.err;
  EXPECT_TRUE(contains(first_line_of_launcher(result), "rank 1 (host ")) << result.err;
  EXPECT_TRUE(last_line(result).starts_with("lockstep run: rank 1 failed first: it did not continue: rank 1 (host "))
      << result.err;
  EXPECT_TRUE(contains(result.err, "stopped")) << result.err;
}

}  // namespace
}  // namespace lockstep::e2e::attribution_test
