// SPDX-License-Identifier: Apache-2.0
// Ranks on three hosts, over TCP: training, the conformance suite, and what becomes of a host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/network_namespaces.h"
#include "tests/support/process.h"

namespace lockstep::testing::tcp_test {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kHosts = 3;

// The parameter: ranks of each host. Several share its memory.
class TcpHosts : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const std::string reason = NetworkHosts::why_not();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }

  int world() const { return kHosts * GetParam(); }
  int host_of(int rank) const { return rank / GetParam(); }

  void cut_off_while(const std::vector<std::string>& program, const std::string& begun, bool is_slow);

  // Where the data of an all-reduce may be, as far as it makes a difference.
  std::vector<std::string> memories() const {
    return GetParam() > 1 ? std::vector<std::string>{"arena", "user"} : std::vector<std::string>{"user"};
  }
  // Started by hand.
  std::vector<Process> ranks_on(const NetworkHosts& hosts, const std::vector<std::string>& program,
                                const Variables& extra = {}) const {
    std::vector<Process> ranks;
    for (int rank = 0; rank < world(); ++rank) {
      Variables environment = {{"RANK", std::to_string(rank)},
                               {"WORLD_SIZE", std::to_string(world())},
                               {"LOCAL_RANK", std::to_string(rank % GetParam())},
                               {"LOCAL_WORLD_SIZE", std::to_string(GetParam())},
                               {"MASTER_ADDR", NetworkHosts::address(0)},
                               {"MASTER_PORT", "29400"}};
      environment.insert(extra.begin(), extra.end());
      ranks.emplace_back(ProcessOptions{.command = hosts.command(host_of(rank), program),
                                        .environment = std::move(environment),
                                        .name = "rank " + std::to_string(rank)});
    }
    return ranks;
  }
  std::string name(const std::vector<Process>& ranks, int rank) const {
    return "rank " + std::to_string(rank) + " (host " + NetworkHosts::name(host_of(rank)) + ", pid " +
           std::to_string(ranks[static_cast<std::size_t>(rank)].pid()) + ")";
  }
  // All but `silent` have lost the rank, or another of these, and say why.
  void expect_named(std::vector<Process>& ranks, int rank, const std::vector<int>& silent,
                    const std::string& why) const {
    for (int survivor = 0; survivor < world(); ++survivor) {
      if (std::ranges::count(silent, survivor) > 0) continue;
      const Result result = ranks[static_cast<std::size_t>(survivor)].wait();
      EXPECT_EQ(result.exit_code, 3) << result.out << result.err;
      EXPECT_THAT(result.out, AllOf(HasSubstr("PeerLost: "), HasSubstr(why)));
      if (silent.size() == 1) {
        EXPECT_THAT(result.out, HasSubstr(name(ranks, rank)));
      } else {
        EXPECT_THAT(result.out, HasSubstr("(host " + NetworkHosts::name(host_of(rank)) + ", pid "));
      }
    }
  }
};

// Whose ranks are not all connected.
class TcpHostsOfTwo : public TcpHosts {};

// Nobody asks for tcp: the ranks are on several hosts, and mpirun did not start them.
TEST_P(TcpHosts, TrainAsOneProcessDoes) {
  const NetworkHosts hosts(kHosts);
  auto ranks = ranks_on(hosts, {RAW_GRADIENTS});
  std::vector<Result> results;
  for (Process& rank : ranks) results.push_back(rank.wait());
  for (const Result& result : results) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, HasSubstr("backend tcp, "));
  }
  EXPECT_THAT(results[0].out,
              HasSubstr(std::to_string(world()) + " replicas, all bit-equal; weights equal those of one process"));
  if (GetParam() > 1) {
    EXPECT_THAT(results[0].err, HasSubstr("3 hosts x 2 ranks: shm within, tcp between"));
  }
  EXPECT_THAT(results[0].err, AllOf(HasSubstr("backend tcp (auto; "), HasSubstr("are on different ones")));
}

TEST_P(TcpHosts, PassTheConformanceSuite) {
  const NetworkHosts hosts(kHosts);
  auto ranks = ranks_on(hosts, {CONFORMANCE_RANK, "suite"});
  for (Process& rank : ranks) {
    const Result result = rank.wait(Deadline::after(std::chrono::seconds(200)));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("backend tcp\nsuite passed"));
  }
}

TEST_P(TcpHosts, NameTheRankThatDied) {
  const NetworkHosts hosts(kHosts);
  auto ranks = ranks_on(hosts, {CONFORMANCE_RANK, "loop", "kill"});
  EXPECT_EQ(ranks[1].wait().signal, SIGKILL);
  expect_named(ranks, 1, {1}, "");
}

// A collective would wait for five minutes. The words are membership's, which saw the silence: of a rank that is
// stopped, of rank 0 with the store that it hosts, and of a host that is cut off.
TEST_P(TcpHosts, NameWhoIsSilent) {
  struct Case {
    int rank;
    bool is_cut;  // off with its host; else stopped
    const char* why;
  };
  for (const auto& [rank, is_cut, why] : {Case{GetParam(), false, "its host still answers, so the process is stopped"},
                                          Case{0, false, ", which hosts the store at "},
                                          Case{world() - 1, true, "its host doesn't answer either: it is down"}}) {
    SCOPED_TRACE(why);
    NetworkHosts hosts(kHosts);
    auto ranks = ranks_on(hosts, {CONFORMANCE_RANK, "loop", "quiet"}, {{"LOCKSTEP_LIVENESS", "on"}});
    for (const Process& one : ranks) ASSERT_TRUE(one.await_output("looping"));
    std::vector<int> silent;
    for (int other = 0; other < world(); ++other) {
      if (other == rank || (is_cut && host_of(other) == host_of(rank))) silent.push_back(other);
    }
    is_cut ? hosts.cut(host_of(rank)) : ranks[static_cast<std::size_t>(rank)].send(SIGSTOP);
    expect_named(ranks, rank, silent, why);
  }
}

