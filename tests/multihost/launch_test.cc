// SPDX-License-Identifier: Apache-2.0
// `lockstep run` on three hosts as one job: its ranks, its one verdict, and what keeps it from beginning.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/job/exit_code.h"
#include "runtime/store/secret.h"
#include "tests/e2e/delayed_rank.h"
#include "tests/multihost/launched_hosts.h"
#include "tests/support/network_namespaces.h"
#include "tests/support/process.h"
#include "tests/support/source_line.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing::launch_test {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

// All buckets of the job in one file of two ranks each of three hosts: a bucket ends nowhere before it is launched
// everywhere, as far as the clocks are known.
void expect_one_timeline(const std::string& file) {
  const nlohmann::json timeline = nlohmann::json::parse(std::ifstream(file));
  EXPECT_THAT(timeline["otherData"]["clock"].get<std::string>(), HasSubstr("by their common buckets"));
  const double error = timeline["otherData"]["clock_error_us"];
  std::map<std::pair<int, std::string>, std::pair<double, double>> buckets;  // last launch, first end
  std::set<int> ranks;
  for (const nlohmann::json& event : timeline["traceEvents"]) {
    if (event["ph"] != "X" || !event["name"].get<std::string>().starts_with("bucket")) continue;
    ranks.insert(event["pid"].get<int>());
    const double begin = event["ts"];
    const double end = begin + event["dur"].get<double>();
    const auto [at, is_new] = buckets.try_emplace({event["args"]["number"], event["name"]}, begin, end);
    at->second = {std::max(at->second.first, begin), std::min(at->second.second, end)};
  }
  EXPECT_EQ(ranks.size(), 6u);
  EXPECT_FALSE(buckets.empty());
  for (const auto& [key, times] : buckets) EXPECT_LE(times.first, times.second + 2 * error + 1) << key.second;
}

TEST_F(LaunchedHosts, TrainAsOneProcessDoesAndLeaveOneTimelineOfAllRanksByOneClock) {
  const TemporaryFolder folder;
  const std::string file = folder / "run.json";
  auto launchers = launch_all({RAW_GRADIENTS}, {}, {"--trace", file});
  const auto results = ends_of(launchers);
  EXPECT_THAT(results[0].out, HasSubstr("6 replicas, all bit-equal; weights equal those of one process"));
  EXPECT_THAT(results[0].err, AllOf(HasSubstr("host0 (node rank 0 of 3): ranks 0 and 1 of 6"),
                                    HasSubstr("the timeline of 6 ranks is in " + file + "\n")));
  EXPECT_THAT(results[1].err, HasSubstr("the timeline of this host's ranks is in the file that the launcher of host "
                                        "host0 (node rank 0) writes\n"));
  expect_one_timeline(file);
}

// Node rank 0 has the others' traces sent.
TEST_F(LaunchedHosts, LeaveOneTimelineWhereTheyShareNoFolder) {
  const TemporaryFolder folder;
  auto launchers = on_each(kHosts, [&](int host) {
    const std::filesystem::path own = folder / NetworkHosts::name(host);
    std::filesystem::create_directory(own);
    return launch(host, 2, {RAW_GRADIENTS}, {"--trace", own / "run.json", "--log-dir", own / "logs"});
  });
  const auto results = ends_of(launchers);
  const std::string file = folder / "host0" / "run.json";
  EXPECT_THAT(results[0].err, HasSubstr("the timeline of 6 ranks is in " + file + "\n"));
  expect_one_timeline(file);
  for (const int host : {1, 2}) {
    EXPECT_THAT(results[static_cast<std::size_t>(host)].err,
                HasSubstr("the timeline of this host's ranks is in the file that"));
    EXPECT_FALSE(std::filesystem::exists(folder / NetworkHosts::name(host) / "run.json"));
  }
  const Result report = run({LOCKSTEP_PROGRAM, "report", folder / "host0" / "logs"});
  EXPECT_THAT(report.out, HasSubstr("report.html: 6 ranks, "));
}

