// One cause for all ranks, also where the store can't say which was the first.
#include "runtime/comm/wire/failure.h"

#include <gtest/gtest.h>

#include "runtime/base/error.h"
#include "runtime/store/hash_store.h"
#include "runtime/store/prefix_store.h"

namespace lockstep::wire {
namespace {

// A store that gives no answer until the test lets it.
class StandingStore final : public store::PrefixStore {
 public:
  StandingStore() : PrefixStore("", std::make_shared<store::HashStore>()) {}

  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired) override {
    {
      MutexLock lock(mutex_);
      ++asked_;
      while (!answers_) changed_.wait(mutex_);
    }
    return PrefixStore::compare_set(key, expected, desired);
  }
  void answer() {
    MutexLock lock(mutex_);
    answers_ = true;
    changed_.notify_all();
  }
  int asked() {
    MutexLock lock(mutex_);
    return asked_;
  }

 private:
  Mutex mutex_;
  Condition changed_;
  bool answers_ GUARDED_BY(mutex_) = false;
  int asked_ GUARDED_BY(mutex_) = 0;
};

TEST(Failure, TheFirstCauseInTheStoreIsEverybodys) {
  const auto store = std::make_shared<store::HashStore>();
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

// Without a bound this test never ends: the store answers only after propose() has returned.
TEST(Failure, AStoreThatStandsStillIsNotWaitedFor) {
  const auto store = std::make_shared<StandingStore>();
  Failure failure(store, [] {});
  failure.propose(Cause::peer_lost, "rank 0 stopped answering");
  EXPECT_EQ(store->asked(), 1);
  EXPECT_EQ(failure.known().text, "rank 0 stopped answering");
  store->answer();
}

}  // namespace
}  // namespace lockstep::wire
