// SPDX-License-Identifier: Apache-2.0
// The address of this host that others reach: interfaces and variables in, choice and reason out.
#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "runtime/net/interfaces.h"
#include "runtime/net/route.h"
#include "tests/support/error_of.h"

namespace lockstep::net::interfaces_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_text;
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

TEST(FacesOthers, NeitherLoopbackNorABridgeWithinThisHost) {
  const std::vector<Interface> all = {kLoopback, kDocker, kEthernet, {.name = "tun0", .address = "10.8.0.1"}};
  EXPECT_TRUE(faces_others(all, "10.0.0.7"));
  EXPECT_TRUE(faces_others(all, "10.8.0.1")) << "a network of tunnels is one";
  for (const char* address : {"127.0.0.1", "127.0.1.1", "::1", "172.17.0.1"})
    EXPECT_FALSE(faces_others(all, address)) << address;
}

TEST(ChooseInterface, SaysWhy) {
  const auto why = [](const std::vector<Interface>& interfaces, const Variables& variables = {}) {
    return choose_interface(interfaces, Environment(variables)).why;
  };
  EXPECT_EQ(why({kLoopback, kEthernet}), "the only one besides loopback");
  expect_text(why({kLoopback, kDocker, kEthernet}), {"not a bridge or tunnel"});
  expect_text(why({kLoopback}), {"only this host reaches it"});
  expect_text(why({kLoopback, kDocker, kSelfAssigned}), {"though its name is that of a bridge"});
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

TEST(WishedInterface, IsThatOfTheVariablesThatCount) {
  const std::vector<Interface> all = {kLoopback, kEthernet, kInfiniband};
  const Environment both(Variables{{"NCCL_SOCKET_IFNAME", "ib0"}, {"GLOO_SOCKET_IFNAME", "eth9,lo,eth0"}});
  EXPECT_EQ(wished_interface(all, both)->name, "ib0");
  EXPECT_EQ(wished_interface(all, both, std::span(&kGlooInterface, 1))->name, "eth0") << "the best of its list";
  EXPECT_FALSE(wished_interface(all, Environment(Variables{}), std::span(&kGlooInterface, 1)));
}

TEST(ChooseInterface, AWishThatNothingMeetsIsRefusedWithWhatThereIs) {
  for (const Variables& wish : {Variables{{"NCCL_SOCKET_IFNAME", "wlan"}}, Variables{{"NCCL_SOCKET_IFNAME", "=eth"}},
                                Variables{{"GLOO_SOCKET_IFNAME", "eth"}}, Variables{{"NCCL_SOCKET_IFNAME", ","}}}) {
    expect_text(error_of([&] {
                  chosen({kLoopback, kEthernet}, wish);
                }),
                {wish.begin()->first + "='" + wish.begin()->second + "'", "lo 127.0.0.1, eth0 10.0.0.7"});
  }
}

TEST(LocalAddresses, HaveLoopbackLast) {
  const auto here = interfaces_of_this_host();
  expect_text(describe_interfaces(here), {"127.0.0.1"});
  EXPECT_FALSE(choose_interface(here, {}).address.empty());
  const auto addresses = local_addresses();
  ASSERT_FALSE(addresses.empty());
  EXPECT_EQ(std::count(addresses.begin(), addresses.end(), "127.0.0.1"), 1);
  EXPECT_TRUE(addresses.back() == "127.0.0.1" || addresses.back() == "::1") << addresses.back();
}

TEST(Route, EveryAddressOfThisHostIsFacedFromOneOfThem) {
  EXPECT_EQ(address_towards({"127.0.0.1", 29400}), "127.0.0.1");
  EXPECT_EQ(address_towards({"localhost", 29400}), "127.0.0.1");
  const auto own = local_addresses();
  for (const std::string& address : own) {
    if (address.find(':') != std::string::npos) continue;  // a link-local one needs a scope
    const std::string source = address_towards({address, 1});
    EXPECT_NE(std::find(own.begin(), own.end(), source), own.end()) << address << " from " << source;
  }
  expect_text(error_of<StoreError>([&] { address_towards({"no-such-host.invalid", 1}); }), {"no-such-host.invalid"});
}

TEST(OwnAddress, ByLoopbackNobodyComesFromAnotherHost) {
  const std::vector<Interface> all = {kLoopback, kEthernet, kInfiniband};
  const Environment wishes(Variables{{"GLOO_SOCKET_IFNAME", "ib0"}});
  EXPECT_EQ(own_address("127.0.1.1:4711", /*several_hosts=*/false, all, {}), "127.0.0.1");
  EXPECT_EQ(own_address("127.0.1.1:4711", /*several_hosts=*/true, all, {}), "10.0.0.7");
  EXPECT_EQ(own_address("127.0.1.1:4711", /*several_hosts=*/true, all, wishes), "10.1.0.7");
  EXPECT_EQ(own_address("in-process", /*several_hosts=*/false, all, {}), "") << "a store in this process has none";
}

}  // namespace
}  // namespace lockstep::net::interfaces_test
