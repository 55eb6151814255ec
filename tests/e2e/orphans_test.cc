// SPDX-License-Identifier: Apache-2.0
// Nothing of a job is left, whoever of it is killed: no process, no socket, no shared memory.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "tests/e2e/job.h"
#include "tests/e2e/mpi.h"
#include "tests/support/error_of.h"
#include "tests/support/leftovers.h"

namespace lockstep::e2e::orphans_test {
namespace {

using lockstep::testing::expect_text;
using testing::Footprint;
using testing::leftover_deadline;
using testing::live_ranks;
using testing::run;
using testing::wait_until;

// Ranks that have met, reduced once, and go on reducing for ever.
const Words kTraining = {RANK_PROGRAM, "init", "sum", "ready", "loop"};

// The program behind a shell that stays: the rank is the shell, the program its child.
Words behind(const std::string& wrapper, const std::string& program = PLAIN_PROGRAM) {
  return {"sh", "-c", wrapper, program};
}

std::vector<testing::LiveProcess> processes() { return testing::processes_with("LOCKSTEP_TEST_JOB", testing::job()); }
pid_t guardian() {
  for (const auto& process : processes()) {
    if (process.name == "lockstep-guard") return process.pid;
  }
  return 0;
}

struct Killing {
  enum class Of { launcher, process_group, launcher_and_guardians, launcher_and_children, guardian_then_launcher };
  std::string name;
  Of what;
  int ranks;
  Words program;
};
void PrintTo(const Killing& killing, std::ostream* out) { *out << killing.name; }

class Orphans : public ::testing::TestWithParam<Killing> {};

INSTANTIATE_TEST_SUITE_P(
    Killed, Orphans,
    ::testing::Values(
        Killing{"Launcher", Killing::Of::launcher, 4, kTraining},
        Killing{"OfRanksThatIgnoreSigterm", Killing::Of::launcher, 4, {PLAIN_PROGRAM, "ignore:15", "ready", "hang"}},
        Killing{"OfRanksBehindWrappers", Killing::Of::launcher, 3, behind("\"$0\" ignore:15 ready hang; true")},
        Killing{
            "OfAChildInASessionOfItsOwn", Killing::Of::launcher, 2, {PLAIN_PROGRAM, "child-session", "ready", "hang"}},
        Killing{"ItsProcessGroup", Killing::Of::process_group, 2, behind("\"$0\" ready hang; true")},
        // Then the library's own watch is what is left.
        Killing{"AndItsGuardians", Killing::Of::launcher_and_guardians, 3,
                behind("\"$0\" init sum ready loop; exit $?", RANK_PROGRAM)},
        Killing{"AndItsChildrenOfWhatLeftItsSession", Killing::Of::launcher_and_children, 2,
                behind("setsid sleep 4321 & echo ready; wait")},
        Killing{"AfterItsGuardian", Killing::Of::guardian_then_launcher, 2,
                behind("\"$0\" ignore:15 ready hang; true")}),
    [](const auto& test) { return test.param.name; });

TEST_P(Orphans, NoneWhenTheLauncherIsKilled) {
  using Of = Killing::Of;
  const auto& [name, what, ranks, program] = GetParam();
  Footprint footprint;
  Process launcher({.command = run_command({"-n", std::to_string(ranks)}, program.front(),
                                           Words(program.begin() + 1, program.end()))});
  ASSERT_TRUE(launcher.await_output("ready", ranks));
  footprint.look();
  EXPECT_GE(footprint.pids().size(), static_cast<std::size_t>(2 + ranks)) << "launcher, guardian, ranks";
  EXPECT_FALSE(footprint.sockets().empty()) << "the store listens";
  if (what == Of::guardian_then_launcher) {
    const pid_t first = guardian();
    ASSERT_GT(first, 0);
    kill(first, SIGKILL);
    ASSERT_TRUE(launcher.await_output("the guardian process was killed, and a new one was started"));
    EXPECT_NE(guardian(), first);
  }
  for (const auto& process : processes()) {
    const bool is_guardian = process.name == "lockstep-guard" || process.name == "job-guard";
    if ((what == Of::launcher_and_guardians && is_guardian) ||
        (what == Of::launcher_and_children && process.parent == launcher.pid())) {
      kill(process.pid, SIGKILL);
    }
  }
  ASSERT_EQ(kill(what == Of::process_group ? -launcher.pid() : launcher.pid(), SIGKILL), 0);
  EXPECT_EQ(footprint.left_after(leftover_deadline()), "");
}

// The program or the wrapper: the rank is both.
TEST(Leftovers, NoneWhenARankBehindAWrapperIsKilled) {
  for (const std::string program : {PLAIN_PROGRAM, "sh"}) {
    Footprint footprint;
    Job job(3, behind("\"$0\" ignore:15 ready hang; exit $?"));
    ASSERT_TRUE(job->await_output("ready", 3));
    footprint.look();
    kill(live_ranks(program).at(1), SIGKILL);
    job.expect({.exit_code = 137, .rank = 1});
    EXPECT_EQ(footprint.left_after(leftover_deadline()), "");
  }
}

TEST(Leftovers, NoneUnderMpirunWhicheverOfThemIsKilled) {
  LOCKSTEP_NEEDS_MPIRUN();
  for (const bool is_mpirun : {true, false}) {
    Footprint footprint{{"mpirun", "mpiexec", "orterun", "orted", "prterun", "prted", "sh"}};
    Process launcher({.command = joined({"mpirun", "-n", "4"}, kTraining), .environment = mpi_variables()});
    ASSERT_TRUE(launcher.await_output("ready", 4));
    footprint.look();
    kill(is_mpirun ? launcher.pid() : live_ranks(RANK_PROGRAM).at(2), SIGKILL);
    EXPECT_EQ(footprint.left_after(leftover_deadline()), "");
    EXPECT_NE(launcher.wait().exit_code, 0);
  }
}

TEST(Leftovers, WhatARankLeavesIsEndedWithTheJob) {
  for (const std::string child : {"child", "child-session"}) {
    Footprint footprint;
    const auto result = run(plain(2, {child + "@1"}));
    EXPECT_EQ(result.exit_code, 0);
    expect_text(result.err, {"left 1 process; the first is e2e_plain (pid "});
    EXPECT_EQ(footprint.left_after(leftover_deadline()), "");
  }
}

TEST(Leftovers, SignalsAreServedWhileAChildOfARankThatEndedNeverStopsWriting) {
  Footprint footprint;
  Process launcher(
      {.command = joined({"sh", "-c", "exec \"$@\" >/dev/null", "sh"},
                         plain(2, {"child-flood@1", "exit:0@1", "wait-signal:10", "eprint:served", "exit:3"}))});
  ASSERT_TRUE(wait_until([&] {  // rank 1 has ended: its child is the launcher's
    for (const auto& process : processes()) {
      const auto rank = process.environment.find("RANK");
      if (rank != process.environment.end() && rank->second == "1")
        return process.parent == launcher.pid() && process.pid != process.group;
    }
    return false;
  }));
  launcher.send(SIGUSR1);
  EXPECT_EQ(launcher.wait().exit_code, 3);
  expect_text(launcher.err(), {"[rank 0] served\n", "rank 0 (host "});
  EXPECT_EQ(footprint.left_after(leftover_deadline()), "");
}

TEST(Leftovers, ChildrenThatTheLauncherHadBeforeAreNotItsBusiness) {
  Process launcher(
      {.command = {"sh", "-c", "\"$1\" print:stranger wait-signal:10 & exec \"$0\" run -n 2 -- \"$1\" print:rank",
                   LOCKSTEP_PROGRAM, PLAIN_PROGRAM}});
  // Its output ends when the stranger does, so it still runs after both ranks have ended.
  ASSERT_TRUE(launcher.await_output("] rank", 2));
  ASSERT_TRUE(wait_until([&] { return !launcher.running(); }));
  const auto alive = processes();
  ASSERT_EQ(alive.size(), 1u);
  kill(alive.front().pid, SIGUSR1);
  EXPECT_EQ(launcher.wait().exit_code, 0);
}

TEST(Leftovers, TheGuardiansDeathIsSaidAndTheJobGoesOn) {
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
TEST(Leftovers, AsProcessOneItReapsForwardsAndReturnsTheCode) {
  Words inside = {"unshare", "--pid", "--fork", "--kill-child", "--mount-proc"};
  if (geteuid() != 0) inside = joined(inside, {"--user", "--map-root-user"});
  const auto probe = run(joined(inside, {"true"}));
  if (probe.exit_code != 0) GTEST_SKIP() << "can't make a PID namespace here: " << probe.err;
  Process launcher({.command = joined(inside, plain(2, {"parent", "child", "ready", "wait-signal:10"}))});
  ASSERT_TRUE(launcher.await_output("ready", 2));
  expect_text(launcher.out(), {"parent 1 group own\n"});
  pid_t first = 0;
  for (const auto& process : processes()) {
    if (process.parent == launcher.pid()) first = process.pid;
  }
  ASSERT_GT(first, 0);
  kill(first, SIGUSR1);
  const auto result = launcher.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_text(result.err, {"left 2 processes"});
  EXPECT_EQ(run(joined(inside, plain(2, {"exit:9@1", "hang@0"}))).exit_code, 9);
}

}  // namespace
}  // namespace lockstep::e2e::orphans_test
