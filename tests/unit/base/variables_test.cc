// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/variables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::variables_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
}  // namespace lockstep::variables_test
