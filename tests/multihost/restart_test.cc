// SPDX-License-Identifier: Apache-2.0
// Jobs on several hosts that are started again: ranks that die, hosts that go and come.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "launcher/base/exit_codes.h"
#include "runtime/job/exit_code.h"
#include "tests/multihost/launched_hosts.h"
#include "tests/support/leftovers.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing::restart_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kEndless = 100'000'000;

class RestartedHosts : public LaunchedHosts {
 protected:
  // All hosts see one folder.
  Words program(const std::string& name, int steps) const {
    return {TRAINING_PROGRAM, (folder_ / name).string(), (folder_ / (name + ".weights")).string(),
            std::to_string(steps)};
  }
  std::string weights(const std::string& name) const {
    std::ifstream in(folder_ / (name + ".weights"), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  Process training_on(int host, const Words& flags, int steps = kEndless) {
    return launch(host, 2, program("job", steps), flags, {{"LOCKSTEP_LIVENESS", "on"}});
  }
  // Start `number`, from 1, of so many ranks: after that some steps are done.
  static bool await_start(const Process& launcher, int ranks, int number) {
    return launcher.await_output(" of " + std::to_string(ranks) +
                                 (number == 1 ? "\n" : ", start " + std::to_string(number) + "\n"));
  }
  // Steps are done in the start that is under way.
  static bool await_steps(const Process& first) {
    int evaluations = 0;
    const std::string out = first.out();
    for (auto at = out.find("evaluating"); at != out.npos; at = out.find("evaluating", at + 1)) ++evaluations;
    return first.await_output("evaluating", evaluations + 2);
  }
  // The job is asked to stop at its first host; all of `launchers` say that it did.
  static void expect_stop(Process& first, std::vector<Process*> others) {
    first.send(SIGTERM);
    others.push_back(&first);
    for (Process* launcher : others) {
      const Result result = launcher->wait();
      EXPECT_EQ(result.exit_code, kExitRequeue) << result.err;
      EXPECT_THAT(result.err, HasSubstr("got SIGTERM; exit code 75"));
    }
    EXPECT_TRUE(live_ranks().empty());
  }

  const TemporaryFolder folder_;
};

TEST_F(RestartedHosts, ARankThatDiesHasAllOfThemStartTheirRanksAgainWithTheSameBitsInTheEnd) {
  constexpr int kSteps = 400;
  for (const std::string name : {"undisturbed", "killed"}) {
    auto launchers = launch_all(program(name, kSteps), {}, {"--max-restarts", "1"});
    if (name == "killed") {
      ASSERT_TRUE(launchers[0].await_output("at 150\n"));
      kill(live_ranks("e2e_training").at(3), SIGKILL);
    }
    for (Process& launcher : launchers) {
      const Result result = launcher.wait();
      EXPECT_EQ(result.exit_code, 0) << result.err;
      if (name == "undisturbed") continue;
      EXPECT_THAT(result.err, AllOf(HasSubstr("rank 3 failed first: it was killed by signal 9 (SIGKILL)"),
                                    HasSubstr("restart 1 of 1 (--max-restarts); "), HasSubstr(" of 6, start 2\n")));
    }
  }
  EXPECT_FALSE(weights("undisturbed").empty());
  EXPECT_EQ(weights("killed"), weights("undisturbed"));
}

// No heartbeat has spoken of a step yet, and nobody is left to speak of it.
TEST_F(RestartedHosts, OfWhichAllRanksAreKilledAfterTheirFirstStepStartThemAgainWithTheSameBitsInTheEnd) {
  constexpr int kSteps = 100;
  for (const std::string name : {"undisturbed", "killed"}) {
    const bool is_killed = name == "killed";
    auto launchers = launch_all(program(name, kSteps), {{"LOCKSTEP_TEST_KILLED_STARTS", is_killed ? "2" : "0"}},
                                {"--max-restarts", "3"});
    for (Process& launcher : launchers) {
      const Result result = launcher.wait();
      EXPECT_EQ(result.exit_code, 0) << result.err;
      if (!is_killed) continue;
      EXPECT_THAT(result.err, AllOf(HasSubstr("restart 1 of 3 (--max-restarts); 1 step done\n"),
                                    HasSubstr("restart 2 of 3 (--max-restarts); 1 step done; in 1 s\n"),
                                    HasSubstr(" of 6, start 3\n")));
    }
  }
  EXPECT_FALSE(weights("undisturbed").empty());
  EXPECT_EQ(weights("killed"), weights("undisturbed"));
}

TEST_F(RestartedHosts, ThatMayGoLeaveTheJobToTheOthers) {
  nnodes_ = "2:3";
  lets_store_give_ranks_ = true;
  std::vector<Process> launchers;
  for (int host = 0; host < kHosts; ++host) launchers.push_back(training_on(host, {}));
  ASSERT_TRUE(launchers[0].await_output("at 50\n"));
  launchers[1].send(SIGKILL);
  launchers[1].wait();
  ASSERT_TRUE(await_start(launchers[0], 4, 2));
  ASSERT_TRUE(await_start(launchers[2], 4, 2));
  EXPECT_THAT(launchers[0].err(), HasSubstr("starting the ranks of the hosts that are here; "));
  ASSERT_TRUE(await_steps(launchers[0]));
  expect_stop(launchers[0], {&launchers[2]});
}

TEST_F(RestartedHosts, WhoseCableIsOutLeaveTheJobToTheOthersAndComeBackWithIt) {
  nnodes_ = "2:3";
  lets_store_give_ranks_ = true;
  std::vector<Process> launchers;
  for (int host = 0; host < kHosts; ++host) launchers.push_back(training_on(host, {}));
  ASSERT_TRUE(launchers[0].await_output("at 50\n"));
  hosts_->cut(2);
  ASSERT_TRUE(await_start(launchers[0], 4, 2));
  EXPECT_THAT(launchers[0].err(), HasSubstr("host host2 (node rank "));
  ASSERT_TRUE(launchers[2].await_output("joining the job again, if the job's store at " + kEndpoint + " answers"));
  hosts_->mend(2);
  ASSERT_TRUE(
      launchers[0].await_output("a new host has joined: the ranks stop after a step, and start again with this host"));
  for (const Process& launcher : launchers) ASSERT_TRUE(await_start(launcher, 6, 3));
  ASSERT_TRUE(await_steps(launchers[0]));
  expect_stop(launchers[0], {&launchers[1], &launchers[2]});
}

TEST_F(RestartedHosts, WhoseLauncherStoodStillIsTakenInAgain) {
  nnodes_ = "2:3";
  lets_store_give_ranks_ = true;
  std::vector<Process> launchers;
  for (int host = 0; host < kHosts; ++host) launchers.push_back(training_on(host, {}));
  ASSERT_TRUE(launchers[0].await_output("at 50\n"));
  launchers[1].send(SIGSTOP);
  ASSERT_TRUE(await_start(launchers[0], 4, 2));
  launchers[1].send(SIGCONT);
  for (const Process& launcher : launchers) ASSERT_TRUE(await_start(launcher, 6, 3));
  EXPECT_THAT(launchers[1].err(), HasSubstr("this launcher has stood still, and the job continued without this host"));
  ASSERT_TRUE(await_steps(launchers[0]));
  expect_stop(launchers[0], {&launchers[1], &launchers[2]});
}

struct Standstill {
  std::string name;
  std::string nnodes;
  int host = 0;
  bool is_whole = false;  // with its ranks; else the launcher alone
};
void PrintTo(const Standstill& standstill, std::ostream* out) { *out << standstill.name; }

class StandingHost : public RestartedHosts, public ::testing::WithParamInterface<Standstill> {
 protected:
  void signal_host(const std::vector<Process>& launchers, int signal) {
    const Process& launcher = launchers[static_cast<std::size_t>(GetParam().host)];
    const auto pids = GetParam().is_whole ? processes_of(launcher) : std::vector<pid_t>{launcher.pid()};
    for (const pid_t pid : pids) {
      ASSERT_TRUE(kill(pid, signal) == 0 || errno == ESRCH) << pid;  // a rank may have ended with its launcher
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Of, StandingHost,
                         ::testing::Values(Standstill{"AFixedNumberWithTheStoreItsLauncher", "3", 0, false},
                                           Standstill{"AFixedNumberWithTheStore", "3", 0, true},
                                           Standstill{"AFixedNumberItsLauncher", "3", 1, false},
                                           Standstill{"AFixedNumber", "3", 1, true},
                                           Standstill{"TwoOrThreeWithTheStoreItsLauncher", "2:3", 0, false},
                                           Standstill{"TwoOrThreeWithTheStore", "2:3", 0, true},
                                           Standstill{"TwoOrThreeItsLauncher", "2:3", 1, false},
                                           Standstill{"TwoOrThree", "2:3", 1, true},
                                           Standstill{"OneToThreeWithTheStore", "1:3", 0, true}),
                         [](const auto& test) { return test.param.name; });

// The other launchers end their ranks, which handle SIGTERM: nobody has asked the job to stop.
TEST_P(StandingHost, IsNamedAndTakenInAgainAndTheJobResumes) {
  nnodes_ = GetParam().nnodes;
  const int standing = GetParam().host;
  lets_store_give_ranks_ = true;
  std::vector<Process> launchers;
  for (int host = 0; host < kHosts; ++host) launchers.push_back(training_on(host, {"--max-restarts", "9"}));
  ASSERT_TRUE(launchers[0].await_output("at 50\n"));
  signal_host(launchers, SIGSTOP);
  for (int host = 0; host < kHosts; ++host) {
    if (host == standing) continue;
    ASSERT_TRUE(launchers[static_cast<std::size_t>(host)].await_output(" is gone: its launcher (pid "));
  }
  signal_host(launchers, SIGCONT);
  for (const Process& launcher : launchers) ASSERT_TRUE(launcher.await_output(" of 6, start "));
  ASSERT_TRUE(await_steps(launchers[0]));
  const std::string said = launchers[0].err();
  const std::string name = "lockstep run: host host" + std::to_string(standing) + " (node rank ";
  EXPECT_THAT(said, HasSubstr(name));
  EXPECT_THAT(said, HasSubstr(standing == 0 ? ") stood still for " : ") does not answer"));
  EXPECT_THAT(said, Not(HasSubstr(" failed first: ")));
  for (const Process& launcher : launchers) {
    EXPECT_THAT(launcher.err(), Not(HasSubstr("got SIGTERM")));
    EXPECT_THAT(launcher.err(), Not(HasSubstr("guardian process was killed")));
  }
  expect_stop(launchers[0], {&launchers[1], &launchers[2]});
}

TEST_F(RestartedHosts, OneThatWasCutOffAndIsBackIsGuardedAgain) {
  std::vector<Process> launchers;
  Words wrapped{"sh", "-c", "setsid sleep 4321 & \"$0\" \"$@\"; exit $?"};
  const Words training = program("job", kEndless);
  wrapped.insert(wrapped.end(), training.begin(), training.end());
  for (int host = 0; host < kHosts; ++host) {
    launchers.push_back(launch(host, 2, wrapped, {"--max-restarts", "9"}, {{"LOCKSTEP_LIVENESS", "on"}}));
  }
  ASSERT_TRUE(launchers[0].await_output("at 50\n"));
  hosts_->cut(2);
  ASSERT_TRUE(launchers[2].await_output("joining the job again"));
  hosts_->mend(2);
  for (const Process& launcher : launchers) ASSERT_TRUE(await_start(launcher, 6, 2));
  ASSERT_TRUE(await_steps(launchers[0]));
  EXPECT_THAT(launchers[2].err(), Not(HasSubstr("guardian process was killed")));
  const auto guards = [&] {
    int count = 0;
    for (const auto& process : processes_with("LOCKSTEP_TEST_JOB", job())) {
      if (process.name == "lockstep-guard" && process.parent == launchers[2].pid()) ++count;
    }
    return count;
  };
  EXPECT_EQ(guards(), 1);
  launchers[2].send(SIGKILL);
  launchers[2].wait();
  ASSERT_TRUE(launchers[0].await_output("waiting for 1 host"));
  // What the others have started they have ended by now.
  EXPECT_TRUE(wait_until([] {
    for (const auto& process : processes_with("LOCKSTEP_TEST_JOB", job())) {
      if (process.name == "sleep") return false;
    }
    return true;
  }));
  for (const int host : {0, 1}) launchers[static_cast<std::size_t>(host)].send(SIGTERM);
  for (const int host : {0, 1}) EXPECT_EQ(launchers[static_cast<std::size_t>(host)].wait().exit_code, kExitRequeue);
}

TEST_F(RestartedHosts, WhichAreLessThanHalfOfTheLastStartResumeWhereTheStoreIs) {
  nnodes_ = "1:3";
  lets_store_give_ranks_ = true;
  std::vector<Process> launchers;
  for (int host = 0; host < kHosts; ++host) launchers.push_back(training_on(host, {}));
  ASSERT_TRUE(launchers[0].await_output("at 50\n"));
  hosts_->cut(1);
  hosts_->cut(2);
  // Of both in one start, or of one after the other.
  ASSERT_TRUE(launchers[0].await_output(" of 2, start "));
  ASSERT_TRUE(await_steps(launchers[0]));
  for (const int host : {1, 2}) {
    const Process& launcher = launchers[static_cast<std::size_t>(host)];
    ASSERT_TRUE(launcher.await_output("joining the job again"));
    EXPECT_THAT(launcher.err(), Not(HasSubstr(", start 2"))) << "it has no store";
  }
  hosts_->mend(1);
  hosts_->mend(2);
  for (const Process& launcher : launchers) ASSERT_TRUE(launcher.await_output(" of 6, start "));
  ASSERT_TRUE(await_steps(launchers[0]));
  EXPECT_THAT(launchers[0].err(), Not(HasSubstr("waiting for ")));
  expect_stop(launchers[0], {&launchers[1], &launchers[2]});
}

// Each host has a disk of its own, with the shares of its ranks.
class HostsOfShards : public RestartedHosts {
 protected:
  void SetUp() override {
    RestartedHosts::SetUp();
    nnodes_ = "2:3";
    lets_store_give_ranks_ = true;
  }
  Process training_in(const std::string& name, int host, int steps, Words flags = {}) {
    Words command = program(name, steps);
    command[1] += "." + std::to_string(host);
    flags.insert(flags.end(), {"--max-restarts", "1"});
    return launch(host, 2, command, flags, {{"LOCKSTEP_LIVENESS", "on"}, {"LOCKSTEP_TEST_SHARD", "1"}});
  }
};

TEST_F(HostsOfShards, WaitForTheOneThatIsLostAndEndWithTheSameBits) {
  constexpr int kSteps = 400;
  for (const std::string name : {"undisturbed", "lost"}) {
    std::vector<Process> launchers;
    for (int host = 0; host < kHosts; ++host) launchers.push_back(training_in(name, host, kSteps));
    if (name == "lost") {
      ASSERT_TRUE(launchers[0].await_output("at 150\n"));
      launchers[1].send(SIGKILL);
      launchers[1].wait();
      ASSERT_TRUE(launchers[0].await_output("waiting for 1 host (--rdzv-timeout 300 s)"));
      EXPECT_THAT(launchers[0].err(),
                  AllOf(HasSubstr("nothing is damaged, but step "), HasSubstr(" on the disk of host host1"),
                        HasSubstr("the ranks start again once another host has joined")));
      launchers.push_back(training_in(name, 1, kSteps));
    }
    for (Process& launcher : launchers) {
      if (name == "lost" && &launcher == &launchers[1]) continue;
      const Result result = launcher.wait();
      EXPECT_EQ(result.exit_code, 0) << result.err;
    }
  }
  EXPECT_FALSE(weights("undisturbed").empty());
  EXPECT_EQ(weights("lost"), weights("undisturbed"));
}

TEST_F(HostsOfShards, EndInTimeIfTheOneThatIsLostDoesNotComeBackAndCallNothingDamaged) {
  std::vector<Process> launchers;
  for (const int host : {1, 2}) launchers.push_back(training_in("job", host, kEndless));
  launchers.push_back(training_in("job", 0, kEndless, {"--rdzv-timeout", "8"}));
  ASSERT_TRUE(launchers[2].await_output("at 50\n"));
  launchers[0].send(SIGKILL);
  launchers[0].wait();
  for (const int i : {1, 2}) {
    const Result result = launchers[static_cast<std::size_t>(i)].wait();
    EXPECT_EQ(result.exit_code, kExitPeerLost) << result.err;
    EXPECT_THAT(result.err,
                AllOf(HasSubstr("no other host has joined, elapsed 8"), HasSubstr("on the disk of host host1"),
                      HasSubstr("nothing is damaged"), Not(HasSubstr("begin anew"))));
  }
}

TEST_F(RestartedHosts, AreNotHarmedByOneThatWasToldAnotherNumber) {
  nnodes_ = "2:3";
  lets_store_give_ranks_ = true;
  std::vector<Process> launchers;
  for (int host = 0; host < 2; ++host) launchers.push_back(training_on(host, {"--rdzv-wait", "1"}));
  ASSERT_TRUE(launchers[0].await_output("at 50\n"));
  nnodes_ = "2";
  auto other = training_on(2, {});
  const Result refused = other.wait();
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("host host2 was told --nnodes 2, host host0 --nnodes 2:3; give both the same"));
  ASSERT_TRUE(await_steps(launchers[0]));
  EXPECT_THAT(launchers[0].err(), Not(HasSubstr("start 2")));
  expect_stop(launchers[0], {&launchers[1]});
}

TEST_F(RestartedHosts, OneRankAloneIsJoinedByOthers) {
  nnodes_ = "1:2";
  lets_store_give_ranks_ = true;
  const Variables on{{"LOCKSTEP_LIVENESS", "on"}};
  auto first = launch(0, 1, program("job", kEndless), {"--rdzv-wait", "0"}, on);
  ASSERT_TRUE(first.await_output("at 50\n"));
  auto second = launch(1, 1, program("job", kEndless), {}, on);
  ASSERT_TRUE(await_start(first, 2, 2));
  ASSERT_TRUE(await_steps(first));
  expect_stop(first, {&second});
}

TEST_F(RestartedHosts, AreTakenInWhileTheJobRunsAndNoStepIsLost) {
  nnodes_ = "1:3";
  lets_store_give_ranks_ = true;
  auto first = training_on(0, {"--rdzv-wait", "0"});
  ASSERT_TRUE(await_start(first, 2, 1));
  ASSERT_TRUE(first.await_output("at 50\n"));
  auto second = training_on(1, {});
  ASSERT_TRUE(second.await_output("the job runs on 1 host (host0) without this host"));
  ASSERT_TRUE(await_start(first, 4, 2));
  ASSERT_TRUE(await_start(second, 4, 2));
  ASSERT_TRUE(first.await_output("resumes from step "));
  const std::string err = first.err();
  const auto number_behind = [&err](const std::string& words) {
    const auto at = err.find(words);
    return at == std::string::npos ? -1 : std::atoi(err.c_str() + at + words.size());
  };
  EXPECT_GT(number_behind("stopped after "), 0) << err;
  EXPECT_EQ(number_behind("resumes from step "), number_behind("stopped after ")) << err;
  ASSERT_TRUE(await_steps(first));
  expect_stop(first, {&second});
}

TEST_F(RestartedHosts, OfAFixedNumberWaitForAnotherInThePlaceOfTheLost) {
  std::vector<Process> launchers;
  for (int host = 0; host < kHosts; ++host) launchers.push_back(training_on(host, {"--max-restarts", "1"}));
  ASSERT_TRUE(launchers[0].await_output("at 50\n"));
  launchers[2].send(SIGKILL);
  launchers[2].wait();
  ASSERT_TRUE(launchers[0].await_output("waiting for 1 host (--rdzv-timeout 300 s)"));
  auto spare = training_on(2, {"--max-restarts", "1"});
  for (const Process* launcher : {&launchers[0], &launchers[1], &spare}) ASSERT_TRUE(await_start(*launcher, 6, 2));
  ASSERT_TRUE(launchers[0].await_output("resumes from step "));
  ASSERT_TRUE(await_steps(launchers[0]));
  expect_stop(launchers[0], {&launchers[1], &spare});
}

TEST_F(RestartedHosts, ThatWaitForAnotherAreEndedByASignalToOneOfThem) {
  std::vector<Process> launchers;
  for (int host = 0; host < kHosts; ++host) launchers.push_back(training_on(host, {"--max-restarts", "1"}));
  ASSERT_TRUE(launchers[0].await_output("at 50\n"));
  launchers[2].send(SIGKILL);
  launchers[2].wait();
  ASSERT_TRUE(launchers[0].await_output("waiting for 1 host"));
  // Of which launcher does not matter.
  launchers[1].send(SIGTERM);
  for (const int host : {0, 1}) {
    const Result result = launchers[static_cast<std::size_t>(host)].wait();
    EXPECT_EQ(result.exit_code, kExitRequeue) << result.err;
    EXPECT_THAT(result.err, HasSubstr("stopped by SIGTERM between two starts"));
  }
  EXPECT_TRUE(live_ranks().empty());
}

TEST_F(RestartedHosts, OfWhichOneIsTooManyAreNamedToIt) {
  std::vector<Process> launchers;
  for (int host = 0; host < kHosts; ++host) launchers.push_back(training_on(host, {}));
  ASSERT_TRUE(launchers[0].await_output("at 50\n"));
  lets_store_give_ranks_ = true;
  auto further = training_on(1, {});
  const Result refused = further.wait();
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("host host1 can't join the job: the job has its 3 hosts already (host0, host1, "
                                     "host2): this host would be one more; correct --nnodes"));
  expect_stop(launchers[0], {&launchers[1], &launchers[2]});
}

TEST_F(RestartedHosts, OfWhichOneIsTooManyMayWaitForTheLossOfAnother) {
  std::vector<Process> launchers;
  for (int host = 0; host < kHosts; ++host) launchers.push_back(training_on(host, {"--max-restarts", "1"}));
  ASSERT_TRUE(launchers[0].await_output("at 50\n"));
  lets_store_give_ranks_ = true;
  auto spare = training_on(1, {"--max-restarts", "1"});
  ASSERT_TRUE(spare.await_output("this host waits, to take the place of one that is lost"));
  launchers[2].send(SIGKILL);
  launchers[2].wait();
  ASSERT_TRUE(await_start(spare, 6, 2));
  ASSERT_TRUE(await_steps(launchers[0]));
  auto another = training_on(2, {"--max-restarts", "1"});
  ASSERT_TRUE(another.await_output("this host waits, to take the place of one that is lost"));
  expect_stop(launchers[0], {&launchers[1], &spare});
  const Result over = another.wait();
  EXPECT_EQ(over.exit_code, kExitRequeue) << over.err;
  EXPECT_THAT(over.err, HasSubstr("the job is over; exit code 75"));
}

TEST_F(RestartedHosts, OfAFixedNumberWhoseCableWasOutComeBackWithIt) {
  std::vector<Process> launchers;
  for (int host = 0; host < kHosts; ++host) launchers.push_back(training_on(host, {"--max-restarts", "1"}));
  ASSERT_TRUE(launchers[0].await_output("at 50\n"));
  hosts_->cut(2);
  ASSERT_TRUE(launchers[0].await_output("waiting for 1 host"));
  ASSERT_TRUE(launchers[2].await_output("joining the job again"));
  hosts_->mend(2);
  for (const Process& launcher : launchers) ASSERT_TRUE(await_start(launcher, 6, 2));
  ASSERT_TRUE(await_steps(launchers[0]));
  expect_stop(launchers[0], {&launchers[1], &launchers[2]});
}

TEST_F(RestartedHosts, OneThatIsNotHealthyAnyMoreLeavesTheJobToTheOthers) {
  nnodes_ = "2:3";
  lets_store_give_ranks_ = true;
  const std::string mark = (folder_ / "sick").string();
  std::vector<Process> launchers;
  for (int host = 0; host < kHosts; ++host) {
    Words flags{"--max-restarts", "1"};
    if (host == 2) flags.insert(flags.end(), {"--health-check", "test ! -e " + mark});
    launchers.push_back(training_on(host, flags));
  }
  ASSERT_TRUE(launchers[0].await_output("at 50\n"));
  std::ofstream(mark) << "x";
  kill(live_ranks("e2e_training").at(0), SIGKILL);
  const Result sick = launchers[2].wait();
  EXPECT_EQ(sick.exit_code, kExitRequeue);
  EXPECT_THAT(sick.err,
              HasSubstr("--health-check `test ! -e " + mark + "` exited with code 1: no rank is started here"));
  ASSERT_TRUE(await_start(launchers[0], 4, 2));
  EXPECT_THAT(launchers[0].err(), HasSubstr("host host2: --health-check `"));
  ASSERT_TRUE(await_steps(launchers[0]));
  expect_stop(launchers[0], {&launchers[1]});
}

TEST_F(RestartedHosts, OneOnWhichRanksOnlyFailIsLeftOut) {
  nnodes_ = "1:2";
  lets_store_give_ranks_ = true;
  auto first = training_on(0, {"--rdzv-wait", "0", "--max-restarts", "9"});
  ASSERT_TRUE(first.await_output("at 50\n"));
  const auto start_bad = [&] {
    return launch(1, 2, {"sh", "-c", "exit 9"}, {"--max-restarts", "9"}, {{"LOCKSTEP_LIVENESS", "on"}});
  };
  auto bad = start_bad();
  ASSERT_TRUE(first.await_output(
      "host host1 is left out: its ranks failed first in 3 starts in a row without a new step; restart 3 of 9"));
  const Result left_out = bad.wait();
  EXPECT_EQ(left_out.exit_code, launcher::kExitNoProgress) << left_out.err;
  EXPECT_THAT(left_out.err, HasSubstr("host host1 is left out of this job: its ranks failed first in 3 starts"));
  ASSERT_TRUE(await_steps(first));
  auto again = start_bad();
  EXPECT_EQ(again.wait().exit_code, launcher::kExitNoProgress);
  ASSERT_TRUE(await_steps(first));
  EXPECT_THAT(first.err(), Not(HasSubstr("restart 4")));
  expect_stop(first, {});
}

TEST_F(RestartedHosts, ThatAreTooFewWithoutTheLostEndTheJobInTime) {
  nnodes_ = "2:3";
  lets_store_give_ranks_ = true;
  std::vector<Process> launchers;
  for (int host = 0; host < 2; ++host) {
    launchers.push_back(training_on(host, {"--rdzv-wait", "1", "--rdzv-timeout", "3"}));
  }
  ASSERT_TRUE(launchers[0].await_output("at 50\n"));
  launchers[1].send(SIGKILL);
  launchers[1].wait();
  const Result result = launchers[0].wait();
  EXPECT_EQ(result.exit_code, kExitPeerLost);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("waiting for 1 host (--rdzv-timeout 3 s)"), HasSubstr("1 of 2 hosts came, elapsed 3"),
                    HasSubstr(": host host0; missing: host host1 (node rank 1)"), Not(HasSubstr("start 2"))));
}

}  // namespace
}  // namespace lockstep::testing::restart_test
