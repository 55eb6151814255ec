// SPDX-License-Identifier: Apache-2.0
// How a rank is told to stop, and what its launcher reads of it.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#include "runtime/job/step_board.h"
#include "runtime/job/stop_signals.h"
#include "tests/support/child.h"
#include "tests/support/error_of.h"
#include "tests/support/limited_to.h"

namespace lockstep::stop_signals_test {
namespace {

using lockstep::testing::Child;
using lockstep::testing::error_of;
using lockstep::testing::expect_text;
using lockstep::testing::LimitedTo;
using lockstep::testing::Line;
using namespace std::chrono_literals;

std::atomic<int> called{0};
void count_calls(int /*signal*/) { ++called; }

TEST(StopSignals, KeepsTheFirstUntilItGoes) {
  {
    const StopSignals outer(StopSignals::Options{});
    EXPECT_EQ(StopSignals::first(), 0);
    std::raise(SIGUSR1);
    std::raise(SIGTERM);
    EXPECT_EQ(StopSignals::first(), SIGUSR1);
    { const StopSignals inner(StopSignals::Options{}); }
    EXPECT_EQ(StopSignals::first(), SIGUSR1) << "one is left";
    StopSignals::obeyed();
  }
  EXPECT_EQ(StopSignals::first(), 0);
}

// The handler of SIGUSR1, for a scope.
class Usr1 {
 public:
  using Handler = void (*)(int);
  explicit Usr1(Handler handler) : before_(std::signal(SIGUSR1, handler)) {}
  ~Usr1() { std::signal(SIGUSR1, before_); }
  Usr1(const Usr1&) = delete;
  Usr1& operator=(const Usr1&) = delete;
  static Handler now() {
    struct sigaction now {};
    EXPECT_EQ(sigaction(SIGUSR1, nullptr, &now), 0);
    return now.sa_handler;
  }

