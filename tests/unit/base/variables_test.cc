// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/variables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Variables, TheNearestIsTheOneWithFewestOtherLetters) {
  EXPECT_TRUE(is_known_variable("LOCKSTEP_TIMEOUT"));
  EXPECT_FALSE(is_known_variable("LOCKSTEP_TIMEOT"));
  EXPECT_EQ(nearest_variable("LOCKSTEP_TIMEOT").name, "LOCKSTEP_TIMEOUT");
  EXPECT_EQ(nearest_variable("LOCKSTEP_TIMEOT").distance, 1u);
  EXPECT_EQ(nearest_variable("LOCKSTEP_LOGLEVEL").name, "LOCKSTEP_LOG_LEVEL");
}

TEST(Variables, OnlyWhatLooksLikeOneOfOursIsMisspelt) {
  const Environment environment({{"LOCKSTEP_TIMEOT", "30"},
                                 {"LOCKSTEP_TIMEOUT", "30"},
                                 {"LOCKSTEP_DEVCE", ""},
                                 {"LOCKSTEP_PATH_OF_MY_DATA", "/data"},
                                 {"TIMEOUT", "30"}});
  EXPECT_THAT(misspelt_variables(environment),
              ElementsAre("LOCKSTEP_TIMEOT is no variable of lockstep, and has no effect; is LOCKSTEP_TIMEOUT meant?"));
  Environment odd;
  odd.set("LOCKSTEP_TIME\nOUT", "1");
  EXPECT_THAT(misspelt_variables(odd), ElementsAre(HasSubstr("LOCKSTEP_TIME OUT")));
}

}  // namespace
}  // namespace lockstep
