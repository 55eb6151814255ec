// SPDX-License-Identifier: Apache-2.0
// Ranks whose program is behind a command that returns another exit code, as a shell does for a pipe.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/e2e/launch.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::e2e::wrapped_test {
namespace {

// `sh -c './train | cat'`, which returns 0 whatever becomes of the program.
Result in_a_pipe(int ranks, const Words& actions, const Words& flags = {}) {
  return testing::run(run_command(joined({"-n", std::to_string(ranks)}, flags), "sh",
                                  joined({"-c", "\"$@\" | cat", "sh", RANK_PROGRAM}, actions)));
}

struct Harm {
  const char* name;
  Words actions;  // of rank 1
  int exit_code;  // the job's
};

class InAPipe : public ::testing::TestWithParam<Harm> {};

INSTANTIATE_TEST_SUITE_P(Each, InAPipe,
                         ::testing::Values(Harm{"ExitCode", {"exit:3@1"}, 3},       //
                                           Harm{"Signal", {"kill@1"}, 1},           //
                                           Harm{"Exception", {"throw:mine@1"}, 1},  //
                                           Harm{"ExitNow", {"exit-now:3@1"}, 1},    //
                                           Harm{"ReturnsOne", {"return:1@1"}, 1},   //
                                           Harm{"LeavesFirst", {"leave@1", "exit:5@1"}, 5}),
                         [](const auto& harm) { return harm.param.name; });

TEST_P(InAPipe, ARankThatFailsFailsTheJob) {
  const testing::TemporaryFolder folder;
  const auto result =
      in_a_pipe(2, joined(joined({"init", "sum"}, GetParam().actions), {"loop@0"}), {"--log-dir", folder.native()});
  EXPECT_EQ(result.exit_code, GetParam().exit_code) << result.err;
  EXPECT_TRUE(lines_of(result.err).back().starts_with("lockstep run: rank 1 failed first: it ")) << result.err;
  std::ifstream file(folder / "verdict.json");
  const auto verdict = nlohmann::json::parse(file);
  EXPECT_EQ(verdict["outcome"], "failed");
  EXPECT_EQ(verdict["first_failure"]["rank"], 1);
}

TEST_P(InAPipe, ARankThatFailsAloneFailsTheJob) {
  Words actions = {"init", "sum"};
  for (const std::string& action : GetParam().actions) actions.push_back(action.substr(0, action.find('@')));
  const auto result = in_a_pipe(1, actions);
  EXPECT_EQ(result.exit_code, GetParam().exit_code) << result.err;
}

TEST(Wrapped, RanksThatEndWithZeroHaveNotFailed) {
  for (const Words& end : {Words{}, Words{"exit:0"}, Words{"leave", "exit-now:0"}}) {
    for (const int ranks : {1, 2}) {
      const auto result = in_a_pipe(ranks, joined({"init", "sum"}, end));
      EXPECT_EQ(result.exit_code, 0) << result.err;
    }
  }
}

TEST(Wrapped, AnExceptionIsSaidThoughAShellReturnsItsSignalAsACode) {
  const auto result = testing::run(run_command(
      {"-n", "2"}, "sh", {"-c", "\"$@\"; exit $?", "sh", RANK_PROGRAM, "init", "sum", "throw:mine@1", "loop@0"}));
  EXPECT_EQ(result.exit_code, 134) << result.err;
  EXPECT_TRUE(contains(lines_of(result.err).back(), "it exited with code 134: 'std::runtime_error': mine;"))
      << result.err;
}

TEST(Wrapped, ARankThatFailsIsStartedAgain) {
  const auto result = in_a_pipe(2, {"init", "train:5", "exit:3@1"}, {"--max-restarts", "1"});
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_TRUE(contains(result.err, "restart 1 of 1 (--max-restarts); 5 steps done")) << result.err;
}

}  // namespace
}  // namespace lockstep::e2e::wrapped_test