 private:
  const Handler before_;
};

TEST(StopSignals, GivesTheHandlersOfBeforeBackAndCallsThem) {
  const Usr1 own(count_calls);
  called = 0;
  {
    const StopSignals signals(StopSignals::Options{});
    std::raise(SIGUSR1);
    EXPECT_EQ(StopSignals::first(), SIGUSR1);
    EXPECT_EQ(called, 1);
  }
  EXPECT_EQ(Usr1::now(), count_calls);
  const Usr1 ignored(SIG_IGN);
  const StopSignals signals(StopSignals::Options{});
  std::raise(SIGUSR1);
  EXPECT_EQ(StopSignals::first(), 0) << "what is ignored stays so";
}

std::atomic<bool> was_on_its_own_stack{false};
void look_at_the_stack(int /*signal*/) {
  stack_t now{};
  was_on_its_own_stack = sigaltstack(nullptr, &now) == 0 && (now.ss_flags & SS_ONSTACK) != 0;
}

// oneDNN's matrix kernels move the stack pointer into the heap: a frame there is written over what is not a stack.
TEST(StopSignals, HandlersLeaveTheInterruptedStackAlone) {
  const Usr1 own(look_at_the_stack);
  const auto raise = [] {
    was_on_its_own_stack = false;
    const StopSignals signals(StopSignals::Options{});
    std::raise(SIGUSR1);
    EXPECT_TRUE(was_on_its_own_stack);
  };
  std::thread(raise).join();
  raise();
}

TEST(StopSignals, RefusesWhatCantBeHandled) {
  for (const int signal : {SIGKILL, SIGSTOP, 0, 65, -1}) {
    expect_text(error_of([&] { const StopSignals signals({.signals = {SIGUSR1, signal}}); }), {"can't be handled"});
  }
  EXPECT_EQ(Usr1::now(), SIG_DFL) << "nothing is left of what was installed before the one that was refused";
}

TEST(StopSignalsDeathTest, TwoInOneGoAreOneAndALaterOneEndsTheProcess) {
  EXPECT_EXIT(
      {
        const StopSignals signals(StopSignals::Options{});
        std::raise(SIGTERM);
        std::raise(SIGTERM);
        std::fputs("still here\n", stderr);
        while (true) std::raise(SIGTERM);
      },
      ::testing::KilledBySignal(SIGTERM), "^still here\n$");
}

TEST(StopSignalsDeathTest, TheTimerSaysWhereTheProcessIsAndEndsItByTheFirstSignal) {
  const StopSignals::Options options{.timeout = 10ms, .who = "rank 2"};
  const auto stands = [&](auto before) {
    const StopSignals signals(options);
    before();
    std::raise(SIGINT);
    while (true) pause();
  };
  EXPECT_EXIT(
      stands([] {}), ::testing::KilledBySignal(SIGINT),
      R"(^\[lockstep rank 2\] did not stop: it got SIGINT, and no step .* in the 0.0 s since; it has begun none;)");
  StepBoard board(1);
  board.set_stop(LauncherStop::ends_ranks);
  EXPECT_EXIT(stands([] { open_step_board(getppid(), 0); }), ::testing::KilledBySignal(SIGINT),
              "did not stop: its launcher ends all ranks, by SIGINT, and no step");
  EXPECT_EXIT(stands([] {
                StopSignals::step_begun(15);
                StopSignals::step_ended(16);
              }),
              ::testing::KilledBySignal(SIGINT), "it has done 16 steps, and is outside of a backward");
  EXPECT_EXIT(stands([] {
                StopSignals::step_ended(16);
                StopSignals::step_begun(16);
              }),
              ::testing::KilledBySignal(SIGINT),
              "it has done 16 steps, and is within the backward of the next.*; ending by SIGINT");
}

TEST(StopSignals, ASecondSignalOfTheLaunchersChangesNothing) {
  const StopSignals signals(StopSignals::Options{.launcher = getpid()});
  const auto begin = std::chrono::steady_clock::now();
  do {
    ::kill(getpid(), SIGTERM);
  } while (std::chrono::steady_clock::now() - begin < 2 * StopSignals::kOneRequest);
  EXPECT_EQ(StopSignals::first(), SIGTERM);
}

TEST(StopSignalsDeathTest, ASecondSignalOfAnotherProcessEndsIt) {
  EXPECT_EXIT(
      {
        const StopSignals signals(StopSignals::Options{.launcher = getppid()});
        while (true) ::kill(getpid(), SIGTERM);
      },
      ::testing::KilledBySignal(SIGTERM), "");
}

TEST(StopSignals, AForkedChildEndsByTheFirst) {
  const StopSignals signals(StopSignals::Options{});
  Child child([](const Line&) { return std::raise(SIGTERM); });
  EXPECT_EQ(child.wait(), SIGTERM) << "as waitpid() says that it was killed by it";
  EXPECT_EQ(StopSignals::first(), 0);
}

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

void join_again_after_leaving() {
  keep_program_left();
  open_step_board(::getppid(), 1);
}
void fork_a_child_that_exits() {
  if (::fork() == 0) std::exit(5);
  ::wait(nullptr);
}

TEST(StepBoard, HasTheExitCodeOfTheProgramOrThatItHadNone) {
  struct End {
    void (*before)();
    void (*exit)(int);
    int code;
    std::optional<int> kept;
    bool has_left;
  };
  const auto nothing = [] {};
  const End ends[] = {{nothing, std::exit, 3, 3, true},
                      {nothing, std::exit, 256 + 7, 7, true},
                      {nothing, ::_exit, 3, {}, false},
                      {[] { keep_exit_code(75); }, ::_exit, 75, 75, true},
                      {keep_program_left, ::_exit, 0, {}, true},
                      {join_again_after_leaving, ::_exit, 0, {}, false},
                      {fork_a_child_that_exits, ::_exit, 0, {}, false}};
  for (const End& end : ends) {
    const StepBoard board(2);
    EXPECT_FALSE(board.program(1)) << "nobody has come";
    Child rank([&](const Line&) {
      open_step_board(::getppid(), 1);
      end.before();
      end.exit(end.code);
      return 0;
    });
    rank.wait();
    const auto program = board.program(1);
    ASSERT_TRUE(program);
    EXPECT_EQ(program->pid, rank.pid());
    EXPECT_EQ(program->has_left, end.has_left);
    EXPECT_EQ(program->exit_code, end.kept);
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
}  // namespace lockstep::stop_signals_test
