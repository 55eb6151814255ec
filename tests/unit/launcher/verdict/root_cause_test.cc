// SPDX-License-Identifier: Apache-2.0
#include "launcher/verdict/root_cause.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <string>

#include "runtime/job/exit_code.h"

namespace lockstep::launcher::root_cause_test {
namespace {

using Step = RootCause::Step;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr ExitStatus kFine{};
constexpr ExitStatus kFailed{.by_signal = false, .value = 3};
constexpr ExitStatus kCaughtAll{.by_signal = false, .value = 1};
constexpr ExitStatus kKilled{.by_signal = true, .value = SIGKILL};
constexpr ExitStatus kHeard{.by_signal = false, .value = kExitPeerLost};

// What `reporter` says of `rank`; -1: the store, or no single rank.
Cause said(int reporter, int rank, Cause::Kind kind = Cause::Kind::lost) {
  return {.kind = kind,
          .rank = rank,
          .reporter = reporter,
          .text = "rank " + std::to_string(rank) + ", says " + std::to_string(reporter)};
}

TEST(RootCause, TheFirstToFailIsNamedAndTheRestCounted) {
  RootCause root_cause(4);
  EXPECT_EQ(root_cause.ended(3, kFine), Step::go_on);
  EXPECT_FALSE(root_cause.first_failure());
  EXPECT_EQ(root_cause.ended(2, kKilled), Step::end_others);
  EXPECT_EQ(root_cause.ended(0, kFailed), Step::go_on) << "said once";
  EXPECT_EQ(root_cause.ended(1, kHeard), Step::go_on);
  EXPECT_EQ(root_cause.first_failure(), 2);
  EXPECT_EQ(root_cause.others(), 2) << "rank 3 had ended well before";
  EXPECT_EQ(root_cause.exit_code(), 128 + SIGKILL);
}

// Frozen for a while, or a suspended machine: it finds that the others have given it up, and that they are gone.
TEST(RootCause, OneThatWasSilentAndGoesOnIsTheRootWhateverItSaysThen) {
  RootCause root_cause(3);
  EXPECT_EQ(root_cause.heard(said(-1, 1, Cause::Kind::silent)), Step::await_root);
  EXPECT_EQ(root_cause.heard(said(0, 1, Cause::Kind::silent)), Step::go_on);
  EXPECT_EQ(root_cause.heard(said(1, 2)), Step::go_on);
  EXPECT_EQ(root_cause.ended(0, kHeard), Step::go_on);
  EXPECT_EQ(root_cause.ended(1, kHeard), Step::end_others);
  EXPECT_EQ(root_cause.first_failure(), 1);
  EXPECT_EQ(root_cause.exit_code(), kExitPeerLost);
}

TEST(RootCause, AWitnessIsNotTheRoot) {
  RootCause root_cause(4);
  EXPECT_EQ(root_cause.ended(0, kHeard), Step::await_root);
  EXPECT_EQ(root_cause.ended(3, kHeard), Step::go_on) << "waited for already";
  EXPECT_EQ(root_cause.ended(1, kFailed), Step::end_others);
  EXPECT_EQ(root_cause.ended(2, kHeard), Step::go_on);
  EXPECT_EQ(root_cause.first_failure(), 1);
  EXPECT_EQ(root_cause.others(), 3);
  EXPECT_EQ(root_cause.overdue(), Step::go_on);
}

TEST(RootCause, WithoutARootTheFirstWitnessIsNamed) {
  RootCause late(3);
  EXPECT_EQ(late.ended(1, kHeard), Step::await_root);
  EXPECT_EQ(late.overdue(), Step::end_others);
  EXPECT_EQ(late.overdue(), Step::go_on);
  EXPECT_EQ(late.ended(0, kKilled), Step::go_on);
  EXPECT_EQ(late.first_failure(), 1);
  EXPECT_EQ(late.others(), 1);

  RootCause nobody_left(3);  // rank 2 left early, and well
  EXPECT_EQ(nobody_left.ended(2, kFine), Step::go_on);
  EXPECT_EQ(nobody_left.ended(1, kHeard), Step::await_root);
  EXPECT_EQ(nobody_left.ended(0, kHeard), Step::end_others);
  EXPECT_EQ(nobody_left.first_failure(), 1);
  EXPECT_EQ(nobody_left.others(), 1);

  RootCause alone(1);
  EXPECT_EQ(alone.ended(0, kHeard), Step::end_others);
}

// The errors of torch's connections say that a rank was lost, but not which.
class LostSome : public ::testing::Test {
 protected:
  void lose(RootCause& root_cause, int rank) {
    root_cause.heard(said(rank, -1));
    root_cause.heard(said(rank, rank, Cause::Kind::failed));
  }
};

TEST_F(LostSome, AndEndsFirstIsNotTheRoot) {
  RootCause root_cause(3);
  lose(root_cause, 0);
  EXPECT_EQ(root_cause.ended(0, kCaughtAll), Step::await_root);
  root_cause.heard(said(1, 1, Cause::Kind::failed));
  EXPECT_EQ(root_cause.ended(1, kCaughtAll), Step::end_others);
  EXPECT_EQ(root_cause.first_failure(), 1);
}

TEST_F(LostSome, NamesTheOneThatRunsOrHasLeft) {
  RootCause hung(3);
  for (const int rank : {0, 2}) {
    lose(hung, rank);
    hung.ended(rank, kCaughtAll);
  }
  EXPECT_EQ(hung.overdue(), Step::end_others);
  EXPECT_EQ(hung.first_failure(), 1);
  EXPECT_FALSE(hung.ending());

  RootCause left(3);
  left.ended(2, kFine);
  lose(left, 0);
  left.ended(0, kCaughtAll);
  EXPECT_EQ(left.overdue(), Step::end_others) << "rank 1 runs too";
  EXPECT_EQ(left.first_failure(), 2);
  EXPECT_EQ(left.exit_code(), 1);
}

// A subgroup's error is no fault of a rank that had ended in order, or that still computes.
TEST_F(LostSome, IsNotWhatADifferenceOrALateSubgroupSays) {
  for (const auto kind : {Cause::Kind::mismatch, Cause::Kind::timeout, Cause::Kind::lost}) {
    for (const bool has_left : {true, false}) {
      RootCause root_cause(3);
      if (has_left) root_cause.ended(2, kFine);
      for (const int rank : {0, 1}) {
        Cause cause = said(rank, -1, kind);
        cause.sequence = 3;  // of the subgroup's collectives
        root_cause.heard(cause);
        root_cause.heard(said(rank, rank, Cause::Kind::failed));
        root_cause.ended(rank, kCaughtAll);
      }
      root_cause.overdue();
      EXPECT_EQ(root_cause.first_failure(), 0);
    }
  }
}

// By the launcher's signal, say, of which its handler makes an exception.
TEST_F(LostSome, AndWhatTheOneThatRanSaysWhenItIsEndedIsNotTheReason) {
  RootCause root_cause(2);
  lose(root_cause, 0);
  root_cause.ended(0, kCaughtAll);
  root_cause.overdue();
  root_cause.heard(said(1, 1, Cause::Kind::failed));
  root_cause.ended(1, kCaughtAll);
  EXPECT_EQ(root_cause.first_failure(), 1);
  EXPECT_EQ(root_cause.own_error(), nullptr);
}

TEST_F(LostSome, AreAllThereAreAndTheFirstIsNamedWithItsError) {
  RootCause root_cause(2);
  for (const int rank : {1, 0}) {
    lose(root_cause, rank);
    root_cause.ended(rank, kCaughtAll);
  }
  EXPECT_EQ(root_cause.first_failure(), 1);
  ASSERT_NE(root_cause.own_error(), nullptr);
}

TEST(RootCause, ARankThatEndedWithZeroBeforeItCameIsNamedWhenTheLauncherSaysSo) {
  RootCause root_cause(3);
  EXPECT_EQ(root_cause.ended(1, kFine), Step::go_on) << "nobody waits for it yet";
  EXPECT_EQ(root_cause.heard(said(-1, 1, Cause::Kind::left)), Step::end_others) << "though nobody has failed";
  EXPECT_EQ(root_cause.first_failure(), 1);
  EXPECT_EQ(root_cause.exit_code(), 1);
}

TEST(RootCause, OfADifferenceThatAllRanksFoundNobodyIsTheRoot) {
  RootCause root_cause(2);
  EXPECT_EQ(root_cause.heard(said(1, -1, Cause::Kind::mismatch)), Step::go_on);
  EXPECT_EQ(root_cause.heard(said(0, -1, Cause::Kind::mismatch)), Step::go_on);
  EXPECT_EQ(root_cause.heard(said(-1, 0)), Step::go_on) << "its connection ended without a goodbye";
  EXPECT_EQ(root_cause.ended(0, kCaughtAll), Step::await_root);
  EXPECT_EQ(root_cause.ended(1, kCaughtAll), Step::end_others);
  ASSERT_NE(root_cause.disagreement(), nullptr);
  EXPECT_EQ(root_cause.disagreement()->text, "rank -1, says 1");
  EXPECT_EQ(root_cause.exit_code(), 1);
}

// Rank 1 throws the difference, which ends its group; rank 0, slower, loses it, and ends before it.
TEST(RootCause, OfADifferenceNobodyIsTheRootThoughARankLostAnotherByIt) {
  RootCause root_cause(3);
  root_cause.heard(said(1, -1, Cause::Kind::mismatch));
  root_cause.heard(said(2, -1, Cause::Kind::mismatch));
  EXPECT_EQ(root_cause.heard(said(1, 1, Cause::Kind::failed)), Step::go_on);
  EXPECT_EQ(root_cause.heard(said(0, 1, Cause::Kind::failed)), Step::go_on);
  EXPECT_EQ(root_cause.heard(said(0, -1, Cause::Kind::mismatch)), Step::go_on);
  EXPECT_EQ(root_cause.ended(0, kCaughtAll), Step::await_root);
  EXPECT_EQ(root_cause.ended(1, kCaughtAll), Step::go_on);
  EXPECT_EQ(root_cause.ended(2, kCaughtAll), Step::end_others);
  EXPECT_EQ(root_cause.first_failure(), 0);
  ASSERT_NE(root_cause.disagreement(), nullptr);
  EXPECT_EQ(root_cause.disagreement()->text, "rank -1, says 1");
}

TEST(RootCause, AFailureBesideADifferenceIsNamed) {
  RootCause root_cause(3);
  root_cause.heard(said(0, -1, Cause::Kind::mismatch));
  root_cause.heard(said(1, -1, Cause::Kind::mismatch));
  root_cause.ended(0, kCaughtAll);
  EXPECT_EQ(root_cause.ended(2, kKilled), Step::end_others) << "it has told of no difference";
  EXPECT_EQ(root_cause.first_failure(), 2);
  EXPECT_EQ(root_cause.disagreement(), nullptr);

  RootCause survived(2);
  survived.heard(said(0, -1, Cause::Kind::mismatch));
  survived.heard(said(1, -1, Cause::Kind::mismatch));
  survived.ended(0, kKilled);
  survived.ended(1, kHeard);
  EXPECT_EQ(survived.first_failure(), 0);
  EXPECT_EQ(survived.disagreement(), nullptr) << "an end by a signal is of another kind";
}

// Whatever a program makes of the error that it was thrown, its accusation came first.
TEST(RootCause, AnyExitCodeOfARankThatAccusedAnotherIsAConsequence) {
  for (const ExitStatus& ending : {kCaughtAll, kHeard, kKilled}) {
    RootCause root_cause(3);
    EXPECT_EQ(root_cause.heard(said(0, 1)), Step::go_on) << "the program may go on without its group";
    EXPECT_EQ(root_cause.heard(said(2, 1)), Step::go_on);
    EXPECT_EQ(root_cause.ended(0, ending), Step::await_root) << "rank 1's own end says more";
    EXPECT_EQ(root_cause.ended(2, ending), Step::go_on);
    EXPECT_EQ(root_cause.ended(1, kKilled), Step::end_others);
    EXPECT_EQ(root_cause.first_failure(), 1);
    EXPECT_EQ(root_cause.others(), 2);
    EXPECT_THAT(root_cause.other_roots(), IsEmpty());
  }
}

TEST(RootCause, ARankThatStaysSilentIsNamedOnceTheOthersHaveSpoken) {
  RootCause root_cause(3);
  EXPECT_EQ(root_cause.heard(said(-1, 1, Cause::Kind::silent)), Step::await_root);
  EXPECT_EQ(root_cause.heard(said(0, 1, Cause::Kind::silent)), Step::go_on);
  EXPECT_EQ(root_cause.ended(0, kCaughtAll), Step::go_on);
  EXPECT_EQ(root_cause.heard(said(2, 1, Cause::Kind::silent)), Step::go_on);
  EXPECT_EQ(root_cause.ended(2, kCaughtAll), Step::end_others);
  EXPECT_EQ(root_cause.first_failure(), 1);
  EXPECT_FALSE(root_cause.ending());
  EXPECT_EQ(root_cause.ended(1, kKilled), Step::go_on) << "by the launcher";
  EXPECT_EQ(root_cause.others(), 2);
  EXPECT_EQ(root_cause.exit_code(), kExitPeerLost);
  ASSERT_NE(root_cause.cause(), nullptr);
  EXPECT_EQ(root_cause.cause()->reporter, -1);
}

TEST(RootCause, ASilentRankIsNamedAlsoWhenNobodySpeaks) {
  RootCause root_cause(2);
  EXPECT_EQ(root_cause.heard(said(-1, 1, Cause::Kind::silent)), Step::await_root);
  EXPECT_EQ(root_cause.overdue(), Step::end_others);
  EXPECT_EQ(root_cause.first_failure(), 1);
}

// _exit(0) in the middle of training: in whichever order the store, the kernel and the others tell of it.
TEST(RootCause, AnEndWithoutAGoodbyeIsTheRootAlsoWithExitCodeZero) {
  RootCause kernel_first(2);
  EXPECT_EQ(kernel_first.ended(1, kFine), Step::go_on);
  EXPECT_EQ(kernel_first.heard(said(-1, 1)), Step::go_on) << "nobody has failed for it yet";
  EXPECT_EQ(kernel_first.heard(said(0, 1)), Step::go_on);
  EXPECT_EQ(kernel_first.ended(0, kCaughtAll), Step::end_others);
  EXPECT_EQ(kernel_first.first_failure(), 1);
  EXPECT_EQ(kernel_first.exit_code(), 1);

  RootCause store_first(2);
  EXPECT_EQ(store_first.heard(said(-1, 1)), Step::go_on);
  EXPECT_EQ(store_first.heard(said(0, 1)), Step::go_on);
  EXPECT_EQ(store_first.ended(0, kHeard), Step::await_root);
  EXPECT_EQ(store_first.ended(1, kFine), Step::end_others);
  EXPECT_EQ(store_first.first_failure(), 1);
}

// As programs do that end by exit(0) and leave their groups to the kernel.
TEST(RootCause, EndsWithoutAGoodbyeThatHurtNobodyAreNoFailure) {
  RootCause root_cause(2);
  for (const int rank : {0, 1}) {
    EXPECT_EQ(root_cause.ended(rank, kFine), Step::go_on);
    EXPECT_EQ(root_cause.heard(said(-1, rank)), Step::go_on);
  }
  EXPECT_FALSE(root_cause.first_failure());
}

// What ranks said of a group that they gave up says nothing of the next one.
TEST(RootCause, AMeetingOfAllEndsWhatWasSaidBeforeIt) {
  RootCause root_cause(3);
  root_cause.heard(said(0, 0, Cause::Kind::aborted));
  root_cause.heard(said(1, 0, Cause::Kind::aborted));
  root_cause.heard(said(2, 0, Cause::Kind::aborted));
  root_cause.all_have_met();
  root_cause.heard(said(0, 2));
  EXPECT_EQ(root_cause.ended(0, kCaughtAll), Step::await_root);
  EXPECT_EQ(root_cause.ended(2, kKilled), Step::end_others);
  EXPECT_EQ(root_cause.first_failure(), 2);
}

TEST(RootCause, ARankThatAccusedAnotherAndFellSilentIsNamedWhereNobodyElseIs) {
  RootCause root_cause(2);
  root_cause.heard(said(0, 1));
  root_cause.heard(said(1, -1, Cause::Kind::timeout));
  EXPECT_EQ(root_cause.heard(said(-1, 0, Cause::Kind::silent)), Step::await_root);
  EXPECT_EQ(root_cause.overdue(), Step::end_others);
  EXPECT_TRUE(root_cause.first_failure());
}

TEST(RootCause, AccusationsAreFollowedToWhoAccusesNobody) {
  RootCause root_cause(4);
  root_cause.heard(said(0, 1));
  root_cause.heard(said(1, 2));
  EXPECT_EQ(root_cause.ended(0, kCaughtAll), Step::await_root);
  EXPECT_EQ(root_cause.ended(1, kCaughtAll), Step::go_on);
  EXPECT_EQ(root_cause.overdue(), Step::end_others) << "rank 2 has not ended";
  EXPECT_EQ(root_cause.first_failure(), 2);
  EXPECT_EQ(root_cause.cause()->reporter, 1);
}

TEST(RootCause, ItsOwnWordCountsMoreThanAnAccusation) {
  RootCause root_cause(2);
  root_cause.heard(said(0, 1));
  root_cause.heard(said(-1, 1));
  root_cause.heard(said(1, 1, Cause::Kind::failed));
  EXPECT_EQ(root_cause.ended(1, kFailed), Step::end_others);
  EXPECT_EQ(root_cause.cause()->reporter, 1);
}

// Rank 0 could not save; the others were told, caught that and ended before it did.
TEST(RootCause, WhoSpokeOfItsOwnFailureFirstIsAwaited) {
  RootCause root_cause(3);
  EXPECT_EQ(root_cause.heard(said(0, 0, Cause::Kind::failed)), Step::go_on);
  EXPECT_EQ(root_cause.ended(1, kCaughtAll), Step::await_root);
  EXPECT_EQ(root_cause.ended(2, kCaughtAll), Step::go_on);
  EXPECT_EQ(root_cause.ended(0, kFailed), Step::end_others);
  EXPECT_EQ(root_cause.first_failure(), 0);
}

// It catches its failure, and so do the others, whose ends it then hears of.
TEST(RootCause, WhoFailedFirstIsNoWitnessOfWhatFollows) {
  Cause full = said(0, 0, Cause::Kind::failed);
  full.ends_group = false;
  full.sequence = 3;
  Cause unwound = said(0, 1, Cause::Kind::failed);
  unwound.sequence = 6;
  RootCause root_cause(2);
  root_cause.heard(full);
  root_cause.heard(said(1, 1, Cause::Kind::failed));
  root_cause.heard(unwound);
  EXPECT_EQ(root_cause.ended(1, kCaughtAll), Step::await_root);
  EXPECT_EQ(root_cause.ended(0, kCaughtAll), Step::end_others);
  EXPECT_EQ(root_cause.first_failure(), 0);

  RootCause later(2);  // it went on, and rank 1 failed long after
  unwound.sequence = 6000;
  later.heard(full);
  later.heard(unwound);
  EXPECT_EQ(later.ended(0, kCaughtAll), Step::await_root);
  EXPECT_EQ(later.ended(1, kKilled), Step::end_others);
  EXPECT_EQ(later.first_failure(), 1);
}

TEST(RootCause, TwoThatFailByThemselvesAreBothNamed) {
  RootCause root_cause(3);
  root_cause.heard(said(0, 1));
  EXPECT_EQ(root_cause.ended(2, kFailed), Step::await_root) << "rank 1 came to attention first";
  EXPECT_EQ(root_cause.ended(1, kKilled), Step::end_others);
  EXPECT_EQ(root_cause.first_failure(), 1);
  EXPECT_THAT(root_cause.other_roots(), ElementsAre(2));
}

TEST(RootCause, ACircleIsNamedAsOne) {
  RootCause root_cause(3);
  root_cause.heard(said(1, 2));
  root_cause.heard(said(2, 1));
  root_cause.heard(said(0, 1));
  EXPECT_EQ(root_cause.ended(0, kHeard), Step::await_root);
  EXPECT_EQ(root_cause.ended(1, kHeard), Step::go_on);
  EXPECT_EQ(root_cause.ended(2, kHeard), Step::end_others);
  EXPECT_THAT(root_cause.circle(), ElementsAre(1, 2));
  EXPECT_EQ(root_cause.first_failure(), 1);
}

// Ranks whose calls differ blame nobody in particular.
TEST(RootCause, WhereNoRankIsAccusedTheFirstToEndIsNamed) {
  RootCause root_cause(2);
  root_cause.heard(said(1, -1, Cause::Kind::mismatch));
  root_cause.heard(said(0, -1, Cause::Kind::mismatch));
  EXPECT_EQ(root_cause.ended(1, kCaughtAll), Step::await_root);
  EXPECT_EQ(root_cause.ended(0, kCaughtAll), Step::end_others);
  EXPECT_EQ(root_cause.first_failure(), 1);
  EXPECT_EQ(root_cause.exit_code(), 1);
}

TEST(RootCause, RanksThatTheJobHasNotAreNobodys) {
  RootCause root_cause(2);
  EXPECT_EQ(root_cause.heard(said(-1, 7, Cause::Kind::silent)), Step::go_on);
  EXPECT_EQ(root_cause.heard(said(7, 8)), Step::go_on);
  EXPECT_EQ(root_cause.ended(0, kFine), Step::go_on);
  EXPECT_EQ(root_cause.ended(1, kFine), Step::go_on);
  EXPECT_FALSE(root_cause.first_failure());
}

TEST(RootCause, AJobThatGoesOnAfterALossMayEndWell) {
  RootCause root_cause(2);
  root_cause.heard(said(1, 1, Cause::Kind::aborted));
  root_cause.heard(said(0, 1, Cause::Kind::aborted));
  EXPECT_EQ(root_cause.ended(1, kFine), Step::go_on);
  EXPECT_EQ(root_cause.ended(0, kFine), Step::go_on);
  EXPECT_FALSE(root_cause.first_failure());
}

TEST(RootCause, TheRootIsAwaitedEvenWithoutAGracePeriodAndASilentOneForLess) {
  using namespace std::chrono_literals;
  RootCause root_cause(2);
  root_cause.ended(0, kHeard);
  const auto of_a_root = root_cause.patience(0ms);
  EXPECT_GE(of_a_root, 500ms);
  EXPECT_EQ(root_cause.patience(1h), 1h);
  root_cause.heard(said(-1, 1, Cause::Kind::silent));
  EXPECT_LT(root_cause.patience(1h), of_a_root);
}

TEST(RootCause, NobodyIsNamedWhenAllEndWell) {
  RootCause root_cause(2);
  EXPECT_EQ(root_cause.ended(0, kFine), Step::go_on);
  EXPECT_EQ(root_cause.ended(1, kFine), Step::go_on);
  EXPECT_EQ(root_cause.overdue(), Step::go_on);
  EXPECT_FALSE(root_cause.first_failure());
}

}  // namespace
}  // namespace lockstep::launcher::root_cause_test
