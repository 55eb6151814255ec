// SPDX-License-Identifier: Apache-2.0
#include "runtime/job/stop_signals.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "runtime/job/step_board.h"
#include "tests/support/error_of.h"

namespace lockstep::testing::stop_signals_test {
namespace {

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
  const pid_t child = fork();
  if (child == 0) {
    std::raise(SIGTERM);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGTERM);
  EXPECT_EQ(StopSignals::first(), 0);
}

}  // namespace
}  // namespace lockstep::testing::stop_signals_test
