// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/printable.h"

#include <gtest/gtest.h>

#include "runtime/base/logging.h"

namespace lockstep::printable_test {
namespace {

TEST(Printable, KeepsWhatIsText) {
  EXPECT_EQ(printable("rank 3"), "rank 3");
  EXPECT_EQ(printable("Größe \u4e2d \U0001f600"), "Größe \u4e2d \U0001f600");
  EXPECT_EQ(printable_lines("a\nb"), "a\nb");
}

TEST(Printable, ControlCharactersBecomeQuestionMarks) {
  EXPECT_EQ(printable(std::string("a\n\033[31m\0b\x7f", 9)), "a ?[31m?b");
  EXPECT_EQ(printable("a\tb\r\n"), "a b? ");
  EXPECT_EQ(printable("csi \u009b31m"), "csi ?31m") << "a terminal may take C1 for an escape";
}

TEST(Printable, MarksThatTurnOrBreakTextBecomeQuestionMarks) {
  for (const char* mark : {"\u2028", "\u2029", "\u202a", "\u202e", "\u2066", "\u2069", "\u200f"}) {
    EXPECT_EQ(printable(std::string("a") + mark + "b"), "a?b");
  }
}

TEST(Printable, WhatIsNoUtf8BecomesQuestionMarks) {
  EXPECT_EQ(printable("a\xff\xfe"), "a??");
  EXPECT_EQ(printable("\xc3"), "?") << "cut";
  EXPECT_EQ(printable("\xc0\xaf"), "??") << "overlong";
  EXPECT_EQ(printable("\xe0\x80\xaf"), "???") << "overlong";
  EXPECT_EQ(printable("\xed\xa0\x80"), "???") << "a surrogate";
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "????") << "above U+10FFFF";
  EXPECT_EQ(printable("\xe2\x82z"), "??z");
}

TEST(Printable, ALongTextIsCutBetweenCharacters) {
  EXPECT_EQ(printable("abcdef", 3), "abc...");
  EXPECT_EQ(printable("abc", 3), "abc");
  EXPECT_EQ(printable("ab\u4e2d", 4), "ab...");
  EXPECT_EQ(printable(std::string(1 << 20, 'x')).size(), 83u);
  EXPECT_EQ(printable(std::string(100, '\x80'), 10), "???????...") << "no character, so cut anywhere";
}

TEST(Printable, EveryLineOfTheLogIs) {
  std::string line;
  set_log_sink([&](LogLevel, std::string_view text) { line = text; });
  log_warn("a name: {}", "\033]0;title\a");
  set_log_sink({});
  EXPECT_EQ(line, "a name: ?]0;title?");
}

}  // namespace
}  // namespace lockstep::printable_test
