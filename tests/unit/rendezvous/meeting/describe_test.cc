// SPDX-License-Identifier: Apache-2.0
// What doctor prints of the variables.
#include "runtime/rendezvous/meeting/describe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::rendezvous::describe_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Variables = std::map<std::string, std::string, std::less<>>;

std::string described(const Variables& variables, bool problem = false) {
  std::string text;
  const std::vector<net::Interface> interfaces = {{.name = "lo", .address = "127.0.0.1", .loopback = true},
                                                  {.name = "eth0", .address = "10.0.0.7"}};
  for (const Fact& fact : describe_rendezvous(Environment(variables), {}, interfaces)) {
    EXPECT_TRUE(problem || !fact.problem) << fact.name << ": " << fact.text;
    text += (fact.problem ? "!" : "") + fact.name + ": " + fact.text + "\n";
  }
  return text;
}

TEST(DescribeRendezvous, WhatARankWouldSee) {
  EXPECT_EQ(
      described({}),
      "launcher: alone\nrank: 0/1 (local ?/?, node ?)\nmeeting: none: a world of one\nsecret: none needed\ninterfaces: "
      "lo 127.0.0.1, eth0 10.0.0.7\ninterface: eth0 10.0.0.7 (the only one besides loopback)\n");
  const std::string hex(64, 'a');
  const Variables by_hand = {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "n0"}, {"MASTER_PORT", "2345"}};
  EXPECT_THAT(described(by_hand), AllOf(HasSubstr("rank: 1/2"), HasSubstr("rank 0 hosts the store at n0:2345"),
                                        HasSubstr("secret: none: whoever reaches the store")));
  Variables closed = by_hand;
  closed["LOCKSTEP_STORE_SECRET"] = hex;
  EXPECT_THAT(described(closed), AllOf(HasSubstr("secret: given by"), Not(HasSubstr(hex))));
  Variables torchrun = by_hand;
  torchrun["TORCHELASTIC_RUN_ID"] = "x";
  torchrun["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_THAT(described(torchrun), HasSubstr("secret: drawn by rank 0, told through torchrun's store"));
  torchrun["LOCKSTEP_STORE_SECRET"] = hex;
  EXPECT_THAT(described(torchrun), AllOf(HasSubstr("secret: given by"), Not(HasSubstr(hex))));
}

TEST(DescribeRendezvous, ProblemsAreFacts) {
  EXPECT_THAT(described({{"RANK", "1"}}, true),
              AllOf(HasSubstr("!launcher: init_process_group: RANK is set"), HasSubstr("interface: eth0")));
  EXPECT_THAT(described({{"RANK", "1"}, {"WORLD_SIZE", "2"}}, true), HasSubstr("!meeting: rendezvous: rank 1/2"));
  EXPECT_THAT(
      described({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCKSTEP_STORE", "h:1"}, {"LOCKSTEP_STORE_SECRET", "short"}},
                true),
      AllOf(HasSubstr("!meeting: "), Not(HasSubstr("short"))));
  EXPECT_THAT(described({{"GLOO_SOCKET_IFNAME", "wlan0"}}, true),
              HasSubstr("!interface: environment: GLOO_SOCKET_IFNAME='wlan0'"));
}

}  // namespace
}  // namespace lockstep::rendezvous::describe_test
