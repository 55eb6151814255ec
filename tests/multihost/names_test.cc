// SPDX-License-Identifier: Apache-2.0
// A job whose hosts have other ideas of the first one's name than it has itself, or none at first.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/multihost/launched_hosts.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing::names_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kName = "hosta";
constexpr const char* kBridge = "172.17.0.1";  // as Docker gives it to docker0

// Each host has an own /etc/hosts, which the test may write to at any time.
class NamedHosts : public LaunchedHosts {
 protected:
  void SetUp() override {
    LaunchedHosts::SetUp();
    if (!hosts_) return;
    for (int host = 0; host < kHosts; ++host) {
      folder_.write(NetworkHosts::name(host), "127.0.0.1 localhost\n", 0644);
      run_on(host, {"mount", "--bind", file_of(host), "/etc/hosts"});
    }
    endpoint_ = std::string(kName) + ":29400";
  }

  std::string file_of(int host) const { return (folder_ / NetworkHosts::name(host)).string(); }
  void run_on(int host, const Words& command) const {
    const Result result = run(hosts_->command(host, command));
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }
  // From now on `host` knows the name as `address`.
  void teach(int host, const std::string& address) const {
    std::ofstream(file_of(host), std::ios::app) << address << " " << kName << "\n";
  }
  void teach_others() const {
    for (int host = 1; host < kHosts; ++host) teach(host, NetworkHosts::address(0));
  }
  Process start_by_hand(int rank, const Variables& extra = {}) const {
    Variables variables = {
        {"RANK", std::to_string(rank)}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", kName}, {"MASTER_PORT", "23456"}};
    for (const auto& [name, value] : extra) variables[name] = value;
    return Process({.command = hosts_->command(rank, {MEET_PROGRAM}),
                    .environment = variables,
                    .name = "rank " + std::to_string(rank)});
  }
  static void expect_trained(std::vector<Process>& launchers) {
    EXPECT_THAT(ends_of(launchers)[0].out, HasSubstr("6 replicas, all bit-equal"));
  }

  TemporaryFolder folder_;
};

struct Name {
  const char* words;
  const char* own_address;  // of the first host's, as it knows it itself
  bool store_gives_ranks;
};
void PrintTo(const Name& name, std::ostream* out) { *out << name.words; }

class NamedHostsOf : public NamedHosts, public ::testing::WithParamInterface<Name> {};

TEST_P(NamedHostsOf, TrainAsOneProcessDoes) {
  lets_store_give_ranks_ = GetParam().store_gives_ranks;
  run_on(0, {"ip", "link", "add", "docker0", "type", "bridge"});
  run_on(0, {"ip", "addr", "add", std::string(kBridge) + "/16", "dev", "docker0"});
  run_on(0, {"ip", "link", "set", "docker0", "up"});
  teach(0, GetParam().own_address);
  teach_others();
  auto launchers = launch_all({RAW_GRADIENTS});
  expect_trained(launchers);
}

INSTANTIATE_TEST_SUITE_P(Is, NamedHostsOf,
                         ::testing::Values(Name{"Debians", "127.0.1.1", false},
                                           Name{"DebiansUnnumbered", "127.0.1.1", true},
                                           Name{"Localhost", "127.0.0.1", true}, Name{"Dockers", kBridge, false},
                                           Name{"DockersUnnumbered", kBridge, true}, Name{"Ipv6Loopback", "::1", true},
                                           Name{"Another", "10.78.0.10", true}),
                         [](const auto& of) { return of.param.words; });

TEST_F(NamedHosts, ServeTorchsStoreWhereAllReachIt) {
  teach(0, "127.0.1.1");
  teach_others();
  auto launchers = launch_all({PLAIN_PROGRAM, "env:MASTER_ADDR"}, {}, {"--torch-store"}, kHosts, 1);
  for (const Result& result : ends_of(launchers)) {
    EXPECT_THAT(result.out, HasSubstr("MASTER_ADDR=" + NetworkHosts::address(0)));
  }
}

// The first host knows its own name last, as a pod whose name DNS has some seconds after its start.
class LateNames : public NamedHosts, public ::testing::WithParamInterface<bool> {};

TEST_P(LateNames, AreLookedUpAgainAndWhoServesIsDecidedAnew) {
  lets_store_give_ranks_ = GetParam();
  auto launchers = launch_all({RAW_GRADIENTS});
  ASSERT_TRUE(launchers[0].await_output("waiting for --rdzv-endpoint hosta:29400: hosta is not known on this host"));
  teach_others();
  teach(0, "127.0.1.1");
  expect_trained(launchers);
}

TEST_P(LateNames, ThatNeverComeAreNoWrongUsage) {
  lets_store_give_ranks_ = GetParam();
  auto launchers = launch_all({RAW_GRADIENTS}, {}, {"--rdzv-timeout", "2"});
  for (const Result& result : ends_of(launchers, 1)) {
    EXPECT_THAT(result.err,
                AllOf(HasSubstr("does not reach the job's store: "), HasSubstr(kName), HasSubstr("of 2 s")));
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, LateNames, ::testing::Bool(),
                         [](const auto& of) { return of.param ? "ByTheStore" : "Given"; });

// The name is still that of the host whose place this one has.
TEST_F(NamedHosts, AStaleNameOfTheFirstIsLookedUpAgain) {
  teach(0, "203.0.113.9");
  auto launchers = launch_all({RAW_GRADIENTS});
  ASSERT_TRUE(launchers[0].await_output("hosta is 203.0.113.9, which is not an address of this host"));
  folder_.write(NetworkHosts::name(0), "", 0644);
  teach(0, NetworkHosts::address(0));
  teach_others();
  expect_trained(launchers);
}

TEST_F(NamedHosts, LocalhostIsSaidToBeNoPlaceToMeetOnBoth) {
  endpoint_ = "LocalHost:29400";
  auto launchers = launch_all({PLAIN_PROGRAM}, {}, {"--rdzv-timeout", "3"}, 2, 1);
  for (const Result& result : ends_of(launchers, 1)) {
    EXPECT_THAT(result.err, HasSubstr("is this host for every host that looks it up"));
  }
}

TEST_F(NamedHosts, MeetByHandWithASecretAtTheirOwnIdeaOfTheName) {
  const Variables secret = {{"LOCKSTEP_STORE_SECRET", secret_}};
  auto zero = start_by_hand(0, secret);
  auto one = start_by_hand(1, secret);
  ASSERT_TRUE(zero.await_output("rank 0/2 waits to host the store at hosta:23456"));
  teach(0, "127.0.1.1");
  teach_others();
  for (Process* rank : {&zero, &one}) {
    const Result result = rank->wait();
    EXPECT_THAT(result.out, AllOf(HasSubstr("secret"), HasSubstr("hosts host0: rank 0; host1: rank 1"))) << result.err;
  }
}

TEST_F(NamedHosts, ByHandWithoutASecretTheStoreStaysAndTheRemedyIsSaid) {
  teach(0, "127.0.1.1");
  teach_others();
  auto zero = start_by_hand(0, {{"LOCKSTEP_TIMEOUT", "4"}});
  auto one = start_by_hand(1, {{"LOCKSTEP_TIMEOUT", "4"}});
  EXPECT_TRUE(zero.await_output("LOCKSTEP_STORE_SECRET: with one it listens on every address"));
  EXPECT_EQ(zero.wait().exit_code, 1);
  EXPECT_THAT(one.wait().err, HasSubstr(NetworkHosts::address(0) + ":23456: Connection refused"));
}

TEST_F(NamedHosts, AreExaminedByTheDoctor) {
  const auto doctor = [&](const Variables& extra) {
    Variables variables = {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", kName}, {"MASTER_PORT", "23456"}};
    for (const auto& [name, value] : extra) variables[name] = value;
    return run(hosts_->command(0, {LOCKSTEP_PROGRAM, "doctor"}), variables);
  };
  EXPECT_THAT(doctor({}).out, HasSubstr("hosta is not known on this host"));
  teach(0, "127.0.1.1");
  EXPECT_THAT(doctor({}).out, AllOf(HasSubstr("hosta (from MASTER_ADDR and MASTER_PORT) is 127.0.1.1 on this host"),
                                    HasSubstr("correct /etc/hosts")));
}

TEST_F(NamedHosts, FindAStoreThatServesByName) {
  teach(0, "127.0.1.1");
  teach_others();
  Process server(
      {.command = hosts_->command(0, {LOCKSTEP_PROGRAM, "store", "serve", "--host", kName, "--port", "29400"}),
       .environment = {{"LOCKSTEP_STORE_SECRET", secret_}}});
  ASSERT_TRUE(server.await_output("LOCKSTEP_STORE=hosta:29400"));
  const Variables store = {{"LOCKSTEP_STORE", endpoint_}, {"LOCKSTEP_STORE_SECRET", secret_}, {"LOCKSTEP_RUN_ID", "j"}};
  auto zero = start_by_hand(0, store);
  auto one = start_by_hand(1, store);
  for (Process* rank : {&zero, &one}) EXPECT_THAT(rank->wait().out, HasSubstr("hosts host0: rank 0; host1: rank 1"));
}

}  // namespace
}  // namespace lockstep::testing::names_test
