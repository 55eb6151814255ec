// SPDX-License-Identifier: Apache-2.0
// Nothing of a job is left, whoever of it is killed.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "tests/e2e/launch.h"
#include "tests/support/leftovers.h"

namespace lockstep::e2e::orphans_test {
namespace {

using testing::Footprint;
using testing::leftover_deadline;
using testing::live_ranks;
using testing::run;

// The program behind a shell that stays: the rank is the shell, the program its child.
Words wrapped(int ranks, const std::string& wrapper) {
  return run_command({"-n", std::to_string(ranks)}, "sh", {"-c", wrapper, PLAIN_PROGRAM});
}

TEST(Orphans, NoneWhenTheLauncherIsKilled) {
  Footprint footprint;
  Process launcher({.command = plain(4, {"ignore:15", "ready", "hang"})});
  ASSERT_TRUE(launcher.await_output("ready", 4));
  footprint.look();
  EXPECT_GE(footprint.pids().size(), 6u) << "launcher, guardian, ranks";
  launcher.send(SIGKILL);
  EXPECT_EQ(footprint.left_after(leftover_deadline()), "");
}

TEST(Orphans, NoneWhenTheLauncherIsKilledAndRanksAreBehindWrappers) {
  Footprint footprint;
  Process launcher({.command = wrapped(3, "\"$0\" ignore:15 ready hang; true")});
  ASSERT_TRUE(launcher.await_output("ready", 3));
  footprint.look();
  EXPECT_GE(footprint.pids().size(), 8u) << "launcher, guardian, shells, programs";
  launcher.send(SIGKILL);
  EXPECT_EQ(footprint.left_after(leftover_deadline()), "");
}

TEST(Orphans, NoneWhenTheLauncherIsKilledAndAChildHasASessionOfItsOwn) {
  Footprint footprint;
  Process launcher({.command = plain(2, {"child-session", "ready", "hang"})});
  ASSERT_TRUE(launcher.await_output("child ", 2));
  footprint.look();
  launcher.send(SIGKILL);
  EXPECT_EQ(footprint.left_after(leftover_deadline()), "");
}

// Of this test's job, by the number that it was started with: it has no environment.
bool sleeps(const std::string& seconds) {
  const auto result = run({"pgrep", "-f", "^sleep " + seconds + "$"});
  return result.exit_code == 0;
}

TEST(Orphans, NoneWhenTheLauncherIsKilledAndAChildHasDroppedItsSessionAndItsEnvironment) {
  if (!testing::has_program("pgrep")) GTEST_SKIP() << "there is no pgrep here";
  const std::string seconds = std::to_string(1000000 + getpid());
  Process launcher({.command = wrapped(2, "env -i setsid sleep " + seconds + " & \"$0\" ready hang; true")});
  ASSERT_TRUE(launcher.await_output("ready", 2));
  ASSERT_TRUE(testing::wait_until([&] { return sleeps(seconds); }));
  launcher.send(SIGKILL);
  EXPECT_TRUE(testing::wait_until([&] { return !sleeps(seconds); }, leftover_deadline()));
  run({"pkill", "-9", "-f", "^sleep " + seconds + "$"});
}

TEST(Orphans, NoneWhenTheWholeProcessGroupOfTheLauncherIsKilled) {
  Footprint footprint;
  Process launcher({.command = wrapped(2, "\"$0\" ready hang; true")});
  ASSERT_TRUE(launcher.await_output("ready", 2));
  footprint.look();
  ASSERT_EQ(kill(-launcher.pid(), SIGKILL), 0);
  EXPECT_EQ(footprint.left_after(leftover_deadline()), "");
}

TEST(Orphans, NoneWhenARankIsKilled) {
  Footprint footprint;
  Process launcher({.command = plain(3, {"ignore:15", "ready", "hang"})});
  ASSERT_TRUE(launcher.await_output("ready", 3));
  footprint.look();
  kill(live_ranks(PLAIN_PROGRAM).at(1), SIGKILL);
  EXPECT_EQ(launcher.wait().exit_code, 137);
  EXPECT_EQ(footprint.left_after(leftover_deadline()), "");
}

TEST(Orphans, NoneWhenAProgramBehindAWrapperIsKilled) {
  Footprint footprint;
  Process launcher({.command = wrapped(3, "\"$0\" ignore:15 ready hang; exit $?")});
  ASSERT_TRUE(launcher.await_output("ready", 3));
  footprint.look();
  kill(live_ranks(PLAIN_PROGRAM).at(1), SIGKILL);
  const auto result = launcher.wait();
  EXPECT_EQ(result.exit_code, 137) << "the shell says it";
  EXPECT_TRUE(contains(result.err, "rank 1 (host ")) << result.err;
  EXPECT_EQ(footprint.left_after(leftover_deadline()), "");
}

TEST(Orphans, NoneWhenAWrapperIsKilledAndItsProgramIsNot) {
  Footprint footprint;
  Process launcher({.command = wrapped(3, "\"$0\" ignore:15 ready hang; true")});
  ASSERT_TRUE(launcher.await_output("ready", 3));
  footprint.look();
  kill(live_ranks("sh").at(1), SIGKILL);
  const auto result = launcher.wait();
  EXPECT_EQ(result.exit_code, 137);
  EXPECT_TRUE(contains(result.err, "rank 1 (host ")) << result.err;
  EXPECT_EQ(footprint.left_after(leftover_deadline()), "");
}

TEST(Orphans, WhatARankLeavesIsEndedWithTheJob) {
  for (const std::string child : {"child", "child-session"}) {
    Footprint footprint;
    const auto result = run(plain(2, {child + "@1"}));
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_TRUE(contains(result.err, "left 1 process; the first is e2e_plain (pid ")) << result.err;
    EXPECT_EQ(footprint.left_after(leftover_deadline()), "");
  }
}

Words without_stdout(const Words& command) { return joined({"sh", "-c", "exec \"$@\" >/dev/null", "sh"}, command); }

TEST(Orphans, AChildThatNeverStopsWritingDoesNotHoldTheLauncher) {
  Footprint footprint;
  const auto result = run(without_stdout(plain(2, {"child-flood@1", "exit:3@1", "hang"})));
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_TRUE(contains(result.err, "rank 1 (host ")) << result.err;
  EXPECT_EQ(footprint.left_after(leftover_deadline()), "");
}

TEST(Orphans, SignalsAreServedWhileAChildOfARankThatEndedNeverStopsWriting) {
  Footprint footprint;
  Process launcher({.command = without_stdout(
                        plain(2, {"child-flood@1", "exit:0@1", "wait-signal:10", "eprint:served", "exit:3"}))});
  ASSERT_TRUE(testing::wait_until([&] {  // rank 1 has ended: its child is the launcher's
    for (const auto& process : testing::processes_with("LOCKSTEP_TEST_JOB", testing::job())) {
      const auto rank = process.environment.find("RANK");
      if (rank != process.environment.end() && rank->second == "1")
        return process.parent == launcher.pid() && process.pid != process.group;
    }
    return false;
  }));
  launcher.send(SIGUSR1);
  EXPECT_EQ(launcher.wait().exit_code, 3);
  EXPECT_TRUE(contains(launcher.err(), "[rank 0] served\n")) << launcher.err();
  EXPECT_EQ(footprint.left_after(leftover_deadline()), "");
}

TEST(Orphans, ChildrenThatTheLauncherHadBeforeAreNotItsBusiness) {
  Process launcher(
      {.command = {"sh", "-c", "\"$1\" print:stranger wait-signal:10 & exec \"$0\" run -n 2 -- \"$1\" print:rank",
                   LOCKSTEP_PROGRAM, PLAIN_PROGRAM}});
  // Its output ends when the stranger does, so it still runs after both ranks have ended.
  ASSERT_TRUE(launcher.await_output("] rank", 2));
  ASSERT_TRUE(testing::wait_until([&] { return !launcher.running(); }));
  const auto alive = testing::processes_with("LOCKSTEP_TEST_JOB", testing::job());
  ASSERT_EQ(alive.size(), 1u);
  kill(alive.front().pid, SIGUSR1);
  EXPECT_EQ(launcher.wait().exit_code, 0);
}

pid_t guardian() {
  for (const auto& process : testing::processes_with("LOCKSTEP_TEST_JOB", testing::job())) {
    if (process.name == "lockstep-guard") return process.pid;
  }
  return 0;
}

TEST(Orphans, NoneWhenTheGuardianIsKilledBeforeTheLauncher) {
  Footprint footprint;
  Process launcher({.command = wrapped(2, "\"$0\" ignore:15 ready hang; true")});
  ASSERT_TRUE(launcher.await_output("ready", 2));
  footprint.look();
  const pid_t first = guardian();
  ASSERT_GT(first, 0);
  kill(first, SIGKILL);
  ASSERT_TRUE(launcher.await_output("the guardian process was killed, and a new one was started"));
  EXPECT_NE(guardian(), first);
  launcher.send(SIGKILL);
  EXPECT_EQ(footprint.left_after(leftover_deadline()), "");
}

TEST(Orphans, TheGuardiansDeathIsSaidAndTheJobGoesOn) {
  Process launcher({.command = plain(2, {"ready", "wait-signal:10"})});
  ASSERT_TRUE(launcher.await_output("ready", 2));
  for (int death = 1; death <= 3; ++death) {
    kill(guardian(), SIGKILL);
    ASSERT_TRUE(launcher.await_output("a new one was started", death));
  }
  kill(guardian(), SIGKILL);
  ASSERT_TRUE(launcher.await_output("is not replaced"));
  launcher.send(SIGUSR1);
  EXPECT_EQ(launcher.wait().exit_code, 0);
}

// As process 1 of a PID namespace, as in a container. Needs the right to make one.
TEST(Orphans, AsProcessOneItReapsForwardsAndReturnsTheCode) {
  Words inside = {"unshare", "--pid", "--fork", "--kill-child", "--mount-proc"};
  if (geteuid() != 0) inside = joined(inside, {"--user", "--map-root-user"});
  const auto probe = run(joined(inside, {"true"}));
  if (probe.exit_code != 0) GTEST_SKIP() << "can't make a PID namespace here: " << probe.err;
  Process launcher({.command = joined(inside, plain(2, {"parent", "child", "ready", "wait-signal:10"}))});
  ASSERT_TRUE(launcher.await_output("ready", 2));
  EXPECT_TRUE(contains(launcher.out(), "parent 1 group own\n")) << launcher.out();
  pid_t first = 0;
  for (const auto& process : testing::processes_with("LOCKSTEP_TEST_JOB", testing::job())) {
    if (process.parent == launcher.pid()) first = process.pid;
  }
  ASSERT_GT(first, 0);
  kill(first, SIGUSR1);
  const auto result = launcher.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(contains(result.err, "left 2 processes")) << result.err;

  const auto failing = run(joined(inside, plain(2, {"exit:9@1", "hang@0"})));
  EXPECT_EQ(failing.exit_code, 9);
}

}  // namespace
}  // namespace lockstep::e2e::orphans_test
