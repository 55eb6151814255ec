// SPDX-License-Identifier: Apache-2.0
// Values of flags, lists and files of hosts.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "launcher/flags/flag_values.h"
#include "launcher/flags/host_list.h"
#include "tests/support/error_of.h"
#include "tests/support/messages.h"

namespace lockstep::launcher::flag_values_test {
namespace {

TEST(FlagValues, SizesHaveUnits) {
  EXPECT_EQ(parse_bytes("1"), 1u);
  EXPECT_EQ(parse_bytes("8192"), 8192u);
  EXPECT_EQ(parse_bytes("64K"), 65536u);
  EXPECT_EQ(parse_bytes("8M"), std::size_t{8} << 20);
  EXPECT_EQ(parse_bytes("3G"), std::size_t{3} << 30);
  EXPECT_EQ(parse_bytes("2T"), std::size_t{2} << 40);
  for (const auto* bad : {"", "K", "0", "0K", "-1", "1k", "1.5G", "1GB", " 1", "99999999999999999999", "9999999999T"}) {
    EXPECT_FALSE(parse_bytes(bad)) << bad;
  }
}

TEST(FlagValues, PortsAndCountsAreInRange) {
  EXPECT_EQ(parse_port("0"), 0);
  EXPECT_EQ(parse_port("65535"), 65535);
  for (const auto* bad : {"", "-1", "65536", "http", "1 "}) EXPECT_FALSE(parse_port(bad)) << bad;
  EXPECT_EQ(parse_count("1", 5), 1);
  EXPECT_EQ(parse_count("5", 5), 5);
  for (const auto* bad : {"", "0", "6", "-1", "x", "2x"}) EXPECT_FALSE(parse_count(bad, 5)) << bad;
}

TEST(FlagValues, SecondsMayHaveFractions) {
  EXPECT_EQ(parse_seconds("0"), std::chrono::milliseconds(0));
  EXPECT_EQ(parse_seconds("1.5"), std::chrono::milliseconds(1500));
  for (const auto* bad : {"", "-1", "86401", "nan", "inf", "1s"}) EXPECT_FALSE(parse_seconds(bad)) << bad;
}

std::vector<int> below(int ranks, const RankSet& set) {
  std::vector<int> found;
  for (int rank = 0; rank < ranks; ++rank) {
    if (set.contains(rank)) found.push_back(rank);
  }
  return found;
}

TEST(RankSet, IsOfNumbersAndRangesAndWithoutTextOfAll) {
  EXPECT_EQ(below(9, *RankSet::parse("0,3")), (std::vector<int>{0, 3}));
  EXPECT_EQ(below(9, *RankSet::parse("1-3,7")), (std::vector<int>{1, 2, 3, 7}));
  EXPECT_EQ(below(9, *RankSet::parse("4-4")), std::vector<int>{4});
  EXPECT_EQ(RankSet::parse("1-3,7")->text(), "1-3,7");
  EXPECT_TRUE(RankSet().is_all());
  EXPECT_TRUE(RankSet().contains(4711));
  EXPECT_TRUE(RankSet().fits(1));
  EXPECT_FALSE(RankSet::parse("0")->is_all());
  EXPECT_TRUE(RankSet::parse("0,3")->fits(4));
  EXPECT_FALSE(RankSet::parse("0,3")->fits(3));
  EXPECT_FALSE(RankSet::parse("0-8,1")->fits(8));
  for (const std::string bad : {"", "x", "-1", "1-", "3-1", "1,,2", "1;2", "1.5", "99999999999", "all"}) {
    EXPECT_FALSE(RankSet::parse(bad)) << bad;
  }
}

TEST(Tee, HasTorchrunsNumbers) {
  const auto streams = [](const char* text) {
    const auto tee = Tee::parse(text);
    return tee ? std::string(tee->out ? "o" : "") + (tee->err ? "e" : "") : "refused";
  };
  EXPECT_EQ(streams("0"), "");
  EXPECT_EQ(streams("1"), "o");
  EXPECT_EQ(streams("2"), "e");
  EXPECT_EQ(streams("3"), "oe");
  for (const char* bad : {"4", "", "-1", "03", "both", "0:3"}) EXPECT_EQ(streams(bad), "refused") << bad;
}

using lockstep::testing::error_of;
using lockstep::testing::expect_message;

using Hosts = std::vector<HostEntry>;

TEST(HostList, HasNamesAndSlots) {
  EXPECT_EQ(parse_hosts("a"), (Hosts{{"a", {}}}));
  EXPECT_EQ(parse_hosts("a:4,b:2"), (Hosts{{"a", 4}, {"b", 2}}));
  EXPECT_EQ(parse_hosts("user@a.example.org,10.0.0.7:3"), (Hosts{{"user@a.example.org", {}}, {"10.0.0.7", 3}}));
  EXPECT_EQ(parse_hosts("[fe80::1]:2,[fe80::2]"), (Hosts{{"fe80::1", 2}, {"fe80::2", {}}}));
  EXPECT_EQ(parse_hosts("a:1,b:1,a:2"), (Hosts{{"a", 3}, {"b", 1}})) << "as mpirun adds them";
}

TEST(HostList, RefusesWhatIsNone) {
  std::string page;
  for (const char* bad :
       {"", "a,", ",a", ":2", "-oProxyCommand=x", "a b", "a\n", "a:", "a:0", "a:x", "a:1025", "a:-1", "a,a"}) {
    page += error_of([&] { parse_hosts(bad); }) + "\n";
  }
  expect_message("launcher", "lists", page);
  page.clear();
  for (const char* bad : {"a:x\n", "a\nb slot=3\n", "a slots=x", "# nothing\n"}) {
    page += error_of([&] { parse_hostfile(bad, "f"); }) + "\n";
  }
  expect_message("launcher", "files", page);
}

TEST(HostFile, IsOpenMpis) {
  EXPECT_EQ(parse_hostfile("# nodes\nhost0 slots=4\n\n  host1\tslots=2 max_slots=8 # fast\r\nhost2\n", "f"),
            (Hosts{{"host0", 4}, {"host1", 2}, {"host2", {}}}));
}

TEST(HostFile, TakesMpichsLinesAndAByteOrderMark) {
  EXPECT_EQ(parse_hostfile("\xEF\xBB\xBFhost0:4\r\nfe80::1\n[fe80::2]:2\nuser@host3 slots=3\n", "f"),
            (Hosts{{"host0", 4}, {"fe80::1", {}}, {"fe80::2", 2}, {"user@host3", 3}}));
}

TEST(FirstSlots, FillTheHostsInOrder) {
  const Hosts hosts = {{"a", 2}, {"b", 3}, {"c", 1}};
  EXPECT_EQ(first_slots(hosts, 6), hosts);
  EXPECT_EQ(first_slots(hosts, 4), (Hosts{{"a", 2}, {"b", 2}}));
  EXPECT_EQ(first_slots(hosts, 1), (Hosts{{"a", 1}}));
  expect_message("launcher", "refusals", error_of([&] { first_slots(hosts, 7); }) + "\n" + error_of([] {
                                           first_slots({{"a", {}}}, 1);
                                         }));
}

}  // namespace
}  // namespace lockstep::launcher::flag_values_test
