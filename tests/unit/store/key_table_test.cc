#include "runtime/store/key_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/base/error.h"

namespace lockstep::store {
namespace {

using testing::ElementsAre;

constexpr std::size_t kRoom = 1000;

TEST(KeyTable, WaitIsTrueAtOnceIfAllKeysExist) {
  KeyTable table(kRoom);
  table.set("a", "");
  EXPECT_TRUE(table.wait(1, {"a", "a"}));
  EXPECT_TRUE(table.wait(1, {}));
  EXPECT_TRUE(table.take_woken().empty());
}

TEST(KeyTable, WaiterIsWokenOnceByTheLastKeyInAnyOrder) {
  std::vector<std::string> order = {"a", "b", "c"};
  do {
    KeyTable table(kRoom);
    EXPECT_FALSE(table.wait(7, {"a", "b", "c"}));
    table.set(order[0], "");
    table.set(order[1], "");
    table.set(order[1], "again");
    EXPECT_TRUE(table.take_woken().empty());
    table.set(order[2], "");
    EXPECT_THAT(table.take_woken(), ElementsAre(7));
    table.set(order[2], "again");
    EXPECT_TRUE(table.take_woken().empty());
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(KeyTable, DuplicateKeysInAWaitAreFine) {
  KeyTable table(kRoom);
  EXPECT_FALSE(table.wait(1, {"a", "b", "a", "b"}));
  table.set("b", "");
  table.set("a", "");
  EXPECT_THAT(table.take_woken(), ElementsAre(1));
}

TEST(KeyTable, AKeyThatWentAgainIsWaitedForAgain) {
  KeyTable table(kRoom);
  EXPECT_FALSE(table.wait(1, {"a", "b"}));
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
  KeyTable table(kRoom);
  for (const KeyTable::WaiterId waiter : {1, 2, 3}) EXPECT_FALSE(table.wait(waiter, {"a"}));
  table.cancel(2);
  table.set("a", "");
  table.cancel(3);  // between its key's coming and the answer
  EXPECT_THAT(table.take_woken(), ElementsAre(1));
  table.cancel(99);
}

TEST(KeyTable, EverybodyAtAKeyIsWoken) {
  KeyTable table(kRoom);
  EXPECT_FALSE(table.wait(1, {"a"}));
  EXPECT_FALSE(table.wait(2, {"a", "b"}));
  EXPECT_FALSE(table.wait(3, {"b"}));
  table.append("a", "x");
  EXPECT_THAT(table.take_woken(), ElementsAre(1));
  table.add("b", 1);
  auto woken = table.take_woken();
  std::sort(woken.begin(), woken.end());
  EXPECT_THAT(woken, ElementsAre(2, 3));
}

TEST(KeyTable, MemoryIsCountedAndBounded) {
  KeyTable table(100);
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

}  // namespace
}  // namespace lockstep::store