// Host 2 was started without --trace, so that node rank 0 waits for it once it has the traces of host 1.
TEST_F(LaunchedHosts, LeaveTheTimelineOfWhatHasComeAtASignal) {
  const TemporaryFolder folder;
  auto launchers = on_each(kHosts, [&](int host) {
    const std::filesystem::path own = folder / NetworkHosts::name(host);
    std::filesystem::create_directory(own);
    return launch(host, 2, {RAW_GRADIENTS}, host < 2 ? Words{"--trace", own / "run.json"} : Words{});
  });
  const std::filesystem::path last = folder / "host0" / "run.json.ranks" / "start1" / "rank3.trace";
  ASSERT_TRUE(wait_until([&] { return std::filesystem::exists(last); }));
  launchers[0].send(SIGTERM);
  const auto results = ends_of(launchers);  // the job's own
  EXPECT_THAT(results[0].err,
              AllOf(HasSubstr("--trace was given on host host0 and not on host host2; give it on every"),
                    HasSubstr("SIGTERM was received: this launcher waits for traces no longer, so the timeline may "
                              "lack ranks of other hosts\n"),
                    HasSubstr("the timeline of 4 ranks is in "), Not(HasSubstr("did not come"))));
  EXPECT_THAT(results[1].err, HasSubstr("the timeline of this host's ranks is in the file that"));
}

// Between hosts, and within them over shared memory: the last rank of the last host is late.
class LateRank : public LaunchedHosts, public ::testing::WithParamInterface<const char*> {};

TEST_P(LateRank, IsNamedWithItsHostAndCauseInTheReport) {
  const TemporaryFolder folder;
  const DelayedRank late{.rank = 5, .host = "host2", .phase = GetParam()};
  auto launchers = launch_all({DELAYED_PROGRAM, "tcp", late.phase}, {}, {"--log-dir", folder / "logs"});
  ASSERT_TRUE(launchers[0].await_output(line_about(late)));
  EXPECT_THAT(launchers[0].err(), HasSubstr("lockstep run: rank 5 (host host2) costs "));
  launchers[0].send(SIGTERM);
  for (Process& launcher : launchers) launcher.wait();
  const Result report = run({LOCKSTEP_PROGRAM, "report", folder / "logs"});
  EXPECT_THAT(report.out, HasSubstr("rank 5 (host host2) costs "));
  expect_in_report(folder / "logs" / "report.jsonl", late);
}

INSTANTIATE_TEST_SUITE_P(Phases, LateRank, ::testing::Values("data", "forward", "backward"),
                         [](const auto& test) { return std::string(test.param); });

// Ports of both ends of the TCP connections that stand, from a /proc/net/tcp.
std::vector<std::pair<int, int>> connections_in(const std::string& proc_net_tcp) {
  std::vector<std::pair<int, int>> ports;
  const std::regex established(": [0-9A-F]+:([0-9A-F]{4}) [0-9A-F]+:([0-9A-F]{4}) 01 ");
  for (auto it = std::sregex_iterator(proc_net_tcp.begin(), proc_net_tcp.end(), established);
       it != std::sregex_iterator(); ++it) {
    ports.emplace_back(std::stoi((*it)[1], nullptr, 16), std::stoi((*it)[2], nullptr, 16));
  }
  return ports;
}

// What each host has at the store: two of its launcher's, and one of each rank's for keys, of which a rank lets go
// when it has asked for none for a while. Ranks of other hosts than the store's are members over the launcher's.
TEST_F(LaunchedHosts, HaveOneConnectionEachForTheMembershipOfTheirRanks) {
  constexpr int kRanks = 4;
  nnodes_ = "2";
  auto launchers = launch_all({RANK_PROGRAM, "backend:tcp", "init", "sum", "ready", "hang"}, {}, {}, 2, kRanks);
  await_ranks(launchers, kRanks);
  const auto to_store = [&] {
    const auto connections = connections_in(run(hosts_->command(1, {"cat", "/proc/net/tcp"})).out);
    return std::count_if(connections.begin(), connections.end(),
                         [](const auto& ports) { return ports.second == 29400; });
  };
  EXPECT_EQ(to_store(), 2 + kRanks);
  EXPECT_TRUE(wait_until([&] { return to_store() == 2; }));
  launchers[1].send(SIGTERM);
  ends_of(launchers, 128 + SIGTERM);
}

bool has_stacks() { return has_program("gdb") || has_program("eu-stack"); }

