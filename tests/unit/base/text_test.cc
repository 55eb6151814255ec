// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

namespace lockstep::text_test {
namespace {

using ::testing::ElementsAre;

TEST(Text, WordsAreTakenFromTheFront) {
  std::string_view rest = "one  two";
  EXPECT_EQ(take_word(rest), "one");
  EXPECT_EQ(take_word(rest), "");
  EXPECT_EQ(take_word(rest), "two");
  EXPECT_EQ(take_word(rest), "");
}

TEST(Text, PartsLoseTheBlanksAroundThem) {
  EXPECT_THAT(split(" a b ,c,", ','), ElementsAre("a b", "c", ""));
  EXPECT_THAT(split("", ','), ElementsAre(""));
}

TEST(Text, TheFirstValueThatIsTooSmallIsNamed) {
  EXPECT_EQ(first_too_small({{"workers", 0, 0}, {"prefetch", 0, 1}, {"read_ahead", -1, 0}}),
            "prefetch is 0; give 1 or more");
  EXPECT_EQ(first_too_small({{"workers", 0, 0}}), "");
}

TEST(Text, TheNearestNameHasFewOtherLettersOrIsLonger) {
  constexpr std::array<std::string_view, 4> kNames = {"--log-dir", "--liveness", "--nproc-per-node", "-n"};
  EXPECT_EQ(nearest("--log-dri", kNames), "--log-dir");
  EXPECT_EQ(nearest("--logdir", kNames), "--log-dir");
  EXPECT_EQ(nearest("--np", kNames), "--nproc-per-node");
  EXPECT_EQ(nearest("--trace", kNames), std::nullopt);
  EXPECT_EQ(nearest("-y", kNames), "-n") << "half of the letters may differ";
  EXPECT_EQ(nearest("", kNames), std::nullopt);
  constexpr std::array<std::string_view, 2> kShort = {"top", "run"};
  EXPECT_EQ(nearest("rnu", kShort), "run") << "letters that are swapped are one mistake";
}

TEST(Text, ListsAreCutWhereToldTo) {
  const std::vector<int> items = {1, 2, 3};
  const auto describe = [](int item) { return std::to_string(item); };
  EXPECT_EQ(joined(items, describe), "1, 2, 3");
  EXPECT_EQ(joined(items, describe, "; ", 2), "1; 2 and 1 more");
  EXPECT_EQ(joined(std::vector<int>(), describe), "");
}

TEST(ReadableBytes, RoundsToUnits) {
  EXPECT_EQ(readable_bytes(1023), "1023 bytes");
  EXPECT_EQ(readable_bytes(1536), "1.5 KiB");
  EXPECT_EQ(readable_bytes(std::uint64_t{64} << 20), "64.0 MiB");
  EXPECT_EQ(readable_bytes(std::uint64_t{3} << 60), "3072.0 PiB");
}

}  // namespace
}  // namespace lockstep::text_test
