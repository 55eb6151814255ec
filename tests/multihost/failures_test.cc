// SPDX-License-Identifier: Apache-2.0
// What becomes of a training job on three hosts when a launcher, a whole host or a rank comes to harm, or a cable is
// out: the rows of docs/PROMISES.md that take several hosts. Ranks speak over TCP.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <csignal>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "runtime/job/exit_code.h"
#include "tests/e2e/job.h"
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
  enum class To { launcher, host, cable };
  std::string name;
  To what;
  int host;
  int signal = SIGSTOP;  // a cable is silent as a process that is stopped
};
void PrintTo(const Harm& harm, std::ostream* out) { *out << harm.name; }

std::vector<Harm> harms() {
  std::vector<Harm> all = {{"CableOfAnotherHost", Harm::To::cable, 2},
                           {"CableOfTheHostWithTheStore", Harm::To::cable, 0}};
  for (const auto& [name, signal] : {std::pair("Stop", SIGSTOP), {"Kill", SIGKILL}, {"Segfault", SIGSEGV}}) {
    all.push_back({std::string(name) + "OfALauncher", Harm::To::launcher, 1, signal});
    all.push_back({std::string(name) + "OfTheLauncherWithTheStore", Harm::To::launcher, 0, signal});
    all.push_back({std::string(name) + "OfAHost", Harm::To::host, 2, signal});
  }
  return all;
}

class TrainingHosts : public LaunchedHosts {
 protected:
  void train(const Words& flags = {}) {
    const Words program = {TRAINING_PROGRAM, (folder_ / "job").string(), (folder_ / "weights").string(), "100000000"};
    launchers_ =
        launch_all(program, {{"LOCKSTEP_LIVENESS", "on"}}, e2e::joined({"--log-dir", logs().native(), "--tee"}, flags));
    ASSERT_TRUE(launchers_[0].await_output("at 20\n"));
  }
  std::filesystem::path logs() const { return folder_ / "logs"; }

  const TemporaryFolder folder_;
  std::vector<Process> launchers_;
};

class HarmedHosts : public TrainingHosts, public ::testing::WithParamInterface<Harm> {};
INSTANTIATE_TEST_SUITE_P(By, HarmedHosts, ::testing::ValuesIn(harms()), [](const auto& of) { return of.param.name; });

TEST_P(HarmedHosts, ALostHostIsNamedAndNoRank) {
  const auto& [name, what, lost, signal] = GetParam();
  train({"--grace", "3"});
  Process& victim = launchers_[static_cast<std::size_t>(lost)];
  std::vector<pid_t> pids;
  if (what == Harm::To::launcher) pids = {victim.pid()};
  if (what == Harm::To::host) pids = processes_of(victim);
  ASSERT_GE(pids.size(), what == Harm::To::host ? 3u : 0u) << "a launcher and two ranks at least";
  for (const pid_t pid : pids) {
    ASSERT_TRUE(kill(pid, signal) == 0 || errno == ESRCH) << pid;  // a rank may have ended with its launcher
  }
  if (what == Harm::To::cable) hosts_->cut(lost);
  const std::string who = "lockstep run: host host" + std::to_string(lost) + " (node rank " + std::to_string(lost) +
                          ")" + (lost == 0 ? ", which has the job's store," : "") + " is gone: its launcher ";
  const std::string why = signal == SIGSTOP ? "does not answer" : "has ended";
  const std::string pid = "(pid " + std::to_string(victim.pid()) + ") ";
  for (int host = 0; host < kHosts; ++host) {
    if (host == lost) continue;
    const Result result = launchers_[static_cast<std::size_t>(host)].wait();
    EXPECT_EQ(result.exit_code, kExitPeerLost) << result.err;
    EXPECT_THAT(result.err, AllOf(HasSubstr(who), HasSubstr(why), Not(HasSubstr(" failed first: ")),
                                  Not(ContainsRegex("\nlockstep run: rank [0-9] .host "))));
    if (lost == 0) continue;
    EXPECT_THAT(result.err, HasSubstr(pid + why));
    e2e::expect_verdict(logs(), result.err, {.exit_code = kExitPeerLost, .lost_host = NetworkHosts::name(lost)});
  }
  // A launcher that continues, and the one behind the cable, learn what became of the job.
  if (signal == SIGSTOP) {
    for (const pid_t one : pids) kill(one, SIGCONT);
    const Result result = victim.wait();
    EXPECT_EQ(result.exit_code, kExitPeerLost) << result.err;
    const bool is_cable = what == Harm::To::cable;
    EXPECT_THAT(result.err,
                HasSubstr(lost == 0  ? (is_cable ? " does not answer" : "and the other hosts took this host for lost")
                          : is_cable ? "host host0 (node rank 0), which has the job's store, is gone: "
                                     : "this launcher has stood still, and the job continued without this host"));
  }
  EXPECT_TRUE(wait_until([] { return live_ranks().empty(); })) << "its guardian ends its ranks";
}

