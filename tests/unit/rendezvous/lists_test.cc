// The lists that launchers keep: Slurm's short forms, MLX's JSON.
#include <gtest/gtest.h>

#include "runtime/rendezvous/slurm_lists.h"
#include "runtime/rendezvous/string_lists.h"

namespace lockstep::rendezvous {
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

TEST(StringLists, WhatMlxWrites) {
  const auto ring = parse_string_list(R"( [ ["10.0.0.1:5000","10.1.0.1:5000"],
                                            ["10.0.0.2:5000"] ] )");
  ASSERT_TRUE(ring);
  EXPECT_EQ(ring->items.size(), 2u);
  EXPECT_EQ(ring->items[0].first(), "10.0.0.1:5000");
  const auto devices = parse_string_list(R"([[null,"rdma_en5"],["rdma_en5",null],[null,[]]])");
  ASSERT_TRUE(devices);
  EXPECT_EQ(devices->items.size(), 3u);
  EXPECT_EQ(devices->first(), "rdma_en5");
  EXPECT_EQ(devices->items[2].first(), "");
  EXPECT_EQ(parse_string_list(R"(["a\/b\"c\\"])")->first(), "a/b\"c\\");
  EXPECT_EQ(parse_string_list("[]")->items.size(), 0u);
}

TEST(StringLists, AnythingElseIsNone) {
  for (const char* wrong :
       {"", " ", "null", "\"a\"", "[", "]", "[,]", "[\"a\"", "[\"a\",]", "[\"a", "[\"a\\", "[\"\\u0041\"]", "[1]",
        "[{}]", "[true]", "[\"a\"]x", "[\"a\"] []", "[\"a\nb\"]", "[[[[[[[[[\"deep\"]]]]]]]]]"}) {
    EXPECT_FALSE(parse_string_list(wrong)) << wrong;
  }
}

}  // namespace
}  // namespace lockstep::rendezvous
