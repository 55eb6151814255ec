// SPDX-License-Identifier: Apache-2.0
#include "launcher/verdict/restart_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/base/exit_codes.h"

namespace lockstep::launcher::restart_policy_test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using Kind = StartEnd::Kind;

StartEnd failed_after(std::int64_t steps, std::chrono::nanoseconds ran = 5s) {
  return {.kind = Kind::failed, .exit_code = 9, .ran = ran, .reports_steps = true, .steps_done = steps};
}

StartEnd failed_without_steps(std::chrono::nanoseconds ran) {
  return {.kind = Kind::failed, .exit_code = 9, .ran = ran};
}

TEST(RestartPolicy, WithoutRestartsTheJobIsOverAndNothingIsSaid) {
  RestartPolicy policy(0, false);
  const auto decision = policy.decide(failed_after(57));
  EXPECT_FALSE(decision.pause);
  EXPECT_EQ(decision.exit_code, 9);
  EXPECT_EQ(decision.text, "");
}

TEST(RestartPolicy, AJobThatIsOverIsNotStartedAgain) {
  RestartPolicy policy(3, false);
  for (const int code : {0, 75, 143}) {
    const auto decision = policy.decide({.exit_code = code, .reports_steps = true, .steps_done = 57});
    EXPECT_FALSE(decision.pause);
    EXPECT_EQ(decision.exit_code, code);
    EXPECT_EQ(decision.text, "");
  }
}

TEST(RestartPolicy, EachStartThatGetsFurtherIsFollowedByAnotherAtOnceUntilTheyAreUsedUp) {
  RestartPolicy policy(2, false);
  for (int restart = 1; restart <= 2; ++restart) {
    const auto decision = policy.decide(failed_after(10 * restart));
    ASSERT_TRUE(decision.pause);
    EXPECT_EQ(*decision.pause, 0ms);
  }
  const auto decision = policy.decide(failed_after(30));
  EXPECT_FALSE(decision.pause);
  EXPECT_EQ(decision.exit_code, 9);
  EXPECT_EQ(decision.text, "not started again: the limit of 2 restarts is reached (--max-restarts)");
}

TEST(RestartPolicy, ARestartThatCanNotComeIsNotPromised) {
  RestartPolicy policy(5, false);
  StartEnd end = failed_after(57);
  end.why_no_start = "host b is lost";
  const auto decision = policy.decide(end);
  EXPECT_FALSE(decision.pause);
  EXPECT_EQ(decision.text, "not started again: host b is lost; exit code 9");
}

TEST(RestartPolicy, AStartThatLacksAHostCountsNeitherAsARestartNorAsOneWithoutAStep) {
  RestartPolicy policy(1, true);
  for (int start = 0; start < 5; ++start) {
    EXPECT_EQ(policy.decide({.kind = Kind::awaits_host, .exit_code = 75}).pause, 0ms) << start;
  }
  EXPECT_EQ(policy.decide(failed_after(57)).text, "restart 1 of 1 (--max-restarts); 57 steps done");
}

TEST(RestartPolicy, AFailureBeforeTheFirstStepIsForAPersonToMend) {
  RestartPolicy policy(3, false);
  const auto decision = policy.decide(failed_after(0, 1h));
  EXPECT_FALSE(decision.pause);
  EXPECT_EQ(decision.exit_code, 9);
  EXPECT_THAT(decision.text, HasSubstr("before it had finished a step"));
}

TEST(RestartPolicy, AProgramWithoutStepsIsStartedAgainIfItRanHalfAMinute) {
  RestartPolicy policy(3, false);
  EXPECT_TRUE(policy.decide(failed_without_steps(30s)).pause);
  RestartPolicy other(3, false);
  const auto decision = other.decide(failed_without_steps(29900ms));
  EXPECT_FALSE(decision.pause);
  EXPECT_EQ(decision.text,
            "not started again: the job ran for 29.9 s and reported no step; a program that reports no steps (such as "
            "a Python script) is started again only if it ran for 30 s");
}

TEST(RestartPolicy, ThreeStartsWithoutANewStepEndTheJobWithACodeOfItsOwn) {
  RestartPolicy policy(100, false);
  EXPECT_EQ(policy.decide(failed_after(57)).pause, 0ms);
  EXPECT_EQ(policy.decide(failed_after(57)).pause, 1000ms);
  EXPECT_EQ(policy.decide(failed_after(40)).pause, 2000ms) << "it went on from an older snapshot";
  const auto decision = policy.decide(failed_after(57));
  EXPECT_FALSE(decision.pause);
  EXPECT_EQ(decision.exit_code, kExitNoProgress);
  EXPECT_EQ(decision.text, "not started again: 3 starts in a row have not got beyond 57 steps; exit code 77");
}

TEST(RestartPolicy, AStartThatFailsBeforeItsFirstStepIsNoStepFurtherHoweverLongItRan) {
  RestartPolicy policy(100, false);
  EXPECT_EQ(policy.decide(failed_after(57)).pause, 0ms);
  const auto decision = policy.decide(failed_without_steps(1h));
  EXPECT_EQ(decision.pause, 1000ms);
  EXPECT_EQ(decision.text, "restart 2 of 100 (--max-restarts); 57 steps done; in 1 s");
}