// Its kernel does not say that the rank is stopped: its launcher, which has its heartbeats, finds it silent.
class FrozenRank : public TrainingHosts {};

TEST_F(FrozenRank, OfAnotherHostIsNamedByItsLauncher) {
  if (const std::string reason = FrozenProcess::why_not(); !reason.empty()) GTEST_SKIP() << reason;
  train();
  const auto pids = launchers_[1].err();
  std::smatch found;
  ASSERT_TRUE(std::regex_search(pids, found, std::regex("rank 3\\] pid ([0-9]+)"))) << pids;
  {
    const FrozenProcess frozen(std::stoi(found[1]));
    EXPECT_TRUE(launchers_[0].await_output("rank 3 (host host1, pid " + found[1].str() + ") stopped answering"));
  }
  for (Process& launcher : launchers_) {
    const Result result = launcher.wait();
    EXPECT_EQ(result.exit_code, kExitPeerLost) << result.err;
    e2e::expect_verdict(logs(), result.err,
                        {.exit_code = kExitPeerLost, .rank = 3, .pid = std::stoi(found[1]), .host = "host1"});
  }
  EXPECT_TRUE(live_ranks().empty());
}

TEST_F(LaunchedHosts, ARankThatDiesEndsTheJobOnAllOfThemUnderItsName) {
  const TemporaryFolder folder;
  auto launchers = launch_all({PLAIN_PROGRAM, "print:hello", "eprint:my last words@3", "ready", "hang"}, {},
                              {"--log-dir", folder, "--tee"});
  await_ranks(launchers);
  const pid_t pid = live_ranks(PLAIN_PROGRAM).at(3);
  kill(pid, SIGKILL);
  std::vector<Result> results;
  for (Process& launcher : launchers) results.push_back(launcher.wait());
  for (const Result& result : results) {
    EXPECT_EQ(result.exit_code, 128 + SIGKILL);
    const auto verdict = e2e::expect_verdict(folder, result.err,
                                             {.exit_code = 128 + SIGKILL,
                                              .rank = 3,
                                              .how = "was killed by signal 9 (SIGKILL)",
                                              .pid = pid,
                                              .signal = "SIGKILL",
                                              .host = "host1"});
    EXPECT_EQ(verdict["first_failure"]["last_lines"], Words{"my last words"});
    EXPECT_EQ(verdict["consequences"].size(), 5u);
    EXPECT_THAT(result.err, HasSubstr("; ending the other 5 ranks"));
  }
  EXPECT_THAT(results[0].err,
              AllOf(HasSubstr("  | my last words\n"),
                    HasSubstr("  after it: ranks 0 and 1 (host host0 (node rank 0)): was killed by signal 15"),
                    HasSubstr("  after it: rank 2 (host host1 (node rank 1)): was killed by signal 15"),
                    HasSubstr("  after it: ranks 4 and 5 (host host2 (node rank 2)): was killed by signal 15")));
  EXPECT_TRUE(live_ranks().empty());
  EXPECT_THAT(e2e::content(folder / "job.node1.log"), HasSubstr("Z rank3.out: hello\n"));
}

}  // namespace
}  // namespace lockstep::testing::failures_test
