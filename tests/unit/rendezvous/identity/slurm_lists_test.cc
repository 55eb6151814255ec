// SPDX-License-Identifier: Apache-2.0
// The short forms of Slurm's lists.
#include <gtest/gtest.h>

#include "runtime/rendezvous/identity/slurm_lists.h"

namespace lockstep::rendezvous::slurm_lists_test {
namespace {

TEST(SlurmLists, TheFirstHost) {
  const std::pair<const char*, const char*> lists[] = {
      {"n1", "n1"},           {"n1,n2", "n1"},          {"n[10,20-25],m3", "n10"},
      {"n[20-25,10]", "n20"}, {"n[008-011]", "n008"},   {"r[1-2]n[08-11]", "r1n08"},
      {"m3,n[1-2]", "m3"},    {"n[3-4]-ib,m", "n3-ib"},
  };
  for (const auto& [list, first] : lists) EXPECT_EQ(first_host(list), first) << list;
  for (const char* wrong : {"", ",n1", "n[", "n[]", "n[a-b]", "n]1", "n[1-2"}) {
    EXPECT_EQ(first_host(wrong), std::nullopt) << wrong;
  }
}

TEST(SlurmLists, TasksOnANode) {
  EXPECT_EQ(tasks_on_node("4", 0), 4);
  EXPECT_EQ(tasks_on_node("4(x2),3", 0), 4);
  EXPECT_EQ(tasks_on_node("4(x2),3", 1), 4);
  EXPECT_EQ(tasks_on_node("4(x2),3", 2), 3);
  EXPECT_EQ(tasks_on_node("4(x2),3", 3), std::nullopt);
  EXPECT_EQ(tasks_on_node("1,2(x1000000000),3", 1000000000), 2);
  EXPECT_EQ(tasks_on_node("4", -1), std::nullopt);
  for (const char* wrong : {"", "x", "4(", "4(x", "4(x)", "4(x2", "4(x-1)", "0", "-1", "4(x0)"}) {
    EXPECT_EQ(tasks_on_node(wrong, 0), std::nullopt) << wrong;
  }
}

}  // namespace
}  // namespace lockstep::rendezvous::slurm_lists_test
