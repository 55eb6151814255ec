#include "runtime/store/watch_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/base/error.h"

namespace lockstep::store {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(WatchTable, KnowsWhoWatchesAKey) {
  WatchTable table(10);
  table.watch(2, "a");
  table.watch(1, "a");
  table.watch(1, "a");
  table.watch(1, "b");
  EXPECT_THAT(table.watchers("a"), ElementsAre(2, 1));
  EXPECT_THAT(table.watchers("b"), ElementsAre(1));
  EXPECT_THAT(table.watchers("c"), IsEmpty());
  table.forget(1);
  table.forget(1);
  EXPECT_THAT(table.watchers("a"), ElementsAre(2));
  EXPECT_THAT(table.watchers("b"), IsEmpty());
}

TEST(WatchTable, HasALimit) {
  WatchTable table(2);
  table.watch(1, "a");
  table.watch(1, "a");
  table.watch(2, "a");
  EXPECT_THROW(table.watch(3, "a"), StoreError);
  table.forget(1);
  table.watch(3, "a");
  EXPECT_THAT(table.watchers("a"), ElementsAre(2, 3));
}

}  // namespace
}  // namespace lockstep::store
