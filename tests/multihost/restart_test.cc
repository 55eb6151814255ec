// SPDX-License-Identifier: Apache-2.0
// Jobs on several hosts that are started again: ranks that die, hosts that go and come.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <csignal>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

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
  Process training_on(int host, const Words& flags) {
    return launch(host, 2, program("job", kEndless), flags, {{"LOCKSTEP_LIVENESS", "on"}});
  }
  // A job of `hosts` hosts, or of "2:3": the store then gives their ranks. Returns once it trains.
  void train(const Words& flags = {}, const std::string& nnodes = std::to_string(kHosts), int hosts = kHosts) {
    nnodes_ = nnodes;
    lets_store_give_ranks_ = nnodes.find(':') != nnodes.npos;
    launchers_ = on_each(hosts, [&](int host) { return training_on(host, flags); });
    ASSERT_TRUE(launchers_[0].await_output("at 50\n"));
  }
  void kill_launcher(std::size_t host) {
    launchers_[host].send(SIGKILL);
    launchers_[host].wait();
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
  static void expect_stop(const std::vector<Process*>& launchers) {
    launchers.front()->send(SIGTERM);
    for (Process* launcher : launchers) {
      const Result result = launcher->wait();
      EXPECT_EQ(result.exit_code, kExitRequeue) << result.err;
      EXPECT_THAT(result.err, HasSubstr("got SIGTERM; exit code 75"));
    }
    EXPECT_TRUE(live_ranks().empty());
  }

  void expect_stop_of_all() { expect_stop({&launchers_[0], &launchers_[1], &launchers_[2]}); }
  // As many ranks start again, on all hosts, and take steps until they are asked to stop.
  void expect_start_of_all(int number) {
    for (const Process& launcher : launchers_) ASSERT_TRUE(await_start(launcher, 6, number));
    ASSERT_TRUE(await_steps(launchers_[0]));
    expect_stop_of_all();
  }

  const TemporaryFolder folder_;
  std::vector<Process> launchers_;  // by host
};

// A rank dies, or all do after their first step: no heartbeat has spoken of a step yet, and nobody is left to speak of
// it.
TEST_F(RestartedHosts, OfWhichRanksAreKilledStartThemAgainWithTheSameBitsInTheEnd) {
  constexpr int kSteps = 400;
  const std::string restart = " (--max-restarts); ";
  const std::map<std::string, std::vector<std::string>> said = {
      {"undisturbed", {}},
      {"killed",
       {"rank 3 failed first: it was killed by signal 9 (SIGKILL)", "restart 1 of 3" + restart, ", start 2\n"}},
      {"all killed",
       {"restart 1 of 3" + restart + "1 step done\n", "restart 2 of 3" + restart + "1 step done; in 1 s\n",
        " of 6, start 3\n"}}};
  for (const auto& [name, words] : said) {
    auto launchers =
        launch_all(program(name, kSteps), {{"LOCKSTEP_TEST_KILLED_STARTS", name == "all killed" ? "2" : "0"}},
                   {"--max-restarts", "3"});
    if (name == "killed") {
      ASSERT_TRUE(launchers[0].await_output("at 150\n"));
      kill(live_ranks("e2e_training").at(3), SIGKILL);
    }
    for (const Result& result : ends_of(launchers)) {
      for (const std::string& text : words) EXPECT_THAT(result.err, HasSubstr(text));
    }
    EXPECT_FALSE(weights(name).empty());
  }
  EXPECT_EQ(weights("killed"), weights("undisturbed"));
  EXPECT_EQ(weights("all killed"), weights("undisturbed"));
}

TEST_F(RestartedHosts, ThatMayGoLeaveTheJobToTheOthers) {
  train({}, "2:3");
  kill_launcher(1);
  ASSERT_TRUE(await_start(launchers_[0], 4, 2));
  ASSERT_TRUE(await_start(launchers_[2], 4, 2));
  EXPECT_THAT(launchers_[0].err(), HasSubstr("starting the ranks of the hosts that are here; "));
  ASSERT_TRUE(await_steps(launchers_[0]));
  expect_stop({&launchers_[0], &launchers_[2]});
}

