#include "runtime/net/route.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/base/error.h"

namespace lockstep::net {
namespace {

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

TEST(Route, AnUnknownNameIsAnError) {
  try {
    address_towards({"no-such-host.invalid", 1});
    FAIL() << "accepted";
  } catch (const StoreError& error) {
    EXPECT_NE(std::string(error.what()).find("no-such-host.invalid"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace lockstep::net
