// SPDX-License-Identifier: Apache-2.0
// Ranks, and hosts of the store, that are silent without being dead: who is named, and who must not be.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/e2e/launch.h"
#include "tests/support/leftovers.h"
#include "tests/support/rank_processes.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::e2e::liveness_test {
namespace {

using testing::live_ranks;
using testing::process_state;
using testing::RankProcesses;
using testing::wait_until;

// Ranks by hand: rank 0 hosts the store. They reduce until something goes wrong.
RankProcesses ranks_by_hand(int size, Variables environment = {}) {
  environment.emplace("LOCKSTEP_LIVENESS", "on");
  return {size, {.command = {RANK_PROGRAM, "init", "sum", "print:reducing", "loop"}, .environment = environment}};
}

// "rank 1 (host n1, pid 4711)" but for the host.
std::string pid_of(RankProcesses& ranks, int rank) { return "pid " + std::to_string(ranks[rank].pid()) + ")"; }

void expect_part(const std::string& text, const std::string& part) {
  EXPECT_TRUE(contains(text, part)) << "no '" << part << "' in: " << text;
}

// What an uncaught error of the rank says.
std::string fatal_line(const Result& result) {
  for (const auto& line : lines_of(result.err)) {
    if (contains(line, "] fatal: ")) return line;
  }
  return {};
}

// Longer than it takes to call somebody silent.
Deadline longer_than_silence() { return Deadline::after(std::chrono::milliseconds(3500)); }

TEST(Liveness, AStoppedRankIsNamedLongBeforeTheTimeout) {
  auto ranks = ranks_by_hand(3);
  ASSERT_TRUE(ranks.await_output("reducing"));
  ranks.kill(1, SIGSTOP);
  for (const int rank : {0, 2}) {
    const Result result = ranks[rank].wait();
    EXPECT_EQ(result.exit_code, 75) << "PeerLost, not Timeout: " << result.err;
    const std::string line = fatal_line(result);
    expect_part(line, "rank 1 (host ");
    expect_part(line, pid_of(ranks, 1) + " stopped answering: ");
    expect_part(line, "its process is stopped (SIGSTOP or Ctrl-Z)");
    expect_part(line, "the last collective it had started is ");
  }
  // It goes on and learns what became of it.
  ranks.kill(1, SIGCONT);
  const Result result = ranks[1].wait();
  EXPECT_EQ(result.exit_code, 75) << result.err;
  expect_part(fatal_line(result), pid_of(ranks, 1) + " stopped answering: ");
}

TEST(Liveness, AStoppedRankThatHostsTheStoreIsNamed) {
  auto ranks = ranks_by_hand(3);
  ASSERT_TRUE(ranks.await_output("reducing"));
  ranks.kill(0, SIGSTOP);
  for (const int rank : {1, 2}) {
    const Result result = ranks[rank].wait();
    EXPECT_EQ(result.exit_code, 75) << result.err;
    const std::string line = fatal_line(result);
    expect_part(line, pid_of(ranks, 0) + ", which hosts the store at ");
    expect_part(line, "stopped answering: ");
    expect_part(line, "its process is stopped (SIGSTOP or Ctrl-Z)");
  }
}

TEST(Liveness, AKilledRankThatHostsTheStoreIsNamed) {
  auto ranks = ranks_by_hand(3);
  ASSERT_TRUE(ranks.await_output("reducing"));
  ranks.kill(0, SIGKILL);
  for (const int rank : {1, 2}) {
    const Result result = ranks[rank].wait();
    EXPECT_EQ(result.exit_code, 75) << result.err;
    expect_part(fatal_line(result), "rank 0 (host ");
    expect_part(fatal_line(result), pid_of(ranks, 0));
  }
}

TEST(Liveness, SwitchedOffAStoppedRankIsWaitedForUntilTheTimeout) {
  auto ranks = ranks_by_hand(2, {{"LOCKSTEP_LIVENESS", "off"}, {"LOCKSTEP_TIMEOUT", "6"}});
  ASSERT_TRUE(ranks.await_output("reducing"));
  ranks.kill(1, SIGSTOP);
  const Result result = ranks[0].wait();
  EXPECT_EQ(result.exit_code, 1) << result.err;
  expect_part(fatal_line(result), " timed out, ");
  expect_part(fatal_line(result), pid_of(ranks, 1));
}

TEST(Liveness, SwitchedOffAStoppedRankMayGoOn) {
  RankProcesses ranks(2,
                      {.command = {RANK_PROGRAM, "init", "sum", "print:waiting", "wait-signal:10", "sum", "print:done"},
                       .environment = {{"LOCKSTEP_LIVENESS", "off"}}});
  ASSERT_TRUE(ranks.await_output("waiting"));
  ranks.kill(1, SIGSTOP);
  ranks.kill(0, SIGUSR1);
  const Deadline silence = longer_than_silence();
  EXPECT_TRUE(wait_until([&] { return silence.expired() || !ranks[0].running(); }));
  EXPECT_TRUE(ranks[0].running());
  ranks.kill(1, SIGCONT);
  ranks.kill(1, SIGUSR1);
  for (const Result& result : ranks.wait()) EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST(Liveness, AValueThatIsNoneIsRefused) {
  const auto result = testing::run({RANK_PROGRAM, "init"}, {{"LOCKSTEP_LIVENESS", "maybe"}});
  EXPECT_EQ(result.exit_code, 1);
  expect_part(result.err, "LOCKSTEP_LIVENESS='maybe' is unknown");
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

// Rank 0 hosts the store, so this one's silence is seen by the others and not by the store.
TEST(Liveness, ARankUnderADebuggerIsWaitedFor) {
  for (const int held : {0, 1}) {
    auto ranks = ranks_by_hand(3);
    ASSERT_TRUE(ranks.await_output("reducing"));
    Debugger debugger(ranks[held].pid());
    const Deadline silence = longer_than_silence();
    const auto all_run = [&] { return ranks[0].running() && ranks[1].running() && ranks[2].running(); };
    EXPECT_TRUE(wait_until([&] { return silence.expired() || !all_run(); }));
    EXPECT_TRUE(all_run()) << "rank " << held << " is held by a debugger";
    debugger.detach();
    // All are well: the next failure is the first.
    ranks.kill(2, SIGKILL);
    for (const int rank : {0, 1}) {
      const Result result = ranks[rank].wait();
      EXPECT_EQ(result.exit_code, 75) << result.err;
      expect_part(fatal_line(result), pid_of(ranks, 2));
    }
  }
}

TEST(Liveness, AStoppedLauncherAccusesNobodyAndNobodyAccusesIt) {
  // In files of their own, which a stopped launcher need not write, so that what the ranks say can be waited for.
  const testing::TemporaryFolder folder;
  const std::string into_files =
      "exec \"$0\" init sum print:reducing loop >\"$FOLDER/rank$RANK.out\" 2>\"$FOLDER/rank$RANK.err\"";
  Process launcher({.command = run_command({"-n", "2"}, "sh", {"-c", into_files, RANK_PROGRAM}),
                    .environment = {{"LOCKSTEP_LIVENESS", "on"}, {"FOLDER", folder.native()}}});
  const auto both_say = [&](const std::string& file, const std::string& text) {
    return wait_until([&] {
      for (const std::string rank : {"rank0", "rank1"}) {
        std::ostringstream said;
        said << std::ifstream(folder / (rank + file)).rdbuf();
        if (!contains(said.str(), text)) return false;
      }
      return true;
    });
  };
  ASSERT_TRUE(both_say(".out", "reducing"));
  const auto before = live_ranks(RANK_PROGRAM);
  ASSERT_EQ(before.size(), 2u);
  launcher.send(SIGSTOP);
  EXPECT_TRUE(both_say(".err", "the job continues")) << "the ranks noticed";
  EXPECT_EQ(live_ranks(RANK_PROGRAM), before);
  launcher.send(SIGCONT);
  EXPECT_TRUE(both_say(".err", "answers again"));
  EXPECT_EQ(live_ranks(RANK_PROGRAM), before);
  kill(before.at(1), SIGKILL);
  const auto result = launcher.wait();
  EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.err;
  expect_part(result.err, "rank 1 failed first: it was killed by signal 9");
}

TEST(Liveness, WhoLeavesInWhateverOrderIsNotLost) {
  // Rank 0, whose store all of them use, leaves first; the others much later, one after the other.
  RankProcesses ranks(4, {.command = {RANK_PROGRAM, "init", "sum", "print:summed", "wait-signal:10", "leave",
                                      "print:left", "wait-signal:12"}});
  ASSERT_TRUE(ranks.await_output("summed"));
  for (const int rank : {0, 3, 1, 2}) {
    ranks.kill(rank, SIGUSR1);
    // Rank 0 waits for the others before it is through.
    if (rank != 0) {
      ASSERT_TRUE(ranks[rank].await_output("left"));
    }
  }
  ASSERT_TRUE(ranks.await_output("left"));
  for (const int rank : {0, 1, 2, 3}) ranks.kill(rank, SIGUSR2);
  for (const Result& result : ranks.wait()) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_FALSE(contains(result.err, "is lost")) << result.err;
    EXPECT_FALSE(contains(result.err, "stopped answering")) << result.err;
  }
}

}  // namespace
}  // namespace lockstep::e2e::liveness_test
