// SPDX-License-Identifier: Apache-2.0
// What becomes of a training job on three hosts when a launcher, or a whole host, comes to harm: the rows of
// docs/PROMISES.md that take several hosts. Ranks speak over TCP.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <csignal>
#include <regex>
#include <string>
#include <vector>

#include "runtime/job/exit_code.h"
#include "tests/multihost/launched_hosts.h"
#include "tests/support/frozen_process.h"
#include "tests/support/leftovers.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing::failures_test {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

struct Harm {
  std::string name;
  int signal;
};
void PrintTo(const Harm& harm, std::ostream* out) { *out << harm.name; }

class HarmedHosts : public LaunchedHosts, public ::testing::WithParamInterface<Harm> {
 protected:
  void train() {
    const Words program = {TRAINING_PROGRAM, folder_.string(), (folder_ / "weights").string(), "100000000"};
    launchers_ = launch_all(program, {{"LOCKSTEP_LIVENESS", "on"}}, {"--grace", "3"});
    ASSERT_TRUE(launchers_[0].await_output("at 20\n"));
  }
  int signal() const { return GetParam().signal; }
  void hurt_host(int host) {
    victims_ = processes_of(launchers_[static_cast<std::size_t>(host)]);
    ASSERT_GE(victims_.size(), 3u) << "a launcher and two ranks at least";
    for (const pid_t pid : victims_) {
      ASSERT_TRUE(kill(pid, signal()) == 0 || errno == ESRCH) << pid;  // a rank may have ended with its launcher
    }
  }
  void hurt_launcher(int host) {
    victims_ = {launchers_[static_cast<std::size_t>(host)].pid()};
    ASSERT_EQ(kill(victims_.front(), signal()), 0);
  }
  // The others name a host that is lost, and no rank.
  void expect_loss(int lost, const std::vector<int>& others) {
    for (const int host : others) {
      const Result result = launchers_[static_cast<std::size_t>(host)].wait();
      EXPECT_EQ(result.exit_code, kExitPeerLost) << result.err;
      const std::string who = "lockstep run: host host" + std::to_string(lost) + " (node rank " + std::to_string(lost) +
                              ")" + (lost == 0 ? ", which has the job's store," : "");
      EXPECT_THAT(result.err, AllOf(HasSubstr(who + " is gone: its launcher "),
                                    HasSubstr(signal() == SIGSTOP ? "does not answer" : "has ended")));
      EXPECT_THAT(result.err, Not(ContainsRegex("\nlockstep run: rank [0-9] .host ")));
      EXPECT_THAT(result.err, Not(HasSubstr(" failed first: ")));
    }
  }
  // Who was stopped is ended, as a person would.
  void expect_nothing_left() {
    for (const pid_t pid : victims_) kill(pid, SIGKILL);
    EXPECT_TRUE(wait_until([] { return live_ranks().empty(); }));
    for (Process& launcher : launchers_) {
      if (launcher.running()) {
        EXPECT_NE(launcher.wait().exit_code, 0);
      }
    }
  }

  const TemporaryFolder folder_;
  std::vector<Process> launchers_;
  std::vector<pid_t> victims_;
};

INSTANTIATE_TEST_SUITE_P(By, HarmedHosts,
                         ::testing::Values(Harm{"Stop", SIGSTOP}, Harm{"Kill", SIGKILL}, Harm{"Segfault", SIGSEGV}),
                         [](const auto& test) { return test.param.name; });

TEST_P(HarmedHosts, ALauncherOfAnotherHostIsALostHost) {
  train();
  hurt_launcher(1);
  expect_loss(1, {0, 2});
  expect_nothing_left();
}

TEST_P(HarmedHosts, TheLauncherWithTheStoreIsALostHost) {
  train();
  hurt_launcher(0);
  expect_loss(0, {1, 2});
  expect_nothing_left();
}

TEST_P(HarmedHosts, AHostWithAllOfItsProcessesIsALostHost) {
  train();
  hurt_host(2);
  expect_loss(2, {0, 1});
  expect_nothing_left();
}

// Its kernel does not say that the rank is stopped: its launcher, which has its heartbeats, finds it silent.
class FrozenRank : public LaunchedHosts {};

TEST_F(FrozenRank, OfAnotherHostIsNamedByItsLauncher) {
  if (const std::string reason = FrozenProcess::why_not(); !reason.empty()) GTEST_SKIP() << reason;
  const TemporaryFolder folder;
  const Words program = {TRAINING_PROGRAM, folder.string(), (folder / "weights").string(), "100000000"};
  auto launchers = launch_all(program, {{"LOCKSTEP_LIVENESS", "on"}});
  ASSERT_TRUE(launchers[0].await_output("at 20\n"));
  const auto pids = launchers[1].err();
  std::smatch found;
  ASSERT_TRUE(std::regex_search(pids, found, std::regex("rank 3\\] pid ([0-9]+)"))) << pids;
  {
    const FrozenProcess frozen(std::stoi(found[1]));
    EXPECT_TRUE(launchers[0].await_output("rank 3 (host host1, pid " + found[1].str() + ") stopped answering"));
  }
  for (Process& launcher : launchers) {
    const Result result = launcher.wait();
    EXPECT_EQ(result.exit_code, kExitPeerLost) << result.err;
    EXPECT_THAT(result.err, HasSubstr("rank 3 failed first: "));
  }
  EXPECT_TRUE(live_ranks().empty());
}

class CutHosts : public HarmedHosts {};
INSTANTIATE_TEST_SUITE_P(By, CutHosts, ::testing::Values(Harm{"Silence", SIGSTOP}),
                         [](const auto& test) { return test.param.name; });

// Half-open connections: nobody is told that the other end is not there any more.
TEST_P(CutHosts, AnotherHostIsALostHost) {
  train();
  hosts_->cut(1);
  expect_loss(1, {0, 2});
  hosts_->mend(1);
  expect_nothing_left();
}

TEST_P(CutHosts, TheHostWithTheStoreIsALostHost) {
  train();
  hosts_->cut(0);
  expect_loss(0, {1, 2});
  const Result first = launchers_[0].wait();
  EXPECT_EQ(first.exit_code, kExitPeerLost) << first.err;
  EXPECT_THAT(first.err, HasSubstr(" does not answer"));
  EXPECT_TRUE(live_ranks().empty());
}

}  // namespace
}  // namespace lockstep::testing::failures_test
