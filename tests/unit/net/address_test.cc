// SPDX-License-Identifier: Apache-2.0
#include "runtime/net/address.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "tests/support/error_of.h"

namespace lockstep::net::address_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_text;

TEST(HostPort, ReadsWhatPeopleWrite) {
  EXPECT_EQ(parse_host_port("node0:29400"), (HostPort{"node0", 29400}));
  EXPECT_EQ(parse_host_port("10.0.0.7:0"), (HostPort{"10.0.0.7", 0}));
  EXPECT_EQ(parse_host_port("[::1]:65535"), (HostPort{"::1", 65535}));
  EXPECT_EQ(parse_host_port("[fe80::1%eth0]:1"), (HostPort{"fe80::1%eth0", 1}));
  EXPECT_EQ(parse_host_port(":80"), (HostPort{"", 80}));
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
  for (const auto& [wrong, reason] : cases) {
    const std::string& text = wrong;
    const std::string error = error_of([&] { parse_host_port(text); });
    expect_text(error, {"'" + text + "'", reason, "host:port"});
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
  for (const char* name :
       {"localhost", "LOCALHOST", "LocalHost.", "localhost.localdomain", "a.localhost", "ip6-localhost"}) {
    EXPECT_TRUE(is_localhost(name)) << name;
  }
  for (const char* name : {"", "host", "localhosts", "mylocalhost", "127.0.0.1", "."})
    EXPECT_FALSE(is_localhost(name)) << name;
}

TEST(Host, ThatIsNoneIsRefused) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[::1", "'[' is not closed"}, {"[::1]:80", "something follows ']'"}, {"node0:80", "it has a port"},
      {" node0", "a space"},         {"node0\n", "a line's end"},           {"tcp://node0", "a slash"}};
  for (const auto& [wrong, reason] : cases) {
    const std::string& text = wrong;
    const std::string error = error_of([&] { parse_host(text); });
    expect_text(error, {reason, "10.0.0.7 or ::1"});
  }
}

TEST(HostPort, WritesWhatItReads) {
  for (const std::string text : {"node0:29400", "10.0.0.7:1", "[::1]:80", ":0"}) {
    EXPECT_EQ(parse_host_port(text).to_string(), text);
  }
}

}  // namespace
}  // namespace lockstep::net::address_test
