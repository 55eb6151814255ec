// SPDX-License-Identifier: Apache-2.0
#include "runtime/rendezvous/consensus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "lockstep/base/error.h"
#include "runtime/store/hash_store.h"
#include "tests/support/error_of.h"

namespace lockstep::rendezvous::consensus_test {
namespace {

using namespace std::chrono_literals;
using lockstep::testing::error_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Roster roster_of(int ranks) {
  Roster roster;
  for (int r = 0; r < ranks; ++r) roster.push_back({r, r, 100 + r, "n" + std::to_string(r), "boot"});
  return roster;
}

ConsensusOptions options(std::function<void()> check = {}) {
  return {.name = "lunch", .what = "the ranks choose a lunch", .remedy = "ask the cook", .check = std::move(check)};
}

std::string joined(std::span<const std::string> texts) {
  std::string all;
  for (const std::string& text : texts) all += text;
  return all;
}

TEST(Consensus, EveryRankHearsTheVerdictOnAllTexts) {
  store::HashStore store;
  const Roster roster = roster_of(3);
  std::vector<std::string> verdicts(3);
  std::vector<std::thread> ranks;
  for (int r = 0; r < 3; ++r) {
    ranks.emplace_back([&, r] {
      verdicts[static_cast<std::size_t>(r)] =
          Consensus(store, roster, r, options())
              .decide(std::string(1, static_cast<char>('a' + r)), joined, Deadline::after(60s));
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_THAT(verdicts, ElementsAre("abc", "abc", "abc"));
}

TEST(Consensus, AllHearOfTheMissingWhomTheFirstDeadlineNames) {
  store::HashStore store;
  const Roster roster = roster_of(3);
  Consensus(store, roster, 1, options()).contribute("b", joined, Deadline::after(60s));
  const std::string text =
      error_of<Timeout>([&] { Consensus(store, roster, 0, options()).decide("a", joined, Deadline::after(10ms)); });
  EXPECT_THAT(text, AllOf(HasSubstr("the ranks choose a lunch: rank 2 (host n2, pid 102) did not come, elapsed"),
                          HasSubstr("; ask the cook"), Not(HasSubstr("rank 1"))));
  EXPECT_EQ(error_of<Timeout>([&] { Consensus(store, roster, 1, options()).await_verdict(Deadline::after(60s)); }),
            text);
  EXPECT_EQ(
      error_of<Timeout>([&] { Consensus(store, roster, 2, options()).decide("c", joined, Deadline::after(60s)); }),
      text)
      << "the first verdict stays";
}

TEST(Consensus, AJudgeThatNeverSpokeIsSaid) {
  store::HashStore store;
  const Roster roster = roster_of(2);
  store.set("lunch/1", "b");  // and then it died
  EXPECT_THAT(
      error_of<Timeout>([&] { Consensus(store, roster, 0, options()).decide("a", joined, Deadline::after(10ms)); }),
      HasSubstr("all 2 ranks came, but the last of them stopped"));
}

TEST(Consensus, ATextThatTheJudgeCannotReadIsEveryRanks) {
  store::HashStore store;
  const Roster roster = roster_of(2);
  const auto judge = [](auto) -> std::string { throw CorruptData("this is not a lunch"); };
  Consensus(store, roster, 0, options()).contribute("?", judge, Deadline::after(60s));
  EXPECT_EQ(
      error_of<CorruptData>([&] { Consensus(store, roster, 1, options()).decide("b", judge, Deadline::after(60s)); }),
      "this is not a lunch");
  EXPECT_EQ(error_of<CorruptData>([&] { Consensus(store, roster, 0, options()).await_verdict(Deadline::after(60s)); }),
            "this is not a lunch");
}

TEST(Consensus, AFailureOfTheGroupEndsTheWait) {
  store::HashStore store;
  const Roster roster = roster_of(2);
  const auto check = [] { throw PeerLost("rank 1 is lost"); };
  EXPECT_EQ(
      error_of<PeerLost>([&] { Consensus(store, roster, 0, options(check)).decide("a", joined, Deadline::never()); }),
      "rank 1 is lost");
}

TEST(Consensus, GathersAllTextsOrNamesTheMissing) {
  store::HashStore store;
  const Roster roster = roster_of(2);
  EXPECT_THAT(error_of<Timeout>([&] { Consensus(store, roster, 0, options()).gather("a", Deadline::after(10ms)); }),
              HasSubstr("rank 1 (host n1, pid 101) did not come"));
  EXPECT_THAT(Consensus(store, roster, 1, options()).gather("b", Deadline::after(60s)), ElementsAre("a", "b"));
}

}  // namespace
}  // namespace lockstep::rendezvous::consensus_test
