// SPDX-License-Identifier: Apache-2.0
// `lockstep run -H` on three hosts, through a remote shell that enters them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <utility>

#include "runtime/job/exit_code.h"
#include "runtime/store/secret.h"
#include "tests/multihost/remote_shell.h"
#include "tests/support/leftovers.h"
#include "tests/support/network_namespaces.h"
#include "tests/support/process.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing::remote_test {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

using Words = std::vector<std::string>;

constexpr int kHosts = 3;

class RemoteHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = NetworkHosts::why_not();
    if (!reason.empty()) GTEST_SKIP() << reason;
    hosts_ = std::make_unique<NetworkHosts>(kHosts);
    write_remote_shell(folder_, *hosts_, "exec env -i PATH=\"$PATH\" $enter \"$@\"",
                       "printf '%s\\n' \"$@\" >>" + seen() + "\nenv >>" + seen());
  }

  std::string shell() const { return (folder_ / "shell").string(); }
  // What the remote shell was given, on its command lines and in its environment.
  std::string seen() const { return (folder_ / "seen").string(); }
  // "[10.77.0.11] ".
  static std::string prefix(int host) { return "[" + NetworkHosts::address(host) + "] "; }
  static std::string hosts_with_slots(int first, int second, int third) {
    return NetworkHosts::address(0) + ":" + std::to_string(first) + "," + NetworkHosts::address(1) + ":" +
           std::to_string(second) + "," + NetworkHosts::address(2) + ":" + std::to_string(third);
  }

  Process launch(const Words& flags, const Words& program, const Variables& extra = {}) const {
    Words command = {LOCKSTEP_PROGRAM, "run", "--rsh", shell()};
    command.insert(command.end(), flags.begin(), flags.end());
    command.push_back("--");
    command.insert(command.end(), program.begin(), program.end());
    return Process({.command = command, .environment = extra, .folder = folder_.string()});
  }

  const TemporaryFolder folder_;
  std::unique_ptr<NetworkHosts> hosts_;
};

TEST_F(RemoteHosts, TrainAsOneProcessDoesAndTheSecretIsNowhereToBeSeen) {
  const std::string secret = store::Secret::random().hex();
  const Result result =
      launch({"-H", hosts_with_slots(3, 1, 2)}, {RAW_GRADIENTS}, {{"LOCKSTEP_STORE_SECRET", secret}}).wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr(prefix(0) + "[rank 0] "));
  EXPECT_THAT(result.out, HasSubstr("6 replicas, all bit-equal; weights equal those of one process"));
  EXPECT_THAT(result.err, HasSubstr(prefix(2) + "lockstep run: host2 (node rank 2 of 3): ranks 4 and 5 of 6"));
  std::ifstream file(seen());
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  EXPECT_THAT(text, AllOf(HasSubstr(NetworkHosts::address(2) + "\n"), Not(HasSubstr(secret)),
                          Not(HasSubstr("LOCKSTEP_STORE_SECRET"))));
}

TEST_F(RemoteHosts, HaveTheFolderAndTheVariablesThatTravel) {
  const std::string hostfile = (folder_ / "hosts").string();
  folder_.write("hosts", "# two\n" + NetworkHosts::address(0) + " slots=2\n" + NetworkHosts::address(1) + " slots=2\n");
  folder_.write("show.sh", "#!/bin/sh\necho $RANK $MINE $THERE [$HIDDEN]\n", 0700);
  const Result result = launch({"--hostfile", hostfile, "-n", "3", "-x", "MINE", "-x", "THERE=two words"},
                               {"./show.sh"}, {{"MINE", "7"}, {"HIDDEN", "1"}})
                            .wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr(prefix(0) + "[rank 0] 0 7 two words []\n"),
                                HasSubstr(prefix(0) + "[rank 1] 1 7 two words []\n"),
                                HasSubstr(prefix(1) + "[rank 2] 2 7 two words []\n"), Not(HasSubstr("[rank 3]"))));
}

// Who is asked where --rsh says nobody.
TEST_F(RemoteHosts, AreEnteredBySshAsARule) {
  folder_.write("ssh", "#!/bin/sh\n[ \"$1 $2\" = '-o BatchMode=yes' ] && shift 2 && exec ./shell \"$@\"\n", 0700);
  Process launcher(
      {.command = {LOCKSTEP_PROGRAM, "run", "-H", NetworkHosts::address(1) + ":2", PLAIN_PROGRAM, "env:RANK"},
       .environment = {{"PATH", folder_.string() + ":" + std::getenv("PATH")}},
       .folder = folder_.string()});
  const Result result = launcher.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr(prefix(1) + "[rank 1] RANK=1\n"));
}

