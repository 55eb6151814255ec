// SPDX-License-Identifier: Apache-2.0
// One cause for all ranks, also where the store can't say which was the first.
#include "runtime/comm/failure/failure.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <vector>

#include "lockstep/base/error.h"
#include "tests/support/error_of.h"
#include "tests/unit/comm/failure/hooked_store.h"

namespace lockstep::comm::failure_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_failure;

TEST(Failure, TheFirstCauseInTheStoreIsEverybodys) {
  TimeBoundedStore store(std::make_shared<store::HashStore>());
  int calls = 0;
  const auto count = [&] { ++calls; };
  Failure one(store, 0, count, {});
  Failure other(store, 1, count, {});
  const Cause late{.kind = Cause::Kind::timeout, .rank = 2, .reporter = 0, .sequence = 41, .text = "rank 2 is late"};
  one.propose(late);
  other.propose({.kind = Cause::Kind::lost, .rank = 3, .reporter = 1, .text = "rank 3 is lost"});
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(other.known(), late);
  EXPECT_THROW(other.check(), Timeout);
  one.adopt({.kind = Cause::Kind::mismatch, .text = "a later cause"});
  EXPECT_EQ(one.known(), late);
  EXPECT_EQ(calls, 2);
}

// Who reads it in the store and who is told by a frame read the same.
TEST(Failure, ALongTextIsCutForAll) {
  TimeBoundedStore store(std::make_shared<store::HashStore>());
  std::string text = "x";
  while (text.size() < 3000) text += "ü";  // two bytes each
  Failure one(store, 0, [] {}, {});
  Failure other(store, 1, [] {}, {});
  one.propose({.kind = Cause::Kind::mismatch, .text = text});
  other.propose({.text = "a later cause"});
  const std::string cut = one.known().text;
  EXPECT_LE(encode(one.known()).size(), Failure::kMostBytes);
  EXPECT_GE(encode(one.known()).size(), Failure::kMostBytes - 1);
  EXPECT_TRUE(cut.ends_with("ü ...")) << cut;
  EXPECT_EQ(other.known().text, cut);
}

// What a rank knows is on file before its program can do anything about it.
TEST(Failure, EachThrowIsToldBefore) {
  TimeBoundedStore store(std::make_shared<store::HashStore>());
  std::vector<Cause> told;
  Failure failure(
      store, 0, [] {}, [&](const Cause& cause) { told.push_back(cause); });
  const Cause lost{.kind = Cause::Kind::lost, .rank = 2, .reporter = 0, .text = "rank 2 is lost"};
  failure.propose(lost);
  EXPECT_TRUE(told.empty()) << "nothing was thrown";
  expect_failure<PeerLost>([&] { failure.check(); }, lost);
  EXPECT_EQ(told, std::vector<Cause>{lost});
}

TEST(Failure, WhomItIsAboutReadsThatItIsAccused) {
  TimeBoundedStore store(std::make_shared<store::HashStore>());
  Failure failure(store, 2, [] {}, {});
  failure.adopt({.kind = Cause::Kind::silent, .rank = 2, .text = "rank 2 stopped answering"});
  EXPECT_EQ(error_of<PeerLost>([&] { failure.raise(); }),
            "the other ranks have given this one up: rank 2 stopped answering");
}

// Without a bound this test never ends: the store answers only after propose() has returned.
TEST(Failure, AStoreThatStandsStillIsNotWaitedFor) {
  std::atomic<int> asked = 0;
  std::latch answer(1);
  const auto hooked = std::make_shared<HookedStore>(std::make_shared<store::HashStore>(), [&] {
    ++asked;
    answer.wait();
  });
  {
    TimeBoundedStore store(hooked);
    Failure failure(store, 1, [] {}, {});
    failure.propose({.kind = Cause::Kind::silent, .text = "rank 0 stopped answering"});
    EXPECT_EQ(asked, 1);
    EXPECT_EQ(failure.known().text, "rank 0 stopped answering");
    // Nor is it asked another question meanwhile.
    EXPECT_EQ(store.ask([](store::Store&) { return std::string("an answer"); }), std::nullopt);
    store.release();
    answer.count_down();
    // Once the question left behind has ended, nobody holds the store that was let go.
    while (hooked.use_count() > 1) std::this_thread::yield();
  }
}

TEST(TimeBoundedStore, AnswersAndSwallowsNoMoreThanItSays) {
  const auto hash = std::make_shared<store::HashStore>();
  TimeBoundedStore store(hash);
  EXPECT_EQ(store.ask([](store::Store& of_the_group) {
    of_the_group.set("key", "value");
    return of_the_group.get("key", Deadline::never());
  }),
            "value");
  EXPECT_EQ(store.ask([](store::Store&) -> std::string { throw StoreError("it is gone"); }), std::nullopt);
  EXPECT_EQ(store.ask([](store::Store&) { return std::string("again"); }), "again");
  store.release();
  EXPECT_EQ(hash.use_count(), 1);
  EXPECT_EQ(store.ask([](store::Store&) { return std::string("too late"); }), std::nullopt);
}

}  // namespace
}  // namespace lockstep::comm::failure_test
