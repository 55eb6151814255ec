// SPDX-License-Identifier: Apache-2.0
// Which rank failed first: a line of events, and what follows from each of them.
#include "launcher/verdict/root_cause.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <map>
#include <sstream>
#include <string>

#include "runtime/job/exit_code.h"

namespace lockstep::launcher::root_cause_test {
namespace {

using Step = RootCause::Step;
using Kind = Cause::Kind;

const std::map<std::string, ExitStatus> kEndings = {{"fine", {}},
                                                    {"exit3", {.value = 3}},
                                                    {"exit1", {.value = 1}},
                                                    {"killed", {.by_signal = true, .value = SIGKILL}},
                                                    {"exit75", {.value = kExitPeerLost}}};
const std::map<std::string, Kind> kKinds = {
    {"lost", Kind::lost},       {"silent", Kind::silent},   {"left", Kind::left},        {"failed", Kind::failed},
    {"aborted", Kind::aborted}, {"timeout", Kind::timeout}, {"mismatch", Kind::mismatch}};

// Events, with blanks between them, of which each is
//   "2=exit3"      rank 2 ends, in one of kEndings
//   "0:lost1"      rank 0 says that rank 1 is lost, or another of kKinds; "*" is the store, or no single rank
//   "0:lost1#6"    the same, in collective 6; "0:failed0-#3": the group survives it
//   "overdue", "met"
// Behind it "?": the root is to be awaited; "!": the others are to be ended. Returns what is then known.
std::string judged(RootCause& root_cause, const std::string& line) {
  std::istringstream events(line);
  for (std::string event; events >> event;) {
    const Step wanted = event.ends_with('?') ? Step::await_root : event.ends_with('!') ? Step::end_others : Step::go_on;
    if (wanted != Step::go_on) event.pop_back();
    const auto rank_at = [&](std::size_t at) { return event.at(at) == '*' ? -1 : event.at(at) - '0'; };
    Step step = Step::go_on;
    if (event == "overdue") {
      step = root_cause.overdue();
    } else if (event == "met") {
      root_cause.all_have_met();
    } else if (event.at(1) == '=') {
      step = root_cause.ended(rank_at(0), kEndings.at(event.substr(2)));
    } else {
      const auto kind = event.substr(2, event.find_first_of("*0123456789", 2) - 2);
      Cause cause{.kind = kKinds.at(kind), .rank = rank_at(2 + kind.size()), .reporter = rank_at(0)};
      cause.ends_group = event.find('-') == std::string::npos;
      if (const auto at = event.find('#'); at != std::string::npos) cause.sequence = std::stoi(event.substr(at + 1));
      cause.text = "said by " + event.substr(0, 1);
      step = root_cause.heard(cause);
    }
    EXPECT_EQ(step, wanted) << event << " of " << line;
  }
  if (!root_cause.first_failure()) return "nobody";
  std::string text = fmt::format("rank {}, {} others, code {}", *root_cause.first_failure(), root_cause.others(),
                                 root_cause.exit_code());
  if (!root_cause.ending()) text += ", runs";
  if (root_cause.cause() != nullptr) text += ", " + root_cause.cause()->text;
  EXPECT_EQ(root_cause.own_error() != nullptr, text.ends_with(fmt::format("said by {}", *root_cause.first_failure())));
  if (!root_cause.other_roots().empty()) text += fmt::format(", also {}", fmt::join(root_cause.other_roots(), " "));
  if (!root_cause.circle().empty()) text += fmt::format(", circle of {}", fmt::join(root_cause.circle(), " "));
  if (root_cause.disagreement() != nullptr) text += ", difference " + root_cause.disagreement()->text;
  return text;
}

std::string judged(int ranks, const std::string& line) {
  RootCause root_cause(ranks);
  return judged(root_cause, line);
}

TEST(RootCause, IsTheFirstThatFailedAndNoWitness) {
  EXPECT_EQ(judged(4, "3=fine 2=killed! 0=exit3 1=exit75"), "rank 2, 2 others, code 137");
  EXPECT_EQ(judged(4, "0=exit75? 3=exit75 1=exit3! 2=exit75 overdue"), "rank 1, 3 others, code 3");
  EXPECT_EQ(judged(2, "0=fine 1=fine overdue"), "nobody");
  EXPECT_EQ(judged(2, "*:silent7 7:lost8 0=fine 1=fine"), "nobody") << "of ranks that the job has not";
  EXPECT_EQ(judged(2, "1:aborted1 0:aborted1 1=fine 0=fine"), "nobody") << "it goes on after a loss, and ends well";
}

TEST(RootCause, WithoutARootTheFirstWitnessIsNamed) {
  EXPECT_EQ(judged(3, "1=exit75? overdue! overdue 0=killed"), "rank 1, 1 others, code 75");
  EXPECT_EQ(judged(3, "2=fine 1=exit75? 0=exit75!"), "rank 1, 1 others, code 75") << "rank 2 left early, and well";
  EXPECT_EQ(judged(1, "0=exit75!"), "rank 0, 0 others, code 75");
  // Ranks whose calls differ blame nobody in particular.
  EXPECT_EQ(judged(2, "1:mismatch* 0:mismatch* 1=exit1? 0=exit1!"), "rank 1, 1 others, code 1, difference said by 1");
  EXPECT_EQ(judged(2, "0:lost1 1:timeout* *:silent0? overdue!"), "rank 1, 0 others, code 75, runs, said by 0")
      << "it accused another and fell silent";
}

// The errors of torch's connections say that a rank was lost, but not which.
TEST(RootCause, WhoLostSomeRankNamesTheOneThatRunsOrHasLeft) {
  EXPECT_EQ(judged(3, "0:lost* 0:failed0 0=exit1? 1:failed1 1=exit1!"), "rank 1, 1 others, code 1, said by 1");
  EXPECT_EQ(judged(3, "0:lost* 0:failed0 0=exit1? 2:lost* 2:failed2 2=exit1 overdue!"),
            "rank 1, 2 others, code 75, runs");
  EXPECT_EQ(judged(3, "2=fine 0:lost* 0:failed0 0=exit1? overdue!"), "rank 2, 1 others, code 1") << "rank 1 runs too";
  EXPECT_EQ(judged(2, "0:lost* 0:failed0 0=exit1? overdue! 1:failed1 1=exit1"), "rank 1, 1 others, code 75, runs")
      << "what it says when the launcher ends it is not the reason";
  EXPECT_EQ(judged(2, "1:lost* 1:failed1 1=exit1? 0:lost* 0:failed0 0=exit1!"), "rank 1, 1 others, code 1, said by 1");
  // A subgroup's error is no fault of a rank that had ended in order, or that still computes.
  for (const char* const kind : {"mismatch", "timeout", "lost"}) {
    for (const char* const before : {"", "2=fine "}) {
      const auto line = fmt::format("{1}0:{0}*#3 0:failed0 0=exit1? 1:{0}*#3 1:failed1 1=exit1{2}", kind, before,
                                    *before == '\0' ? " overdue!" : "!");
      EXPECT_TRUE(judged(3, line).starts_with("rank 0, 1 others, code 1, said by 0")) << line;
    }
  }
}

TEST(RootCause, OfADifferenceNobodyIsTheRootUnlessARankFailedByItself) {
  EXPECT_EQ(judged(2, "1:mismatch* 0:mismatch* *:lost0 0=exit1? 1=exit1!"),
            "rank 0, 1 others, code 1, said by *, difference said by 1")
      << "its connection ended without a goodbye";
  // Rank 1 throws the difference, which ends its group; rank 0, slower, loses it, and ends before it.
  EXPECT_EQ(judged(3, "1:mismatch* 2:mismatch* 1:failed1 0:failed1 0:mismatch* 0=exit1? 1=exit1 2=exit1!"),
            "rank 0, 2 others, code 1, difference said by 1");
  EXPECT_EQ(judged(3, "0:mismatch* 1:mismatch* 0=exit1? 2=killed!"), "rank 2, 1 others, code 137");
  EXPECT_EQ(judged(2, "0:mismatch* 1:mismatch* 0=killed? 1=exit75!"), "rank 0, 1 others, code 137") << "by a signal";
}

// Whatever a program makes of the error that it was thrown, its accusation came first.
TEST(RootCause, AnyExitCodeOfARankThatAccusedAnotherIsAConsequence) {
  for (const char* const ending : {"exit1", "exit75", "killed"}) {
    EXPECT_EQ(judged(3, fmt::format("0:lost1 2:lost1 0={0}? 2={0} 1=killed!", ending)),
              "rank 1, 2 others, code 137, said by 0");
  }
}

TEST(RootCause, AccusationsAreFollowedToWhoAccusesNobody) {
  EXPECT_EQ(judged(4, "0:lost1 1:lost2 0=exit1? 1=exit1 overdue!"), "rank 2, 2 others, code 75, runs, said by 1");
}

TEST(RootCause, TwoThatFailByThemselvesAreBothNamedAndACircleAsOne) {
  EXPECT_EQ(judged(3, "0:lost1 2=exit3? 1=killed!"), "rank 1, 1 others, code 137, said by 0, also 2");
  EXPECT_EQ(judged(3, "1:lost2 2:lost1 0:lost1 0=exit75? 1=exit75 2=exit75!"),
            "rank 1, 2 others, code 75, said by 2, circle of 1 2");
}

TEST(RootCause, ASilentRankIsNamedOnceTheOthersHaveSpokenOrTimeIsUp) {
  EXPECT_EQ(judged(3, "*:silent1? 0:silent1 0=exit1 2:silent1 2=exit1! 1=killed"),
            "rank 1, 2 others, code 75, runs, said by *");
  EXPECT_EQ(judged(2, "*:silent1? overdue!"), "rank 1, 0 others, code 75, runs, said by *");
}

// Frozen for a while, or a suspended machine: it finds that the others have given it up, and that they are gone.
TEST(RootCause, OneThatWasSilentAndGoesOnIsTheRootWhateverItSaysThen) {
  EXPECT_EQ(judged(3, "*:silent1? 0:silent1 1:lost2 0=exit75 1=exit75!"), "rank 1, 1 others, code 75, said by *");
}

// _exit(0) in the middle of training: in whichever order the store, the kernel and the others tell of it.
TEST(RootCause, AnEndWithoutAGoodbyeIsTheRootIfItHurtsSomebody) {
  EXPECT_EQ(judged(2, "1=fine *:lost1 0:lost1 0=exit1!"), "rank 1, 1 others, code 1, said by 0");
  EXPECT_EQ(judged(2, "*:lost1 0:lost1 0=exit75? 1=fine!"), "rank 1, 1 others, code 1, said by 0");
  // As programs do that end by exit(0) and leave their groups to the kernel.
  EXPECT_EQ(judged(2, "0=fine *:lost0 1=fine *:lost1"), "nobody");
  // A rank that ended before it came, where the others wait for it.
  EXPECT_EQ(judged(3, "1=fine *:left1!"), "rank 1, 0 others, code 1, said by *");
}

// What ranks said of a group that they gave up says nothing of the next one.
TEST(RootCause, AMeetingOfAllEndsWhatWasSaidBeforeIt) {
  EXPECT_EQ(judged(3, "0:aborted0 1:aborted0 2:aborted0 met 0:lost2 0=exit1? 2=killed!"),
            "rank 2, 1 others, code 137, said by 0");
}

TEST(RootCause, ItsOwnWordCountsMoreThanAnAccusationAndIsAwaited) {
  EXPECT_EQ(judged(2, "0:lost1 *:lost1 1:failed1 1=exit3!"), "rank 1, 0 others, code 3, said by 1");
  // Rank 0 could not save; the others were told, caught that and ended before it did.
  EXPECT_EQ(judged(3, "0:failed0 1=exit1? 2=exit1 0=exit3!"), "rank 0, 2 others, code 3, said by 0, also 1 2");
}

// It catches its failure, and so do the others, whose ends it then hears of: those are consequences of it for some
// collectives, until it has come further.
TEST(RootCause, WhoFailedFirstIsNoWitnessOfWhatFollows) {
  EXPECT_EQ(judged(2, "0:failed0-#3 1:failed1 0:failed1#11 1=exit1? 0=exit1!"),
            "rank 0, 1 others, code 1, said by 0, also 1");
  EXPECT_EQ(judged(2, "0:failed0-#3 0:failed1#12 0=exit1? 1=killed!"), "rank 1, 1 others, code 137, said by 0");
}

TEST(RootCause, TheRootIsAwaitedEvenWithoutAGracePeriodAndASilentOneForLess) {
  using namespace std::chrono_literals;
  RootCause root_cause(2);
  judged(root_cause, "0=exit75?");
  const auto of_a_root = root_cause.patience(0ms);
  EXPECT_GE(of_a_root, 500ms);
  EXPECT_EQ(root_cause.patience(1h), 1h);
  judged(root_cause, "*:silent1!");
  EXPECT_LT(root_cause.patience(1h), of_a_root);
}

}  // namespace
}  // namespace lockstep::launcher::root_cause_test
