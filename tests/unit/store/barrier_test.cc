#include "runtime/store/barrier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/store/hash_store.h"

namespace lockstep::store {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

TEST(Barrier, NobodyLeavesBeforeAllHaveCome) {
  constexpr int kWorld = 8;
  HashStore store;
  std::atomic<int> arrived{0};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kWorld; ++rank) {
    ranks.emplace_back([&, rank] {
      for (int round = 0; round < 10; ++round) {
        ++arrived;
        barrier(store, "round" + std::to_string(round), rank, kWorld, Deadline::after(seconds(30)));
        EXPECT_GE(arrived, kWorld * (round + 1));
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(Barrier, AWorldOfOnePassesAtOnce) {
  HashStore store;
  barrier(store, "b", 0, 1, Deadline::after(milliseconds(0)));
}

TEST(Barrier, TimeoutNamesTheMissingRanks) {
  HashStore store;
  std::thread other([&] { EXPECT_THROW(barrier(store, "b", 3, 4, Deadline::after(milliseconds(50))), Timeout); });
  other.join();
  try {
    barrier(store, "b", 1, 4, Deadline::after(milliseconds(50)));
    FAIL() << "the barrier opened without ranks 0 and 2";
  } catch (const Timeout& error) {
    EXPECT_THAT(error.what(), HasSubstr("missing: ranks 0, 2;"));
    EXPECT_THAT(error.what(), HasSubstr("rank 1 of 4"));
    EXPECT_THAT(error.what(), HasSubstr("of 0.05 s"));
    EXPECT_THAT(error.what(), HasSubstr("'b'"));
  }
}

TEST(Barrier, TheSameRankTwiceIsAMismatch) {
  HashStore store;
  EXPECT_THROW(barrier(store, "b", 1, 2, Deadline::after(milliseconds(1))), Timeout);
  try {
    barrier(store, "b", 1, 2, Deadline::after(seconds(30)));
    FAIL() << "rank 1 came twice";
  } catch (const Mismatch& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1 has come before"));
  }
}

TEST(Barrier, RanksOutsideTheWorldAreRefused) {
  HashStore store;
  const Deadline deadline = Deadline::after(seconds(30));
  EXPECT_THROW(barrier(store, "b", 2, 2, deadline), InvalidArgument);
  EXPECT_THROW(barrier(store, "b", -1, 2, deadline), InvalidArgument);
  EXPECT_THROW(barrier(store, "b", 0, 0, deadline), InvalidArgument);
  EXPECT_EQ(store.num_keys(), 0);
}

}  // namespace
}  // namespace lockstep::store
