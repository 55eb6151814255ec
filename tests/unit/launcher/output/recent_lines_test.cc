// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/recent_lines.h"

#include <gtest/gtest.h>

#include <string>

namespace lockstep::launcher::recent_lines_test {
namespace {

TEST(RecentLines, AReaderGoesOnWhereItWas) {
  RecentLines lines;
  lines.put("one\ntwo\n");
  const auto first = lines.after(0);
  EXPECT_EQ(first.text, "one\ntwo\n");
  EXPECT_EQ(first.missed, 0u);
  EXPECT_EQ(lines.after(first.next).text, "");
  lines.put("three\n");
  EXPECT_EQ(lines.after(first.next).text, "three\n");
}

TEST(RecentLines, GivesTheLastOnes) {
  RecentLines lines;
  EXPECT_EQ(lines.last(3), 0u);
  lines.put("one\n\nthree\nfour\n");
  const auto last = [&lines](std::size_t count) { return lines.after(lines.last(count)).text; };
  EXPECT_EQ(last(0), "");
  EXPECT_EQ(last(1), "four\n");
  EXPECT_EQ(last(2), "three\nfour\n");
  EXPECT_EQ(last(3), "\nthree\nfour\n");
  EXPECT_EQ(last(4), "one\n\nthree\nfour\n");
  EXPECT_EQ(last(99), "one\n\nthree\nfour\n");
}

TEST(RecentLines, APartEndsWithALine) {
  RecentLines lines;
  lines.put("12345\n12345\nlonger than the part\n");
  EXPECT_EQ(lines.after(0, 13).text, "12345\n12345\n");
  EXPECT_EQ(lines.after(0, 12).text, "12345\n12345\n");
  EXPECT_EQ(lines.after(0, 11).text, "12345\n");
  EXPECT_EQ(lines.after(12, 5).text, "longer than the part\n") << "at least one line";
}

TEST(RecentLines, KeepsABoundAndSaysWhatIsGone) {
  RecentLines lines;
  const std::string line(99, 'x');
  constexpr std::size_t kLines = 5 * RecentLines::kMostBytes / 100;
  for (std::size_t i = 0; i < kLines; ++i) lines.put(line + "\n");
  std::size_t read = 0;
  std::uint64_t missed = 0;
  for (RecentLines::Position at = 0;;) {
    const auto part = lines.after(at);
    if (part.text.empty()) break;
    EXPECT_EQ(part.text.size() % 100, 0u) << "whole lines";
    read += part.text.size();
    missed += part.missed;
    at = part.next;
  }
  EXPECT_EQ(read + missed, kLines * 100);
  EXPECT_GE(read, RecentLines::kMostBytes);
  EXPECT_LE(read, 2 * RecentLines::kMostBytes);
}

TEST(RecentLines, TellsItsListener) {
  RecentLines lines;
  int calls = 0;
  lines.set_listener([&calls] { ++calls; });
  lines.put("one\n");
  lines.put("two\n");
  lines.set_listener({});
  lines.put("three\n");
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace lockstep::launcher::recent_lines_test
