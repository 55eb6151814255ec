// SPDX-License-Identifier: Apache-2.0
#include "launcher/placement/binding.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::launcher::binding_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_text;

std::vector<std::string> places(Binding binding, const Topology& topology, int ranks) {
  std::vector<std::string> texts;
  for (const RankBinding& rank : bind_ranks(binding, topology, ranks)) {
    texts.push_back(describe_processors(rank.processors) + " x" + std::to_string(rank.cores));
  }
  return texts;
}
using Places = std::vector<std::string>;

// Two nodes of two cores with two threads each, as the kernel numbers them: 0 and 4 are one core.
const Topology kEight = {.cores = {{0, 4}, {1, 5}, {2, 6}, {3, 7}}, .nodes = {{0, 1, 4, 5}, {2, 3, 6, 7}}};

TEST(Binding, HasThreeNames) {
  EXPECT_EQ(parse_binding("core"), Binding::core);
  EXPECT_EQ(parse_binding("numa"), Binding::numa);
  EXPECT_EQ(parse_binding("none"), Binding::none);
  for (const char* bad : {"", "cores", "socket", "1", "Core"}) EXPECT_FALSE(parse_binding(bad)) << bad;
}

TEST(Binding, ReadsTheKernelsLists) {
  EXPECT_EQ(parse_processors("0-2,8\n"), (Processors{0, 1, 2, 8}));
  EXPECT_EQ(parse_processors("3"), Processors{3});
  for (const char* bad : {"", "\n", "x", "2-1", "1-", "5000"}) EXPECT_FALSE(parse_processors(bad)) << bad;
  EXPECT_EQ(describe_processors({0, 1, 2, 8}), "0-2,8");
  EXPECT_EQ(describe_processors({3}), "3");
  EXPECT_EQ(describe_processors({}), "");
}

TEST(Binding, CoresAreDividedWithTheirThreadsAndNodesAreDividedOrShared) {
  EXPECT_TRUE(bind_ranks(Binding::none, kEight, 4).empty());
  EXPECT_EQ(places(Binding::core, kEight, 3), (Places{"0-1,4-5 x2", "2,6 x1", "3,7 x1"}));
  EXPECT_EQ(places(Binding::core, kEight, 4), (Places{"0,4 x1", "1,5 x1", "2,6 x1", "3,7 x1"}));
  expect_text(
      error_of([] { bind_ranks(Binding::core, kEight, 5); }),
      {"--bind core: 5 ranks need a core each, but this command may use 4 cores", "start at most that many ranks"});
  for (const Binding binding : {Binding::core, Binding::numa}) {
    EXPECT_EQ(places(binding, kEight, 1), Places{"0-7 x4"});
    EXPECT_EQ(places(binding, kEight, 2), (Places{"0-1,4-5 x2", "2-3,6-7 x2"}));
  }
  EXPECT_EQ(places(Binding::numa, kEight, 3), (Places{"0-1,4-5 x1", "0-1,4-5 x1", "2-3,6-7 x2"}));
  EXPECT_EQ(places(Binding::numa, kEight, 9).size(), 9u) << "more ranks than cores may be on a node";
  EXPECT_EQ(places(Binding::numa, kEight, 9).back(), "2-3,6-7 x1");
}

TEST(Binding, SaysWhereTheFirstRanksAre) {
  EXPECT_EQ(describe_bindings(bind_ranks(Binding::core, kEight, 2), 6), "rank 6 to 0-1,4-5, rank 7 to 2-3,6-7");
  const auto many = bind_ranks(Binding::numa, kEight, 10);
  expect_text(describe_bindings(many, 0), {"rank 7 to ", " and 2 more"});
}

class TopologyFolder : public ::testing::Test {
 protected:
  void core(int processor, const std::string& siblings) const {
    folder_.write("cpu/cpu" + std::to_string(processor) + "/topology/thread_siblings_list", siblings + "\n");
  }
  const lockstep::testing::TemporaryFolder folder_;
};

TEST_F(TopologyFolder, IsReadForTheProcessorsThatAreAllowed) {
  for (const int first : {0, 1, 2, 3}) {
    const auto siblings = std::to_string(first) + "," + std::to_string(first + 4);
    core(first, siblings);
    core(first + 4, siblings);
  }
  folder_.write("node/online", "0-2\n");
  folder_.write("node/node0/cpulist", "0,2,4,6\n");
  folder_.write("node/node1/cpulist", "1,3,5,7\n");
  folder_.write("node/node2/cpulist", "\n");  // memory only
  const auto all = read_topology(folder_, {0, 1, 2, 3, 4, 5, 6, 7});
  EXPECT_EQ(all.nodes, (std::vector<Processors>{{0, 2, 4, 6}, {1, 3, 5, 7}}));
  EXPECT_EQ(all.cores, (std::vector<Processors>{{0, 4}, {2, 6}, {1, 5}, {3, 7}})) << "those of a node side by side";
  const auto some = read_topology(folder_, {1, 3, 4});
  EXPECT_EQ(some.nodes, (std::vector<Processors>{{4}, {1, 3}}));
  EXPECT_EQ(some.cores, (std::vector<Processors>{{4}, {1}, {3}}));
}

TEST_F(TopologyFolder, WhatCannotBeReadIsOneThreadACoreAndOneNode) {
  const auto topology = read_topology(folder_, {0, 2});
  EXPECT_EQ(topology.cores, (std::vector<Processors>{{0}, {2}}));
  EXPECT_EQ(topology.nodes, (std::vector<Processors>{{0, 2}}));
}

TEST(Binding, OfThisMachineHasEveryAllowedProcessorOnce) {
  const auto allowed = allowed_processors();
  ASSERT_FALSE(allowed.empty());
  const auto topology = read_topology("/sys/devices/system", allowed);
  for (const auto* parts : {&topology.cores, &topology.nodes}) {
    Processors all;
    for (const Processors& part : *parts) all.insert(all.end(), part.begin(), part.end());
    std::sort(all.begin(), all.end());
    EXPECT_EQ(all, allowed);
  }
}

}  // namespace
}  // namespace lockstep::launcher::binding_test
