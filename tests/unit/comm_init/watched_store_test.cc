// A store that stops waiting when somebody is lost.
#include "runtime/comm/init/watched_store.h"

#include <gtest/gtest.h>

#include <thread>

#include "runtime/base/error.h"
#include "runtime/store/hash_store.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

class WatchedStores : public ::testing::Test {
 protected:
  static rendezvous::Roster roster() {
    return {{.rank = 0, .pid = 100, .host = "n1", .boot_id = "b"},
            {.rank = 1, .pid = 101, .host = "n1", .boot_id = "b"}};
  }
  void lose_rank_1() {
    watch_->take({.kind = store::MemberEvent::Kind::lost, .rank = 1, .number = 1, .text = "rank 1 is lost"});
  }

  std::shared_ptr<store::HashStore> inner_ = std::make_shared<store::HashStore>();
  std::shared_ptr<GroupWatch> watch_ = std::make_shared<GroupWatch>(roster(), 0);
  WatchedStore store_{inner_, watch_};
};

TEST_F(WatchedStores, PassEverythingOn) {
  const Deadline deadline = Deadline::after(40s);
  const std::vector<std::string> keys = {"a", "b"};
  store_.set("a", "1");
  EXPECT_EQ(store_.get("a", deadline), "1");
  EXPECT_EQ(store_.add("a", 2), 3);
  EXPECT_EQ(store_.compare_set("a", "3", "4"), "4");
  EXPECT_FALSE(store_.check(keys));
  store_.multi_set(keys, keys);
  store_.wait(keys, deadline);
  EXPECT_EQ(store_.multi_get(keys, deadline), keys);
  store_.append("a", "x");
  EXPECT_EQ(inner_->get("a", deadline), "ax");
  EXPECT_EQ(store_.num_keys(), 2);
  EXPECT_EQ(store_.list_keys(), keys);
  EXPECT_TRUE(store_.erase("a"));
  store_.queue_push("q", "item");
  EXPECT_EQ(store_.queue_length("q"), 1);
  EXPECT_EQ(store_.queue_pop("q", deadline), "item");
  store_.barrier("all", 0, 1, deadline);
  EXPECT_EQ(store_.description(), inner_->description());
}

TEST_F(WatchedStores, ADeadlineIsTheCallersOwnInTheMessage) {
  try {
    store_.get("never", Deadline::after(700ms));
    FAIL();
  } catch (const Timeout& error) {
    EXPECT_NE(std::string(error.what()).find("'never'"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("of 0.7 s"), std::string::npos) << error.what();
  }
}

TEST_F(WatchedStores, AWaitSurvivesItsSlices) {
  std::thread setter;
  {
    setter = std::thread([&] {
      const Deadline later = Deadline::after(1200ms);
      const std::string never = "never";
      EXPECT_THROW(inner_->get(never, later), Timeout);
      inner_->set("late", "came");
    });
  }
  EXPECT_EQ(store_.get("late", Deadline::after(40s)), "came");
  setter.join();
}

TEST_F(WatchedStores, WhoWaitsHearsOfALossAndWhoAsksLater) {
  std::thread waiter([&] {
    const std::vector<std::string> keys = {"never"};
    try {
      store_.wait(keys, Deadline::never());
      ADD_FAILURE();
    } catch (const PeerLost& error) {
      EXPECT_STREQ(error.what(), "rank 1 is lost");
    }
  });
  lose_rank_1();
  waiter.join();
  const std::vector<std::string> keys = {"never"};
  EXPECT_THROW(store_.check(keys), PeerLost);
  EXPECT_THROW(store_.get("never", Deadline::after(0s)), PeerLost);
  EXPECT_THROW(store_.queue_pop("q", Deadline::never()), PeerLost);
  EXPECT_THROW(store_.barrier("all", 0, 2, Deadline::after(10ms)), PeerLost);
}

TEST_F(WatchedStores, WhatIsThereIsGivenAfterALossToo) {
  store_.set("why", "rank 1 has no disk left");
  store_.queue_push("q", "item");
  lose_rank_1();
  const std::vector<std::string> keys = {"why"};
  EXPECT_EQ(store_.get("why", Deadline::after(40s)), "rank 1 has no disk left");
  EXPECT_EQ(store_.multi_get(keys, Deadline::after(0s)).front(), "rank 1 has no disk left");
  EXPECT_TRUE(store_.check(keys));
  EXPECT_EQ(store_.queue_pop("q", Deadline::after(40s)), "item");
  store_.set("mine", "too");
  EXPECT_EQ(store_.num_keys(), 2);
}

}  // namespace
}  // namespace lockstep
