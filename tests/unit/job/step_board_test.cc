// SPDX-License-Identifier: Apache-2.0
#include "runtime/job/step_board.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <vector>

#include "tests/support/child.h"
#include "tests/support/limited_to.h"

namespace lockstep::step_board_test {
namespace {

using lockstep::testing::Child;
using lockstep::testing::LimitedTo;
using lockstep::testing::Line;

TEST(StepBoard, HasTheLastStepOfARankThatWasKilled) {
  const StepBoard board(3);
  Child rank([](const Line& line) {
    open_step_board(::getppid(), 1);
    for (int steps = 57; steps <= 59; ++steps) keep_steps_done(steps);
    keep_saved_step(40);
    line.tell(true);
    return Child::stay();
  });
  ASSERT_TRUE(rank.told<bool>());
  ASSERT_EQ(::kill(rank.pid(), SIGKILL), 0);
  rank.wait();
  EXPECT_EQ(board.steps_done(1), 59);
  EXPECT_EQ(board.saved_step(1), 40);
  EXPECT_EQ(board.saved_step(0), std::nullopt);
  EXPECT_EQ(board.steps_done(0), std::nullopt) << "another rank's word";
  EXPECT_EQ(board.steps_done(2), std::nullopt);
}

TEST(StepBoard, AStepThatHasBegunIsNoneThatIsDoneAndAStartHasAWordOfItsOwn) {
  for (const int steps : {58, 3}) {
    const StepBoard board(1);
    Child rank([steps](const Line& line) {
      open_step_board(::getppid(), 0);
      keep_step_begun();
      line.tell(true);
      bool goes_on = false;
      line.hear(goes_on);
      keep_steps_done(steps);
      keep_step_begun();
      keep_steps_done(steps - 1);  // of another group
      return 0;
    });
    ASSERT_TRUE(rank.told<bool>());
    EXPECT_EQ(board.steps_done(0), 0);
    rank.line().tell(true);
    EXPECT_EQ(rank.wait(), 0);
    EXPECT_EQ(board.steps_done(0), steps);
  }
}

TEST(StepBoard, ARankReadsWhatTheLaunchersSignalIsFor) {
  StepBoard board(2);
  Child rank([](const Line& line) {
    line.tell(launcher_stop() == LauncherStop::none);
    open_step_board(::getppid(), 1);
    line.tell(launcher_stop() == LauncherStop::none);
    bool is_set = false;
    line.hear(is_set);
    line.tell(launcher_stop() == LauncherStop::ends_ranks);
    return 0;
  });
  EXPECT_TRUE(rank.told<bool>()) << "without a board";
  EXPECT_TRUE(rank.told<bool>()) << "before the launcher has stopped anything";
  board.set_stop(LauncherStop::ends_ranks);
  rank.line().tell(true);
  EXPECT_TRUE(rank.told<bool>());
  EXPECT_EQ(rank.wait(), 0);
  EXPECT_EQ(board.steps_done(0), std::nullopt) << "of no rank";
}

[[noreturn]] int quit(int code) { ::_exit(code); }
[[noreturn]] int call_exit(int code) { std::exit(code); }

TEST(StepBoard, HasTheExitCodeOfTheProgramOrThatItHadNone) {
  struct End {
    std::function<int()> body;
    std::optional<int> exit_code = {};
    bool has_left = false;
  };
  const End ends[] = {{[] { return call_exit(3); }, 3, true},
                      {[] { return call_exit(256 + 7); }, 7, true},
                      {[] { return quit(3); }},
                      {[] {
                         keep_exit_code(75);
                         return quit(75);
                       },
                       75, true},
                      {[] {
                         keep_program_left();
                         return quit(0);
                       },
                       {},
                       true},
                      {[] {
                        keep_program_left();
                        open_step_board(::getppid(), 1);
                        return quit(0);
                      }},
                      {[] {
                        if (::fork() == 0) std::exit(5);
                        ::wait(nullptr);
                        return quit(0);
                      }}};
  for (const End& end : ends) {
    const StepBoard board(2);
    EXPECT_FALSE(board.program(1)) << "nobody has come";
    Child rank([&](const Line&) {
      open_step_board(::getppid(), 1);
      return end.body();
    });
    rank.wait();
    const auto program = board.program(1);
    ASSERT_TRUE(program);
    EXPECT_EQ(program->pid, rank.pid());
    EXPECT_EQ(program->has_left, end.has_left);
    EXPECT_EQ(program->exit_code, end.exit_code);
    EXPECT_FALSE(board.program(0));
  }
}

TEST(StepBoard, WhereThereIsNoneOrItHasNoWordForTheRankNothingIsKeptAndNothingFails) {
  Child alone([](const Line&) {
    open_step_board(::getppid(), 0);  // the test has none now
    keep_step_begun();
    keep_steps_done(8);
    return 0;
  });
  EXPECT_EQ(alone.wait(), 0);
  const StepBoard board(1);
  Child one_too_many([](const Line&) {
    open_step_board(::getppid(), 1);
    keep_steps_done(8);
    return 0;
  });
  EXPECT_EQ(one_too_many.wait(), 0);
  EXPECT_EQ(board.steps_done(0), std::nullopt);
  const LimitedTo none(RLIMIT_FSIZE, 0);
  EXPECT_EQ(StepBoard(4).steps_done(3), std::nullopt) << "under a limit on files nobody ends";
}

}  // namespace
}  // namespace lockstep::step_board_test
