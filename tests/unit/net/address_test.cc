// SPDX-License-Identifier: Apache-2.0
// Addresses: as people write them, of this host for others, and the ports to listen at.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <set>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/net/address.h"
#include "runtime/net/interfaces.h"
#include "runtime/net/port_range.h"
#include "runtime/net/route.h"
#include "runtime/net/tcp_socket.h"
#include "tests/support/error_of.h"

namespace lockstep::net::address_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_text;
using lockstep::testing::thrown_by;

TEST(HostPort, ReadsWhatPeopleWriteAndWritesWhatItReads) {
  const std::pair<const char*, HostPort> cases[] = {{"node0:29400", {"node0", 29400}},
                                                    {"10.0.0.7:0", {"10.0.0.7", 0}},
                                                    {"[::1]:65535", {"::1", 65535}},
                                                    {"[fe80::1%eth0]:1", {"fe80::1%eth0", 1}},
                                                    {":80", {"", 80}}};
  for (const auto& [text, wanted] : cases) {
    EXPECT_EQ(parse_host_port(text), wanted);
    EXPECT_EQ(wanted.to_string(), text);
  }
  EXPECT_EQ(parse_host_port("node0", 29400), (HostPort{"node0", 29400}));
  EXPECT_EQ(parse_host_port("[::1]", 29400), (HostPort{"::1", 29400}));
  EXPECT_EQ(parse_host_port("node0:1", 29400), (HostPort{"node0", 1}));
}

TEST(HostPort, SaysWhatIsWrong) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"node0", "it has no port"},     {"[::1]", "it has no port"},       {"", "it has no port"},
      {"node0:", "the port is not"},   {"node0:http", "the port is not"}, {"node0:65536", "the port is not"},
      {"node0:-1", "the port is not"}, {"node0:1 ", "the port is not"},   {"::1:80", "needs brackets"},
      {"[::1", "not closed"},          {"[::1]80", "may follow"},         {"tcp://node0:80", "needs brackets"},
  };
  for (const auto& [text, reason] : cases) {
    const auto parse = [&wrong = text] { parse_host_port(wrong); };
    expect_text(error_of(parse), {"'" + text + "'", reason, "host:port"});
  }
}

TEST(Host, MayHaveBracketsAndAZone) {
  for (const std::string same : {"", "node0", "10.0.0.7", "::1", "fe80::1%eth0", "0.0.0.0"}) {
    EXPECT_EQ(parse_host(same), same);
  }
  EXPECT_EQ(parse_host("[::1]"), "::1");
  EXPECT_EQ(parse_host("[fe80::1%eth0]"), "fe80::1%eth0");
}

TEST(Localhost, IsThisHostForEveryHost) {
  for (const char* name : {"localhost", "LOCALHOST", "LocalHost.", "localhost.localdomain", "a.localhost",
                           "a.localhost.", "ip6-localhost"}) {
    EXPECT_TRUE(is_localhost(name)) << name;
  }
  for (const char* name : {"", "host", "localhosts", "mylocalhost", "127.0.0.1", "."})
    EXPECT_FALSE(is_localhost(name)) << name;
}

TEST(Host, ThatIsNoneIsRefused) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[::1", "'[' is not closed"}, {"[::1]:80", "something follows ']'"}, {"node0:80", "it has a port"},
      {" node0", "a space"},         {"node0\n", "a line's end"},           {"tcp://node0", "a slash"}};
  for (const auto& [text, reason] : cases) {
    const auto parse = [&wrong = text] { parse_host(wrong); };
    expect_text(error_of(parse), {reason, "10.0.0.7 or ::1"});
  }
}

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

