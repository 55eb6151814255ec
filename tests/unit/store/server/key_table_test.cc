// SPDX-License-Identifier: Apache-2.0
#include "runtime/store/server/key_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::store::key_table_test {
namespace {

using ::testing::ElementsAre;

using Await = KeyTable::Await;

TEST(KeyTable, EverybodyAtAKeyIsWokenOnceByTheLastKeyInAnyOrder) {
  std::vector<std::string> order = {"a", "b", "c"};
  do {
    KeyTable table{{}};
    EXPECT_FALSE(table.wait(7, {"a", "b", "a", "c"}, Await::key));
    EXPECT_FALSE(table.wait(8, {"c", "b", "a"}, Await::key));
    table.set(order[0], "");
    table.append(order[1], "");
    table.set(order[1], "again");
    EXPECT_TRUE(table.take_woken().empty());
    table.add(order[2], 1);
    EXPECT_THAT(table.take_woken(), ::testing::UnorderedElementsAre(7, 8));
    table.set(order[2], "again");
    EXPECT_TRUE(table.take_woken().empty());
    EXPECT_TRUE(table.wait(7, {"a", "a"}, Await::key));
    EXPECT_TRUE(table.wait(7, {}, Await::key));
    EXPECT_TRUE(table.take_woken().empty());
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(KeyTable, AKeyThatWentAgainIsWaitedForAgain) {
  KeyTable table{{}};
  EXPECT_FALSE(table.wait(1, {"a", "b"}, Await::key));
  table.set("a", "");
  table.erase("a");
  table.set("b", "");
  EXPECT_TRUE(table.take_woken().empty());
  table.erase("b");
  table.set("a", "");
  EXPECT_TRUE(table.take_woken().empty());
  table.set("b", "");
  EXPECT_THAT(table.take_woken(), ElementsAre(1));
}

TEST(KeyTable, CancelledWaitersAreNotWoken) {
  KeyTable table{{}};
  for (const KeyTable::WaiterId waiter : {1, 2, 3}) EXPECT_FALSE(table.wait(waiter, {"a"}, Await::key));
  table.cancel(2);
  table.set("a", "");
  table.cancel(3);  // between its key's coming and the answer
  EXPECT_THAT(table.take_woken(), ElementsAre(1));
  table.cancel(99);
  EXPECT_TRUE(table.missing(99).empty());
}

TEST(KeyTable, MemoryIsCountedAndBounded) {
  KeyTable table({.max_bytes = 100});
  table.set("key", std::string(97, 'x'));
  EXPECT_THROW(table.set("k", ""), StoreError);
  EXPECT_THROW(table.append("key", "x"), StoreError);
  EXPECT_THROW(table.set("key", std::string(98, 'x')), StoreError);
  EXPECT_EQ(table.find("key")->size(), 97u);
  EXPECT_EQ(table.size(), 1u);
  table.set("key", "");
  table.append("key", std::string(90, 'y'));
  table.set("k", std::string(6, 'z'));
  EXPECT_THROW(table.add("n", 1), StoreError);
  EXPECT_TRUE(table.erase("key"));
  for (int i = 0; i < 1000; ++i) table.set("key", std::string(90, 'x'));  // replacing takes no more
  EXPECT_EQ(table.size(), 2u);
}

TEST(KeyTable, AllKeysWithOneBeginningGoTogether) {
  KeyTable table({});
  for (const char* key : {"run/1/a", "run/1/b", "run/10/a", "run/2/a"}) table.set(key, "value");
  std::vector<std::string> seen;
  table.observe([&seen](std::string_view key, const std::string*, const std::string* after) {
    if (after == nullptr) seen.emplace_back(key);
  });
  table.erase_all("run/1/");
  EXPECT_EQ(table.keys(), (std::vector<std::string_view>{"run/10/a", "run/2/a"}));
  EXPECT_EQ(seen, (std::vector<std::string>{"run/1/a", "run/1/b"}));
  table.erase_all("none");
  EXPECT_EQ(table.size(), 2u);
}

// Who fills the store with data leaves room for ranks that meet and fail.
TEST(KeyTable, TheLastSixteenthIsForSmallWrites) {
  constexpr std::size_t kLimit = 1 << 20;
  KeyTable table({.max_bytes = kLimit});
  const std::string half(kLimit / 32 * 15, 'x');
  table.set("a", half.substr(1));
  table.set("b", half.substr(1));
  EXPECT_THROW(table.append("a", "x"), StoreError) << "'a' is large";
  EXPECT_THROW(table.set("c", std::string(KeyTable::kSmallBytes, 'x')), StoreError) << "its key counts";
  EXPECT_THROW(table.queue_push("c", std::string(KeyTable::kSmallBytes, 'x')), StoreError);
  std::size_t small = 0;
  try {
    for (;; ++small) table.queue_push("q", std::string(KeyTable::kSmallBytes - 1, 'x'));
  } catch (const StoreError&) {
  }
  EXPECT_EQ(small, kLimit / 16 / KeyTable::kSmallBytes);
  table.set("a", half.substr(kLimit / 16));
  EXPECT_EQ(table.queue_length("q"), static_cast<std::size_t>(small)) << "what is there stays";
}

TEST(KeyTable, EntriesAndValuesAreBounded) {
  KeyTable table({.max_entries = 3, .max_value_bytes = 4});
  table.append("a", "xx");
  table.append("a", "yy");
  EXPECT_THROW(table.append("a", "z"), StoreError);
  EXPECT_EQ(*table.find("a"), "xxyy");
  table.queue_push("q", "1");
  table.queue_push("q", "2");
  EXPECT_THROW(table.queue_push("q", "3"), StoreError);
  EXPECT_THROW(table.set("b", ""), StoreError);
  EXPECT_THROW(table.add("b", 1), StoreError);
  table.set("a", "again");
  EXPECT_EQ(table.queue_pop("q"), "1");
  table.set("b", "");
}

TEST(KeyTable, WaitedKeysAreCountedAndBounded) {
  KeyTable table({.max_waited_keys = 4});
  EXPECT_FALSE(table.wait(1, {"a", "b"}, Await::key));
  EXPECT_FALSE(table.wait(2, {"a"}, Await::key_or_queue));
  EXPECT_THROW(table.wait(3, {"c", "d"}, Await::key), StoreError);
  EXPECT_FALSE(table.wait(4, {"c"}, Await::key_or_queue));
  EXPECT_THROW(table.wait(3, {"c"}, Await::key), StoreError);
  table.cancel(1);
  EXPECT_FALSE(table.wait(3, {"a", "d"}, Await::key));
  table.set("a", "");
  table.queue_push("c", "");
  EXPECT_THAT(table.take_woken(), ElementsAre(2, 4));
  EXPECT_FALSE(table.wait(5, {"x", "y"}, Await::key));
}

TEST(KeyTable, MemoryOfAQueueIsGivenBack) {
  KeyTable table({.max_bytes = 100});
  for (int i = 0; i < 1000; ++i) {
    table.queue_push("q", std::string(90, 'x'));
    EXPECT_THROW(table.queue_push("q", std::string(10, 'x')), StoreError);
    table.queue_pop("q");
  }
  table.set("k", std::string(99, 'x'));
}

TEST(KeyTable, AQueueWithAnItemExistsForTorchsWaitOnly) {
  KeyTable table{{}};
  table.set("key", "");
  table.queue_push("queue", "");
  EXPECT_TRUE(table.exists("key", Await::key));
  EXPECT_TRUE(table.exists("key", Await::key_or_queue));
  EXPECT_FALSE(table.exists("queue", Await::key));
  EXPECT_TRUE(table.exists("queue", Await::key_or_queue));
  EXPECT_FALSE(table.wait(1, {"queue"}, Await::key));
  table.queue_push("queue", "");
  EXPECT_TRUE(table.take_woken().empty());
  table.set("queue", "");
  EXPECT_THAT(table.take_woken(), ElementsAre(1));
}

TEST(KeyTable, EachItemWakesTheOneThatWaitsLongest) {
  KeyTable table{{}};
  for (const KeyTable::WaiterId waiter : {3, 1, 2}) EXPECT_FALSE(table.wait(waiter, {"q"}, Await::key_or_queue));
  table.queue_push("q", "");
  EXPECT_THAT(table.take_woken(), ElementsAre(3));
  table.queue_push("q", "");
  table.queue_push("q", "");
  EXPECT_THAT(table.take_woken(), ElementsAre(1, 2));
  EXPECT_FALSE(table.wait(4, {"q", "r"}, Await::key_or_queue));
  table.queue_push("r", "");
  EXPECT_THAT(table.take_woken(), ElementsAre(4)) << "it took the item of q for granted when it came";
}

TEST(KeyTable, AnItemThatAWokenWaiterLeavesIsForTheNext) {
  KeyTable table{{}};
  for (const KeyTable::WaiterId waiter : {1, 2, 3}) EXPECT_FALSE(table.wait(waiter, {"q"}, Await::key_or_queue));
  table.queue_push("q", "item");
  EXPECT_THAT(table.take_woken(), ElementsAre(1));
  table.cancel(1);  // its connection has ended
  EXPECT_THAT(table.take_woken(), ElementsAre(2));
  table.release_promise(2);  // it did something else
  EXPECT_THAT(table.take_woken(), ElementsAre(3));
  EXPECT_EQ(table.queue_pop("q"), "item");
  table.release_promise(3);
  EXPECT_TRUE(table.take_woken().empty());
}

TEST(KeyTable, ATakenItemWakesNobodyElse) {
  KeyTable table{{}};
  for (const KeyTable::WaiterId waiter : {1, 2, 3}) EXPECT_FALSE(table.wait(waiter, {"q"}, Await::key_or_queue));
  table.queue_push("q", "a");
  table.queue_push("q", "b");
  EXPECT_THAT(table.take_woken(), ElementsAre(1, 2));
  EXPECT_EQ(table.queue_pop("q"), "a");
  table.release_promise(1);
  EXPECT_TRUE(table.take_woken().empty()) << "the item that is left has woken 2";
  EXPECT_EQ(table.queue_pop("q"), "b");
  table.release_promise(2);
  table.queue_push("q", "c");
  EXPECT_THAT(table.take_woken(), ElementsAre(3));
}

TEST(KeyTable, TheObserverSeesEachChangeAndWhatWasBefore) {
  KeyTable table{{}};
  std::string seen;
  table.observe([&](std::string_view key, const std::string* before, const std::string* after) {
    seen +=
        std::string(key) + ":" + (before != nullptr ? *before : "-") + ">" + (after != nullptr ? *after : "-") + " ";
  });
  table.set("k", "1");
  table.add("k", 2);
  table.append("k", "4");
  table.compare_set("k", "34", "5");
  table.compare_set("k", "34", "6");
  table.erase("k");
  table.erase("k");
  EXPECT_EQ(seen, "k:->1 k:1>3 k:3>34 k:34>5 k:5>- ");
}

}  // namespace
}  // namespace lockstep::store::key_table_test