TEST_F(RestartedHosts, WhoseCableIsOutLeaveTheJobToTheOthersAndComeBackWithIt) {
  train({}, "2:3");
  hosts_->cut(2);
  ASSERT_TRUE(await_start(launchers_[0], 4, 2));
  EXPECT_THAT(launchers_[0].err(), HasSubstr("host host2 (node rank "));
  ASSERT_TRUE(launchers_[2].await_output("joining the job again, if the job's store at " + kEndpoint + " answers"));
  hosts_->mend(2);
  ASSERT_TRUE(
      launchers_[0].await_output("a new host has joined: the ranks stop after a step, and start again with this host"));
  expect_start_of_all(3);
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
  void signal_host(int signal) {
    const Process& launcher = launchers_[static_cast<std::size_t>(GetParam().host)];
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
  const int standing = GetParam().host;
  train({"--max-restarts", "9"}, GetParam().nnodes);
  signal_host(SIGSTOP);
  for (int host = 0; host < kHosts; ++host) {
    if (host == standing) continue;
    ASSERT_TRUE(launchers_[static_cast<std::size_t>(host)].await_output(" is gone: its launcher (pid "));
  }
  signal_host(SIGCONT);
  for (const Process& launcher : launchers_) ASSERT_TRUE(launcher.await_output(" of 6, start "));
  ASSERT_TRUE(await_steps(launchers_[0]));
  const std::string said = launchers_[0].err();
  const std::string name = "lockstep run: host host" + std::to_string(standing) + " (node rank ";
  EXPECT_THAT(said, HasSubstr(name));
  EXPECT_THAT(said, HasSubstr(standing == 0 ? ") stood still for " : ") does not answer"));
  EXPECT_THAT(said, Not(HasSubstr(" failed first: ")));
  for (const Process& launcher : launchers_) {
    EXPECT_THAT(launcher.err(), Not(HasSubstr("got SIGTERM")));
    EXPECT_THAT(launcher.err(), Not(HasSubstr("guardian process was killed")));
  }
  expect_stop_of_all();
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
  ASSERT_TRUE(launchers[0].await_output("waiting for 1 host", 2));
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
  train({}, "1:3");
  hosts_->cut(1);
  hosts_->cut(2);
  // Of both in one start, or of one after the other.
  ASSERT_TRUE(launchers_[0].await_output(" of 2, start "));
  ASSERT_TRUE(await_steps(launchers_[0]));
  for (const int host : {1, 2}) {
    const Process& launcher = launchers_[static_cast<std::size_t>(host)];
    ASSERT_TRUE(launcher.await_output("joining the job again"));
    EXPECT_THAT(launcher.err(), Not(HasSubstr(", start 2"))) << "it has no store";
  }
  hosts_->mend(1);
  hosts_->mend(2);
  for (const Process& launcher : launchers_) ASSERT_TRUE(launcher.await_output(" of 6, start "));
  ASSERT_TRUE(await_steps(launchers_[0]));
  EXPECT_THAT(launchers_[0].err(), Not(HasSubstr("waiting for ")));
  expect_stop_of_all();
}

// Each host has a disk of its own, with the shares of its ranks.
class HostsOfShards : public RestartedHosts {
 protected:
  // Before it there is nothing on the disk of a host that is lost, and the others begin anew.
  static constexpr const char* kIsSaved = " is saved in ";
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
      ASSERT_TRUE(launchers[0].await_output(kIsSaved));
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

// Host 1's disk has 14 pages of 4 KiB. A snapshot takes four of them, the lock one, and each start one.
TEST_F(HostsOfShards, OfWhichOneHasAFullDiskStartAgainAndEndWithTheSameBits) {
  constexpr int kSteps = 1200;  // so that it still trains when rank 3 is killed, also on a busy machine
  const auto start = [&](const std::string& name) {
    return on_each(kHosts, [&](int host) { return training_in(name, host, kSteps); });
  };
  auto undisturbed = start("undisturbed");
  ends_of(undisturbed);
  const Result mounted = run(hosts_->command(
      1, {"mount", "-t", "tmpfs", "-o", "X-mount.mkdir,size=56k", "tmpfs", (folder_ / "full.1").string()}));
  ASSERT_EQ(mounted.exit_code, 0) << mounted.err;
  const std::string is_full = "is full, so only ";
  auto launchers = start("full");
  ASSERT_TRUE(launchers[1].await_output(is_full));
  kill(live_ranks("e2e_training").at(3), SIGKILL);
  const std::string said = ends_of(launchers)[1].err;
  const auto restart = said.find(" of 6, start 2\n");
  ASSERT_NE(restart, said.npos) << said;
  EXPECT_THAT(said.substr(restart), HasSubstr(is_full));
  EXPECT_FALSE(weights("undisturbed").empty());
  EXPECT_EQ(weights("full"), weights("undisturbed"));
}

TEST_F(HostsOfShards, EndInTimeIfTheOneThatIsLostDoesNotComeBackAndCallNothingDamaged) {
  std::vector<Process> launchers;
  for (const int host : {1, 2}) launchers.push_back(training_in("job", host, kEndless));
  launchers.push_back(training_in("job", 0, kEndless, {"--rdzv-timeout", "8"}));
  ASSERT_TRUE(launchers[2].await_output(kIsSaved));
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
  train({"--rdzv-wait", "1"}, "2:3", 2);
  nnodes_ = "2";
  auto other = training_on(2, {});
  const Result refused = other.wait();
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("host host2 was told --nnodes 2, host host0 --nnodes 2:3; give both the same"));
  ASSERT_TRUE(await_steps(launchers_[0]));
  EXPECT_THAT(launchers_[0].err(), Not(HasSubstr("start 2")));
  expect_stop({&launchers_[0], &launchers_[1]});
}

// At first a rank alone.
TEST_F(RestartedHosts, AreTakenInWhileTheJobRunsAndNoStepIsLost) {
  nnodes_ = "1:3";
  lets_store_give_ranks_ = true;
  auto first = launch(0, 1, program("job", kEndless), {"--rdzv-wait", "0"}, {{"LOCKSTEP_LIVENESS", "on"}});
  ASSERT_TRUE(await_start(first, 1, 1));
  ASSERT_TRUE(first.await_output("at 50\n"));
  auto second = training_on(1, {});
  ASSERT_TRUE(second.await_output("the job runs on 1 host (host0) without this host"));
  ASSERT_TRUE(await_start(first, 3, 2));
  ASSERT_TRUE(await_start(second, 3, 2));
  ASSERT_TRUE(first.await_output("resumes from step "));
  const std::string err = first.err();
  const auto number_behind = [&err](const std::string& words) {
    const auto at = err.find(words);
    return at == std::string::npos ? -1 : std::atoi(err.c_str() + at + words.size());
  };
  EXPECT_GT(number_behind("stopping after "), 0) << err;
  EXPECT_EQ(number_behind("resumes from step "), number_behind("stopping after ")) << err;
  ASSERT_TRUE(await_steps(first));
  expect_stop({&first, &second});
}

TEST_F(RestartedHosts, OfAFixedNumberWaitForAnotherInThePlaceOfTheLost) {
  train({"--max-restarts", "1"});
  kill_launcher(2);
  ASSERT_TRUE(launchers_[0].await_output("waiting for 1 host (--rdzv-timeout 300 s)"));
  auto spare = training_on(2, {"--max-restarts", "1"});
  for (const Process* launcher : {&launchers_[0], &launchers_[1], &spare}) ASSERT_TRUE(await_start(*launcher, 6, 2));
  ASSERT_TRUE(launchers_[0].await_output("resumes from step "));
  ASSERT_TRUE(await_steps(launchers_[0]));
  expect_stop({&launchers_[0], &launchers_[1], &spare});
}

TEST_F(RestartedHosts, ThatWaitForAnotherAreEndedByASignalToOneOfThem) {
  train({"--max-restarts", "1", "--tee", "--log-dir", (folder_ / "log").string()});
  kill_launcher(2);
  ASSERT_TRUE(launchers_[0].await_output("waiting for 1 host"));
  // Of which launcher does not matter.
  launchers_[1].send(SIGTERM);
  for (const int host : {0, 1}) {
    const Result result = launchers_[static_cast<std::size_t>(host)].wait();
    EXPECT_EQ(result.exit_code, kExitRequeue) << result.err;
    EXPECT_THAT(result.err, HasSubstr("stopped by SIGTERM between two starts"));
  }
  std::ifstream in(folder_ / "log/verdict.json");
  const auto verdict = nlohmann::json::parse(in, nullptr, false);
  ASSERT_TRUE(verdict.is_object());
  EXPECT_EQ(verdict["starts_again"], false);
  EXPECT_EQ(verdict["exit_code"], kExitRequeue);
  EXPECT_THAT(verdict["summary"], HasSubstr("; stopped by SIGTERM between two starts"));
  EXPECT_TRUE(live_ranks().empty());
}

TEST_F(RestartedHosts, OfWhichOneIsTooManyAreNamedToIt) {
  train();
  lets_store_give_ranks_ = true;
  auto further = training_on(1, {});
  const Result refused = further.wait();
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("host host1 can't join the job: the job has its 3 hosts already (host0, host1, "
                                     "host2): this host would be one more; correct --nnodes"));
  expect_stop_of_all();
}

