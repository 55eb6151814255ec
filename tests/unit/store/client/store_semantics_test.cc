// SPDX-License-Identifier: Apache-2.0
// What every Store promises, whatever it is made of: one suite over all of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/store/client/tcp_store.h"
#include "runtime/store/hash_store.h"
#include "runtime/store/prefix_store.h"
#include "runtime/store/server/tcp_store_server.h"
#include "tests/support/error_of.h"
#include "tests/support/messages.h"

namespace lockstep::store::store_semantics_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_message;
using std::chrono::milliseconds;
using Keys = std::vector<std::string>;

Deadline soon() { return Deadline::after(std::chrono::seconds(30)); }
Deadline passed() { return Deadline::after(milliseconds(0)); }

// Makes a store that is shared, and returns what makes clients of it.
using Clients = std::function<std::shared_ptr<Store>()>;
struct Kind {
  const char* name;
  Clients (*make)();
};
void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

Clients tcp_clients(Endpoint endpoint) {
  const auto server =
      std::make_shared<TcpStoreServer>(TcpStoreServerOptions{.secret = endpoint.secret, .run_id = endpoint.run_id});
  endpoint.address = server->address();
  return [server, endpoint] { return std::make_shared<TcpStore>(endpoint, soon()); };
}

const Kind kKinds[] = {
    {"Hash", [] { return Clients([store = std::make_shared<HashStore>()] { return store; }); }},
    {"Tcp", [] { return tcp_clients({}); }},
    {"TcpWithSecret", [] { return tcp_clients({.secret = Secret::random(), .run_id = "run", .role = "rank 0"}); }},
    {"Prefix",
     [] {
       return Clients([store = std::make_shared<HashStore>()] { return std::make_shared<PrefixStore>("job", store); });
     }},
};

class StoreTest : public ::testing::TestWithParam<Kind> {
 protected:
  const Clients clients_ = GetParam().make();
  std::shared_ptr<Store> store_ = clients_();
  std::shared_ptr<Store> other_ = clients_();
};

INSTANTIATE_TEST_SUITE_P(Stores, StoreTest, ::testing::ValuesIn(kKinds),
                         [](const auto& kind) { return kind.param.name; });

TEST_P(StoreTest, KeysAndValuesAreAnyBytesWhichSetReplaces) {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes.push_back(static_cast<char>(i));
  for (const std::string& key : {bytes, std::string(), std::string("/"), std::string("a b\n\0c", 6)}) {
    store_->set(key, bytes);
    EXPECT_EQ(other_->get(key, soon()), bytes);
    store_->set(key, "");
    EXPECT_EQ(other_->get(key, soon()), "");
  }
}

TEST_P(StoreTest, KeysAndValuesMayBeSoLongAndNotLonger) {
  // Room for the prefix of PrefixStore.
  const std::string longest(kMaxKeyBytes - 4, 'k');
  std::string value(kMaxValueBytes, '\0');
  for (std::size_t i = 0; i < value.size(); ++i) value[i] = static_cast<char>(i * 2654435761u >> 24);
  store_->set(longest, value);
  EXPECT_TRUE(other_->get(longest, soon()) == value);
  const std::string key(kMaxKeyBytes + 1, 'k');
  value += 'v';
  EXPECT_THROW(store_->set(key, "v"), InvalidArgument);
  EXPECT_THROW(store_->set("k", value), InvalidArgument);
  EXPECT_THROW(store_->add(key, 1), InvalidArgument);
  EXPECT_THROW(store_->compare_set("k", "", value), InvalidArgument);
  EXPECT_EQ(store_->num_keys(), 1);
}

TEST_P(StoreTest, WaitIsEndedByEveryWayToMakeAKeyOnceAllAreThere) {
  const std::vector<std::function<void(const std::string&)>> ways = {
      [&](const std::string& key) { other_->set(key, "v"); },
      [&](const std::string& key) { other_->add(key, 0); },
      [&](const std::string& key) { other_->compare_set(key, "", "v"); },
  };
  for (std::size_t last = 0; last < ways.size(); ++last) {
    const Keys keys = {"a" + std::to_string(last), "b" + std::to_string(last), "c" + std::to_string(last)};
    std::atomic<bool> all_set{false};
    std::thread waiter([&] {
      store_->wait(keys, soon());
      EXPECT_TRUE(all_set);
    });
    ways[(last + 1) % 3](keys[2]);
    ways[(last + 2) % 3](keys[0]);
    all_set = true;
    ways[last](keys[1]);
    waiter.join();
  }
}

