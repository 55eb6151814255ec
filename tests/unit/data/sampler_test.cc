#include "lockstep/data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>

#include "lockstep/base/error.h"
#include "tests/support/error_of.h"

namespace lockstep::data {
namespace {

using lockstep::testing::error_of;
using Ids = std::vector<std::int64_t>;

Ids whole_epoch(const Sampler& sampler, std::int64_t batch_size) {
  Ids all;
  for (std::int64_t i = 0; i < sampler.num_batches(batch_size); ++i) {
    const Ids ids = sampler.batch(i, batch_size);
    all.insert(all.end(), ids.begin(), ids.end());
  }
  return all;
}

Ids iota(std::int64_t length) {
  Ids ids(static_cast<std::size_t>(length));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

std::vector<std::int64_t> pieces(std::int64_t rows, int world) {
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < world; ++rank) counts.push_back(chunk(rows, rank, world).count);
  return counts;
}

TEST(Chunk, SplitsAsPyTorchDoes) {
  EXPECT_EQ(pieces(30, 1), (Ids{30}));
  EXPECT_EQ(pieces(30, 2), (Ids{15, 15}));
  EXPECT_EQ(pieces(30, 3), (Ids{10, 10, 10}));
  EXPECT_EQ(pieces(30, 8), (Ids{4, 4, 4, 4, 4, 4, 4, 2}));
  EXPECT_EQ(pieces(10, 3), (Ids{4, 4, 2}));
  EXPECT_EQ(pieces(10, 8), (Ids{2, 2, 2, 2, 2, 0, 0, 0}));
  EXPECT_EQ(pieces(0, 3), (Ids{0, 0, 0}));
}

TEST(Chunk, PiecesCoverTheRowsOnceForEverySizeAndWorld) {
  for (std::int64_t rows = 0; rows <= 70; ++rows) {
    for (int world = 1; world <= 17; ++world) {
      std::int64_t next = 0;
      for (int rank = 0; rank < world; ++rank) {
        const RowRange range = chunk(rows, rank, world);
        ASSERT_EQ(range.begin, next) << rows << " over " << world;
        ASSERT_GE(range.count, 0);
        ASSERT_LE(range.count, (rows + world - 1) / world);
        next += range.count;
      }
      ASSERT_EQ(next, rows);
    }
  }
}

TEST(Permutation, HoldsEveryNumberOnceAndDependsOnSeedAndEpoch) {
  for (const std::int64_t length : {0, 1, 2, 3, 100, 1000}) {
    Ids order = permutation(length, 7, 3);
    std::sort(order.begin(), order.end());
    EXPECT_EQ(order, iota(length));
  }
  EXPECT_EQ(permutation(100, 7, 3), permutation(100, 7, 3));
  EXPECT_NE(permutation(100, 7, 3), permutation(100, 7, 4));
  EXPECT_NE(permutation(100, 7, 3), permutation(100, 8, 3));
  // A seed's epoch is not another seed's: with seed + epoch these two would be equal.
  EXPECT_NE(permutation(100, 0, 1), permutation(100, 1, 0));
  EXPECT_NE(permutation(100, 7, 0), iota(100));
}

// Golden: the order is a promise to every machine and every later version, or a resumed run would read other samples.
TEST(Permutation, IsTheSameOnEveryMachine) {
  EXPECT_EQ(permutation(10, 0, 0), (Ids{1, 7, 5, 2, 4, 0, 6, 8, 3, 9}));
  EXPECT_EQ(permutation(10, 42, 5), (Ids{2, 1, 3, 8, 7, 4, 5, 6, 9, 0}));
}

TEST(Permutation, IsFair) {
  // Each of 4 samples comes first in about a quarter of 4000 epochs; 5 sigma is 137.
  std::map<std::int64_t, int> first;
  for (int epoch = 0; epoch < 4000; ++epoch) ++first[permutation(4, 1, epoch)[0]];
  for (const auto& [id, times] : first) EXPECT_NEAR(times, 1000, 137) << id;
}

TEST(DistributedSampler, PadsFromTheFrontAndStrides) {
  // 10 samples over 4 ranks: 3 each, positions 10 and 11 are samples 0 and 1 again.
  const DistributedSamplerOptions plain{.shuffle = false};
  EXPECT_EQ(whole_epoch(DistributedSampler(10, 0, 4, plain), 2), (Ids{0, 4, 8}));
  EXPECT_EQ(whole_epoch(DistributedSampler(10, 1, 4, plain), 2), (Ids{1, 5, 9}));
  EXPECT_EQ(whole_epoch(DistributedSampler(10, 2, 4, plain), 2), (Ids{2, 6, 0}));
  EXPECT_EQ(whole_epoch(DistributedSampler(10, 3, 4, plain), 2), (Ids{3, 7, 1}));
  // Fewer samples than ranks: the padding goes around more than once.
  EXPECT_EQ(whole_epoch(DistributedSampler(2, 4, 7, plain), 1), (Ids{0}));
  EXPECT_EQ(whole_epoch(DistributedSampler(2, 5, 7, plain), 1), (Ids{1}));
}

TEST(DistributedSampler, DropLastCutsTheTail) {
  const DistributedSamplerOptions cut{.shuffle = false, .drop_last = true};
  EXPECT_EQ(whole_epoch(DistributedSampler(10, 0, 4, cut), 2), (Ids{0, 4}));
  EXPECT_EQ(whole_epoch(DistributedSampler(10, 3, 4, cut), 2), (Ids{3, 7}));
  EXPECT_EQ(whole_epoch(DistributedSampler(12, 3, 4, cut), 2), (Ids{3, 7, 11}));
  EXPECT_EQ(DistributedSampler(3, 0, 4, cut).num_batches(2), 0);
}

TEST(DistributedSampler, EveryRankGetsTheSameCountAndTogetherTheyReadTheEpoch) {
  for (const std::int64_t length : {0, 1, 5, 16, 31, 100}) {
    for (int world = 1; world <= 9; ++world) {
      for (const bool drop_last : {false, true}) {
        std::multiset<std::int64_t> seen;
        const std::int64_t wanted = drop_last ? length / world : (length + world - 1) / world;
        for (int rank = 0; rank < world; ++rank) {
          DistributedSampler sampler(length, rank, world, {.seed = 3, .drop_last = drop_last});
          sampler.set_epoch(2);
          const Ids ids = whole_epoch(sampler, 4);
          ASSERT_EQ(static_cast<std::int64_t>(ids.size()), wanted) << length << " over " << world;
          ASSERT_EQ(sampler.num_samples(), wanted);
          seen.insert(ids.begin(), ids.end());
        }
        const std::set<std::int64_t> distinct(seen.begin(), seen.end());
        if (drop_last) {
          ASSERT_EQ(distinct.size(), seen.size());
        } else {
          ASSERT_EQ(static_cast<std::int64_t>(distinct.size()), length);
        }
      }
    }
  }
}

TEST(BatchShardSampler, EverySampleComesOncePerEpochAtEveryWorldSize) {
  for (const std::int64_t length : {0, 1, 29, 30, 100, 101}) {
    for (int world = 1; world <= 9; ++world) {
      for (const std::int64_t batch_size : {1, 2, 7, 30, 200}) {
        Ids seen;
        for (int rank = 0; rank < world; ++rank) {
          BatchShardSampler sampler(length, rank, world, {.seed = 9});
          sampler.set_epoch(1);
          ASSERT_EQ(sampler.num_batches(batch_size), (length + batch_size - 1) / batch_size);
          const Ids ids = whole_epoch(sampler, batch_size);
          seen.insert(seen.end(), ids.begin(), ids.end());
        }
        std::sort(seen.begin(), seen.end());
        ASSERT_EQ(seen, iota(length)) << length << " over " << world << " in batches of " << batch_size;
      }
    }
  }
}

TEST(BatchShardSampler, RanksTogetherReadTheBatchOfOneProcess) {
  for (int world = 1; world <= 8; ++world) {
    BatchShardSampler alone(100, 0, 1, {.seed = 5});
    alone.set_epoch(4);
    for (std::int64_t i = 0; i < alone.num_batches(30); ++i) {
      Ids joined;
      for (int rank = 0; rank < world; ++rank) {
        BatchShardSampler sampler(100, rank, world, {.seed = 5});
        sampler.set_epoch(4);
        const Ids ids = sampler.batch(i, 30);
        ASSERT_EQ(static_cast<std::int64_t>(ids.size()), chunk(i == 3 ? 10 : 30, rank, world).count);
        joined.insert(joined.end(), ids.begin(), ids.end());
      }
      EXPECT_EQ(joined, alone.batch(i, 30)) << "batch " << i << " over " << world;
    }
  }
}

TEST(BatchShardSampler, DropLastLeavesOutAShortBatchOnly) {
  EXPECT_EQ(BatchShardSampler(100, 0, 2, {.drop_last = true}).num_batches(30), 3);
  EXPECT_EQ(BatchShardSampler(90, 0, 2, {.drop_last = true}).num_batches(30), 3);
  EXPECT_EQ(BatchShardSampler(29, 0, 2, {.drop_last = true}).num_batches(30), 0);
}

TEST(Samplers, RefuseNumbersOutOfRangeByName) {
  EXPECT_THROW(DistributedSampler(10, 4, 4), InvalidArgument);
  EXPECT_THROW(DistributedSampler(10, -1, 4), InvalidArgument);
  EXPECT_THROW(BatchShardSampler(10, 0, 0), InvalidArgument);
  EXPECT_THROW(BatchShardSampler(-1, 0, 1), InvalidArgument);
  BatchShardSampler sampler(10, 0, 2);
  EXPECT_THROW(sampler.set_epoch(-1), InvalidArgument);
  EXPECT_THROW(sampler.num_batches(0), InvalidArgument);
  EXPECT_THROW(sampler.batch(-1, 5), InvalidArgument);
  const std::string text = error_of([&] { sampler.batch(2, 5); });
  EXPECT_NE(text.find("batch 2 of an epoch that has 2"), std::string::npos) << text;
}

}  // namespace
}  // namespace lockstep::data
