// SPDX-License-Identifier: Apache-2.0
// What hosts tell each other before the start, and what follows: ranks, or a sentence for each host that can't.
#include "launcher/hosts/host_facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/base/exit_codes.h"
#include "lockstep/base/error.h"

namespace lockstep::launcher::host_facts_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

TEST(HostFacts, TravelAsText) {
  auto facts = facts_of(2, 4);
  facts.exit_code = 127;
  facts.problem = "two\nlines";
  const auto decoded = decode_host_facts(encode(facts));
  ASSERT_TRUE(decoded);
  const HostFacts& read = *decoded;
  EXPECT_EQ(read.agent, 12);
  EXPECT_EQ(read.node, 2);
  EXPECT_EQ(read.name, "c");
  EXPECT_EQ(read.pid, 102);
  EXPECT_EQ(read.build, "0.2.0 x");
  EXPECT_EQ(read.least, 3);
  EXPECT_EQ(read.nodes, 3);
  EXPECT_EQ(read.ranks, 4);
  EXPECT_EQ(read.exit_code, 127);
  EXPECT_EQ(read.problem, "two\nlines");
  EXPECT_FALSE(decode_host_facts("nonsense"));
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

TEST(JobPlan, TravelsAsText) {
  auto plan = plan_job({.run_id = "run-1", .master_addr = "a", .master_port = 7, .torch_store = true}, three_hosts());
  plan.start = 4;
  plan.left_out = {"d", "e"};
  const auto read = decode_job_plan(encode(plan), "key");
  EXPECT_EQ(read.exit_code, 0);
  EXPECT_EQ(read.start, 4);
  EXPECT_THAT(read.left_out, ElementsAre("d", "e"));
  EXPECT_EQ(read.run_id, "run-1");
  EXPECT_EQ(read.master_addr, "a");
  EXPECT_EQ(read.master_port, 7);
  EXPECT_TRUE(read.torch_store);
  ASSERT_EQ(read.hosts.size(), 3u);
  EXPECT_EQ(read.hosts[2].name, "c");
  EXPECT_EQ(read.hosts[2].first_rank, 3);
  EXPECT_EQ(read.hosts[2].ranks, 4);
  EXPECT_EQ(read.hosts[2].agent, 12);
  EXPECT_THROW(decode_job_plan(encode(facts_of(0, 1)), "key"), CorruptData);
}

TEST(JobPlan, NamesEachHostThatCannotBegin) {
  auto hosts = three_hosts();
  hosts[1].problem = "./train: no such\nfile";
  hosts[1].exit_code = 127;
  hosts[2].problem = "no GPU here";
  hosts[2].exit_code = 2;
  const auto plan = plan_job({}, hosts);
  EXPECT_EQ(plan.exit_code, 127) << "the first one's";
  const auto read = decode_job_plan(encode(plan), "key");
  EXPECT_EQ(read.exit_code, 127);
  EXPECT_THAT(read.problems,
              ElementsAre("host b (node rank 1): ./train: no such\nfile", "host c (node rank 2): no GPU here"));
}

TEST(JobPlan, NamesAnotherBuildAndAnotherNumberOfHosts) {
  auto hosts = three_hosts();
  hosts[1].build = "0.1.0 y";
  hosts[2].least = hosts[2].nodes = 4;
  const auto plan = plan_job({}, hosts);
  EXPECT_EQ(plan.exit_code, kExitUsage);
  EXPECT_THAT(plan.problems,
              ElementsAre(AllOf(HasSubstr("host b (node rank 1) has another lockstep than host a (node rank 0)"),
                                HasSubstr("'0.1.0 y' and '0.2.0 x'")),
                          AllOf(HasSubstr("host c (node rank 2) was told --nnodes 4"), HasSubstr("--nnodes 3"))));
}

TEST(JobPlan, GivesNodeRanksToWhoHasNoneAndNamesTwoThatHaveTheSame) {
  std::vector<HostFacts> hosts = {facts_of(0, 1), facts_of(1, 1), facts_of(2, 1)};
  hosts[0].node = -1;
  hosts[1].node = 2;
  hosts[2].node = -1;
  give_node_ranks(hosts, true);
  EXPECT_EQ(hosts[0].name, "a");
  EXPECT_EQ(hosts[1].name, "c");
  EXPECT_EQ(hosts[2].name, "b");
  for (int node = 0; node < 3; ++node) EXPECT_EQ(hosts[static_cast<std::size_t>(node)].node, node);
  hosts[0].node = 2;
  give_node_ranks(hosts, true);
  const auto plan = plan_job({}, hosts);
  EXPECT_EQ(plan.exit_code, kExitUsage);
  EXPECT_THAT(plan.problems, ElementsAre(AllOf(HasSubstr("host a (node rank 2) and host b (node rank 2)"),
                                               HasSubstr("its own --node-rank, or none of them"))));
}

TEST(JobPlan, SaysWhoCameAndWhoIsMissing) {
  const std::vector<HostFacts> came = {facts_of(0, 2), facts_of(2, 1)};
  const auto plan = plan_without(came, 3, "5.0 s of 5.0 s allowed");
  EXPECT_EQ(plan.exit_code, kExitInternal);
  EXPECT_THAT(plan.problems, ElementsAre(AllOf(HasSubstr("2 of 3 hosts came, 5.0 s of 5.0 s allowed: "),
                                               HasSubstr("host a (node rank 0), host c (node rank 2); missing: node "
                                                         "rank 1;"),
                                               HasSubstr("--rdzv-timeout"))));
}

// At a later start they are numbered anew, so that "node rank 2" would be who came.
TEST(JobPlan, OfALaterStartNamesWhoIsLost) {
  const auto plan =
      plan_without(std::vector{facts_of(0, 2), facts_of(1, 1)}, 3, "5.0 s of 5.0 s", "host b (node rank 1)");
  EXPECT_THAT(plan.problems.front(),
              HasSubstr("2 of 3 hosts came, 5.0 s of 5.0 s: host a, host b; missing: host b (node rank 1);"));
}

}  // namespace
}  // namespace lockstep::launcher::host_facts_test
