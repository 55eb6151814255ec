// Interfaces and variables in, choice and reason out; and what doctor prints of it.
#include "runtime/rendezvous/interfaces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/base/error.h"
#include "runtime/rendezvous/describe.h"

namespace lockstep::rendezvous {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Variables = std::map<std::string, std::string, std::less<>>;

const Interface kLoopback{.name = "lo", .address = "127.0.0.1", .loopback = true};
const Interface kDocker{.name = "docker0", .address = "172.17.0.1", .loopback = false};
const Interface kEthernet{.name = "eth0", .address = "10.0.0.7", .loopback = false};
const Interface kInfiniband{.name = "ib0", .address = "10.1.0.7", .loopback = false};
const Interface kUnplugged{.name = "eth1", .address = "10.2.0.7", .loopback = false, .running = false};
const Interface kSix{.name = "eth0", .address = "2001:db8::7", .loopback = false};
const Interface kLinkLocal{.name = "eth0", .address = "fe80::7", .loopback = false};
const Interface kSelfAssigned{.name = "usb0", .address = "169.254.3.1", .loopback = false};

std::string chosen(const std::vector<Interface>& interfaces, const Variables& variables = {}) {
  const InterfaceChoice choice = choose_interface(interfaces, Environment(variables));
  return choice.name + " " + choice.address;
}

TEST(ChooseInterface, TheFirstThatOtherHostsReach) {
  EXPECT_EQ(chosen({kLoopback, kDocker, kUnplugged, kSelfAssigned, kLinkLocal, kSix, kEthernet, kInfiniband}),
            "eth0 10.0.0.7");
  EXPECT_EQ(chosen({kLoopback, kInfiniband, kEthernet}), "ib0 10.1.0.7") << "the kernel's order among equals";
  EXPECT_EQ(chosen({kLoopback, kLinkLocal, kDocker, kSix}), "eth0 2001:db8::7") << "no IPv4 but a bridge's";
  EXPECT_EQ(chosen({kLoopback, kDocker}), "docker0 172.17.0.1");
  EXPECT_EQ(chosen({kLoopback, kUnplugged}), "eth1 10.2.0.7");
  EXPECT_EQ(chosen({kLoopback, kLinkLocal}), "eth0 fe80::7");
  EXPECT_EQ(chosen({kLoopback}), "lo 127.0.0.1");
  EXPECT_EQ(chosen({}), "lo 127.0.0.1");
}

TEST(ChooseInterface, SaysWhy) {
  const auto why = [](const std::vector<Interface>& interfaces, const Variables& variables = {}) {
    return choose_interface(interfaces, Environment(variables)).why;
  };
  EXPECT_EQ(why({kLoopback, kEthernet}), "the only one beside loopback");
  EXPECT_THAT(why({kLoopback, kDocker, kEthernet}), HasSubstr("no bridge or tunnel"));
  EXPECT_THAT(why({kLoopback}), HasSubstr("only this host reaches it"));
  EXPECT_THAT(why({kLoopback, kDocker, kSelfAssigned}), HasSubstr("though its name is that of a bridge"));
  EXPECT_EQ(why({kEthernet, kInfiniband}, {{"GLOO_SOCKET_IFNAME", "ib0"}}), "GLOO_SOCKET_IFNAME=ib0 wants it");
}

TEST(ChooseInterface, VariablesOfNcclAndGlooAreHonoured) {
  const std::vector<Interface> all = {kLoopback, kDocker, kEthernet, kUnplugged, kInfiniband};
  const auto nccl = [&](const char* wish) { return chosen(all, {{"NCCL_SOCKET_IFNAME", wish}}); };
  EXPECT_EQ(nccl("ib"), "ib0 10.1.0.7") << "the beginning of a name";
  EXPECT_EQ(nccl("=ib0"), "ib0 10.1.0.7");
  EXPECT_EQ(nccl("eth1,ib"), "ib0 10.1.0.7") << "of those wanted the better one";
  EXPECT_EQ(nccl("^eth,docker"), "ib0 10.1.0.7");
  EXPECT_EQ(nccl("^=eth0"), "ib0 10.1.0.7");
  EXPECT_EQ(nccl("lo"), "lo 127.0.0.1");
  EXPECT_EQ(chosen(all, {{"GLOO_SOCKET_IFNAME", "docker0"}}), "docker0 172.17.0.1");
  EXPECT_EQ(chosen(all, {{"NCCL_SOCKET_IFNAME", "ib0"}, {"GLOO_SOCKET_IFNAME", "eth0"}}), "ib0 10.1.0.7");
}

TEST(ChooseInterface, AWishThatNothingMeetsIsRefusedWithWhatThereIs) {
  for (const Variables& wish : {Variables{{"NCCL_SOCKET_IFNAME", "wlan"}}, Variables{{"NCCL_SOCKET_IFNAME", "=eth"}},
                                Variables{{"GLOO_SOCKET_IFNAME", "eth"}}, Variables{{"NCCL_SOCKET_IFNAME", ","}}}) {
    try {
      ADD_FAILURE() << "chose " << chosen({kLoopback, kEthernet}, wish);
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr(wish.begin()->first + "=" + wish.begin()->second),
                                      HasSubstr("lo 127.0.0.1, eth0 10.0.0.7")));
    }
  }
}

TEST(ChooseInterface, OfThisHost) {
  const auto here = net::interfaces_of_this_host();
  EXPECT_THAT(describe_interfaces(here), HasSubstr("127.0.0.1"));
  EXPECT_FALSE(choose_interface(here, {}).address.empty());
}

std::string described(const Variables& variables, bool problem = false) {
  std::string text;
  const std::vector<Interface> interfaces = {kLoopback, kEthernet};
  for (const Fact& fact : describe_rendezvous(Environment(variables), {}, interfaces)) {
    EXPECT_TRUE(problem || !fact.problem) << fact.name << ": " << fact.text;
    text += (fact.problem ? "!" : "") + fact.name + ": " + fact.text + "\n";
  }
  return text;
}

TEST(DescribeRendezvous, WhatARankWouldSee) {
  EXPECT_EQ(described({}),
            "launcher: alone\nrank: 0/1 (local ?/?, node ?)\nmeeting: none: a world of one\nsecret: none needed\n"
            "interfaces: lo 127.0.0.1, eth0 10.0.0.7\ninterface: eth0 10.0.0.7 (the only one beside loopback)\n");
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
              AllOf(HasSubstr("!launcher: who am I: RANK is set"), HasSubstr("interface: eth0")));
  EXPECT_THAT(described({{"RANK", "1"}, {"WORLD_SIZE", "2"}}, true), HasSubstr("!meeting: rendezvous: rank 1/2"));
  EXPECT_THAT(
      described({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCKSTEP_STORE", "h:1"}, {"LOCKSTEP_STORE_SECRET", "short"}},
                true),
      AllOf(HasSubstr("!meeting: "), Not(HasSubstr("short"))));
  EXPECT_THAT(described({{"GLOO_SOCKET_IFNAME", "wlan0"}}, true),
              HasSubstr("!interface: environment: GLOO_SOCKET_IFNAME=wlan0"));
}

}  // namespace
}  // namespace lockstep::rendezvous
