// What every Store promises, whatever it is made of: one suite over all of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/store/hash_store.h"
#include "runtime/store/prefix_store.h"
#include "runtime/store/tcp_store.h"
#include "runtime/store/tcp_store_server.h"

namespace lockstep::store {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;

Deadline soon() { return Deadline::after(seconds(30)); }
Deadline passed() { return Deadline::after(milliseconds(0)); }

// A kind of store: one that is shared, seen through any number of clients.
class World {
 public:
  virtual ~World() = default;
  virtual std::shared_ptr<Store> client() = 0;
};

class HashWorld : public World {
 public:
  std::shared_ptr<Store> client() override { return store_; }

 private:
  std::shared_ptr<Store> store_ = std::make_shared<HashStore>();
};

// Over TCP, as lockstep's clients or PyTorch's, with a secret or without.
class TcpWorld : public World {
 public:
  explicit TcpWorld(Endpoint endpoint) : endpoint_(std::move(endpoint)) { endpoint_.address = server_.address(); }
  std::shared_ptr<Store> client() override { return std::make_shared<TcpStore>(endpoint_, soon()); }

 private:
  Endpoint endpoint_;
  TcpStoreServer server_{{.secret = endpoint_.secret, .run_id = endpoint_.run_id}};
};

class PrefixWorld : public World {
 public:
  std::shared_ptr<Store> client() override { return std::make_shared<PrefixStore>("job", store_); }

 private:
  std::shared_ptr<Store> store_ = std::make_shared<HashStore>();
};

struct Kind {
  const char* name;
  std::function<std::unique_ptr<World>()> make;
  bool has_a_barrier = true;  // of its own, not one made of keys
};
void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

class StoreTest : public testing::TestWithParam<Kind> {
 protected:
  std::unique_ptr<World> world_ = GetParam().make();
  std::shared_ptr<Store> store_ = world_->client();
  std::shared_ptr<Store> other_ = world_->client();