// An all-reduce takes two seconds there: what happens meanwhile happens while its data is on its way.
void slow_cables_down(const NetworkHosts& hosts) {
  for (int host = 0; host < hosts.size(); ++host) {
    const Result result = run(hosts.command(host, {"tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate",
                                                   "100mbit", "burst", "64kb", "latency", "50ms"}));
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }
}

TEST_P(TcpHosts, NameTheRankThatDiesWhileDataIsOnItsWay) {
  for (const std::string& memory : memories()) {
    SCOPED_TRACE(memory);
    const NetworkHosts hosts(kHosts);
    slow_cables_down(hosts);
    auto ranks = ranks_on(hosts, {CONFORMANCE_RANK, "large", memory});
    for (const Process& rank : ranks) ASSERT_TRUE(rank.await_output("under way"));
    ranks[1].send(SIGKILL);
    expect_named(ranks, 1, {1}, "was in all_reduce ");
  }
}

// Nobody is told when a cable is out: the hosts that still reach each other end with one cause, and say whom they wait
// for.
void TcpHosts::cut_off_while(const std::vector<std::string>& program, const std::string& begun, bool is_slow) {
  NetworkHosts hosts(kHosts);
  if (is_slow) slow_cables_down(hosts);
  auto ranks = ranks_on(hosts, program, {{"LOCKSTEP_TIMEOUT", is_slow ? "10" : "5"}, {"LOCKSTEP_LIVENESS", "off"}});
  for (const Process& rank : ranks) ASSERT_TRUE(rank.await_output(begun));
  hosts.cut(1);
  std::vector<std::string> causes;
  for (int survivor = 0; survivor < world(); ++survivor) {
    const Result result = ranks[static_cast<std::size_t>(survivor)].wait();
    if (host_of(survivor) == 1) continue;  // it can ask nobody
    EXPECT_EQ(result.exit_code, 3) << result.out << result.err;
    EXPECT_THAT(result.out,
                ContainsRegex("(Timeout: all_reduce .*(not arrived|to or from).*|PeerLost: )rank [0-5] .host host" +
                              std::string(is_slow ? "1" : "")));
    causes.push_back(result.out);
  }
  EXPECT_THAT(causes, Each(causes[0]));
}

TEST_P(TcpHosts, EndWithOneCauseWhenAHostIsCutOff) {
  cut_off_while({CONFORMANCE_RANK, "loop", "quiet"}, "looping", false);
}

TEST_P(TcpHosts, NameARankOfTheHostThatIsCutOffWhileDataIsOnItsWay) {
  for (const std::string& memory : memories()) {
    SCOPED_TRACE(memory);
    cut_off_while({CONFORMANCE_RANK, "large", memory}, "under way", true);
  }
}

// There is no connection from it to the one that asks, of another host or of its own, and there will be none: it has
// stopped. Its counterparts see its end, or the one that finds nobody at its port does.
TEST_P(TcpHostsOfTwo, NameTheRankThatDiesWhileAnotherConnectsWithIt) {
  for (const int asking : {1, 3}) {
    SCOPED_TRACE(asking);
    const NetworkHosts hosts(kHosts);
    auto ranks = ranks_on(hosts, {CONFORMANCE_RANK, "ask", std::to_string(asking)}, {{"LOCKSTEP_LIVENESS", "off"}});
    ASSERT_TRUE(ranks[static_cast<std::size_t>(asking)].await_output("asking"));
    ranks[2].send(SIGKILL);
    expect_named(ranks, 2, {2}, "");
  }
}

// "10.77.0.10:29400": ports of a host that others reach, by /proc/net/tcp.
std::set<std::string> open_ports(const NetworkHosts& hosts, int host) {
  std::istringstream table(run(hosts.command(host, {"cat", "/proc/net/tcp", "/proc/net/tcp6"})).out);
  std::set<std::string> ports;
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    std::string slot, local, remote, state;
    words >> slot >> local >> remote >> state;
    if (state == "0A" && !local.starts_with("0100007F:")) ports.insert(local);
  }
  return ports;
}

// They prove themselves to each other at ports that are closed once a rank is connected with all others: where hosts
// have several ranks that is later, or never. strangers_test.cc has who comes to one that is open.
TEST_P(TcpHosts, ListenAtTheStoreAndWhereARankMayStillCome) {
  const NetworkHosts hosts(kHosts);
  auto ranks = ranks_on(hosts, {CONFORMANCE_RANK, "loop", "quiet"}, {{"LOCKSTEP_STORE_SECRET", std::string(64, 'a')}});
  for (const Process& rank : ranks) ASSERT_TRUE(rank.await_output("looping"));
  const std::set<std::string> ports = open_ports(hosts, 0);
  EXPECT_TRUE(ports.contains("0A004D0A:72D8")) << "10.77.0.10:29400";
  const std::size_t of_ranks = GetParam() == 1 ? 0u : 2u;
  EXPECT_EQ(ports.size(), 1 + of_ranks);
  for (int host = 1; host < kHosts; ++host) EXPECT_EQ(open_ports(hosts, host).size(), of_ranks);
  for (const Process& rank : ranks) rank.send(SIGKILL);
}

TEST_P(TcpHosts, TakeTheInterfaceThatTheVariableNames) {
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

INSTANTIATE_TEST_SUITE_P(RanksOfEach, TcpHosts, ::testing::Values(1, 2));
INSTANTIATE_TEST_SUITE_P(RanksOfEach, TcpHostsOfTwo, ::testing::Values(2));

}  // namespace
}  // namespace lockstep::testing::tcp_test