TEST_P(StoreTest, TimeoutNamesTheMissingKeysOnly) {
  store_->set("came", "");
  const Keys keys = {"came", "missing1", "missing2"};
  const auto in_vain = Deadline::after(milliseconds(30));
  EXPECT_EQ(error_of<Timeout>([&] { store_->multi_get(keys, in_vain); }).find("came'"), std::string::npos);
  EXPECT_NE(error_of<Timeout>([&] { store_->get("missing3", in_vain); }).find("missing3'"), std::string::npos);
  expect_message("store", "wait", error_of<Timeout>([&] { store_->wait(keys, in_vain); }));
}

TEST_P(StoreTest, ADeadlineThatHasPassedStillFindsWhatIsThere) {
  store_->set("k", "v");
  EXPECT_EQ(store_->get("k", passed()), "v");
  store_->wait(Keys{"k"}, passed());
  store_->wait({}, passed());
  EXPECT_TRUE(store_->multi_get({}, passed()).empty());
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
  EXPECT_FALSE(store_->check(Keys{"k"}));
  EXPECT_EQ(store_->compare_set("k", "", "first"), "first");
  EXPECT_EQ(other_->compare_set("k", "", "second"), "first");
  EXPECT_EQ(other_->compare_set("k", "first", "second"), "second");
  EXPECT_EQ(store_->get("k", soon()), "second");
}

TEST_P(StoreTest, CheckIsTrueWhenAllExist) {
  store_->set("a", "");
  store_->set("b", "");
  EXPECT_TRUE(store_->check(Keys{"a", "b", "a"}));
  EXPECT_FALSE(store_->check(Keys{"a", "c"}));
  EXPECT_TRUE(store_->check({}));
}

TEST_P(StoreTest, MultiGetKeepsTheOrder) {
  for (const char* key : {"a", "b", "c"}) store_->set(key, std::string(key) == "b" ? "" : key);
  EXPECT_EQ(other_->multi_get(Keys{"c", "a", "b", "a"}, soon()), (Keys{"c", "a", "", "a"}));
}

TEST_P(StoreTest, KeysAreCountedListedAndErased) {
  EXPECT_EQ(store_->num_keys(), 0);
  EXPECT_TRUE(store_->list_keys().empty());
  for (const char* key : {"b", "a", "", "a/b", "a"}) store_->set(key, "v");
  store_->add("n", 1);
  EXPECT_EQ(other_->num_keys(), 5);
  EXPECT_EQ(other_->list_keys(), (Keys{"", "a", "a/b", "b", "n"}));
  EXPECT_TRUE(other_->erase("a"));
  EXPECT_FALSE(other_->erase("a"));
  EXPECT_THROW(store_->get("a", passed()), Timeout);
  EXPECT_EQ(other_->list_keys(), (Keys{"", "a/b", "b", "n"}));
  EXPECT_EQ(other_->num_keys(), 4);
  store_->set("a", "again");
  EXPECT_EQ(other_->get("a", soon()), "again");
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
  store_->set("swaps", "0");
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const auto& store = t % 2 == 0 ? store_ : other_;
      for (int i = 0; i < kRounds; ++i) {
        store->add("sum", t);
        // A counter by compare_set, as a lock would be made.
        for (std::string seen = store->get("swaps", soon()), wanted; seen != wanted;) {
          wanted = std::to_string(std::stoi(seen) + 1) + "." + std::to_string(t);
          seen = store->compare_set("swaps", seen, wanted);
        }
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
  EXPECT_EQ(std::stoi(store_->get("swaps", soon())), kThreads * kRounds);
  EXPECT_EQ(store_->num_keys(), kThreads * kRounds + 2);
}

}  // namespace
}  // namespace lockstep::store::store_semantics_test