  bool check(const std::string& key) { return store_->check(std::span(&key, 1)); }
  std::string timeout_of(const std::function<void()>& call) {
    try {
      call();
    } catch (const Timeout& error) {
      return error.what();
    }
    ADD_FAILURE() << "no Timeout";
    return {};
  }
};

INSTANTIATE_TEST_SUITE_P(
    Stores, StoreTest,
    testing::Values(Kind{"Hash", [] { return std::make_unique<HashWorld>(); }},
                    Kind{"Tcp", [] { return std::make_unique<TcpWorld>(Endpoint{}); }},
                    Kind{"TcpWithSecret",
                         [] {
                           return std::make_unique<TcpWorld>(
                               Endpoint{.secret = Secret::random(), .run_id = "run", .role = "rank 0"});
                         }},
                    Kind{"TcpAsTorch",
                         [] { return std::make_unique<TcpWorld>(Endpoint{.protocol = Endpoint::Protocol::torch}); },
                         false},
                    Kind{"Prefix", [] { return std::make_unique<PrefixWorld>(); }}),
    [](const auto& kind) { return kind.param.name; });

TEST_P(StoreTest, SetReplacesAndAnotherClientSeesIt) {
  store_->set("k", "one");
  EXPECT_EQ(other_->get("k", soon()), "one");
  store_->set("k", "two");
  EXPECT_EQ(other_->get("k", soon()), "two");
}

TEST_P(StoreTest, KeysAndValuesAreAnyBytes) {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes.push_back(static_cast<char>(i));
  for (const std::string& key : {bytes, std::string(), std::string("/"), std::string("a b\n\0c", 6)}) {
    store_->set(key, bytes);
    EXPECT_EQ(other_->get(key, soon()), bytes);
    store_->set(key, "");
    EXPECT_EQ(other_->get(key, soon()), "");
  }
}

TEST_P(StoreTest, LargeValuesComeBackWhole) {
  std::string value(std::size_t{8} << 20, '\0');
  for (std::size_t i = 0; i < value.size(); ++i) value[i] = static_cast<char>(i * 2654435761u >> 24);
  store_->set("large", value);
  EXPECT_TRUE(other_->get("large", soon()) == value);
}

TEST_P(StoreTest, OverlongKeysAndValuesAreRefused) {
  // Room for the prefix of PrefixStore.
  const std::string longest(kMaxKeyBytes - 4, 'k');
  store_->set(longest, "v");
  EXPECT_EQ(other_->get(longest, soon()), "v");
  const std::string key(kMaxKeyBytes + 1, 'k');
  const std::string value(kMaxValueBytes + 1, 'v');
  EXPECT_THROW(store_->set(key, "v"), InvalidArgument);
  EXPECT_THROW(store_->set("k", value), InvalidArgument);
  EXPECT_THROW(store_->append("k", value), InvalidArgument);
  EXPECT_THROW(store_->add(key, 1), InvalidArgument);
  EXPECT_THROW(store_->compare_set("k", "", value), InvalidArgument);
  EXPECT_THROW(store_->multi_set(std::vector<std::string>{"a", key}, std::vector<std::string>{"1", "2"}),
               InvalidArgument);
  EXPECT_EQ(store_->num_keys(), 1);
}

TEST_P(StoreTest, GetWaitsForTheKey) {
  std::thread setter([&] { other_->set("late", "here"); });
  EXPECT_EQ(store_->get("late", soon()), "here");
  setter.join();
}

TEST_P(StoreTest, WaitReturnsWhenTheLastKeyIsThere) {
  const std::vector<std::string> keys = {"a", "b", "c"};
  std::atomic<bool> all_set{false};
  std::thread waiter([&] {
    store_->wait(keys, soon());
    EXPECT_TRUE(all_set);
  });
  other_->set("c", "");
  other_->add("a", 1);
  all_set = true;
  other_->append("b", "x");
  waiter.join();
}

TEST_P(StoreTest, WaitIsEndedByEveryWayToMakeAKey) {
  const std::vector<std::function<void(const std::string&)>> ways = {
      [&](const std::string& key) { other_->set(key, "v"); },
      [&](const std::string& key) { other_->add(key, 0); },
      [&](const std::string& key) { other_->append(key, "v"); },
      [&](const std::string& key) { other_->compare_set(key, "", "v"); },
      [&](const std::string& key) { other_->multi_set(std::span(&key, 1), std::vector<std::string>{"v"}); },
  };
  for (std::size_t i = 0; i < ways.size(); ++i) {
    const std::string key = "way" + std::to_string(i);
    std::thread waiter([&] { store_->wait(std::span(&key, 1), soon()); });
    ways[i](key);
    waiter.join();
  }
}

TEST_P(StoreTest, FailedCompareSetWakesNobody) {
  EXPECT_EQ(other_->compare_set("k", "something", "v"), "something");
  EXPECT_FALSE(check("k"));
  EXPECT_THROW(store_->get("k", Deadline::after(milliseconds(20))), Timeout);
}

TEST_P(StoreTest, TimeoutNamesTheMissingKeysOnlyAndTheLimit) {
  store_->set("came", "");
  const std::vector<std::string> keys = {"came", "missing1", "missing2"};
  const std::string message = timeout_of([&] { store_->wait(keys, Deadline::after(milliseconds(30))); });
  EXPECT_THAT(message, HasSubstr("missing1"));
  EXPECT_THAT(message, HasSubstr("missing2"));
  EXPECT_THAT(message, Not(HasSubstr("came'")));
  EXPECT_THAT(message, HasSubstr("of 0.03 s"));
  EXPECT_THAT(message, HasSubstr(store_->description()));
  EXPECT_THAT(timeout_of([&] { store_->get("missing3", Deadline::after(milliseconds(30))); }), HasSubstr("missing3"));
  EXPECT_THAT(timeout_of([&] { store_->multi_get(keys, Deadline::after(milliseconds(30))); }), HasSubstr("missing2"));
}

TEST_P(StoreTest, ADeadlineThatHasPassedStillFindsWhatIsThere) {
  store_->set("k", "v");
  EXPECT_EQ(store_->get("k", passed()), "v");
  const std::string key = "k";
  store_->wait(std::span(&key, 1), passed());
  EXPECT_THROW(store_->get("absent", passed()), Timeout);
}

TEST_P(StoreTest, ATimeoutLeavesTheStoreUsable) {
  // With PyTorch 1.13 the late answer to the wait was read as part of the next one: add gave 10752 instead of 42.
  for (int round = 0; round < 5; ++round) {
    const std::string key = "late" + std::to_string(round);
    EXPECT_THROW(store_->get(key, Deadline::after(milliseconds(1))), Timeout);
    other_->set(key, "v");
    EXPECT_EQ(store_->add("n" + key, 42), 42);
    EXPECT_EQ(store_->get(key, soon()), "v");
  }
}

TEST_P(StoreTest, AddCountsInDecimal) {
  EXPECT_EQ(store_->add("n", 5), 5);
  EXPECT_EQ(other_->add("n", -7), -2);
  EXPECT_EQ(store_->get("n", soon()), "-2");
  store_->set("n", "40");
  EXPECT_EQ(store_->add("n", 2), 42);
  EXPECT_EQ(store_->add("n", 0), 42);
}

TEST_P(StoreTest, AddToWhatIsNoNumberIsAnErrorAndChangesNothing) {
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  for (const std::string value : {"text", "", "1x", " 1", "99999999999999999999"}) {
    store_->set("text", value);
    EXPECT_THROW(store_->add("text", 1), StoreError) << value;
    EXPECT_EQ(store_->get("text", soon()), value);
  }
  store_->set("most", std::to_string(kMost));
  EXPECT_THROW(store_->add("most", 1), StoreError);
  EXPECT_EQ(store_->add("most", -1), kMost - 1);
}

TEST_P(StoreTest, CompareSet) {
  EXPECT_EQ(store_->compare_set("k", "old", "new"), "old");  // absent and stays so
  EXPECT_FALSE(check("k"));
  EXPECT_EQ(store_->compare_set("k", "", "first"), "first");
  EXPECT_EQ(other_->compare_set("k", "", "second"), "first");
  EXPECT_EQ(other_->compare_set("k", "first", "second"), "second");
  EXPECT_EQ(store_->get("k", soon()), "second");
}

TEST_P(StoreTest, CheckIsTrueWhenAllExist) {
  store_->set("a", "");
  store_->set("b", "");
  EXPECT_TRUE(store_->check(std::vector<std::string>{"a", "b", "a"}));
  EXPECT_FALSE(store_->check(std::vector<std::string>{"a", "c"}));
  EXPECT_TRUE(store_->check({}));
  store_->wait({}, passed());
}

TEST_P(StoreTest, EraseRemovesOnce) {
  store_->set("k", "v");
  EXPECT_TRUE(other_->erase("k"));
  EXPECT_FALSE(other_->erase("k"));
  EXPECT_FALSE(check("k"));
  EXPECT_THROW(store_->get("k", Deadline::after(milliseconds(10))), Timeout);
  store_->set("k", "again");
  EXPECT_EQ(other_->get("k", soon()), "again");
}

TEST_P(StoreTest, AppendBuildsAValue) {
  store_->append("log", "one,");
  other_->append("log", "two,");
  store_->append("log", "");
  EXPECT_EQ(store_->get("log", soon()), "one,two,");
}

TEST_P(StoreTest, MultiGetKeepsTheOrderAndMultiSetPairs) {
  store_->multi_set(std::vector<std::string>{"a", "b", "c"}, std::vector<std::string>{"1", "", "3"});
  EXPECT_EQ(other_->multi_get(std::vector<std::string>{"c", "a", "b", "a"}, soon()),
            (std::vector<std::string>{"3", "1", "", "1"}));
  EXPECT_TRUE(other_->multi_get({}, passed()).empty());
  store_->multi_set({}, {});
  EXPECT_THROW(store_->multi_set(std::vector<std::string>{"a", "b"}, std::vector<std::string>{"1"}), InvalidArgument);
}

TEST_P(StoreTest, NumKeysCounts) {
  EXPECT_EQ(store_->num_keys(), 0);
  store_->set("a", "");
  store_->set("a", "x");
  store_->add("b", 1);
  EXPECT_EQ(other_->num_keys(), 2);
  store_->erase("a");
  EXPECT_EQ(other_->num_keys(), 1);
}

TEST_P(StoreTest, AWaitingThreadDelaysNoOther) {
  std::vector<std::thread> waiters;
  for (int i = 0; i < 4; ++i) waiters.emplace_back([&] { store_->get("end", soon()); });
  for (int i = 0; i < 100; ++i) EXPECT_EQ(store_->add("n", 1), i + 1);
  store_->set("end", "");
  for (std::thread& waiter : waiters) waiter.join();
}

TEST_P(StoreTest, ManyThreadsCountRight) {
  constexpr int kThreads = 8;
  constexpr int kRounds = 100;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const auto& store = t % 2 == 0 ? store_ : other_;
      for (int i = 0; i < kRounds; ++i) {
        store->add("sum", t);
        const std::string mine = std::to_string(t) + "/" + std::to_string(i);
        store->set(mine, mine);
        // The neighbour's key of this round: everybody waits for somebody.
        const std::string next = std::to_string((t + 1) % kThreads) + "/" + std::to_string(i);
        ASSERT_EQ(store->get(next, soon()), next);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(store_->add("sum", 0), kRounds * kThreads * (kThreads - 1) / 2);
  EXPECT_EQ(store_->num_keys(), kThreads * kRounds + 1);
}

TEST_P(StoreTest, CompareSetIsALock) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 50;
  store_->set("shared", "0");
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRounds; ++i) {
        std::string seen = store_->get("shared", soon());
        for (;;) {
          const std::string wanted = std::to_string(std::stoi(seen) + 1);
          const std::string stored = store_->compare_set("shared", seen, wanted + "." + std::to_string(t));
          if (stored == wanted + "." + std::to_string(t)) break;
          seen = stored;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::stoi(store_->get("shared", soon())), kThreads * kRounds);
}

TEST_P(StoreTest, ListsItsKeys) {
  EXPECT_TRUE(store_->list_keys().empty());
  for (const char* key : {"b", "a", "", "a/b"}) store_->set(key, "v");
  store_->queue_push("queue", "item");
  EXPECT_THAT(other_->list_keys(), testing::ElementsAre("", "a", "a/b", "b"));
  store_->erase("a");
  EXPECT_THAT(other_->list_keys(), testing::ElementsAre("", "a/b", "b"));
}

TEST_P(StoreTest, QueuesAreFirstInFirstOut) {
  EXPECT_EQ(store_->queue_length("q"), 0);
  for (const char* item : {"a", "", "c"}) store_->queue_push("q", item);
  store_->queue_push("other", "x");
  EXPECT_EQ(other_->queue_length("q"), 3);
  for (const char* item : {"a", "", "c"}) EXPECT_EQ(other_->queue_pop("q", passed()), item);
  EXPECT_EQ(store_->queue_length("q"), 0);
  EXPECT_EQ(store_->queue_pop("other", soon()), "x");
  EXPECT_EQ(store_->num_keys(), 0);
}

TEST_P(StoreTest, ATimeoutOfAPopNamesTheQueueAndLeavesItUsable) {
  const std::string message = timeout_of([&] { store_->queue_pop("empty", Deadline::after(milliseconds(20))); });
  EXPECT_THAT(message, HasSubstr("empty'"));
  EXPECT_THAT(message, HasSubstr("of 0.02 s"));
  other_->queue_push("empty", "item");
  EXPECT_EQ(store_->queue_pop("empty", soon()), "item");
}

TEST_P(StoreTest, AQueueWithItemsCountsAsPresentAndHasNoValue) {
  store_->queue_push("q", "item");
  EXPECT_TRUE(check("q"));
  const std::string name = "q";
  other_->wait(std::span(&name, 1), passed());
  EXPECT_EQ(store_->queue_pop("q", soon()), "item");
  EXPECT_FALSE(check("q"));
  EXPECT_THROW(store_->wait(std::span(&name, 1), Deadline::after(milliseconds(5))), Timeout);
  // A key of the queue's name is another thing.
  store_->set("q", "value");
  EXPECT_EQ(store_->queue_length("q"), 0);
  EXPECT_THROW(store_->queue_pop("q", Deadline::after(milliseconds(5))), Timeout);
  store_->queue_push("q", "item");
  EXPECT_EQ(store_->get("q", soon()), "value");
  EXPECT_EQ(store_->queue_pop("q", soon()), "item");
}

TEST_P(StoreTest, EachItemGoesToOneOfThoseWhoWait) {
  constexpr int kConsumers = 4;
  constexpr int kItems = 100;
  std::vector<std::thread> consumers;
  std::atomic<int> sum = 0;
  for (int c = 0; c < kConsumers; ++c) {
    consumers.emplace_back([&, c] {
      const auto& store = c % 2 == 0 ? store_ : other_;
      for (;;) {
        const std::string item = store->queue_pop("work", soon());
        if (item == "end") return;
        sum += std::stoi(item);
      }
    });
  }
  for (int i = 1; i <= kItems; ++i) store_->queue_push("work", std::to_string(i));
  for (int c = 0; c < kConsumers; ++c) other_->queue_push("work", "end");
  for (std::thread& consumer : consumers) consumer.join();
  EXPECT_EQ(sum, kItems * (kItems + 1) / 2);
  EXPECT_EQ(store_->queue_length("work"), 0);
}

TEST_P(StoreTest, ABarrierLetsNobodyThroughBeforeAllHaveCome) {
  constexpr int kRanks = 5;
  constexpr int kRounds = 20;
  std::atomic<int> arrived = 0;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto& store = rank % 2 == 0 ? store_ : other_;
      for (int round = 1; round <= kRounds; ++round) {
        ++arrived;
        store->barrier("same name", rank, kRanks, soon());
        ASSERT_GE(arrived, round * kRanks);
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST_P(StoreTest, ABarriersTimeoutNamesTheRanksThatDidNotComeToEachThatDid) {
  constexpr int kWorld = 6;
  // Where a machine stands still, one may come after the other's deadline; then they get more time.
  std::atomic<int> right = 0;
  for (milliseconds limit(100); right != 3 && limit < seconds(20); limit *= 3) {
    right = 0;
    std::atomic<int> inside = 0;
    std::vector<std::thread> ranks;
    for (const int rank : {1, 2, 5}) {
      ranks.emplace_back([&, rank] {
        ++inside;
        while (inside < 3) std::this_thread::yield();
        const auto& store = rank % 2 == 0 ? store_ : other_;
        const std::string message = timeout_of([&] { store->barrier("b", rank, kWorld, Deadline::after(limit)); });
        EXPECT_THAT(message, HasSubstr("b' of 6 ranks"));
        right += message.find(" 3 have not come: 0, 3, 4;") != message.npos;
      });
    }
    for (std::thread& rank : ranks) rank.join();
  }
  EXPECT_EQ(right, 3);
  std::string message;
  // A passed deadline asks all the same, and the ranks that came are named as little as oneself.
  message = timeout_of([&] { store_->barrier("c", 0, 100, passed()); });
  EXPECT_THAT(message, HasSubstr("99 have not come: 1, 2, 3"));
  EXPECT_THAT(message, HasSubstr("64 and 35 more"));
}

TEST_P(StoreTest, ABarrierThatTimedOutCanBeTriedAgain) {
  EXPECT_THROW(store_->barrier("b", 0, 2, Deadline::after(milliseconds(5))), Timeout);
  EXPECT_THROW(store_->barrier("b", 0, 2, Deadline::after(milliseconds(5))), Timeout);
  std::thread other([&] { other_->barrier("b", 1, 2, soon()); });
  store_->barrier("b", 0, 2, soon());
  other.join();
  store_->barrier("one", 0, 1, passed());
}

TEST_P(StoreTest, WrongRanksAreRefusedByABarrier) {
  const auto refusal_of = [&](std::int64_t rank, std::int64_t world_size) -> std::string {
    try {
      store_->barrier("b", rank, world_size, Deadline::after(milliseconds(5)));
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_THAT(refusal_of(2, 2), HasSubstr("rank 2 is not in a world of 2 ranks"));
  EXPECT_THAT(refusal_of(-1, 2), HasSubstr("rank -1"));
  EXPECT_THAT(refusal_of(0, 0), HasSubstr("0 ranks"));
  if (!GetParam().has_a_barrier) return;
  std::atomic<bool> done = false;
  std::thread inside([&] {
    while (!done) {
      try {
        other_->barrier("b", 1, 3, Deadline::after(milliseconds(200)));
      } catch (const Timeout&) {
      } catch (const InvalidArgument&) {  // We were inside, for the moment that we try below.
      }
    }
  });
  // Until the other is inside, ours only times out.
  const auto refusal_beside = [&](std::int64_t rank, std::int64_t world_size) -> std::string {
    for (const Deadline limit = soon(); !limit.expired(); std::this_thread::yield()) {
      try {
        store_->barrier("b", rank, world_size, passed());
      } catch (const Timeout&) {
      } catch (const InvalidArgument& error) {
        return error.what();
      }
    }
    return "nothing was thrown";
  };
  const std::string twice = refusal_beside(1, 3);
  const std::string differ = refusal_beside(0, 2);
  done = true;
  inside.join();
  EXPECT_THAT(twice, HasSubstr("rank 1 is in it already"));
  EXPECT_THAT(differ, HasSubstr("this client says 2 ranks"));
}

}  // namespace
}  // namespace lockstep::store
