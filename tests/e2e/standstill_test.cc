// SPDX-License-Identifier: Apache-2.0
// Ranks, launchers and hosts of the store that stand still or fall silent without being dead: who is named, and who
// must not be. harm_test.cc has ranks that are stopped or hang in a job that fails of it.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <filesystem>

#include "tests/e2e/job.h"
#include "tests/support/error_of.h"
#include "tests/support/leftovers.h"
#include "tests/support/rank_processes.h"

namespace lockstep::e2e::standstill_test {
namespace {

using lockstep::testing::expect_text;
using testing::live_ranks;
using testing::process_state;
using testing::RankProcesses;
using testing::wait_until;

const Variables kLiveness = {{"LOCKSTEP_LIVENESS", "on"}};
const Words kReducing = {RANK_PROGRAM, "init", "sum", "print:reducing", "loop"};

// Longer than it takes to call somebody silent.
Deadline longer_than_silence() { return Deadline::after(std::chrono::milliseconds(3500)); }

TEST(Standstill, AStoppedWrapperWhoseProgramHasEndedIsNamed) {
  Job job(2, {"sh", "-c", "\"$0\" ready wait-signal:10; true", PLAIN_PROGRAM}, {}, kLiveness);
  ASSERT_TRUE(job->await_output("ready", 2));
  const auto programs = live_ranks(PLAIN_PROGRAM);
  kill(live_ranks("sh").at(1), SIGSTOP);
  for (const int rank : {0, 1}) kill(programs.at(rank), SIGUSR1);
  job.expect({.exit_code = 75, .rank = 1});
  expect_text(job.result().err, {") is stopped (SIGSTOP) for "});
}

TEST(Standstill, WithoutLivenessAStoppedRankIsSaidAndWaitedForAndSoAreTheMissing) {
  Process launcher({.command = run_command({"-n", "2"}, RANK_PROGRAM, {"raise:19@1", "init", "sum"})});
  ASSERT_TRUE(launcher.await_output(") is stopped (SIGSTOP) for "));
  ASSERT_TRUE(launcher.await_output("1 of 2 ranks has waited for 10 s in init_process_group; missing: rank 1 (pid "));
  const pid_t stopped = live_ranks(RANK_PROGRAM).at(1);
  expect_text(launcher.err(), {", e2e_rank) is stopped (SIGSTOP or Ctrl-Z)\n",
                               "and is waited for, as LOCKSTEP_LIVENESS=off says; 'kill -CONT " +
                                   std::to_string(stopped) + "' resumes it"});
  kill(stopped, SIGCONT);
  const auto result = launcher.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_text(result.out, {"[rank 1] sum 3 of 2"});
}

TEST(Standstill, CtrlZOfTheJobEndsNobody) {
  Process launcher(
      {.command = run_command({"-n", "2"}, RANK_PROGRAM, {"init", "sum", "print:ready", "wait-signal:10", "sum"}),
       .environment = kLiveness});
  ASSERT_TRUE(launcher.await_output("ready", 2));
  const auto all = live_ranks(RANK_PROGRAM);
  launcher.send(SIGTSTP);
  ASSERT_TRUE(wait_until([&] {
    return process_state(launcher.pid()) == 'T' && process_state(all.at(0)) == 'T' && process_state(all.at(1)) == 'T';
  }));
  EXPECT_FALSE(wait_until([&] { return process_state(all.at(0)) != 'T'; }, longer_than_silence()));
  launcher.send(SIGCONT);
  launcher.send(SIGUSR1);
  const auto result = launcher.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_FALSE(contains(result.err, "is stopped")) << result.err;
}

// Ranks by hand: rank 0 hosts the store.

void expect_lost(RankProcesses& ranks, int survivor, const std::vector<std::string>& words) {
  const Result result = ranks[survivor].wait();
  EXPECT_EQ(result.exit_code, 75) << "PeerLost, not Timeout: " << result.err;
  for (const auto& word : words) EXPECT_TRUE(contains(result.err, word)) << word << " in " << result.err;
}

TEST(Liveness, AStoppedRankIsNamedLongBeforeTheTimeoutAndLearnsOfIt) {
  RankProcesses ranks(2, {.command = kReducing, .environment = kLiveness});
  ASSERT_TRUE(ranks.await_output("reducing"));
  const std::string who = "pid " + std::to_string(ranks[1].pid()) + ") stopped answering: ";
  ranks.kill(1, SIGSTOP);
  expect_lost(ranks, 0, {"rank 1 (host ", who, "the last collective it had started is "});
  ranks.kill(1, SIGCONT);
  expect_lost(ranks, 1, {who});
}

TEST(Liveness, AKilledRankThatHostsTheStoreIsNamed) {
  RankProcesses ranks(3, {.command = kReducing, .environment = kLiveness});
  ASSERT_TRUE(ranks.await_output("reducing"));
  ranks.kill(0, SIGKILL);
  for (const int rank : {1, 2}) {
    expect_lost(ranks, rank, {"rank 0 (host ", "pid " + std::to_string(ranks[0].pid()) + ")"});
  }
}

// Holds every thread of a process, as gdb does.
class Debugger {
 public:
  explicit Debugger(pid_t pid) {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
      const pid_t thread = std::stoi(entry.path().filename());
      EXPECT_EQ(ptrace(PTRACE_SEIZE, thread, nullptr, nullptr), 0) << thread;
      EXPECT_EQ(ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr), 0) << thread;
      EXPECT_EQ(waitpid(thread, nullptr, __WALL), thread);
      threads_.push_back(thread);
    }
  }
  void detach() {
    for (const pid_t thread : threads_) EXPECT_EQ(ptrace(PTRACE_DETACH, thread, nullptr, nullptr), 0) << thread;
    threads_.clear();
  }

