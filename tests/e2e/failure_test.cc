// SPDX-License-Identifier: Apache-2.0
// What `lockstep run` does when a rank of any program fails: names it first, ends the others, returns its exit code.
// harm_test.cc has the ways in which a rank fails.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "runtime/base/unique_fd.h"
#include "tests/e2e/job.h"
#include "tests/support/error_of.h"
#include "tests/support/leftovers.h"

namespace lockstep::e2e::failure_test {
namespace {

using lockstep::testing::expect_text;
using testing::live_ranks;
using testing::run;

TEST(Failure, TheFirstRankToFailIsNamedBelowItsLastWordsAndItsCodeReturned) {
  Job job(4, {PLAIN_PROGRAM, "ready", "wait-signal:10@2", "eprint:first@2", "eprint:it broke@2", "exit:42@2", "hang"});
  ASSERT_TRUE(job->await_output("ready", 4));
  const pid_t pid = live_ranks(PLAIN_PROGRAM).at(2);
  kill(pid, SIGUSR1);
  const auto verdict = job.expect(
      {.exit_code = 42, .rank = 2, .how = "exited with code 42; 3 other ranks ended after it; ", .pid = pid});
  const auto& first = verdict["first_failure"];
  EXPECT_EQ(first["exit_code"], 42);
  EXPECT_EQ(first["last_lines"], (Words{"first", "it broke"}));
  EXPECT_EQ(first["log"], (job.folder() / "start1" / "rank2.err").native());
  const std::string& err = job.result().err;
  const std::string named = "pid " + std::to_string(pid) + ") exited with code 42 ";
  expect_text(err, {named, "; ending the other 3 ranks\n",
                    "  the end of " + first["log"].get<std::string>() + ":\n  | first\n  | it broke\n"});
  EXPECT_LT(err.find("[rank 2] it broke"), err.find(named)) << "its last words come first";
  EXPECT_TRUE(contains(lines_of(err).back(), verdict["summary"])) << err;
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
  Job job(3, {PLAIN_PROGRAM, "ignore:15", "ready", "wait-signal:10@0", "exit:3@0", "hang"});
  ASSERT_TRUE(job->await_output("ready", 3));
  kill(live_ranks(PLAIN_PROGRAM).at(0), SIGUSR1);
  const std::string killed = "2 other ranks ended after it (2 of them by SIGKILL, 700 ms after SIGTERM)";
  const auto verdict = job.expect({.exit_code = 3, .rank = 0, .how = "exited with code 3; " + killed});
  for (const auto& rank : verdict["consequences"]) EXPECT_EQ(rank["killed_by_launcher"], true);
}

TEST(Failure, ACulpritThatDoesNotEndIsNotWaitedForLongerThanTheGracePeriod) {
  Job job(2, {PLAIN_PROGRAM, "exit:75@0", "hang@1"}, {"--grace", "0.1"});
  job.expect({.exit_code = 75, .rank = 0});
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

}  // namespace
}  // namespace lockstep::e2e::failure_test
