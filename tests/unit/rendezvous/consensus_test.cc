// SPDX-License-Identifier: Apache-2.0
#include "runtime/rendezvous/consensus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "lockstep/base/error.h"
#include "runtime/store/hash_store.h"
#include "tests/support/error_of.h"
#include "tests/support/messages.h"

namespace lockstep::rendezvous::consensus_test {
namespace {

using namespace std::chrono_literals;
using lockstep::testing::error_of;
using lockstep::testing::expect_message;
using ::testing::ElementsAre;

Deadline soon() { return Deadline::after(60s); }

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

class ConsensusTest : public ::testing::Test {
 protected:
  Consensus of_rank(int rank, std::function<void()> check = {}) {
    return {store_, roster_, rank, options(std::move(check))};
  }
  store::HashStore store_;
  const Roster roster_ = roster_of(3);
};

TEST_F(ConsensusTest, EveryRankHearsTheVerdictOnAllTexts) {
  std::vector<std::string> verdicts(3);
  std::vector<std::thread> ranks;
  for (int r = 0; r < 3; ++r) {
    ranks.emplace_back([&, r] {
      verdicts[static_cast<std::size_t>(r)] =
          of_rank(r).decide(std::string(1, static_cast<char>('a' + r)), joined, soon());
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_THAT(verdicts, ElementsAre("abc", "abc", "abc"));
}

TEST_F(ConsensusTest, AllHearOfTheMissingWhomTheFirstDeadlineNames) {
  of_rank(1).contribute("b", joined, soon());
  const std::string text = error_of<Timeout>([&] { of_rank(0).decide("a", joined, Deadline::after(10ms)); });
  expect_message("rendezvous", "one is missing", text);
  EXPECT_EQ(error_of<Timeout>([&] { of_rank(1).await_verdict(soon()); }), text);
  EXPECT_EQ(error_of<Timeout>([&] { of_rank(2).decide("c", joined, soon()); }), text) << "the first verdict stays";
}

TEST_F(ConsensusTest, AJudgeThatNeverSpokeIsSaid) {
  for (const char* key : {"lunch/1", "lunch/2"}) store_.set(key, "b");  // and then they died
  expect_message("rendezvous", "the last has died",
                 error_of<Timeout>([&] { of_rank(0).decide("a", joined, Deadline::after(10ms)); }));
}

TEST_F(ConsensusTest, ATextThatTheJudgeCannotReadIsEveryRanks) {
  const auto judge = [](auto) -> std::string { throw CorruptData("this is not a lunch"); };
  for (const int rank : {0, 1}) of_rank(rank).contribute("?", judge, soon());
  EXPECT_EQ(error_of<CorruptData>([&] { of_rank(2).decide("b", judge, soon()); }), "this is not a lunch");
  EXPECT_EQ(error_of<CorruptData>([&] { of_rank(0).await_verdict(soon()); }), "this is not a lunch");
}

TEST_F(ConsensusTest, AFailureOfTheGroupEndsTheWait) {
  const auto check = [] { throw PeerLost("rank 1 is lost"); };
  EXPECT_EQ(error_of<PeerLost>([&] { of_rank(0, check).decide("a", joined, Deadline::never()); }), "rank 1 is lost");
}

TEST_F(ConsensusTest, GathersAllTextsOrNamesTheMissing) {
  of_rank(1).contribute("b", joined, soon());
  expect_message("rendezvous", "gather", error_of<Timeout>([&] { of_rank(0).gather("a", Deadline::after(10ms)); }));
  EXPECT_THAT(of_rank(2).gather("c", soon()), ElementsAre("a", "b", "c"));
}

}  // namespace
}  // namespace lockstep::rendezvous::consensus_test
