// SPDX-License-Identifier: Apache-2.0
// What the server knows of clients that wait at barriers, and of those of PyTorch 1.13 that watch keys.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "runtime/store/server/barrier_table.h"
#include "runtime/store/server/legacy_clients.h"

namespace lockstep::store::waiting_clients_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(BarrierTable, TheLastToComeReleasesAllAndTheNameIsUsedAgain) {
  BarrierTable table;
  for (int round = 0; round < 2; ++round) {
    EXPECT_FALSE(table.arrive(10, "b", 3).complete);
    EXPECT_FALSE(table.arrive(12, "b", 3).complete);
    EXPECT_EQ(table.arrive(20 + static_cast<std::uint64_t>(round), "another", 2).complete, round == 1);
    table.take_released();
    EXPECT_TRUE(table.arrive(11, "b", 3).complete);
    EXPECT_THAT(table.take_released(), ElementsAre(10, 12));
    EXPECT_THAT(table.take_released(), IsEmpty());
  }
  EXPECT_TRUE(table.arrive(1, "b", 1).complete) << "also by another world";
  EXPECT_THAT(table.take_released(), IsEmpty());
}

TEST(BarrierTable, WorldSizesThatDifferAreRefusedAndChangeNothing) {
  BarrierTable table;
  EXPECT_FALSE(table.arrive(1, "b", 0).refusal.empty());
  EXPECT_TRUE(table.arrive(1, "b", 2).refusal.empty());
  EXPECT_FALSE(table.arrive(2, "b", 3).refusal.empty());
  EXPECT_TRUE(table.arrive(2, "b", 2).complete);
}

TEST(BarrierTable, WhoLeavesHasNotCome) {
  BarrierTable table;
  EXPECT_FALSE(table.arrive(1, "b", 2).complete);
  table.leave(1);
  table.leave(1);
  EXPECT_FALSE(table.arrive(2, "b", 2).complete);
  EXPECT_TRUE(table.arrive(3, "b", 2).complete);
  table.leave(2);
  EXPECT_THAT(table.take_released(), IsEmpty()) << "nor is it released into its next barrier";
}

TEST(LegacyClients, KnowsWhoWatchesAKeyUpToALimit) {
  LegacyClients clients(3);
  clients.watch(2, "a");
  clients.watch(1, "a");
  clients.watch(1, "a");
  clients.watch(1, "b");
  EXPECT_THROW(clients.watch(3, "a"), StoreError);
  EXPECT_THAT(clients.watchers("a"), ElementsAre(2, 1));
  EXPECT_THAT(clients.watchers("b"), ElementsAre(1));
  EXPECT_THAT(clients.watchers("c"), IsEmpty());
  clients.forget(1);
  clients.forget(1);
  EXPECT_THAT(clients.watchers("b"), IsEmpty());
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
}  // namespace lockstep::store::waiting_clients_test
