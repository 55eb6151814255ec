// SPDX-License-Identifier: Apache-2.0
// One cause for all ranks, also where nobody can say which was the first; and a patience that runs only while its
// process does.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/comm/failure/active_timeout.h"
#include "runtime/comm/failure/failure.h"
#include "runtime/store/hash_store.h"
#include "tests/support/error_of.h"
#include "tests/support/thread_scopes.h"
#include "tests/support/wait_until.h"

namespace lockstep::comm::failure_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_failure;
using lockstep::testing::scopes_over;
using lockstep::testing::wait_until;
using namespace std::chrono_literals;

// The scope of a rank that is alone.
membership::ScopeAddress alone() { return {std::make_shared<membership::Scopes>()}; }

TEST(Failure, TheFirstCauseThatIsPassedOnIsEverybodys) {
  store::HashStore store;
  std::atomic<int> calls = 0;
  const auto count = [&] { ++calls; };
  Failure one({scopes_over(store)}, 0, count, {});
  Failure other({scopes_over(store)}, 1, count, {});
  one.start();
  other.start();
  const Cause late{.kind = Cause::Kind::timeout, .rank = 2, .reporter = 0, .sequence = 41, .text = "rank 2 is late"};
  one.propose(late);
  other.propose({.kind = Cause::Kind::lost, .rank = 3, .reporter = 1, .text = "rank 3 is lost"});
  EXPECT_EQ(other.known(), late);
  EXPECT_THROW(other.check(), Timeout);
  one.adopt({.kind = Cause::Kind::mismatch, .text = "a later cause"});
  EXPECT_EQ(one.known(), late);
  wait_until([&] { return calls == 2; });
}

TEST(Failure, AStoreThatSaysNothingIsWaitedForNotForEver) {
  const auto scopes = std::make_shared<membership::Scopes>();
  scopes->begin([](auto&&...) {});
  Failure failure({scopes}, 0, [] {}, {});
  failure.start();
  // From the link's own thread, which brings the cause.
  failure.propose_async({.text = "rank 2 is lost"});
  EXPECT_FALSE(failure.happened());
  scopes->deliver("", encode(Cause{.text = "rank 1 was first"}));
  EXPECT_EQ(failure.known().text, "rank 1 was first");
  const auto scopes_of_1 = std::make_shared<membership::Scopes>();
  scopes_of_1->begin([](auto&&...) {});
  Failure waits({scopes_of_1}, 1, [] {}, {});
  waits.start();
  waits.propose({.text = "rank 3 is late"});
  EXPECT_EQ(waits.known().text, "rank 3 is late");
}

// Who hears it from the membership and who is told by a frame read the same.
TEST(Failure, ALongTextIsCutForAll) {
  store::HashStore store;
  Failure one({scopes_over(store)}, 0, [] {}, {});
  Failure other({scopes_over(store)}, 1, [] {}, {});
  Failure decides_alone(alone(), 2, [] {}, {});
  for (Failure* failure : {&one, &other}) failure->start();
  for (Failure* failure : {&one, &decides_alone}) failure->propose({.text = std::string(3000, 'x')});
  other.propose({.text = "a later cause"});
  EXPECT_EQ(encode(one.known()).size(), Failure::kMostBytes);
  EXPECT_EQ(other.known(), one.known());
  EXPECT_EQ(decides_alone.known().text, one.known().text);
}

// What a rank knows is on file before its program can do anything about it.
TEST(Failure, EachThrowIsToldBefore) {
  std::vector<Cause> told;
  Failure failure(
      alone(), 0, [] {}, [&](const Cause& cause) { told.push_back(cause); });
  const Cause lost{.kind = Cause::Kind::lost, .rank = 2, .reporter = 0, .text = "rank 2 is lost"};
  failure.propose(lost);
  EXPECT_TRUE(told.empty()) << "nothing was thrown";
  expect_failure<PeerLost>([&] { failure.check(); }, lost);
  EXPECT_EQ(told, std::vector<Cause>{lost});
}

TEST(Failure, WhomItIsAboutReadsThatItIsAccused) {
  Failure failure(alone(), 2, [] {}, {});
  failure.adopt({.kind = Cause::Kind::silent, .rank = 2, .text = "rank 2 stopped answering"});
  EXPECT_EQ(error_of<PeerLost>([&] { failure.raise(); }),
            "the other ranks have given this one up: rank 2 stopped answering");
}

// The store may hang together with the rank that hosts it.
TEST(Failure, WhatARankHasProposedFirstStandsOnceTheStoreIsKnownNotToAnswer) {
  std::atomic<bool> is_answered = true;
  std::atomic<int> proposed = 0;
  const auto scopes = std::make_shared<membership::Scopes>();
  scopes->begin([&](auto&&...) { ++proposed; }, [&] { return is_answered.load(); });
  Failure failure({scopes}, 1, [] {}, {});
  failure.start();
  std::thread waits([&] { failure.propose({.text = "rank 3 is late"}); });
  wait_until([&] { return proposed == 1; });
  EXPECT_FALSE(failure.happened());
  is_answered = false;
  failure.propose_async({.kind = Cause::Kind::silent, .text = "rank 0 stopped answering"});
  waits.join();
  EXPECT_EQ(failure.known().text, "rank 3 is late");
  EXPECT_EQ(proposed, 1);
}

using Time = ActiveTimeout::Time;

TEST(ActiveTimeout, CountsTheTimeBetweenLooks) {
  const Time start{};
  ActiveTimeout patience(200ms, start);
  EXPECT_FALSE(patience.over(start + 80ms));
  EXPECT_EQ(patience.remaining(start + 150ms), 50ms);
  EXPECT_FALSE(patience.over(start + 199ms));
  EXPECT_TRUE(patience.over(start + 200ms));
}

TEST(ActiveTimeout, DoesNotCountThatItsProcessStoodStill) {
  const Time start{};
  ActiveTimeout patience(1s, start);
  EXPECT_FALSE(patience.over(start + 50ms));
  EXPECT_FALSE(patience.over(start + 1h));
  EXPECT_EQ(patience.remaining(start + 1h), 1s - 50ms - 2 * ActiveTimeout::kSlice);
}

TEST(ActiveTimeout, LooksAgainSoonEnoughToTell) {
  ActiveTimeout patience(10s);
  EXPECT_LE(patience.next().limit(), ActiveTimeout::kSlice);
  EXPECT_FALSE(patience.over());
  ActiveTimeout none(0s);
  EXPECT_TRUE(none.over());
  EXPECT_TRUE(none.next().expired());
}

}  // namespace
}  // namespace lockstep::comm::failure_test
