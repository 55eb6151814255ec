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
  for (const auto& [text, reason] : cases) {
    const auto parse = [&wrong = text] { parse_host(wrong); };
    expect_text(error_of(parse), {reason, "10.0.0.7 or ::1"});
  }
}

}  // namespace
}  // namespace lockstep::net::address_test
