// SPDX-License-Identifier: Apache-2.0
#include "launcher/flags/host_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/error_of.h"

namespace lockstep::launcher::host_list_test {
namespace {

using lockstep::testing::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

using Hosts = std::vector<HostEntry>;

TEST(HostList, HasNamesAndSlots) {
  EXPECT_EQ(parse_hosts("a"), (Hosts{{"a", {}}}));
  EXPECT_EQ(parse_hosts("a:4,b:2"), (Hosts{{"a", 4}, {"b", 2}}));
  EXPECT_EQ(parse_hosts("user@a.example.org,10.0.0.7:3"), (Hosts{{"user@a.example.org", {}}, {"10.0.0.7", 3}}));
  EXPECT_EQ(parse_hosts("[fe80::1]:2,[fe80::2]"), (Hosts{{"fe80::1", 2}, {"fe80::2", {}}}));
  EXPECT_EQ(parse_hosts("a:1,b:1,a:2"), (Hosts{{"a", 3}, {"b", 1}})) << "as mpirun adds them";
}

TEST(HostList, RefusesWhatIsNone) {
  for (const auto* bad : {"", "a,", ",a", ":2", "-oProxyCommand=x", "a b", "a\n"}) {
    EXPECT_THAT(error_of([&] { parse_hosts(bad); }), HasSubstr("is not a name of a host")) << bad;
  }
  for (const auto* bad : {"a:", "a:0", "a:x", "a:1025", "a:-1"}) {
    EXPECT_THAT(error_of([&] { parse_hosts(bad); }), HasSubstr("is not a number of slots")) << bad;
  }
  EXPECT_THAT(error_of([] { parse_hosts("a,a"); }),
              HasSubstr("host a is named twice; name the host once, with its slots, as in a:2"));
}

TEST(HostFile, IsOpenMpis) {
  EXPECT_EQ(parse_hostfile("# nodes\nhost0 slots=4\n\n  host1\tslots=2 max_slots=8 # fast\r\nhost2\n", "f"),
            (Hosts{{"host0", 4}, {"host1", 2}, {"host2", {}}}));
}

TEST(HostFile, TakesMpichsLinesAndAByteOrderMark) {
  EXPECT_EQ(parse_hostfile("\xEF\xBB\xBFhost0:4\r\nfe80::1\n[fe80::2]:2\nuser@host3 slots=3\n", "f"),
            (Hosts{{"host0", 4}, {"fe80::1", {}}, {"fe80::2", 2}, {"user@host3", 3}}));
  EXPECT_THAT(error_of([] { parse_hostfile("a:x\n", "f"); }), HasSubstr("line 1: 'x' is not a number of slots"));
}

TEST(HostFile, ErrorsNameTheLine) {
  EXPECT_THAT(error_of([] { parse_hostfile("a\nb slot=3\n", "f"); }),
              AllOf(HasSubstr("--hostfile f, line 2: 'slot=3' is not a known setting"), HasSubstr("HOST slots=N")));
  EXPECT_THAT(error_of([] { parse_hostfile("a slots=x", "f"); }), HasSubstr("line 1: 'x' is not a number of slots"));
  EXPECT_THAT(error_of([] { parse_hostfile("# nothing\n", "f"); }), HasSubstr("the file names no host"));
}

TEST(FirstSlots, FillTheHostsInOrder) {
  const Hosts hosts = {{"a", 2}, {"b", 3}, {"c", 1}};
  EXPECT_EQ(first_slots(hosts, 6), hosts);
  EXPECT_EQ(first_slots(hosts, 4), (Hosts{{"a", 2}, {"b", 2}}));
  EXPECT_EQ(first_slots(hosts, 1), (Hosts{{"a", 1}}));
  EXPECT_THAT(error_of([&] { first_slots(hosts, 7); }), HasSubstr("the hosts have only 6 slots together"));
  EXPECT_THAT(error_of([] { first_slots({{"a", {}}}, 1); }), HasSubstr("host a has none; give a:SLOTS"));
}

}  // namespace
}  // namespace lockstep::launcher::host_list_test