// A store at the bridge's address is meant for containers of this host.
TEST(OwnAddress, IsThatOfABridgeWhereTheStoresAddressIsTheBridges) {
  for (const std::string& address : local_addresses()) {
    if (address.find(':') != std::string::npos) continue;
    const Interface bridge{.name = "docker0", .address = address, .loopback = false};
    const bool is_loopback = address.starts_with("127.");
    EXPECT_EQ(own_address(address + ":4711", /*several_hosts=*/true, std::vector{kLoopback, bridge, kEthernet}, {}),
              is_loopback ? "10.0.0.7" : address);
  }
}

std::optional<PortRange> range_of(const std::string& text) {
  return port_range(Environment({{"LOCKSTEP_PORT_RANGE", text}}));
}

TEST(PortRange, IsTwoPorts) {
  EXPECT_EQ(range_of("29500-29600"), (PortRange{29500, 29600}));
  EXPECT_EQ(range_of("29500-29600")->size(), 101);
  EXPECT_EQ(range_of("1-65535"), PortRange());
  EXPECT_EQ(range_of("7-7")->size(), 1);
  EXPECT_EQ(port_range(Environment()), std::nullopt);
  EXPECT_EQ(range_of(""), std::nullopt) << "an empty variable is none";
}

TEST(PortRange, OfAnythingElseIsAnErrorWithVariableValueAndRemedy) {
  for (const std::string text :
       {"29500", "29600-29500", "0-7", "1-65536", "a-b", "29500:29600", "-", "1-2-3", " 1-2"}) {
    expect_text(error_of<InvalidArgument>([&] { range_of(text); }),
                {"LOCKSTEP_PORT_RANGE='" + text + "'", "give FIRST-LAST", "29500-29600"});
  }
}

// Ports that this process listens at are those of the variable while one of these lives.
class Ranged {
 public:
  explicit Ranged(const PortRange& range) {
    const std::string text = std::to_string(range.first) + "-" + std::to_string(range.last);
    EXPECT_EQ(setenv("LOCKSTEP_PORT_RANGE", text.c_str(), 1), 0);
  }
  ~Ranged() { unsetenv("LOCKSTEP_PORT_RANGE"); }
};

// Four ports in a row at which nobody listened just now.
PortRange four_free_ports() {
  while (true) {
    const int first = local_address(tcp_listen({"127.0.0.1", 0}).get()).port;
    if (first + 3 > 65535) continue;
    try {
      std::vector<UniqueFd> taken;
      for (int port = first; port < first + 4; ++port) {
        taken.push_back(tcp_listen({"127.0.0.1", static_cast<std::uint16_t>(port)}));
      }
      return {static_cast<std::uint16_t>(first), static_cast<std::uint16_t>(first + 3)};
    } catch (const SystemError& error) {
      if (error.error_number() != EADDRINUSE) throw;
    }
  }
}

TEST(PortRange, IsWhatListenersTakeUntilItIsUsedUp) {
  const PortRange range = four_free_ports();
  {
    const Ranged ranged({range.first, range.first});
    EXPECT_EQ(local_address(tcp_listen({"127.0.0.1", range.last}).get()).port, range.last) << "a port that is named";
  }
  const Ranged ranged(range);
  std::vector<UniqueFd> listeners;
  std::set<int> ports;
  for (int i = 0; i < range.size(); ++i) {
    listeners.push_back(tcp_listen({"127.0.0.1", 0}));
    ports.insert(local_address(listeners.back().get()).port);
  }
  EXPECT_EQ(ports.size(), 4u);
  EXPECT_EQ(*ports.begin(), range.first);
  EXPECT_EQ(*ports.rbegin(), range.last);
  const auto error = thrown_by<SystemError>([] { tcp_listen({"localhost", 0}); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->error_number(), EADDRNOTAVAIL);
  expect_text(error->what(), {"listen at 127.0.0.1", range.describe(), "no port of these 4 is free", "wider range"});
  listeners.pop_back();
  EXPECT_TRUE(tcp_listen({"127.0.0.1", 0})) << "one is free again";
}

}  // namespace
}  // namespace lockstep::net::address_test
