// SPDX-License-Identifier: Apache-2.0
#include "runtime/net/route.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "tests/support/error_of.h"

namespace lockstep::net::route_test {
namespace {

using lockstep::testing::error_of;

TEST(Route, LoopbackIsFacedFromLoopback) {
  EXPECT_EQ(address_towards({"127.0.0.1", 29400}), "127.0.0.1");
  EXPECT_EQ(address_towards({"localhost", 29400}), "127.0.0.1");
}

TEST(Route, EveryAddressOfThisHostIsFacedFromOneOfThem) {
  const auto own = local_addresses();
  for (const std::string& address : own) {
    if (address.find(':') != std::string::npos) continue;  // a link-local one needs a scope
    const std::string source = address_towards({address, 1});
    EXPECT_NE(std::find(own.begin(), own.end(), source), own.end()) << address << " from " << source;
  }
}

const std::vector<Interface> kInterfaces = {{.name = "lo", .address = "127.0.0.1", .loopback = true},
                                            {.name = "eth0", .address = "203.0.113.7"},
                                            {.name = "ib0", .address = "198.51.100.7"}};

TEST(OwnAddress, ByLoopbackNobodyComesFromAnotherHost) {
  EXPECT_EQ(own_address("127.0.1.1:4711", /*several_hosts=*/false, kInterfaces, {}), "127.0.0.1");
  EXPECT_EQ(own_address("127.0.1.1:4711", /*several_hosts=*/true, kInterfaces, {}), "203.0.113.7");
  Environment wishes;
  wishes.set("GLOO_SOCKET_IFNAME", "ib0");
  EXPECT_EQ(own_address("127.0.1.1:4711", /*several_hosts=*/true, kInterfaces, wishes), "198.51.100.7");
}

TEST(OwnAddress, AStoreInThisProcessHasNone) {
  EXPECT_EQ(own_address("in-process", /*several_hosts=*/false, kInterfaces, {}), "");
}

TEST(Route, AnUnknownNameIsAnError) {
  const std::string text = error_of<StoreError>([&] { address_towards({"no-such-host.invalid", 1}); });
  EXPECT_NE(text.find("no-such-host.invalid"), std::string::npos) << text;
}

}  // namespace
}  // namespace lockstep::net::route_test
