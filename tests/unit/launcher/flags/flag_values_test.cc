// SPDX-License-Identifier: Apache-2.0
#include "launcher/flags/flag_values.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

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

}  // namespace
}  // namespace lockstep::launcher::flag_values_test
