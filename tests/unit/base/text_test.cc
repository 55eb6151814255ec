// SPDX-License-Identifier: Apache-2.0
// Texts: what is read of them, what is shown of them, and the environment's.
#include "runtime/base/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>
#include <utility>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/base/printable.h"
#include "runtime/base/variables.h"
#include "tests/support/error_of.h"

namespace lockstep::text_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_text;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

TEST(Printable, WhatIsNoTextBecomesQuestionMarks) {
  using namespace std::string_literals;
  const std::pair<std::string, std::string> cases[] = {
      {"rank 3", "rank 3"},
      {"Größe \u4e2d \U0001f600", "Größe \u4e2d \U0001f600"},
      {"a\n\033[31m\0b\x7f"s, "a ?[31m?b?"},
      {"a\tb\r\n", "a b? "},
      {"csi \u009b31m", "csi ?31m"},  // a terminal may take C1 for an escape
      {"\u2028\u2029\u202a\u202e\u2066\u2069\u200f", "???????"},
      {"a\xff\xfe", "a??"},
      {"\xc3", "?"},                 // cut
      {"\xc0\xaf", "??"},            // overlong
      {"\xe0\x80\xaf", "???"},       // overlong
      {"\xed\xa0\x80", "???"},       // a surrogate
      {"\xf4\x90\x80\x80", "????"},  // above U+10FFFF
      {"\xe2\x82z", "??z"}};
  for (const auto& [text, wanted] : cases) EXPECT_EQ(printable(text), wanted);
  EXPECT_EQ(printable_lines("a\nb"), "a\nb");
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

TEST(Error, HasWordsAndIsTextThatATerminalOnlyShows) {
  EXPECT_EQ(errno_text(ECONNREFUSED), "Connection refused (errno 111)");
  EXPECT_STREQ(InvalidArgument("key '\x1b[2J\xff' of\nrun-\u00e9").what(), "key '?[2J?' of\nrun-\u00e9");
  const SystemError error("bind 127.0.0.1:80", EACCES);
  EXPECT_STREQ(error.what(), "bind 127.0.0.1:80: Permission denied (errno 13)");
  EXPECT_EQ(error.error_number(), EACCES);
}

TEST(Environment, UnsetAndEmptyAreTheSame) {
  const Environment environment({{"EMPTY", ""}, {"SET", "x"}});
  EXPECT_EQ(environment.get("EMPTY"), std::nullopt);
  EXPECT_EQ(environment.get("ABSENT"), std::nullopt);
  EXPECT_FALSE(environment.has("EMPTY"));
  EXPECT_EQ(environment.get("SET"), "x");
}

TEST(Environment, ReadsThisProcess) {
  ASSERT_EQ(setenv("LOCKSTEP_TEST_VARIABLE", "a=b=c", 1), 0);
  EXPECT_EQ(Environment::of_process().get("LOCKSTEP_TEST_VARIABLE"), "a=b=c");
  ASSERT_EQ(unsetenv("LOCKSTEP_TEST_VARIABLE"), 0);
  EXPECT_FALSE(Environment::of_process().has("LOCKSTEP_TEST_VARIABLE"));
}

// A child: what is kept is the process's.
TEST(EnvironmentDeathTest, IsReadAnewOnlyWhereItIsKept) {
  const auto value = [] { return Environment::of_process().get("LOCKSTEP_TEST_VARIABLE").value_or("unset"); };
  EXPECT_EXIT(
      {
        setenv("LOCKSTEP_TEST_VARIABLE", "first", 1);
        const std::string kept = Environment::keep_of_process().get("LOCKSTEP_TEST_VARIABLE").value_or("unset");
        setenv("LOCKSTEP_TEST_VARIABLE", "second", 1);
        const std::string meanwhile = value();
        Environment::keep_of_process();
        _exit(kept == "first" && meanwhile == "first" && value() == "second" ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(Environment, IntegerErrorsNameVariableAndValue) {
  const Environment environment({{"RANK", "2nd"}, {"WORLD_SIZE", "4"}, {"BLANK", ""}});
  EXPECT_EQ(environment.get_int("WORLD_SIZE"), 4);
  EXPECT_EQ(environment.get_int("BLANK"), std::nullopt);
  expect_text(error_of([&] { environment.get_int("RANK"); }), {"RANK='2nd'"});
}

TEST(ParseInt, WholeDecimalTextsOnly) {
  EXPECT_EQ(parse_int("0"), 0);
  EXPECT_EQ(parse_int("-17"), -17);
  EXPECT_EQ(parse_int("007"), 7);
  EXPECT_EQ(parse_int(std::string_view("123456").substr(0, 3)), 123) << "to the view's end";
  EXPECT_EQ(parse_int("9223372036854775807"), INT64_MAX);
  EXPECT_EQ(parse_int("-9223372036854775808"), INT64_MIN);
  for (const char* text :
       {"", " 1", "1 ", "+1", "1.0", "0x10", "1e3", "--1", "-", "9223372036854775808", "one", "1\n"}) {
    EXPECT_EQ(parse_int(text), std::nullopt) << "'" << text << "'";
  }
}

TEST(Variables, TheOneMeantHasFewOtherLetters) {
  EXPECT_TRUE(is_known_variable("LOCKSTEP_TIMEOUT"));
  EXPECT_FALSE(is_known_variable("LOCKSTEP_TIMEOT"));
  EXPECT_EQ(variable_like("LOCKSTEP_TIMEOT"), "LOCKSTEP_TIMEOUT");
  EXPECT_EQ(variable_like("LOCKSTEP_LOGLEVEL"), "LOCKSTEP_LOG_LEVEL");
  EXPECT_EQ(variable_like("LOCKSTEP_TRANSPORT"), std::nullopt);
}

TEST(Variables, EachThatNothingReadsIsTold) {
  const Environment environment({{"LOCKSTEP_TIMEOT", "30"},
                                 {"LOCKSTEP_TIMEOUT", "30"},
                                 {"LOCKSTEP_DEVCE", ""},
                                 {"LOCKSTEP_PATH_OF_MY_DATA", "/data"},
                                 {"LOCKSTEP_TEST_FAULTS", "none"},
                                 {"TIMEOUT", "30"}});
  EXPECT_THAT(
      unknown_variables(environment),
      ElementsAre(
          "LOCKSTEP_PATH_OF_MY_DATA is not a variable of lockstep, and has no effect on it",
          "LOCKSTEP_TIMEOT is not a variable of lockstep, and has no effect on it; did you mean LOCKSTEP_TIMEOUT?"));
  Environment odd;
  odd.set("LOCKSTEP_TIME\nOUT", "1");
  EXPECT_THAT(unknown_variables(odd), ElementsAre(HasSubstr("LOCKSTEP_TIME OUT")));
}

}  // namespace
}  // namespace lockstep::text_test
