// SPDX-License-Identifier: Apache-2.0
#include "launcher/flags/flag_values.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lockstep::launcher::rank_set_test {
namespace {

std::vector<int> below(int ranks, const RankSet& set) {
  std::vector<int> found;
  for (int rank = 0; rank < ranks; ++rank) {
    if (set.contains(rank)) found.push_back(rank);
  }
  return found;
}

TEST(RankSet, ReadsNumbersAndRanges) {
  EXPECT_EQ(below(9, *RankSet::parse("0,3")), (std::vector<int>{0, 3}));
  EXPECT_EQ(below(9, *RankSet::parse("1-3,7")), (std::vector<int>{1, 2, 3, 7}));
  EXPECT_EQ(below(9, *RankSet::parse("4-4")), std::vector<int>{4});
  EXPECT_EQ(RankSet::parse("1-3,7")->text(), "1-3,7");
}

TEST(RankSet, WithoutTextItIsAll) {
  EXPECT_TRUE(RankSet().is_all());
  EXPECT_TRUE(RankSet().contains(4711));
  EXPECT_TRUE(RankSet().fits(1));
  EXPECT_FALSE(RankSet::parse("0")->is_all());
}

TEST(RankSet, KnowsWhetherAJobHasThemAll) {
  EXPECT_TRUE(RankSet::parse("0,3")->fits(4));
  EXPECT_FALSE(RankSet::parse("0,3")->fits(3));
  EXPECT_FALSE(RankSet::parse("0-8,1")->fits(8));
}

TEST(RankSet, RefusesWhatIsNone) {
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
}  // namespace lockstep::launcher::rank_set_test