// Each host's launcher passes on what its ranks' heartbeats say, and looks at its ranks where it is asked to.
TEST_F(LaunchedHosts, ShowTheRanksOfAllOfThemWhereTheStoreIs) {
  nnodes_ = "2";
  auto launchers = launch_all({RANK_PROGRAM, "backend:tcp", "init", "train"}, {}, {}, 2);
  for (const Process& launcher : launchers) ASSERT_TRUE(launcher.await_output("training", 2));
  nlohmann::json seen;
  const Result there = lockstep_on(1, {"inspect"});
  EXPECT_EQ(there.exit_code, 0) << there.err;
  EXPECT_THAT(there.out, AllOf(HasSubstr("\nrank 2 (host host1, pid "), HasSubstr("\nrank 3 (host host1, pid "),
                               HasSubstr("    thread "), Not(HasSubstr("rank 0 "))));
  EXPECT_TRUE(wait_until([&] {
    seen = nlohmann::json::parse(lockstep_on(0, {"top", "--json"}).out, nullptr, false);
    return seen.is_object() && seen["ranks"].size() == 4 &&
           std::all_of(seen["ranks"].begin(), seen["ranks"].end(),
                       [](const nlohmann::json& rank) { return rank["step_s"].is_number() && rank["step_s"] > 0; });
  })) << seen;
  const Result elsewhere = lockstep_on(1, {"top", "--json"});
  EXPECT_EQ(elsewhere.exit_code, 1);
  EXPECT_THAT(elsewhere.err,
              HasSubstr("the ranks of this run report to the launcher of node rank 0, and this host has node rank 1"));
  const Result everywhere = lockstep_on(0, {"inspect"});
  EXPECT_EQ(everywhere.exit_code, 0) << everywhere.err;
  for (const int rank : {0, 1, 2, 3}) {
    const std::string head = "\nrank " + std::to_string(rank) + " \\(host host[01], pid [^\n]*\n";
    EXPECT_THAT(everywhere.out, ContainsRegex(head + "    thread [0-9]+ \\(e2e_rank"));
    if (!has_stacks()) continue;
    EXPECT_THAT(everywhere.out, ContainsRegex(head + "(    [^\n]*\n)*    #[0-9]+ [^\n]* main "));
  }
  launchers[0].send(SIGTERM);
  ends_of(launchers, 128 + SIGTERM);
}

// A launcher that is stopped can't look at its ranks.
class SilentLauncher : public LaunchedHosts {};

TEST_F(SilentLauncher, IsNamedByInspectAndNotWaitedForWithoutEnd) {
  auto launchers = launch_all({RANK_PROGRAM, "backend:tcp", "init", "sum", "ready", "hang"});
  await_ranks(launchers);
  ASSERT_TRUE(wait_until([&] {
    const auto seen = nlohmann::json::parse(lockstep_on(0, {"top", "--json"}).out, nullptr, false);
    return seen.is_object() && seen["ranks"].size() == 6;
  }));
  launchers[1].send(SIGSTOP);
  const Result seen = lockstep_on(0, {"inspect"});
  launchers[1].send(SIGCONT);
  EXPECT_EQ(seen.exit_code, 0) << seen.err;
  const std::string silent = "    no stacks: the launcher of host host1 has not answered within 20 s\n";
  EXPECT_THAT(seen.out, ContainsRegex("\nrank 2 \\(host host1, [^\n]*\n" + silent));
  EXPECT_THAT(seen.out, ContainsRegex("\nrank 3 \\(host host1, [^\n]*\n" + silent));
  EXPECT_THAT(seen.out, ContainsRegex("\nrank 4 \\(host host2, [^\n]*\n    thread "));
  launchers[0].send(SIGTERM);
  for (Process& launcher : launchers) launcher.wait();
}

TEST_F(LaunchedHosts, SayWhereARankOfAnotherHostHangs) {
  auto launchers =
      launch_all({RANK_PROGRAM, "backend:tcp", "init", "sum", "hang@3", "loop"}, {}, {"--hang-timeout", "2"});
  const auto results = ends_of(launchers, kExitPeerLost);
  for (const Result& result : results) {
    EXPECT_THAT(result.err, ContainsRegex("rank 3 \\(host host1, pid [0-9]+\\) hangs: the last that it started"));
  }
  if (has_stacks()) {
    EXPECT_THAT(results[0].err,
                ContainsRegex("\n  where it is:\n(  \\| [^\n]*\n)*  \\| #[0-9]+ [^\n]*" + line_of_hang()));
  }
}

