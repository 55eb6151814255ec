// SPDX-License-Identifier: Apache-2.0
// One rank per host, members of one job: who is named when a host is cut off, or a rank there is stopped or killed.
#include <gtest/gtest.h>

#include <csignal>

#include "tests/support/error_of.h"
#include "tests/support/network_namespaces.h"
#include "tests/support/process.h"

namespace lockstep::testing::members_test {
namespace {

constexpr int kPort = 29400;  // of namespaces of this test's own: nobody else listens there
const std::string kSecret(64, 'a');
const std::string kOtherSecret(64, 'b');

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Three hosts, and a rank on each.
class ThreeHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = NetworkHosts::why_not();
    if (!reason.empty()) GTEST_SKIP() << reason;
    hosts_ = std::make_unique<NetworkHosts>(3);
  }
  void TearDown() override { ranks_.clear(); }

  // A rank of a world of `size`, on the host of its number unless it is said.
  ProcessOptions rank_options(int rank, int size, const Variables& more = {}, int host = -1) {
    Variables variables = {{"RANK", std::to_string(rank)},
                           {"WORLD_SIZE", std::to_string(size)},
                           {"MASTER_ADDR", NetworkHosts::address(0)},
                           {"MASTER_PORT", std::to_string(kPort)},
                           {"LOCKSTEP_STORE_SECRET", kSecret}};
    for (const auto& [name, value] : more) variables[name] = value;
    return {.command = hosts_->command(host < 0 ? rank : host, {MULTIHOST_RANK, "rank"}),
            .environment = std::move(variables),
            .name = "rank " + std::to_string(rank)};
  }
  void start(int size) {
    for (int rank = 0; rank < size; ++rank) ranks_.emplace_back(rank_options(rank, size));
    for (const Process& rank : ranks_) ASSERT_TRUE(rank.await_output("barriers passed"));
  }
  std::string name(int rank) {
    return "rank " + std::to_string(rank) + " (host " + NetworkHosts::name(rank) + ", pid " +
           std::to_string(ranks_.at(static_cast<std::size_t>(rank)).pid()) + ")";
  }
  std::string knock(int host, const std::string& address) {
    return run(hosts_->command(host, {MULTIHOST_RANK, "knock", address + ":" + std::to_string(kPort)})).out;
  }

  std::unique_ptr<NetworkHosts> hosts_;
  std::vector<Process> ranks_;
};

TEST_F(ThreeHosts, MeetAndLeave) {
  start(3);
  for (Process& rank : ranks_) {
    expect_text(rank.out(), {"joined host0: rank 0; host1: rank 1; host2: rank 2\n"});
    expect_text(rank.out(), {"store " + NetworkHosts::address(0) + ":"});
  }
  for (Process& rank : ranks_) rank.send(SIGUSR1);
  for (Process& rank : ranks_) {
    const Result result = rank.wait();
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  }
}

TEST_F(ThreeHosts, ACutCableIsReportedByName) {
  start(3);
  hosts_->cut(2);
  for (const int rank : {0, 1}) {
    const Result result = ranks_[static_cast<std::size_t>(rank)].wait();
    EXPECT_EQ(result.exit_code, 3) << result.err;
    expect_text(result.out, {"failed: " + name(2) + " stopped answering: nothing came from it for ",
                             "its host doesn't answer either: it is down, or the network between is cut"});
  }
  // On the other side of the cut it is rank 0, with the store, that is gone.
  const Result result = ranks_[2].wait();
  EXPECT_EQ(result.exit_code, 3) << result.err;
  expect_text(result.out, {"failed: " + name(0) + ", which hosts the store at ", "its host doesn't answer either"});
}

TEST_F(ThreeHosts, ARankThatIsStoppedOnAnotherHostIsReportedByName) {
  start(3);
  ranks_[1].send(SIGSTOP);
  for (const int rank : {0, 2}) {
    const Result result = ranks_[static_cast<std::size_t>(rank)].wait();
    EXPECT_EQ(result.exit_code, 3) << result.err;
    expect_text(result.out, {"failed: " + name(1) + " stopped answering: ", "its host still answers"});
  }
}

TEST_F(ThreeHosts, AKilledRankOnAnotherHostIsReportedByName) {
  start(3);
  ranks_[1].send(SIGKILL);
  for (const int rank : {0, 2}) {
    const Result result = ranks_[static_cast<std::size_t>(rank)].wait();
    EXPECT_EQ(result.exit_code, 3) << result.err;
    expect_text(result.out, {"failed: " + name(1) + " is lost: its connection ended"});
  }
}

TEST_F(ThreeHosts, AWrongSecretGetsNothingAndDisturbsNobody) {
  start(2);
  for (const Variables& secret :
       {Variables{{"LOCKSTEP_STORE_SECRET", kOtherSecret}}, Variables{{"LOCKSTEP_STORE_SECRET", ""}}}) {
    Variables variables = secret;
    variables["LOCKSTEP_TIMEOUT"] = "10";
    Process intruder(rank_options(1, 2, variables, 2));
    const Result result = intruder.wait();
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_FALSE(contains(result.out, "joined")) << result.out;
    EXPECT_FALSE(contains(result.out, "barriers passed")) << result.out;
    EXPECT_TRUE(contains(result.err, "secret") || contains(result.err, "SECRET")) << result.err;
    EXPECT_FALSE(contains(result.err, kSecret)) << "nobody says what it is";
  }
  EXPECT_TRUE(ranks_[0].await_output(NetworkHosts::address(2))) << "the log names who tried";
  for (Process& rank : ranks_) rank.send(SIGUSR1);
  for (Process& rank : ranks_) {
    const Result result = rank.wait();
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  }
}

TEST_F(ThreeHosts, TheStoreListensAtTheNamedAddressOnly) {
  start(2);
  EXPECT_EQ(knock(2, NetworkHosts::address(0)), "open\n");
  EXPECT_TRUE(contains(knock(2, NetworkHosts::second_address(0)), "closed: ")) << "another address of the same host";
  expect_text(knock(0, "127.0.0.1"), {"closed: "});
  EXPECT_TRUE(contains(knock(2, NetworkHosts::address(1)), "closed: ")) << "only rank 0 listens";
}

}  // namespace
}  // namespace lockstep::testing::members_test
