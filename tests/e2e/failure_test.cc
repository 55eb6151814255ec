// SPDX-License-Identifier: Apache-2.0
// What `lockstep run` does when a rank fails: names it first, ends the others, returns its exit code.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>

#include "runtime/base/unique_fd.h"
#include "tests/e2e/launch.h"
#include "tests/support/error_of.h"
#include "tests/support/leftovers.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::e2e::failure_test {
namespace {

using lockstep::testing::expect_text;
using testing::live_ranks;
using testing::run;

std::string first_word_of_launcher(const Result& result) {
  for (const auto& line : lines_of(result.err)) {
    if (line.starts_with("lockstep run: ") && !contains(line, ": the threads take turns, ")) return line;
  }
  return {};
}

TEST(Failure, TheFirstRankToFailIsNamedAndItsCodeReturned) {
  Process launcher({.command = plain(4, {"ready", "wait-signal:10@2", "eprint:it broke@2", "exit:42@2", "hang"})});
  ASSERT_TRUE(launcher.await_output("ready", 4));
  const pid_t pid = live_ranks(PLAIN_PROGRAM).at(2);
  kill(pid, SIGUSR1);
  const auto result = launcher.wait();
  EXPECT_EQ(result.exit_code, 42);
  const auto line = first_word_of_launcher(result);
  expect_text(line,
              {"rank 2 (host ", ", pid " + std::to_string(pid) + ") exited with code 42", "ending the other 3 ranks"});
  EXPECT_LT(result.err.find("[rank 2] it broke"), result.err.find(line)) << "its last words come first";
  EXPECT_EQ(lines_of(result.err).back(),
            "lockstep run: rank 2 failed first: it exited with code 42; 3 other ranks ended after it; exit code 42");
}

TEST(Failure, ASignalIsNamedAndIts128IsAdded) {
  Process launcher({.command = plain(3, {"ready", "hang"})});
  ASSERT_TRUE(launcher.await_output("ready", 3));
  kill(live_ranks(PLAIN_PROGRAM).at(1), SIGKILL);
  const auto result = launcher.wait();
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_TRUE(contains(first_word_of_launcher(result), "was killed by signal 9 (SIGKILL)")) << result.err;
}

TEST(Failure, AnUncaughtExceptionIsAnAbort) {
  const auto result = run(plain(2, {"throw:of my own@1", "hang@0"}));
  EXPECT_EQ(result.exit_code, 128 + SIGABRT);
  EXPECT_TRUE(contains(first_word_of_launcher(result), "rank 1")) << result.err;
  expect_text(lines_of(result.err).back(), {"(SIGABRT): 'std::runtime_error': of my own; "});
}

TEST(Failure, TheOthersGetSigtermAtOnceAndMayEndByIt) {
  // With an hour of grace only the SIGTERM can be what ends them.
  Process launcher(
      {.command =
           plain(3, {"ready", "wait-signal:10@0", "exit:3@0", "wait-signal:15", "print:ended by sigterm", "exit:7"},
                 {"--grace", "3600"})});
  ASSERT_TRUE(launcher.await_output("ready", 3));
  kill(live_ranks(PLAIN_PROGRAM).at(0), SIGUSR1);
  const auto result = launcher.wait();
  EXPECT_EQ(result.exit_code, 3);
  expect_text(result.out, {"[rank 1] ended by sigterm\n", "[rank 2] ended by sigterm\n"});
  EXPECT_FALSE(contains(result.err, "SIGKILL")) << result.err;
}

TEST(Failure, WhoIgnoresSigtermIsKilledAfterTheGracePeriod) {
  Process stubborn({.command = plain(3, {"ignore:15", "ready", "wait-signal:10@0", "exit:3@0", "hang"})});
  ASSERT_TRUE(stubborn.await_output("ready", 3));
  kill(live_ranks(PLAIN_PROGRAM).at(0), SIGUSR1);
  const auto killed = stubborn.wait();
  EXPECT_EQ(killed.exit_code, 3);
  expect_text(killed.err, {"2 other ranks ended after it (2 of them by SIGKILL, 700 ms after SIGTERM)"});
}

TEST(Failure, ARankThatEndsEarlyWithZeroHurtsNobody) {
  Process launcher({.command = plain(3, {"exit:0@1", "ready", "wait-signal:10", "print:went on"})});
  ASSERT_TRUE(launcher.await_output("ready", 2));
  ASSERT_TRUE(testing::wait_until([] { return !live_ranks(PLAIN_PROGRAM).contains(1); }));
  launcher.send(SIGUSR1);
  const auto result = launcher.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_text(result.out, {"[rank 0] went on\n", "[rank 2] went on\n"});
}

TEST(Failure, ARankThatOnlyHeardOfItIsNotNamedAsTheCause) {
  // 75 is what the library ends a rank with whose peer was lost. The culprit takes its time.
  Process launcher(
      {.command = plain(3, {"ready", "wait-signal:10", "exit:75@0", "exit:75@2", "wait-signal:12", "exit:5"},
                        {"--grace", "3600"})});
  ASSERT_TRUE(launcher.await_output("ready", 3));
  launcher.send(SIGUSR1);
  ASSERT_TRUE(testing::wait_until([] { return live_ranks(PLAIN_PROGRAM).size() == 1; }));
  launcher.send(SIGUSR2);
  const auto result = launcher.wait();
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_TRUE(contains(first_word_of_launcher(result), "rank 1 (host ")) << result.err;
  expect_text(result.err, {"2 other ranks ended after it"});
}

TEST(Failure, WhenEveryRankOnlyHeardOfItTheFirstIsNamed) {
  const auto result = run(plain(2, {"exit:75"}, {"--grace", "3600"}));
  EXPECT_EQ(result.exit_code, 75);
  expect_text(result.err, {"lost another rank", "1 other rank ended after it"});
}

TEST(Failure, ACulpritThatDoesNotEndIsNotWaitedForLongerThanTheGracePeriod) {
  const auto result = run(plain(2, {"exit:75@0", "hang@1"}, {"--grace", "0.1"}));
  EXPECT_EQ(result.exit_code, 75);
  EXPECT_TRUE(contains(first_word_of_launcher(result), "rank 0 (host ")) << result.err;
}

TEST(Failure, ASlowReaderIsWaitedForAsleep) {
  // Nobody reads stdout, and the time of the SIGKILL that nobody needed passes meanwhile.
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd read_end(ends[0]);
  const UniqueFd write_end(ends[1]);
  const auto inherited = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(ends[1]);
  Process launcher({.command = joined({"sh", "-c", "exec \"$@\" >\"$0\"", inherited},
                                      plain(2, {"flood:6000@1", "exit:3@1", "hang"}, {"--grace", "0.2"}))});
  ASSERT_TRUE(launcher.await_output("failed first"));
  const auto timers = Deadline::after(std::chrono::milliseconds(500));
  EXPECT_TRUE(testing::wait_until([&] { return timers.expired() && testing::process_state(launcher.pid()) == 'S'; }))
      << "it must sleep, not ask again and again";
  launcher.send(SIGTERM);
  EXPECT_EQ(launcher.wait().exit_code, 3);
}

TEST(Failure, WithLogDirTheLastLinesOfTheRankAreShown) {
  const testing::TemporaryFolder folder;
  const auto result =
      run(plain(2, {"eprint:first@1", "eprint:the reason@1", "exit:5@1", "hang@0"}, {"--log-dir", folder.native()}));
  EXPECT_EQ(result.exit_code, 5);
  expect_text(result.err,
              {"  the end of " + (folder / "start1" / "rank1.err").native() + ":\n  | first\n  | the reason\n"});
}

TEST(Failure, WhenAllFailAtOnceOneIsNamedAndTheOthersAreCounted) {
  const auto result = run(plain(4, {"exit:6"}));
  EXPECT_EQ(result.exit_code, 6);
  expect_text(result.err, {"exit code 6\n"});
  int named = 0;
  for (const auto& line : lines_of(result.err)) named += contains(line, "after the start") ? 1 : 0;
  EXPECT_EQ(named, 1) << result.err;
}

}  // namespace
}  // namespace lockstep::e2e::failure_test