// Below those that the kernel gives, so that a port tells which end of a connection listened.
TEST_F(LaunchedHosts, TakePortsOfTheRangeAndNoOthersForTcp) {
  constexpr int kStorePort = 29400;
  nnodes_ = "2";
  auto launchers = launch_all({RANK_PROGRAM, "backend:tcp", "init", "sum", "ready", "hang"},
                              {{"LOCKSTEP_PORT_RANGE", "30100-30115"}}, {}, 2, 3);
  await_ranks(launchers, 3);
  int of_tcp = 0;
  for (const int host : {0, 1}) {
    const Result table = run(hosts_->command(host, {"cat", "/proc/net/tcp"}));
    for (const auto& [own, other] : connections_in(table.out)) {
      const int listening = std::min(own, other);
      if (listening == kStorePort) continue;
      ++of_tcp;
      EXPECT_TRUE(listening >= 30100 && listening <= 30115) << own << " and " << other;
    }
  }
  EXPECT_GT(of_tcp, 0);
  launchers[0].send(SIGTERM);
  ends_of(launchers, 128 + SIGTERM);
}

class EightHosts : public LaunchedHosts {
 protected:
  void SetUp() override {
    LaunchedHosts::SetUp();
    if (IsSkipped()) return;
    hosts_ = std::make_unique<NetworkHosts>(8);
    nnodes_ = "8";
  }
};

TEST_F(EightHosts, PassABarrierOf256Ranks) {
  const auto limit = Deadline::after(std::chrono::minutes(9));
  auto launchers = launch_all({RANK_PROGRAM, "init", "barrier", "sum"}, {}, {}, 8, 32);
  for (Process& launcher : launchers) {
    const Result result = launcher.wait(limit);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    for (const std::string text : {"] barrier of 256\n", "] sum 32896 of 256\n"}) {
      int count = 0;
      for (auto at = result.out.find(text); at != result.out.npos; at = result.out.find(text, at + 1)) ++count;
      EXPECT_EQ(count, 32) << text;
    }
  }
}

TEST_F(LaunchedHosts, EachStartsAsManyRanksAsItWasTold) {
  const Words program = {PLAIN_PROGRAM, "env:WORLD_SIZE", "env:LOCAL_RANK", "env:NODE_RANK", "env:MASTER_ADDR"};
  const int counts[kHosts] = {2, 1, 3};
  auto launchers = on_each(kHosts, [&](int host) { return launch(host, counts[host], program); });
  int rank = 0;
  for (int host = 0; host < kHosts; ++host) {
    const Result result = launchers[static_cast<std::size_t>(host)].wait();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    for (int local_rank = 0; local_rank < counts[host]; ++local_rank, ++rank) {
      const std::string prefix = "[rank " + std::to_string(rank) + "] ";
      EXPECT_THAT(result.out, AllOf(HasSubstr(prefix + "WORLD_SIZE=6\n"),
                                    HasSubstr(prefix + "LOCAL_RANK=" + std::to_string(local_rank) + "\n"),
                                    HasSubstr(prefix + "NODE_RANK=" + std::to_string(host) + "\n"),
                                    HasSubstr(prefix + "MASTER_ADDR=" + NetworkHosts::address(0) + "\n")));
    }
  }
}

// The one that has the endpoint's address is the first, whoever comes first.
TEST_F(LaunchedHosts, AreGivenNodeRanksByTheStoreWhereNoneAreSaid) {
  lets_store_give_ranks_ = true;
  std::vector<Process> launchers;
  for (int host = kHosts - 1; host >= 0; --host)
    launchers.push_back(launch(host, 1, {PLAIN_PROGRAM, "env:GROUP_RANK"}));
  std::vector<std::string> outputs;
  for (Process& launcher : launchers) {
    const Result result = launcher.wait();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    outputs.push_back(result.out);
  }
  EXPECT_EQ(outputs.back(), "[rank 0] GROUP_RANK=0\n");
  std::sort(outputs.begin(), outputs.end());
  EXPECT_EQ(outputs, (Words{"[rank 0] GROUP_RANK=0\n", "[rank 1] GROUP_RANK=1\n", "[rank 2] GROUP_RANK=2\n"}));
}