TEST_F(RestartedHosts, OfWhichOneIsTooManyMayWaitForTheLossOfAnother) {
  train({"--max-restarts", "1"});
  lets_store_give_ranks_ = true;
  auto spare = training_on(1, {"--max-restarts", "1"});
  ASSERT_TRUE(spare.await_output("this host waits, to take the place of one that is lost"));
  kill_launcher(2);
  ASSERT_TRUE(await_start(spare, 6, 2));
  ASSERT_TRUE(await_steps(launchers_[0]));
  auto another = training_on(2, {"--max-restarts", "1"});
  ASSERT_TRUE(another.await_output("this host waits, to take the place of one that is lost"));
  expect_stop({&launchers_[0], &launchers_[1], &spare});
  const Result over = another.wait();
  EXPECT_EQ(over.exit_code, kExitRequeue) << over.err;
  EXPECT_THAT(over.err, HasSubstr("the job is over; exit code 75"));
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
  expect_stop({&launchers[0], &launchers[1]});
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
  EXPECT_THAT(left_out.err, HasSubstr("host host1 is left out of this job"));
  ASSERT_TRUE(await_steps(first));
  auto again = start_bad();
  EXPECT_EQ(again.wait().exit_code, launcher::kExitNoProgress);
  ASSERT_TRUE(await_steps(first));
  EXPECT_THAT(first.err(), Not(HasSubstr("restart 4")));
  expect_stop({&first});
}

TEST_F(RestartedHosts, ThatAreTooFewWithoutTheLostEndTheJobInTime) {
  train({"--rdzv-wait", "1", "--rdzv-timeout", "3"}, "2:3", 2);
  kill_launcher(1);
  const Result result = launchers_[0].wait();
  EXPECT_EQ(result.exit_code, kExitPeerLost);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("waiting for 1 host (--rdzv-timeout 3 s)"), HasSubstr("1 of 2 hosts came, elapsed 3"),
                    HasSubstr(": host host0; missing: host host1 (node rank 1)"), Not(HasSubstr("start 2"))));
}

}  // namespace
}  // namespace lockstep::testing::restart_test
