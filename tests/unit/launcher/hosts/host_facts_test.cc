// SPDX-License-Identifier: Apache-2.0
// What follows from what hosts tell each other before the start: ranks, or a sentence for each host that can't. How it
// travels is agent_message_test.cc's.
#include "launcher/hosts/host_facts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "launcher/base/exit_codes.h"
#include "tests/support/messages.h"

namespace lockstep::launcher::host_facts_test {
namespace {

using lockstep::testing::expect_message;

HostFacts facts_of(int node, int ranks) {
  return {.agent = 10 + node,
          .node = node,
          .name = std::string(1, static_cast<char>('a' + node)),
          .pid = 100 + node,
          .build = "0.2.0 x",
          .least = 3,
          .nodes = 3,
          .ranks = ranks};
}

std::vector<HostFacts> three_hosts() { return {facts_of(0, 2), facts_of(1, 1), facts_of(2, 4)}; }

void expect_problems(const char* what, const JobPlan& plan, int exit_code) {
  EXPECT_EQ(plan.exit_code, exit_code);
  expect_message("launcher", what, fmt::format("{}", fmt::join(plan.problems, "\n")));
}

TEST(JobPlan, GivesEachHostConsecutiveRanksByItsOwnNumber) {
  const auto plan = plan_job({.run_id = "run-1", .master_addr = "a", .master_port = 7}, three_hosts());
  EXPECT_EQ(plan.exit_code, 0);
  EXPECT_EQ(world_size(plan.hosts), 7);
  EXPECT_EQ(plan.hosts[0].first_rank, 0);
  EXPECT_EQ(plan.hosts[1].first_rank, 2);
  EXPECT_EQ(plan.hosts[2].first_rank, 3);
  for (int rank = 0; rank < 7; ++rank) EXPECT_EQ(node_of(plan.hosts, rank), rank < 2 ? 0 : rank < 3 ? 1 : 2) << rank;
  EXPECT_EQ(node_of(plan.hosts, 7), -1);
  EXPECT_EQ(describe_host(plan.hosts, 1), "host b (node rank 1)");
}

TEST(JobPlan, NamesEachHostThatCannotBeginWithTheFirstOnesExitCode) {
  auto hosts = three_hosts();
  hosts[1].problem = "./train: no such\nfile";
  hosts[1].exit_code = 127;
  hosts[2].problem = "no GPU here";
  hosts[2].exit_code = 2;
  expect_problems("problems", plan_job({}, hosts), 127);
  hosts = three_hosts();
  hosts[1].build = "0.1.0 y";
  hosts[2].least = hosts[2].nodes = 4;
  expect_problems("another build, other numbers of hosts", plan_job({}, hosts), kExitUsage);
}

TEST(JobPlan, GivesNodeRanksToWhoHasNoneAndNamesTwoThatHaveTheSame) {
  std::vector<HostFacts> hosts = {facts_of(0, 1), facts_of(1, 1), facts_of(2, 1)};
  hosts[0].node = -1;
  hosts[1].node = 2;
  hosts[2].node = -1;
  give_node_ranks(hosts, true);
  for (int node = 0; node < 3; ++node) {
    EXPECT_EQ(hosts[static_cast<std::size_t>(node)].name, std::string(1, "acb"[node]));
    EXPECT_EQ(hosts[static_cast<std::size_t>(node)].node, node);
  }
  hosts[0].node = 2;
  give_node_ranks(hosts, true);
  expect_problems("problems", plan_job({}, hosts), kExitUsage);
}

TEST(JobPlan, SaysWhoCameAndWhoIsMissing) {
  const std::vector<HostFacts> came = {facts_of(0, 2), facts_of(2, 1)};
  expect_problems("the first start", plan_without(came, 3, "5.0 s of 5.0 s allowed"), kExitInternal);
  // At a later one hosts are numbered anew, so that "node rank 1" would be who came.
  expect_problems("a later start", plan_without(came, 3, "5.0 s of 5.0 s", "host b (node rank 1)"), kExitInternal);
}

}  // namespace
}  // namespace lockstep::launcher::host_facts_test
