// SPDX-License-Identifier: Apache-2.0
#include "launcher/flags/flag_values.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace lockstep::launcher::flag_values_test
