// One cause for all ranks, also where the store can't say which was the first.
#include "runtime/comm/wire/failure.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>

#include "runtime/base/error.h"
#include "tests/unit/comm_wire/hooked_store.h"

namespace lockstep::wire {
namespace {

TEST(Failure, TheFirstCauseInTheStoreIsEverybodys) {
  PatientStore store(std::make_shared<store::HashStore>());
  int calls = 0;
  Failure one(store, [&] { ++calls; });
  Failure other(store, [&] { ++calls; });
  one.propose(Cause::timeout, "rank 2 is late");
  other.propose(Cause::peer_lost, "rank 3 is lost");
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(other.known().cause, Cause::timeout);
  EXPECT_EQ(other.known().text, "rank 2 is late");
  EXPECT_THROW(other.check(), Timeout);
  one.adopt(Cause::mismatch, "a later cause");
  EXPECT_EQ(one.known().text, "rank 2 is late");
  EXPECT_EQ(calls, 2);
}

// Who reads it in the store and who is told by a frame read the same.
TEST(Failure, ALongTextIsCutForAll) {
  PatientStore store(std::make_shared<store::HashStore>());
  std::string text = "x";
  while (text.size() < 3000) text += "ü";  // two bytes each
  Failure one(store, [] {});
  Failure other(store, [] {});
  one.propose(Cause::mismatch, text);
  other.propose(Cause::peer_lost, "a later cause");
  const std::string cut = one.known().text;
  EXPECT_LE(cut.size(), Failure::kMostText);
  EXPECT_GE(cut.size(), Failure::kMostText - 1);
  EXPECT_TRUE(cut.ends_with("ü ...")) << cut;
  EXPECT_EQ(other.known().text, cut);
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
    PatientStore store(hooked);
    Failure failure(store, [] {});
    failure.propose(Cause::peer_lost, "rank 0 stopped answering");
    EXPECT_EQ(asked, 1);
    EXPECT_EQ(failure.known().text, "rank 0 stopped answering");
    // Nor is it asked another question meanwhile.
    EXPECT_EQ(store.ask([](store::Store&) { return std::string("an answer"); }), std::nullopt);
  }
  answer.count_down();
  while (hooked.use_count() > 1) std::this_thread::yield();  // the question left behind has ended: it used `asked`
}

TEST(PatientStore, AnswersAndSwallowsNoMoreThanItSays) {
  const auto hash = std::make_shared<store::HashStore>();
  PatientStore store(hash);
  EXPECT_EQ(store.ask([](store::Store& of_the_group) {
    of_the_group.set("key", "value");
    return of_the_group.get("key", Deadline::never());
  }),
            "value");
  EXPECT_EQ(store.ask([](store::Store&) -> std::string { throw StoreError("it is gone"); }), std::nullopt);
  EXPECT_EQ(store.ask([](store::Store&) { return std::string("again"); }), "again");
  store.let_go();
  EXPECT_EQ(hash.use_count(), 1);
  EXPECT_EQ(store.ask([](store::Store&) { return std::string("too late"); }), std::nullopt);
}

}  // namespace
}  // namespace lockstep::wire
