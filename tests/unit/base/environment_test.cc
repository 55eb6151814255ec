// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/environment.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include "lockstep/base/error.h"
#include "tests/support/error_of.h"

namespace lockstep::environment_test {
namespace {

using lockstep::testing::error_of;

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
  const std::string text = error_of([&] { environment.get_int("RANK"); });
  EXPECT_NE(text.find("RANK='2nd'"), std::string::npos) << text;
}

TEST(ParseInt, WholeDecimalTextsOnly) {
  EXPECT_EQ(parse_int("0"), 0);
  EXPECT_EQ(parse_int("-17"), -17);
  EXPECT_EQ(parse_int("007"), 7);
  EXPECT_EQ(parse_int("9223372036854775807"), INT64_MAX);
  EXPECT_EQ(parse_int("-9223372036854775808"), INT64_MIN);
  for (const char* text :
       {"", " 1", "1 ", "+1", "1.0", "0x10", "1e3", "--1", "-", "9223372036854775808", "one", "1\n"}) {
    EXPECT_EQ(parse_int(text), std::nullopt) << "'" << text << "'";
  }
}

TEST(ParseInt, StopsAtTheViewsEnd) { EXPECT_EQ(parse_int(std::string_view("123456").substr(0, 3)), 123); }

}  // namespace
}  // namespace lockstep::environment_test
