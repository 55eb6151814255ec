// SPDX-License-Identifier: Apache-2.0
#include "runtime/store/server/legacy_clients.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::store::legacy_clients_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(LegacyClients, KnowsWhoWatchesAKey) {
  LegacyClients clients(10);
  clients.watch(2, "a");
  clients.watch(1, "a");
  clients.watch(1, "a");
  clients.watch(1, "b");
  EXPECT_THAT(clients.watchers("a"), ElementsAre(2, 1));
  EXPECT_THAT(clients.watchers("b"), ElementsAre(1));
  EXPECT_THAT(clients.watchers("c"), IsEmpty());
  clients.forget(1);
  clients.forget(1);
  EXPECT_THAT(clients.watchers("a"), ElementsAre(2));
  EXPECT_THAT(clients.watchers("b"), IsEmpty());
}

TEST(LegacyClients, HasALimitOfWatches) {
  LegacyClients clients(2);
  clients.watch(1, "a");
  clients.watch(1, "a");
  clients.watch(2, "a");
  EXPECT_THROW(clients.watch(3, "a"), StoreError);
  clients.forget(1);
  clients.watch(3, "a");
  EXPECT_THAT(clients.watchers("a"), ElementsAre(2, 3));
}

TEST(LegacyClients, KnowsTheirHosts) {
  LegacyClients clients(0);
  clients.add(1, "n1");
  clients.add(2, "n1");
  clients.add(3, "n2");
  clients.forget(1);
  clients.forget(3);
  EXPECT_TRUE(clients.any_at("n1"));
  EXPECT_FALSE(clients.any_at("n2"));
  clients.forget(2);
  EXPECT_FALSE(clients.any_at("n1"));
}

}  // namespace
}  // namespace lockstep::store::legacy_clients_test