TEST(RestartPolicy, OneNewStepMakesUpForStartsWithoutOne) {
  RestartPolicy policy(100, false);
  EXPECT_EQ(policy.decide(failed_after(57)).pause, 0ms);
  EXPECT_EQ(policy.decide(failed_after(57)).pause, 1000ms);
  EXPECT_EQ(policy.decide(failed_after(58)).pause, 0ms);
  EXPECT_EQ(policy.decide(failed_after(58)).pause, 1000ms);
}

TEST(RestartPolicy, ALostHostSaysNothingAgainstTheProgram) {
  RestartPolicy policy(1, false);
  auto lost = failed_after(0);
  lost.kind = Kind::host_lost;
  EXPECT_TRUE(policy.decide(lost).pause);
  EXPECT_FALSE(policy.decide(lost).pause) << "used up";
}

TEST(RestartPolicy, AFailureWithoutAStepBehindALossIsStillForAPersonToMend) {
  RestartPolicy policy(9, false);
  auto lost = failed_after(0);
  lost.kind = Kind::host_lost;
  EXPECT_TRUE(policy.decide(lost).pause);
  EXPECT_THAT(policy.decide(failed_after(0)).text, HasSubstr("before it had finished a step"));
}

TEST(RestartPolicy, WhereHostsMayComeAndGoThatUsesUpNone) {
  RestartPolicy policy(0, true);
  for (int i = 1; i < 10; ++i) {
    auto end = failed_after(i);
    end.kind = i % 2 == 0 ? Kind::host_lost : Kind::resized;
    EXPECT_EQ(policy.decide(end).pause, 0ms);
  }
  EXPECT_FALSE(policy.decide(failed_after(100)).pause) << "of a rank's failure there is none";
}

TEST(RestartPolicy, HostsThatGoAgainAndAgainWithoutANewStepEndTheJob) {
  RestartPolicy policy(0, true);
  auto end = failed_after(7);
  end.kind = Kind::host_lost;
  EXPECT_EQ(policy.decide(end).pause, 0ms);
  EXPECT_EQ(policy.decide(end).pause, 1000ms);
  EXPECT_EQ(policy.decide(end).pause, 2000ms);
  EXPECT_EQ(policy.decide(end).exit_code, kExitNoProgress);
}

StartEnd failed_first_on(int agent, std::int64_t steps) {
  auto end = failed_after(steps);
  end.culprit = HostSlots{.name = agent == 7 ? "seven" : "other", .agent = agent};
  return end;
}

TEST(RestartPolicy, AHostThatFailsFirstInThreeStartsWithoutANewStepIsLeftOut) {
  RestartPolicy policy(100, true);
  EXPECT_EQ(policy.decide(failed_after(57)).pause, 0ms);
  EXPECT_FALSE(policy.decide(failed_first_on(7, 57)).left_out);
  EXPECT_FALSE(policy.decide(failed_first_on(7, 57)).left_out);
  const auto decision = policy.decide(failed_first_on(7, 57));
  ASSERT_TRUE(decision.left_out);
  EXPECT_EQ(decision.left_out->agent, 7);
  EXPECT_EQ(decision.pause, 0ms);
  EXPECT_EQ(decision.text,
            "host seven is left out: its ranks failed first in 3 starts in a row without a new step; "
            "restart 4 of 100 (--max-restarts); 57 steps done");
  EXPECT_EQ(policy.decide(failed_after(57)).pause, 1000ms) << "the others begin anew";
}

TEST(RestartPolicy, NoHostIsLeftOutForFailuresThatItSharesOrThatANewStepParts) {
  RestartPolicy shared(100, true);
  EXPECT_TRUE(shared.decide(failed_after(57)).pause);
  EXPECT_TRUE(shared.decide(failed_first_on(7, 57)).pause);
  EXPECT_TRUE(shared.decide(failed_first_on(8, 57)).pause);
  EXPECT_EQ(shared.decide(failed_first_on(7, 57)).exit_code, kExitNoProgress);
  RestartPolicy parted(100, true);
  EXPECT_TRUE(parted.decide(failed_after(57)).pause);
  for (const std::int64_t steps : {57, 57, 58, 58, 58}) {
    const auto decision = parted.decide(failed_first_on(7, steps));
    EXPECT_TRUE(decision.pause);
    EXPECT_FALSE(decision.left_out);
  }
  EXPECT_TRUE(parted.decide(failed_first_on(7, 58)).left_out);
}

TEST(RestartPolicy, AHostIsLeftOutByARestartLikeAnyOther) {
  RestartPolicy policy(3, true);
  EXPECT_TRUE(policy.decide(failed_after(57)).pause);
  for (int start = 0; start < 2; ++start) EXPECT_TRUE(policy.decide(failed_first_on(7, 57)).pause);
  const auto decision = policy.decide(failed_first_on(7, 57));
  EXPECT_FALSE(decision.left_out);
  EXPECT_EQ(decision.text, "not started again: the limit of 3 restarts is reached (--max-restarts)");
}

}  // namespace
}  // namespace lockstep::launcher::restart_policy_test