TEST_F(RemoteHosts, ARankThatFailsIsNamedOnce) {
  const Result result = launch({"-H", hosts_with_slots(1, 1, 1)}, {PLAIN_PROGRAM, "exit:42@2", "hang"}).wait();
  EXPECT_EQ(result.exit_code, 42);
  EXPECT_THAT(result.err, AllOf(HasSubstr(prefix(0) + "lockstep run: rank 2 (host host2, pid "),
                                HasSubstr(prefix(0) + "lockstep run: rank 2 failed first: it exited with code 42"),
                                Not(HasSubstr(prefix(1) + "lockstep run: rank 2")),
                                Not(HasSubstr(prefix(2) + "lockstep run: rank 2"))));
}

// The other launchers come back to it: no new one is needed.
TEST_F(RemoteHosts, StartTheRanksAgainWhereTheLauncherWithTheStoreStoodStill) {
  auto launcher = launch({"-H", hosts_with_slots(1, 1, 1), "--max-restarts", "1"},
                         {TRAINING_PROGRAM, "snapshots", "weights", "100000000"}, {{"LOCKSTEP_LIVENESS", "on"}});
  ASSERT_TRUE(launcher.await_output("at 50\n"));
  pid_t first = 0;
  for (const auto& process : processes_with("LOCKSTEP_TEST_JOB", job())) {
    if (process.pid == live_ranks("e2e_training").at(0)) first = process.parent;
  }
  ASSERT_GT(first, 0);
  ASSERT_EQ(kill(first, SIGSTOP), 0);
  ASSERT_TRUE(launcher.await_output(", which has the job's store, is gone: ", 2));
  ASSERT_EQ(kill(first, SIGCONT), 0);
  ASSERT_TRUE(launcher.await_output(" of 3, start 2\n", 3));
  ASSERT_TRUE(launcher.await_output("resumes from step "));
  ASSERT_TRUE(launcher.await_output("[rank 2] pid ", 2));
  EXPECT_THAT(launcher.err(), HasSubstr("lockstep run: host host0 (node rank 0) stood still for "));
  // The ranks handle the signal once they train.
  int evaluations = 1;
  const std::string out = launcher.out();
  for (auto at = out.find("evaluating"); at != out.npos; at = out.find("evaluating", at + 1)) ++evaluations;
  ASSERT_TRUE(launcher.await_output("evaluating", evaluations));
  launcher.send(SIGTERM);
  EXPECT_EQ(launcher.wait().exit_code, kExitRequeue);
}

TEST_F(RemoteHosts, EndWithTheCommandThatStartedThem) {
  auto launcher = launch({"-H", hosts_with_slots(1, 2, 1)}, {PLAIN_PROGRAM, "ready", "hang"});
  ASSERT_TRUE(launcher.await_output("ready", 4));
  EXPECT_EQ(live_ranks(PLAIN_PROGRAM).size(), 4U);
  launcher.send(SIGKILL);
  EXPECT_EQ(launcher.wait().signal, SIGKILL);
  EXPECT_TRUE(wait_until([] { return live_ranks(PLAIN_PROGRAM).empty(); }));
}

TEST_F(RemoteHosts, AHostThatIsNotReachedIsNamedAndEndsTheOthers) {
  for (const std::string& hosts :
       {NetworkHosts::address(0) + ":1,nowhere:1", "nowhere:1," + NetworkHosts::address(0)}) {
    auto launcher = launch({"-H", hosts}, {PLAIN_PROGRAM, "print:started"});
    const Result result = launcher.wait();
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, AllOf(HasSubstr("[nowhere] no route to nowhere\n"), HasSubstr("host nowhere (node rank "),
                                  HasSubstr("): its launcher did not start: "), HasSubstr("exited with code 255"),
                                  Not(HasSubstr("`lockstep agent` is started by"))));
  }
}

// The remote shell neither ends nor says anything, and reads no input.
TEST_F(RemoteHosts, AHostWhoseRemoteShellHangsIsNamedAtTheDeadlineAndEndsTheOthers) {
  folder_.write("hangs", "#!/bin/sh\ncase $1 in silent*) exec sleep 1000 ;; esac\nexec " + shell() + " \"$@\"\n", 0700);
  const std::pair<std::string, std::string> cases[] = {
      {NetworkHosts::address(0) + ":1,silent:1", "host silent (node rank 1)"},
      {"silent:1," + NetworkHosts::address(1) + ":1", "host silent (node rank 0)"},
      {"silent0:1,silent1:1", "host silent0 (node rank 0), host silent1 (node rank 1)"}};
  for (const auto& [hosts, silent] : cases) {
    Process launcher({.command = {LOCKSTEP_PROGRAM, "run", "--rsh", (folder_ / "hangs").string(), "-H", hosts,
                                  "--rdzv-timeout", "2", "--", PLAIN_PROGRAM, "print:started"},
                      .folder = folder_.string()});
    const Result result = launcher.wait();
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, HasSubstr("no launcher has come up yet on " + silent + ", elapsed 2"));
  }
}

