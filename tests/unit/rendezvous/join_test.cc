// SPDX-License-Identifier: Apache-2.0
// Ranks as threads over one store: who meets whom, and what is said when somebody does not come.
#include "runtime/rendezvous/join.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <optional>
#include <thread>

#include "lockstep/base/error.h"
#include "runtime/rendezvous/records.h"
#include "runtime/store/hash_store.h"
#include "tests/support/error_of.h"
#include "tests/support/messages.h"

namespace lockstep::rendezvous::join_test {
namespace {

using lockstep::testing::expect_message;
using lockstep::testing::expect_text;
using lockstep::testing::outcome_of;
using namespace std::chrono_literals;

Deadline soon() { return Deadline::after(20s); }

Identity rank_of(int rank, int world_size) {
  Identity identity;
  identity.rank = rank;
  identity.world_size = world_size;
  identity.run_id = "run";
  return identity;
}

Member member(int rank, int pid, std::string host = "a", std::string boot_id = "boot-a", std::string network = "net") {
  return {.rank = rank,
          .local_rank = -1,
          .pid = pid,
          .host = std::move(host),
          .boot_id = std::move(boot_id),
          .network = std::move(network)};
}

// A claim that another process left in the store, as join() writes it.
void leave_claim(store::Store& store, const Member& who, int world_size,
                 const std::string& scope = "rendezvous/run/0/0") {
  store.set(scope + "/rank/" + std::to_string(who.rank),
            encode(Claim{.member = who, .world_size = world_size, .process = "another", .serial = 0}));
  store.add(scope + "/count", 1);
}

struct Outcome {
  Identity identity;
  std::optional<Joined> joined;
  std::string error;
  std::string type;
};

// Runs `call`, which joins, and notes what it throws.
void note(Outcome& outcome, const std::function<void()>& call) {
  const std::string text = outcome_of(call);
  if (text == "nothing") return;
  outcome.type = text.substr(0, text.find(": "));
  outcome.error = text.substr(outcome.type.size() + 2);
}

Outcome try_join(store::Store& store, Identity identity, const Member& self, const Deadline& deadline) {
  Outcome outcome;
  note(outcome, [&] { outcome.joined = join(store, identity, self, deadline); });
  outcome.identity = identity;
  return outcome;
}

std::vector<Outcome> join_all(store::Store& store, const std::vector<Member>& members, int world_size,
                              std::chrono::nanoseconds limit = 20s) {
  std::vector<Outcome> outcomes(members.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < members.size(); ++i) {
    threads.emplace_back([&, i] {
      outcomes[i] = try_join(store, rank_of(members[i].rank, world_size), members[i], Deadline::after(limit));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

// Every outcome is this error, with this text on the page, and names these.
void expect_all_refused(const std::vector<Outcome>& outcomes, const std::string& type, const char* what,
                        std::initializer_list<std::string_view> named) {
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.type, type);
    expect_text(outcome.error, named);
    expect_message("rendezvous", what, outcome.error);
  }
}

// Counts what a server would be asked.
class CountingStore : public store::HashStore {
 public:
  std::string get(std::string_view key, const Deadline& deadline) override {
    ++requests;
    return HashStore::get(key, deadline);
  }
  bool check(std::span<const std::string> keys) override {
    ++requests;
    checked += keys.size();
    return HashStore::check(keys);
  }
  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired) override {
    ++requests;
    return HashStore::compare_set(key, expected, desired);
  }
  std::vector<std::string> multi_get(std::span<const std::string> keys, const Deadline& deadline) override {
    ++requests;
    for (const std::string& key : keys) claims += key.find("/rank/") != std::string::npos ? 1 : 0;
    return HashStore::multi_get(keys, deadline);
  }
  std::vector<std::string> list_keys() override {
    ++requests;
    return HashStore::list_keys();
  }
  std::atomic<int> requests{0};
  std::atomic<int> claims{0};
  std::atomic<std::size_t> checked{0};
};

TEST(Join, EveryRankGetsTheSameRosterAndOnlyTheLastReadsTheClaims) {
  CountingStore store;
  const auto outcomes = join_all(store, {member(2, 12), member(0, 10), member(3, 13), member(1, 11)}, 4);
  for (const Outcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.joined) << outcome.error;
    ASSERT_EQ(outcome.joined->roster.size(), 4u);
    for (int rank = 0; rank < 4; ++rank) {
      const Member& found = outcome.joined->roster[static_cast<std::size_t>(rank)];
      EXPECT_EQ(found.rank, rank);
      EXPECT_EQ(found.pid, 10 + rank);
      EXPECT_EQ(found.local_rank, rank);
    }
    EXPECT_EQ(outcome.identity.local_rank, outcome.identity.rank);
    EXPECT_EQ(outcome.identity.local_world_size, 4);
    EXPECT_EQ(outcome.identity.node_rank, 0);
  }
  EXPECT_EQ(store.claims, 4);
}

// The last of them: so it waits for nobody, and nobody needs a thread.
TEST(Join, ThousandsMeetWithoutEachAskingForAll) {
  CountingStore store;
  constexpr int kRanks = 3000;
  for (int rank = 0; rank < kRanks - 1; ++rank) leave_claim(store, member(rank, 10 + rank), kRanks);
  const Outcome last = try_join(store, rank_of(kRanks - 1, kRanks), member(kRanks - 1, 9), soon());
  ASSERT_TRUE(last.joined) << last.error;
  ASSERT_EQ(last.joined->roster.size(), static_cast<std::size_t>(kRanks));
  EXPECT_EQ(last.joined->roster[2000].pid, 2010);
  EXPECT_EQ(last.identity.local_world_size, kRanks);
  EXPECT_EQ(store.checked, 0u);
}

TEST(Join, AClaimThatIsNoneIsRefusedByAll) {
  for (const char* text : {"", "x", "lockstep claim 1\n", "lockstep claim 2\nrank 0\n"}) {
    store::HashStore store;
    store.set("rendezvous/run/0/0/rank/1", text);
    store.add("rendezvous/run/0/0/count", 1);
    for (const Outcome& outcome : join_all(store, {member(0, 10), member(2, 12)}, 3)) {
      EXPECT_EQ(outcome.type, "CorruptData");
      expect_text(outcome.error, {"'rendezvous/run/0/0/rank/1' is not a claim"});
    }
  }
}

TEST(Join, WhoDiedBeforeItCountedIsSaid) {
  store::HashStore store;
  store.set("rendezvous/run/0/0/rank/1",
            encode(Claim{.member = member(1, 4711), .world_size = 2, .process = "another", .serial = 0}));
  const Outcome outcome = try_join(store, rank_of(0, 2), member(0, 10), Deadline::after(50ms));
  expect_all_refused({outcome}, "Timeout", "the last has died", {"pid 4711"});
}

TEST(Join, LocalRanksComeFromBootIdsNotFromHostNames) {
  store::HashStore store;
  // Two machines that share a host name, unevenly filled and interleaved.
  const auto outcomes = join_all(store,
                                 {member(0, 1, "node", "boot-a"), member(1, 2, "node", "boot-b"),
                                  member(2, 3, "node", "boot-a"), member(3, 4, "node", "boot-a")},
                                 4);
  const int local_ranks[] = {0, 0, 1, 2};
  const int local_sizes[] = {3, 1, 3, 3};
  const int nodes[] = {0, 1, 0, 0};
  for (const Outcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.joined) << outcome.error;
    const int rank = outcome.identity.rank;
    EXPECT_EQ(outcome.identity.local_rank, local_ranks[rank]);
    EXPECT_EQ(outcome.identity.local_world_size, local_sizes[rank]);
    EXPECT_EQ(outcome.identity.node_rank, nodes[rank]);
  }
}

TEST(Join, WhatTheLauncherSaidStays) {
  store::HashStore store;
  Identity identity = rank_of(0, 1);
  identity.local_rank = 5;
  identity.local_rank_known = true;
  identity.node_rank = 7;
  const Joined joined = join(store, identity, self_member(identity), soon());
  EXPECT_EQ(identity.local_rank, 5);
  EXPECT_EQ(joined.roster[0].local_rank, 5);
  EXPECT_EQ(identity.local_world_size, 1);
  EXPECT_EQ(identity.node_rank, 7);
}

TEST(Join, TimeoutNamesTheRanksThatNeverCameAndThoseThatDid) {
  store::HashStore store;
  // Rank 1's short deadline begins when rank 0 is there, and ends the waiting of both.
  std::vector<Outcome> outcomes(3);
  std::thread zero([&] { outcomes[0] = try_join(store, rank_of(0, 4), member(0, 10, "hosta"), soon()); });
  store.get("rendezvous/run/0/0/rank/0", soon());
  outcomes[1] = try_join(store, rank_of(1, 4), member(1, 11, "hostb"), Deadline::after(50ms));
  zero.join();
  outcomes[2] = try_join(store, rank_of(2, 4), member(2, 12), soon());  // comes too late
  expect_all_refused(outcomes, "Timeout", "two of four", {"rank 0 (host hosta, pid 10), rank 1 (host hostb, pid 11)"});
}

TEST(Join, WhoDidNotComeIsFoundOutInAFewRequestsHoweverManyRanksThereAre) {
  int of_four = 0;
  for (const int size : {4, 400}) {
    CountingStore store;
    const Outcome outcome = try_join(store, rank_of(0, size), member(0, 10), Deadline::after(1ms));
    EXPECT_EQ(outcome.type, "Timeout");
    if (size == 4) of_four = store.requests;
    EXPECT_EQ(store.requests, of_four);
  }
}

TEST(Join, TheSameRankTwiceNamesBothAndStopsThoseWhoWait) {
  store::HashStore store;
  leave_claim(store, member(1, 4711, "elsewhere"), 3);
  expect_all_refused(join_all(store, {member(0, 10), member(1, 11)}, 3), "Mismatch", "rank 1",
                     {"rank 1 (host elsewhere, pid 4711) and rank 1 (host a, pid 11)"});
  // A second job at the launcher's store.
  store::HashStore launchers;
  leave_claim(launchers, member(0, 4711), 2);
  Identity identity = rank_of(0, 2);
  identity.store_address = "node0:29400";
  expect_all_refused({try_join(launchers, identity, member(0, 10), soon())}, "Mismatch", "at the launcher's store",
                     {"pid 4711"});
}

TEST(Join, ADuplicateThatComesLateDoesNotHurtThoseWhoMet) {
  store::HashStore store;
  leave_claim(store, member(1, 4711), 2);
  Identity zero = rank_of(0, 2);
  EXPECT_EQ(join(store, zero, member(0, 10), soon()).roster[1].pid, 4711);
  expect_all_refused({try_join(store, rank_of(1, 2), member(1, 11), soon())}, "Mismatch", "rank 1", {"pid 4711"});
  expect_text(claimant_of(store, zero, 1, soon()), {"pid 4711"});
}

TEST(Join, WorldSizesThatDifferNameBoth) {
  store::HashStore store;
  Outcome four;
  std::thread thread([&] { four = try_join(store, rank_of(0, 4), member(0, 10), soon()); });
  store.get("rendezvous/run/0/0/world", soon());
  const Outcome two = try_join(store, rank_of(1, 2), member(1, 11), soon());
  thread.join();
  expect_all_refused({four, two}, "Mismatch", "two and four",
                     {"4 said by rank 0 (host a, pid 10), 2 said by rank 1 (host a, pid 11)"});
}

// What init_process_group does there: so that who is seen to have come is heard of when it dies.
TEST(Join, APlaceIsMadeKnownBeforeAnybodyCanSeeItTaken) {
  store::HashStore store;
  const std::vector<std::string> claim = {"rendezvous/run/0/0/rank/0"};
  std::vector<std::string> places;
  Identity identity = rank_of(0, 1);
  const Joined joined = join(store, identity, member(0, 10), soon(), [&](const std::string& scope) {
    places.push_back(scope);
    EXPECT_FALSE(store.check(claim));
  });
  EXPECT_EQ(places, std::vector{joined.scope});
}

class RefusedPlace : public ::testing::Test {
 protected:
  // What join() throws where this rank can't come in.
  Outcome refused(const std::function<void()>& meanwhile = [] {}) {
    Outcome outcome;
    Identity identity = rank_of(1, 2);
    note(outcome, [&] {
      outcome.joined = join(store_, identity, member(1, 11), soon(), [&](const std::string&) {
        meanwhile();
        throw StoreError("refused");
      });
    });
    return outcome;
  }
  store::HashStore store_;
};

TEST_F(RefusedPlace, WhatEndedTheMeetingIsTheCause) {
  store_.set("rendezvous/run/0/0/verdict", "timeout join: rank 0 has waited long enough");
  const Outcome outcome = refused();
  EXPECT_EQ(outcome.type, "Timeout");
  EXPECT_EQ(outcome.error, "join: rank 0 has waited long enough");
}

// The other one is known to the membership, and has not claimed the rank yet.
TEST_F(RefusedPlace, WhoIsTheSameRankIsWaitedForAndNamed) {
  std::thread other;
  const Outcome outcome =
      refused([&] { other = std::thread([&] { leave_claim(store_, member(1, 4711, "elsewhere"), 2); }); });
  other.join();
  expect_all_refused({outcome, try_join(store_, rank_of(0, 2), member(0, 10), soon())}, "Mismatch", "both",
                     {"rank 1 (host elsewhere, pid 4711) and rank 1 (host a, pid 11)"});
}

TEST_F(RefusedPlace, WithoutACauseTheRefusalIsThrownAndTheRoundIsOver) {
  const std::vector<std::string> claim = {"rendezvous/run/0/0/rank/1"};
  // Somebody else's death: the claim that is waited for is this process's own of before, which explains nothing.
  const Outcome outcome = refused([&] { join_all(store_, {member(0, 10), member(1, 11)}, 2); });
  EXPECT_EQ(outcome.type, "StoreError");
  EXPECT_EQ(outcome.error, "refused");
  EXPECT_TRUE(store_.check(claim));
}

TEST(Join, AProcessWhoseMeetingFailedJoinsTheNextOne) {
  store::HashStore store;
  store.set("rendezvous/run/0/0/world", "3 said by rank 0 (host b, pid 9)");
  EXPECT_EQ(try_join(store, rank_of(0, 1), member(0, 10), soon()).type, "Mismatch");
  const Outcome next = try_join(store, rank_of(0, 1), member(0, 10), soon());
  ASSERT_TRUE(next.joined) << next.error;
  EXPECT_EQ(next.joined->scope, "rendezvous/run/0/1");
}

TEST(Join, NothingOfAnEarlierAttemptIsRead) {
  store::HashStore store;
  leave_claim(store, member(1, 4711), 2, "rendezvous/run/0/0");
  Identity identity = rank_of(0, 2);
  identity.restart_count = 1;
  expect_text(try_join(store, identity, member(0, 10), Deadline::after(20ms)).error, {"rank 1 of 2 did not come"});
  identity.restart_count = 0;
  identity.run_id = "another";
  expect_text(try_join(store, identity, member(0, 10), Deadline::after(20ms)).error, {"rank 1 of 2 did not come"});
}

TEST(Join, AProgramMayJoinAgainThroughTheSameStore) {
  store::HashStore store;
  const auto first = join_all(store, {member(0, 10), member(1, 10)}, 2);
  const auto second = join_all(store, {member(0, 10), member(1, 10)}, 2);
  ASSERT_TRUE(first[0].joined && second[0].joined) << second[0].error;
  EXPECT_NE(first[0].joined->scope, second[0].joined->scope);
  EXPECT_EQ(second[0].joined->scope, second[1].joined->scope);
}

TEST(Roster, Words) {
  EXPECT_EQ(describe_ranks(std::vector{2}), "rank 2");
  EXPECT_EQ(describe_ranks(std::vector{2, 3}), "ranks 2 and 3");
  EXPECT_EQ(describe_ranks(std::vector{0, 2, 3}), "ranks 0, 2 and 3");
  EXPECT_EQ(describe_ranks(std::vector{1, 4, 5, 6, 7}), "ranks 1 and 4-7");
  const Roster roster = {member(0, 1, "n1", "x"), member(1, 2, "n1", "x"), member(2, 3, "n2", "y")};
  EXPECT_EQ(count_hosts(roster), 2);
  EXPECT_EQ(describe_hosts(roster), "n1: ranks 0 and 1; n2: rank 2");
}

TEST(Roster, ContainersOfOneMachineAreHostsUnlessTheyShareANetwork) {
  const Roster roster = {member(0, 1, "c1", "x", "net:[1]"), member(1, 1, "c2", "x", "net:[2]"),
                         member(2, 9, "c3", "x", "net:[1]")};
  EXPECT_EQ(describe_hosts(roster), "c1: ranks 0 and 2; c2: rank 1");
  EXPECT_EQ(ranks_beside(roster, 2), (std::vector{0, 2}));
  EXPECT_EQ(host_index(roster, 1), 1);
}

// Of a group within the job's: its ranks count from 0, and texts name them as the job does.
TEST(Roster, OfAPartOfTheJob) {
  const Roster roster = {member(5, 1, "n2", "y"), member(2, 1, "n1", "x"), member(4, 2, "n2", "y")};
  EXPECT_EQ(ranks_beside(roster, 2), (std::vector{0, 2}));
  EXPECT_EQ(host_index(roster, 1), 1);
  EXPECT_EQ(describe_hosts(roster), "n2: ranks 4 and 5; n1: rank 2");
}

}  // namespace
}  // namespace lockstep::rendezvous::join_test
