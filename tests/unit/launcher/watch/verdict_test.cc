#include "launcher/watch/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <string>

#include "runtime/base/exit_code.h"

namespace lockstep::launcher {
namespace {

using Step = Verdict::Step;
using testing::ElementsAre;
using testing::IsEmpty;

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

TEST(Verdict, TheFirstToFailIsNamedAndTheRestCounted) {
  Verdict verdict(4);
  EXPECT_EQ(verdict.ended(3, kFine), Step::go_on);
  EXPECT_FALSE(verdict.first_failure());
  EXPECT_EQ(verdict.ended(2, kKilled), Step::end_others);
  EXPECT_EQ(verdict.ended(0, kFailed), Step::go_on) << "said once";
  EXPECT_EQ(verdict.ended(1, kHeard), Step::go_on);
  EXPECT_EQ(verdict.first_failure(), 2);
  EXPECT_EQ(verdict.others(), 2) << "rank 3 had ended well before";
  EXPECT_EQ(verdict.exit_code(), 128 + SIGKILL);
}

TEST(Verdict, AWitnessIsNotTheRoot) {
  Verdict verdict(4);
  EXPECT_EQ(verdict.ended(0, kHeard), Step::await_root);
  EXPECT_EQ(verdict.ended(3, kHeard), Step::go_on) << "waited for already";
  EXPECT_EQ(verdict.ended(1, kFailed), Step::end_others);
  EXPECT_EQ(verdict.ended(2, kHeard), Step::go_on);
  EXPECT_EQ(verdict.first_failure(), 1);
  EXPECT_EQ(verdict.others(), 3);
  EXPECT_EQ(verdict.overdue(), Step::go_on);
}

TEST(Verdict, WithoutARootTheFirstWitnessIsNamed) {
  Verdict late(3);
  EXPECT_EQ(late.ended(1, kHeard), Step::await_root);
  EXPECT_EQ(late.overdue(), Step::end_others);
  EXPECT_EQ(late.overdue(), Step::go_on);
  EXPECT_EQ(late.ended(0, kKilled), Step::go_on);
  EXPECT_EQ(late.first_failure(), 1);
  EXPECT_EQ(late.others(), 1);

  Verdict nobody_left(3);  // rank 2 left early, and well
  EXPECT_EQ(nobody_left.ended(2, kFine), Step::go_on);
  EXPECT_EQ(nobody_left.ended(1, kHeard), Step::await_root);
  EXPECT_EQ(nobody_left.ended(0, kHeard), Step::end_others);
  EXPECT_EQ(nobody_left.first_failure(), 1);
  EXPECT_EQ(nobody_left.others(), 1);

  Verdict alone(1);
  EXPECT_EQ(alone.ended(0, kHeard), Step::end_others);
}

// Whatever a program makes of the error that it was thrown, its accusation came first.
TEST(Verdict, AnyExitCodeOfARankThatAccusedAnotherIsAConsequence) {
  for (const ExitStatus& ending : {kCaughtAll, kHeard, kKilled}) {
    Verdict verdict(3);
    EXPECT_EQ(verdict.heard(said(0, 1)), Step::go_on) << "the program may go on without its group";
    EXPECT_EQ(verdict.heard(said(2, 1)), Step::go_on);
    EXPECT_EQ(verdict.ended(0, ending), Step::await_root) << "rank 1's own end says more";
    EXPECT_EQ(verdict.ended(2, ending), Step::go_on);
    EXPECT_EQ(verdict.ended(1, kKilled), Step::end_others);
    EXPECT_EQ(verdict.first_failure(), 1);
    EXPECT_EQ(verdict.others(), 2);
    EXPECT_THAT(verdict.other_roots(), IsEmpty());
  }
}

TEST(Verdict, ARankThatStaysSilentIsNamedOnceTheOthersHaveSpoken) {
  Verdict verdict(3);
  EXPECT_EQ(verdict.heard(said(-1, 1, Cause::Kind::silent)), Step::await_root);
  EXPECT_EQ(verdict.heard(said(0, 1, Cause::Kind::silent)), Step::go_on);
  EXPECT_EQ(verdict.ended(0, kCaughtAll), Step::go_on);
  EXPECT_EQ(verdict.heard(said(2, 1, Cause::Kind::silent)), Step::go_on);
  EXPECT_EQ(verdict.ended(2, kCaughtAll), Step::end_others);
  EXPECT_EQ(verdict.first_failure(), 1);
  EXPECT_FALSE(verdict.ending());
  EXPECT_EQ(verdict.ended(1, kKilled), Step::go_on) << "by the launcher";
  EXPECT_EQ(verdict.others(), 2);
  EXPECT_EQ(verdict.exit_code(), kExitPeerLost);
  ASSERT_NE(verdict.cause(), nullptr);
  EXPECT_EQ(verdict.cause()->reporter, -1);
}

TEST(Verdict, ASilentRankIsNamedAlsoWhenNobodySpeaks) {
  Verdict verdict(2);
  EXPECT_EQ(verdict.heard(said(-1, 1, Cause::Kind::silent)), Step::await_root);
  EXPECT_EQ(verdict.overdue(), Step::end_others);
  EXPECT_EQ(verdict.first_failure(), 1);
}

// _exit(0) in the middle of training: in whichever order the store, the kernel and the others tell of it.
TEST(Verdict, AnEndWithoutAGoodbyeIsTheRootAlsoWithExitCodeZero) {
  Verdict kernel_first(2);
  EXPECT_EQ(kernel_first.ended(1, kFine), Step::go_on);
  EXPECT_EQ(kernel_first.heard(said(-1, 1)), Step::go_on) << "nobody has failed for it yet";
  EXPECT_EQ(kernel_first.heard(said(0, 1)), Step::go_on);
  EXPECT_EQ(kernel_first.ended(0, kCaughtAll), Step::end_others);
  EXPECT_EQ(kernel_first.first_failure(), 1);
  EXPECT_EQ(kernel_first.exit_code(), 1);

  Verdict store_first(2);
  EXPECT_EQ(store_first.heard(said(-1, 1)), Step::go_on);
  EXPECT_EQ(store_first.heard(said(0, 1)), Step::go_on);
  EXPECT_EQ(store_first.ended(0, kHeard), Step::await_root);
  EXPECT_EQ(store_first.ended(1, kFine), Step::end_others);
  EXPECT_EQ(store_first.first_failure(), 1);
}

// As programs do that end by exit(0) and leave their groups to the kernel.
TEST(Verdict, EndsWithoutAGoodbyeThatHurtNobodyAreNoFailure) {
  Verdict verdict(2);
  for (const int rank : {0, 1}) {
    EXPECT_EQ(verdict.ended(rank, kFine), Step::go_on);
    EXPECT_EQ(verdict.heard(said(-1, rank)), Step::go_on);
  }
  EXPECT_FALSE(verdict.first_failure());
}

// What ranks said of a group that they gave up says nothing of the next one.
TEST(Verdict, AMeetingOfAllEndsWhatWasSaidBeforeIt) {
  Verdict verdict(3);
  verdict.heard(said(0, 0, Cause::Kind::aborted));
  verdict.heard(said(1, 0, Cause::Kind::aborted));
  verdict.heard(said(2, 0, Cause::Kind::aborted));
  verdict.all_have_met();
  verdict.heard(said(0, 2));
  EXPECT_EQ(verdict.ended(0, kCaughtAll), Step::await_root);
  EXPECT_EQ(verdict.ended(2, kKilled), Step::end_others);
  EXPECT_EQ(verdict.first_failure(), 2);
}

TEST(Verdict, ARankThatAccusedAnotherAndFellSilentIsNamedWhereNobodyElseIs) {
  Verdict verdict(2);
  verdict.heard(said(0, 1));
  verdict.heard(said(1, -1, Cause::Kind::timeout));
  EXPECT_EQ(verdict.heard(said(-1, 0, Cause::Kind::silent)), Step::await_root);
  EXPECT_EQ(verdict.overdue(), Step::end_others);
  EXPECT_TRUE(verdict.first_failure());
}

TEST(Verdict, AccusationsAreFollowedToWhoAccusesNobody) {
  Verdict verdict(4);
  verdict.heard(said(0, 1));
  verdict.heard(said(1, 2));
  EXPECT_EQ(verdict.ended(0, kCaughtAll), Step::await_root);
  EXPECT_EQ(verdict.ended(1, kCaughtAll), Step::go_on);
  EXPECT_EQ(verdict.overdue(), Step::end_others) << "rank 2 has not ended";
  EXPECT_EQ(verdict.first_failure(), 2);
  EXPECT_EQ(verdict.cause()->reporter, 1);
}

TEST(Verdict, ItsOwnWordCountsMoreThanAnAccusation) {
  Verdict verdict(2);
  verdict.heard(said(0, 1));
  verdict.heard(said(-1, 1));
  verdict.heard(said(1, 1, Cause::Kind::failed));
  EXPECT_EQ(verdict.ended(1, kFailed), Step::end_others);
  EXPECT_EQ(verdict.cause()->reporter, 1);
}

// Rank 0 could not save; the others were told, caught that and ended before it did.
TEST(Verdict, WhoSpokeOfItsOwnFailureFirstIsAwaited) {
  Verdict verdict(3);
  EXPECT_EQ(verdict.heard(said(0, 0, Cause::Kind::failed)), Step::go_on);
  EXPECT_EQ(verdict.ended(1, kCaughtAll), Step::await_root);
  EXPECT_EQ(verdict.ended(2, kCaughtAll), Step::go_on);
  EXPECT_EQ(verdict.ended(0, kFailed), Step::end_others);
  EXPECT_EQ(verdict.first_failure(), 0);
}

// It catches its failure, and so do the others, whose ends it then hears of.
TEST(Verdict, WhoFailedFirstIsNoWitnessOfWhatFollows) {
  Cause full = said(0, 0, Cause::Kind::failed);
  full.ends_group = false;
  full.sequence = 3;
  Cause unwound = said(0, 1, Cause::Kind::failed);
  unwound.sequence = 6;
  Verdict verdict(2);
  verdict.heard(full);
  verdict.heard(said(1, 1, Cause::Kind::failed));
  verdict.heard(unwound);
  EXPECT_EQ(verdict.ended(1, kCaughtAll), Step::await_root);
  EXPECT_EQ(verdict.ended(0, kCaughtAll), Step::end_others);
  EXPECT_EQ(verdict.first_failure(), 0);

  Verdict later(2);  // it went on, and rank 1 failed long after
  unwound.sequence = 6000;
  later.heard(full);
  later.heard(unwound);
  EXPECT_EQ(later.ended(0, kCaughtAll), Step::await_root);
  EXPECT_EQ(later.ended(1, kKilled), Step::end_others);
  EXPECT_EQ(later.first_failure(), 1);
}

TEST(Verdict, TwoThatFailByThemselvesAreBothNamed) {
  Verdict verdict(3);
  verdict.heard(said(0, 1));
  EXPECT_EQ(verdict.ended(2, kFailed), Step::await_root) << "rank 1 came to attention first";
  EXPECT_EQ(verdict.ended(1, kKilled), Step::end_others);
  EXPECT_EQ(verdict.first_failure(), 1);
  EXPECT_THAT(verdict.other_roots(), ElementsAre(2));
}

TEST(Verdict, ACircleIsNamedAsOne) {
  Verdict verdict(3);
  verdict.heard(said(1, 2));
  verdict.heard(said(2, 1));
  verdict.heard(said(0, 1));
  EXPECT_EQ(verdict.ended(0, kHeard), Step::await_root);
  EXPECT_EQ(verdict.ended(1, kHeard), Step::go_on);
  EXPECT_EQ(verdict.ended(2, kHeard), Step::end_others);
  EXPECT_THAT(verdict.circle(), ElementsAre(1, 2));
  EXPECT_EQ(verdict.first_failure(), 1);
}

// Ranks whose calls differ blame nobody in particular.
TEST(Verdict, WhereNoRankIsAccusedTheFirstToEndIsNamed) {
  Verdict verdict(2);
  verdict.heard(said(1, -1, Cause::Kind::mismatch));
  verdict.heard(said(0, -1, Cause::Kind::mismatch));
  EXPECT_EQ(verdict.ended(1, kCaughtAll), Step::await_root);
  EXPECT_EQ(verdict.ended(0, kCaughtAll), Step::end_others);
  EXPECT_EQ(verdict.first_failure(), 1);
  EXPECT_EQ(verdict.exit_code(), 1);
}

TEST(Verdict, RanksThatTheJobHasNotAreNobodys) {
  Verdict verdict(2);
  EXPECT_EQ(verdict.heard(said(-1, 7, Cause::Kind::silent)), Step::go_on);
  EXPECT_EQ(verdict.heard(said(7, 8)), Step::go_on);
  EXPECT_EQ(verdict.ended(0, kFine), Step::go_on);
  EXPECT_EQ(verdict.ended(1, kFine), Step::go_on);
  EXPECT_FALSE(verdict.first_failure());
}

TEST(Verdict, AJobThatGoesOnAfterALossMayEndWell) {
  Verdict verdict(2);
  verdict.heard(said(1, 1, Cause::Kind::aborted));
  verdict.heard(said(0, 1, Cause::Kind::aborted));
  EXPECT_EQ(verdict.ended(1, kFine), Step::go_on);
  EXPECT_EQ(verdict.ended(0, kFine), Step::go_on);
  EXPECT_FALSE(verdict.first_failure());
}

TEST(Verdict, TheRootIsAwaitedEvenWithoutAGracePeriodAndASilentOneForLess) {
  using namespace std::chrono_literals;
  Verdict verdict(2);
  verdict.ended(0, kHeard);
  const auto of_a_root = verdict.patience(0ms);
  EXPECT_GE(of_a_root, 500ms);
  EXPECT_EQ(verdict.patience(1h), 1h);
  verdict.heard(said(-1, 1, Cause::Kind::silent));
  EXPECT_LT(verdict.patience(1h), of_a_root);
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
