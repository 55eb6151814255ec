// SPDX-License-Identifier: Apache-2.0
// Ranks on three hosts, over Gloo: training, the conformance suite, and what becomes of a host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/support/network_namespaces.h"
#include "tests/support/process.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr int kHosts = 3;

class GlooHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = NetworkHosts::why_not();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }

  // One rank on each host, started by hand.
  static std::vector<Process> ranks_on(const NetworkHosts& hosts, const std::vector<std::string>& program,
                                       const Variables& extra = {}) {
    std::vector<Process> ranks;
    for (int rank = 0; rank < kHosts; ++rank) {
      Variables environment = {{"RANK", std::to_string(rank)},
                               {"WORLD_SIZE", std::to_string(kHosts)},
                               {"MASTER_ADDR", NetworkHosts::address(0)},
                               {"MASTER_PORT", "29400"}};
      environment.insert(extra.begin(), extra.end());
      ranks.emplace_back(ProcessOptions{.command = hosts.command(rank, program),
                                        .environment = std::move(environment),
                                        .name = "rank " + std::to_string(rank)});
    }
    return ranks;
  }
};

// Nobody asks for gloo: the ranks are on several hosts, and mpirun did not start them.
TEST_F(GlooHosts, TrainAsOneProcessDoes) {
  const NetworkHosts hosts(kHosts);
  auto ranks = ranks_on(hosts, {RAW_GRADIENTS});
  std::vector<Result> results;
  for (Process& rank : ranks) results.push_back(rank.wait());
  for (const Result& result : results) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, HasSubstr("backend gloo, "));
  }
  EXPECT_THAT(results[0].out, HasSubstr("3 replicas, all bit-equal; weights equal those of one process"));
  EXPECT_THAT(results[0].err, AllOf(HasSubstr("backend gloo (auto; "), HasSubstr("are on different ones")));
}

TEST_F(GlooHosts, PassTheConformanceSuite) {
  const NetworkHosts hosts(kHosts);
  auto ranks = ranks_on(hosts, {CONFORMANCE_RANK, "suite"});
  for (Process& rank : ranks) {
    const Result result = rank.wait(Deadline::after(std::chrono::seconds(200)));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("backend gloo\nsuite passed"));
  }
}

TEST_F(GlooHosts, NameTheRankThatDied) {
  const NetworkHosts hosts(kHosts);
  auto ranks = ranks_on(hosts, {CONFORMANCE_RANK, "loop", "kill"});
  const std::string pid = std::to_string(ranks[1].pid());
  EXPECT_EQ(ranks[1].wait().signal, SIGKILL);
  for (const int survivor : {0, 2}) {
    const Result result = ranks[static_cast<std::size_t>(survivor)].wait();
    EXPECT_THAT(result.out, AllOf(HasSubstr("PeerLost: "), HasSubstr("rank 1 (host host1, pid " + pid + ")")))
        << result.err;
  }
}

// A collective would wait for five minutes. The words are membership's, which saw that rank 0, and its store, stand
// still.
TEST_F(GlooHosts, NameRankZeroThatIsStoppedWithTheStoreItHosts) {
  const NetworkHosts hosts(kHosts);
  auto ranks = ranks_on(hosts, {CONFORMANCE_RANK, "loop", "quiet"}, {{"LOCKSTEP_LIVENESS", "on"}});
  for (const Process& rank : ranks) ASSERT_TRUE(rank.await_output("looping"));
  ranks[0].send(SIGSTOP);
  const std::string pid = std::to_string(ranks[0].pid());
  for (const int survivor : {1, 2}) {
    const Result result = ranks[static_cast<std::size_t>(survivor)].wait();
    EXPECT_EQ(result.exit_code, 3) << result.out << result.err;
    EXPECT_THAT(result.out, AllOf(HasSubstr("PeerLost: "),
                                  HasSubstr("rank 0 (host host0, pid " + pid + "), which hosts the store at "),
                                  HasSubstr("stopped answering")));
  }
}

// Nobody is told when a cable is out: the two that still reach each other end with one cause, and say whom they wait
// for.
TEST_F(GlooHosts, EndWithOneCauseWhenAHostIsCutOff) {
  NetworkHosts hosts(kHosts);
  auto ranks =
      ranks_on(hosts, {CONFORMANCE_RANK, "loop", "quiet"}, {{"LOCKSTEP_TIMEOUT", "5"}, {"LOCKSTEP_LIVENESS", "off"}});
  for (const Process& rank : ranks) ASSERT_TRUE(rank.await_output("looping"));
  hosts.cut(1);
  std::vector<std::string> causes;
  for (const int survivor : {0, 2}) {
    const Result result = ranks[static_cast<std::size_t>(survivor)].wait();
    EXPECT_EQ(result.exit_code, 3) << result.out << result.err;
    EXPECT_THAT(result.out, ContainsRegex("all_reduce .*(not arrived|to or from).*rank [012] .host host"));
    causes.push_back(result.out);
  }
  EXPECT_EQ(causes[0], causes[1]);
}

TEST_F(GlooHosts, TakeTheInterfaceThatTheVariableNames) {
  const NetworkHosts hosts(kHosts);
  auto ranks = ranks_on(hosts, {CONFORMANCE_RANK, "groups"}, {{"GLOO_SOCKET_IFNAME", "eth0"}});
  for (Process& rank : ranks) EXPECT_THAT(rank.wait().out, HasSubstr("3 groups done"));
  // Loopback is up on each host, and leads to none of the others.
  auto lost = ranks_on(hosts, {CONFORMANCE_RANK, "groups"}, {{"GLOO_SOCKET_IFNAME", "lo"}, {"LOCKSTEP_TIMEOUT", "5"}});
  for (Process& rank : lost) {
    const Result result = rank.wait();
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.err, HasSubstr("GLOO_SOCKET_IFNAME"));
  }
}

}  // namespace
}  // namespace lockstep::testing