TEST_F(RemoteHosts, ASignalEndsTheWaitForARemoteShellThatHangs) {
  folder_.write("hangs", "#!/bin/sh\necho hangs >&2\nexec sleep 1000\n", 0700);
  Process launcher({.command = {LOCKSTEP_PROGRAM, "run", "--rsh", (folder_ / "hangs").string(), "-H", "a:1,b:1", "--",
                                PLAIN_PROGRAM},
                    .folder = folder_.string()});
  ASSERT_TRUE(launcher.await_output("hangs", 2));
  launcher.send(SIGINT);
  EXPECT_EQ(launcher.wait().exit_code, 1);
}

// No other launcher will come in its place. The host that lives is not called missing.
TEST_F(RemoteHosts, OneThatIsLostIsNamedAndTheJobIsToBeStartedAgain) {
  auto launcher = launch({"-H", hosts_with_slots(1, 1, 1), "--max-restarts", "3"},
                         {TRAINING_PROGRAM, "snapshots", "weights", "100000"});
  ASSERT_TRUE(launcher.await_output("at 100\n"));
  const pid_t rank = live_ranks("e2e_training").at(2);
  for (const LiveProcess& process : processes_with("LOCKSTEP_TEST_JOB", job())) {
    if (process.pid == rank) kill(process.parent, SIGKILL);
  }
  const Result result = launcher.wait();
  EXPECT_EQ(result.exit_code, 75);
  EXPECT_THAT(
      result.err,
      AllOf(HasSubstr("host host2 (node rank 2) is lost, and `lockstep run -H` starts no launcher on another host"),
            Not(HasSubstr("hosts came")), Not(HasSubstr("restart 1 of 3"))));
}

// `lockstep doctor` on hosts of `names`.
class ExaminedHosts : public RemoteHosts {
 protected:
  Result examine(const Words& names, const Words& flags = {}, const Variables& extra = {}) const {
    std::string hosts;
    for (const auto& name : names) hosts += (hosts.empty() ? "" : ",") + name;
    Words command = {LOCKSTEP_PROGRAM, "doctor", "-H", hosts, "--rsh", shell()};
    command.insert(command.end(), flags.begin(), flags.end());
    return Process({.command = command, .environment = extra, .folder = folder_.string()}).wait();
  }
  static Words all() { return {NetworkHosts::address(0), NetworkHosts::address(1), NetworkHosts::address(2)}; }
};

TEST_F(ExaminedHosts, ThatReachEachOtherAreFitForAJob) {
  const Result result = examine(all(), {}, {{"LOCKSTEP_PORT_RANGE", "29500-29502"}});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, AllOf(ContainsRegex("10.77.0.11 +host1, 10.77.0.11 .by the way to 10.77.0.10."),
                                ContainsRegex("10.77.0.12 to the others +2 of 2 reached"),
                                HasSubstr("a job could start on these hosts\n")));
}

TEST_F(ExaminedHosts, OneWhoseCableIsOutIsNamedInEachPair) {
  hosts_->cut(1);
  const Result result = examine(all());
  EXPECT_EQ(result.exit_code, 1);
  for (const std::string pair : {"10.77.0.10 to 10.77.0.11", "10.77.0.11 to 10.77.0.10", "10.77.0.12 to 10.77.0.11"}) {
    EXPECT_THAT(result.out, ContainsRegex(pair + " +PROBLEM: 10.77.0.1[01]:"));
  }
  EXPECT_THAT(result.out, AllOf(HasSubstr("let the hosts reach each other at this address: "),
                                Not(ContainsRegex("10.77.0.10 to 10.77.0.12 +PROBLEM")),
                                HasSubstr("4 problems: a job on these hosts could not start, or not as asked")));
}

TEST_F(ExaminedHosts, WhoseAddressesLeadToAnotherHostAreTold) {
  const Result result = examine({NetworkHosts::address(0), NetworkHosts::address(1)}, {"-x", "NCCL_SOCKET_IFNAME=lo"},
                                {{"LOCKSTEP_PORT_RANGE", "29500-29500"}});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, AllOf(ContainsRegex("10.77.0.11 to 10.77.0.10 +PROBLEM: 127.0.0.1:29500: .*is of run"),
                                HasSubstr("two hosts may have this address"), HasSubstr("2 problems")));
}

TEST_F(ExaminedHosts, WithoutARemoteShellAreNamed) {
  const Result result = examine({NetworkHosts::address(0), "nowhere"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("[nowhere] no route to nowhere\n"));
  EXPECT_THAT(result.out, AllOf(ContainsRegex("nowhere +PROBLEM: .* agent. exited with code 255"),
                                HasSubstr("let the remote shell in without a password")));
}

}  // namespace
}  // namespace lockstep::testing::remote_test