 private:
  std::vector<pid_t> threads_;
};

// The silence of rank 0, which hosts the store, is seen by the others and not by the store.
TEST(Liveness, ARankUnderADebuggerIsWaitedFor) {
  for (const int held : {0, 1}) {
    RankProcesses ranks(3, {.command = kReducing, .environment = kLiveness});
    ASSERT_TRUE(ranks.await_output("reducing"));
    Debugger debugger(ranks[held].pid());
    const Deadline silence = longer_than_silence();
    const auto all_run = [&] { return ranks[0].running() && ranks[1].running() && ranks[2].running(); };
    EXPECT_TRUE(wait_until([&] { return silence.expired() || !all_run(); }));
    EXPECT_TRUE(all_run()) << "rank " << held << " is held by a debugger";
    debugger.detach();
    // All are well: the next failure is the first.
    ranks.kill(2, SIGKILL);
    for (const int rank : {0, 1}) expect_lost(ranks, rank, {"pid " + std::to_string(ranks[2].pid()) + ")"});
  }
}

TEST(Liveness, AStoppedLauncherAccusesNobodyAndNobodyAccusesIt) {
  // In files of their own, which a stopped launcher need not write, so that what the ranks say can be waited for.
  const testing::TemporaryFolder folder;
  const std::string into_files =
      "exec \"$0\" init sum print:reducing loop >\"$FOLDER/rank$RANK.out\" 2>\"$FOLDER/rank$RANK.err\"";
  Job job(2, {"sh", "-c", into_files, RANK_PROGRAM}, {}, {{"LOCKSTEP_LIVENESS", "on"}, {"FOLDER", folder.native()}});
  const auto both_say = [&](const std::string& file, const std::string& text) {
    return wait_until([&] {
      return contains(content(folder / ("rank0" + file)), text) && contains(content(folder / ("rank1" + file)), text);
    });
  };
  ASSERT_TRUE(both_say(".out", "reducing"));
  const auto before = live_ranks(RANK_PROGRAM);
  ASSERT_EQ(before.size(), 2u);
  job->send(SIGSTOP);
  EXPECT_TRUE(both_say(".err", "the job continues")) << "the ranks noticed";
  EXPECT_EQ(live_ranks(RANK_PROGRAM), before);
  job->send(SIGCONT);
  EXPECT_TRUE(both_say(".err", "answers again"));
  EXPECT_EQ(live_ranks(RANK_PROGRAM), before);
  kill(before.at(1), SIGKILL);
  job.expect({.exit_code = 128 + SIGKILL, .rank = 1, .how = "was killed by signal 9"});
}

}  // namespace
}  // namespace lockstep::e2e::standstill_test