// An abstract socket is of a network namespace, which is what a host is here.
TEST_F(LaunchedHosts, EachShowsTheRunAndAnyOneStopsIt) {
  auto launchers = launch_all({PLAIN_PROGRAM, "ready", "hang"});
  await_ranks(launchers);
  for (int host = 0; host < kHosts; ++host) {
    const Result list = lockstep_on(host, {"ps"});
    const auto ranks = std::to_string(2 * host) + "-" + std::to_string(2 * host + 1) + " of 6";
    EXPECT_THAT(list.out, AllOf(HasSubstr(ranks), HasSubstr("  " + std::to_string(host) + " of 3  ")));
    EXPECT_EQ(std::count(list.out.begin(), list.out.end(), '\n'), 2) << "its own, and no other's: " << list.out;
  }
  EXPECT_EQ(lockstep_on(2, {"stop", "run-"}).exit_code, 0);
  ends_of(launchers, 128 + SIGTERM);
}

TEST_F(LaunchedHosts, ASignalToOneOfThemEndsAll) {
  auto launchers = launch_all({PLAIN_PROGRAM, "ready", "hang"});
  await_ranks(launchers);
  launchers[2].send(SIGTERM);
  for (const Result& result : ends_of(launchers, 128 + SIGTERM)) {
    EXPECT_THAT(result.err, HasSubstr("stopped by SIGTERM; exit code 143"));
  }
}

TEST_F(LaunchedHosts, NameWhoDidNotCome) {
  auto first = launch(0, 1, {PLAIN_PROGRAM}, {"--rdzv-timeout", "3"});
  auto last = launch(2, 1, {PLAIN_PROGRAM}, {"--rdzv-timeout", "60"});
  for (Process* launcher : {&first, &last}) {
    const Result result = launcher->wait();
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.err,
                AllOf(HasSubstr("2 of 3 hosts came, "),
                      HasSubstr("host host0 (node rank 0), host host2 (node rank 2); missing: node rank 1;")));
  }
}

TEST_F(LaunchedHosts, OneThatIsKilledBeforeTheyHaveMetIsALostHost) {
  auto first = launch(0, 1, {PLAIN_PROGRAM});
  auto second = launch(1, 1, {PLAIN_PROGRAM});
  ASSERT_TRUE(first.await_output("2 of 3 hosts came, "));
  second.send(SIGKILL);
  const Result result = first.wait();
  EXPECT_EQ(result.exit_code, kExitPeerLost);
  EXPECT_THAT(result.err, HasSubstr("host host1 left before all hosts had joined"));
}

TEST_F(LaunchedHosts, NameAHostThatCannotTakePartAndStartNoRank) {
  const Words program = {PLAIN_PROGRAM, "print:started"};
  const std::string missing = "program './no-such-program' was not found";
  for (const auto& [of_last, extra, exit_code, says] :
       {std::tuple(Words{"./no-such-program"}, Variables{}, 127, missing),
        std::tuple(program, Variables{{"GLOO_SOCKET_IFNAME", "ib7"}}, 2,
                   std::string("GLOO_SOCKET_IFNAME='ib7' matches no interface; this host has: "))}) {
    std::vector<Process> launchers;
    for (const int host : {0, 1}) launchers.push_back(launch(host, 1, program));
    launchers.push_back(launch(2, 1, of_last, {}, extra));
    for (const Result& result : ends_of(launchers, exit_code)) {
      EXPECT_THAT(result.err, AllOf(HasSubstr("host host2 (node rank 2): "), HasSubstr(says)));
      EXPECT_EQ(result.out, "");
    }
  }
}

TEST_F(LaunchedHosts, TurnAwayWhoHasAnotherSecret) {
  auto first = launch(0, 1, {PLAIN_PROGRAM}, {"--rdzv-timeout", "3"});
  auto second = launch(1, 1, {PLAIN_PROGRAM}, {}, {{"LOCKSTEP_STORE_SECRET", store::Secret::random().hex()}});
  const Result refused = second.wait();
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("host host1 can't join the job: "), HasSubstr("wrong secret")));
  const Result result = first.wait();
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("1 of 3 hosts came"), HasSubstr("launcher of host host1"), Not(HasSubstr(secret_))));
}

TEST_F(LaunchedHosts, NeedASecret) {
  auto launcher = launch(0, 1, {PLAIN_PROGRAM}, {}, {{"LOCKSTEP_STORE_SECRET", ""}});
  const Result result = launcher.wait();
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("openssl rand -hex 32"), HasSubstr("LOCKSTEP_STORE_SECRET_FILE")));
}

}  // namespace
}  // namespace lockstep::testing::launch_test
