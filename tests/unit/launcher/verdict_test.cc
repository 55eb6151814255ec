#include "launcher/verdict.h"

#include <gtest/gtest.h>

#include <csignal>

#include "runtime/base/exit_code.h"

namespace lockstep::launcher {
namespace {

using Step = Verdict::Step;

constexpr Ending kFine{};
constexpr Ending kFailed{.by_signal = false, .value = 3};
constexpr Ending kKilled{.by_signal = true, .value = SIGKILL};
constexpr Ending kHeard{.by_signal = false, .value = kExitPeerLost};

TEST(Verdict, TheFirstToFailIsNamedAndTheRestCounted) {
  Verdict verdict(4);
  EXPECT_EQ(verdict.ended(3, kFine), Step::go_on);
  EXPECT_FALSE(verdict.first_failure());
  EXPECT_EQ(verdict.ended(2, kKilled), Step::end_others);
  EXPECT_EQ(verdict.ended(0, kFailed), Step::go_on) << "said once";
  EXPECT_EQ(verdict.ended(1, kHeard), Step::go_on);
  EXPECT_EQ(verdict.first_failure(), 2);
  EXPECT_EQ(verdict.others(), 2) << "rank 3 had ended well before";
}

TEST(Verdict, ARankThatRunsIsNamedAndItsOwnEndLaterIsNoFurtherOne) {
  Verdict verdict(4);
  EXPECT_EQ(verdict.ended(0, kHeard), Step::await_cause);
  EXPECT_EQ(verdict.accused(1), Step::end_others);
  EXPECT_EQ(verdict.accused(2), Step::go_on) << "one is named";
  EXPECT_EQ(verdict.ended(1, kKilled), Step::go_on);
  EXPECT_EQ(verdict.ended(2, kHeard), Step::go_on);
  EXPECT_EQ(verdict.ended(3, kHeard), Step::go_on);
  EXPECT_EQ(verdict.first_failure(), 1);
  EXPECT_EQ(verdict.others(), 3);
}

TEST(Verdict, AWitnessIsNotTheCulprit) {
  Verdict verdict(4);
  EXPECT_EQ(verdict.ended(0, kHeard), Step::await_cause);
  EXPECT_EQ(verdict.ended(3, kHeard), Step::go_on) << "waited for already";
  EXPECT_EQ(verdict.ended(1, kFailed), Step::end_others);
  EXPECT_EQ(verdict.ended(2, kHeard), Step::go_on);
  EXPECT_EQ(verdict.first_failure(), 1);
  EXPECT_EQ(verdict.others(), 3);
  EXPECT_EQ(verdict.overdue(), Step::go_on);
}

TEST(Verdict, WithoutACulpritTheFirstWitnessIsNamed) {
  Verdict late(3);
  EXPECT_EQ(late.ended(1, kHeard), Step::await_cause);
  EXPECT_EQ(late.overdue(), Step::end_others);
  EXPECT_EQ(late.overdue(), Step::go_on);
  EXPECT_EQ(late.ended(0, kKilled), Step::go_on);
  EXPECT_EQ(late.first_failure(), 1);
  EXPECT_EQ(late.others(), 1);

  Verdict nobody_left(3);  // rank 2 left early, and well
  EXPECT_EQ(nobody_left.ended(2, kFine), Step::go_on);
  EXPECT_EQ(nobody_left.ended(1, kHeard), Step::await_cause);
  EXPECT_EQ(nobody_left.ended(0, kHeard), Step::end_others);
  EXPECT_EQ(nobody_left.first_failure(), 1);
  EXPECT_EQ(nobody_left.others(), 1);

  Verdict alone(1);
  EXPECT_EQ(alone.ended(0, kHeard), Step::end_others);
}

TEST(Verdict, TheCauseIsAwaitedEvenWithoutAGracePeriod) {
  using namespace std::chrono_literals;
  EXPECT_GE(Verdict::cause_limit(0ms), 500ms);
  EXPECT_EQ(Verdict::cause_limit(1h), 1h);
}

TEST(Verdict, NobodyIsNamedWhenAllEndWell) {
  Verdict verdict(2);
  EXPECT_EQ(verdict.ended(0, kFine), Step::go_on);
  EXPECT_EQ(verdict.ended(1, kFine), Step::go_on);
  EXPECT_EQ(verdict.overdue(), Step::go_on);
  EXPECT_FALSE(verdict.first_failure());
}

}  // namespace
}  // namespace lockstep::launcher
