// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <set>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "lockstep/data/permutation.h"
#include "tests/support/error_of.h"
#include "tests/support/messages.h"

namespace lockstep::data::sampler_test {
namespace {

using lockstep::testing::error_of, lockstep::testing::expect_message;
using Ids = std::vector<std::int64_t>;

Ids whole_epoch(const Sampler& sampler) {
  Ids all;
  for (std::int64_t i = 0; i < sampler.num_batches(); ++i) {
    const Ids ids = sampler.batch(i);
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

TEST(DistributedSampler, PadsFromTheFrontOrDropsTheTail) {
  struct Case {
    std::int64_t length;
    int rank, world;
    Uneven uneven;
    Ids wanted;
  };
  for (const Case& c : {// 10 samples over 4 ranks: 3 each, positions 10 and 11 are samples 0 and 1 again.
                        Case{10, 0, 4, Uneven::pad, {0, 4, 8}}, Case{10, 1, 4, Uneven::pad, {1, 5, 9}},
                        Case{10, 2, 4, Uneven::pad, {2, 6, 0}}, Case{10, 3, 4, Uneven::pad, {3, 7, 1}},
                        // Fewer samples than ranks: the padding goes around more than once.
                        Case{2, 4, 7, Uneven::pad, {0}}, Case{2, 5, 7, Uneven::pad, {1}},
                        Case{10, 0, 4, Uneven::drop, {0, 4}}, Case{10, 3, 4, Uneven::drop, {3, 7}},
                        Case{12, 3, 4, Uneven::drop, {3, 7, 11}}, Case{3, 0, 4, Uneven::drop, {}}}) {
    const DistributedSampler sampler(c.length, c.rank, c.world,
                                     {.rows_per_rank = 2, .shuffle = false, .uneven = c.uneven});
    EXPECT_EQ(whole_epoch(sampler), c.wanted) << c.length << " samples, rank " << c.rank << " of " << c.world;
  }
}

TEST(DistributedSampler, EveryRankGetsTheSameCountAndTogetherTheyReadTheEpoch) {
  for (const std::int64_t length : {0, 1, 5, 16, 31, 100}) {
    for (int world = 1; world <= 9; ++world) {
      for (const Uneven uneven : {Uneven::pad, Uneven::drop, Uneven::exact}) {
        std::multiset<std::int64_t> seen;
        const std::int64_t most = uneven == Uneven::drop ? length / world : (length + world - 1) / world;
        for (int rank = 0; rank < world; ++rank) {
          DistributedSampler sampler(length, rank, world, {.rows_per_rank = 4, .seed = 3, .uneven = uneven});
          sampler.set_epoch(2);
          ASSERT_EQ(sampler.num_batches(), (most + 3) / 4) << "on every rank";
          const Ids ids = whole_epoch(sampler);
          const bool is_short = uneven == Uneven::exact && length % world != 0 && rank >= length % world;
          ASSERT_EQ(static_cast<std::int64_t>(ids.size()), most - is_short) << length << " over " << world;
          seen.insert(ids.begin(), ids.end());
        }
        const std::set<std::int64_t> distinct(seen.begin(), seen.end());
        ASSERT_TRUE(uneven == Uneven::pad || distinct.size() == seen.size());
        ASSERT_TRUE(uneven == Uneven::drop || static_cast<std::int64_t>(distinct.size()) == length);
      }
    }
  }
}

TEST(GlobalBatchSampler, RanksTogetherReadTheBatchesOfTheOrderAtEveryWorldSize) {
  for (const std::int64_t length : {0, 1, 29, 30, 100, 101}) {
    Ids order = iota(length);
    Permutation(length, 9, 1).map(order);
    for (int world = 1; world <= 9; ++world) {
      for (const std::int64_t rows : {1, 2, 7, 30, 200}) {
        std::vector<GlobalBatchSampler> ranks;
        for (int rank = 0; rank < world; ++rank) {
          ranks.emplace_back(length, rank, world, GlobalBatchSamplerOptions{.global_batch = rows, .seed = 9});
          ranks.back().set_epoch(1);
          ASSERT_EQ(ranks.back().num_batches(), (length + rows - 1) / rows);
        }
        Ids joined;
        for (std::int64_t i = 0; i < ranks[0].num_batches(); ++i) {
          const std::int64_t count = std::min(rows, length - i * rows);
          for (int rank = 0; rank < world; ++rank) {
            const Ids ids = ranks[static_cast<std::size_t>(rank)].batch(i);
            ASSERT_EQ(std::ssize(ids), chunk(count, rank, world).count);
            joined.insert(joined.end(), ids.begin(), ids.end());
          }
        }
        ASSERT_EQ(joined, order) << length << " over " << world << " in batches of " << rows;
      }
    }
  }
}

// A micro-batch's rows are those of one place in the batch, whatever the number of ranks.
TEST(GlobalBatchSampler, FixedMicroBatchesHaveTheSameRowsAtEveryWorldSize) {
  constexpr int kMicroBatches = 6;
  constexpr std::int64_t kBatch = 20;  // micro-batches of 4 rows; the sixth is empty
  const GlobalBatchSampler alone(50, 0, 1, {.global_batch = kBatch, .seed = 5, .micro_batches = kMicroBatches});
  ASSERT_EQ(alone.num_batches(), 3);
  for (std::int64_t batch = 0; batch < 3; ++batch) {
    const Ids all = alone.batch(batch);
    EXPECT_EQ(all, GlobalBatchSampler(50, 0, 1, {.global_batch = kBatch, .seed = 5}).batch(batch));
    for (int world = 1; world <= kMicroBatches; ++world) {
      for (int rank = 0; rank < world; ++rank) {
        const GlobalBatchSampler sampler(50, rank, world,
                                         {.global_batch = kBatch, .seed = 5, .micro_batches = kMicroBatches});
        const MicroBatchRange run = micro_batches_of(kMicroBatches, rank, world);
        const auto row = [&](int micro_batch) { return std::min<std::int64_t>(std::ssize(all), 4 * micro_batch); };
        EXPECT_EQ(sampler.batch(batch), Ids(all.begin() + row(run.begin), all.begin() + row(run.end)));
      }
    }
  }
  EXPECT_THROW(GlobalBatchSampler(50, 0, 7, {.global_batch = 20, .micro_batches = kMicroBatches}), InvalidArgument);
}

TEST(GlobalBatchSampler, DropLastLeavesOutAShortBatchOnly) {
  EXPECT_EQ(GlobalBatchSampler(100, 0, 2, {.global_batch = 30, .drop_last = true}).num_batches(), 3);
  EXPECT_EQ(GlobalBatchSampler(90, 0, 2, {.global_batch = 30, .drop_last = true}).num_batches(), 3);
  EXPECT_EQ(GlobalBatchSampler(29, 0, 2, {.global_batch = 30, .drop_last = true}).num_batches(), 0);
}

// A run of one epoch that stops and goes on at other world sizes and batch sizes. Returns what was read, in order of
// batches and ranks, and checks that the ranks' states agree.
template <typename Make>
Ids run_with_resizes(std::int64_t length, std::int64_t epoch, Generator& random, const Make& make) {
  Ids read;
  SamplerState state{.length = length, .seed = 6, .order = EpochOrder::shuffled(length, 6).digest(), .epoch = epoch};
  while (state.consumed < length) {
    const int world = 1 + static_cast<int>(random.below(9));
    const auto rows = 1 + static_cast<std::int64_t>(random.below(20));
    std::vector<std::unique_ptr<Sampler>> ranks;
    for (int rank = 0; rank < world; ++rank) {
      ranks.push_back(make(rank, world, rows));
      ranks.back()->resume(state);
    }
    const std::int64_t batches = ranks[0]->num_batches();
    const auto stop = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(batches) + 1));
    for (std::int64_t index = 0; index < stop; ++index) {
      for (const auto& rank : ranks) {
        const Ids ids = rank->batch(index);
        read.insert(read.end(), ids.begin(), ids.end());
      }
    }
    state = ranks[0]->state_after(stop);
    for (const auto& rank : ranks) {
      EXPECT_EQ(rank->num_batches(), batches);
      EXPECT_EQ(rank->state_after(stop), state);
    }
  }
  return read;
}

TEST(Samplers, GoOnAtAnyWorldSizeWithExactlyTheSamplesThatAreLeft) {
  Generator random(11);
  for (int run = 0; run < 400; ++run) {
    const auto length = static_cast<std::int64_t>(random.below(300));
    const auto epoch = static_cast<std::int64_t>(random.below(5));
    const auto split = [&](int rank, int world, std::int64_t rows) -> std::unique_ptr<Sampler> {
      return std::make_unique<GlobalBatchSampler>(length, rank, world,
                                                  GlobalBatchSamplerOptions{.global_batch = rows, .seed = 6});
    };
    const auto dealt = [&](Uneven uneven) {
      return [=](int rank, int world, std::int64_t rows) -> std::unique_ptr<Sampler> {
        return std::make_unique<DistributedSampler>(
            length, rank, world, DistributedSamplerOptions{.rows_per_rank = rows, .seed = 6, .uneven = uneven});
      };
    };
    Ids wanted = iota(length);
    Permutation(length, 6, epoch).map(wanted);
    // Global batches even in the order of one process.
    ASSERT_EQ(run_with_resizes(length, epoch, random, split), wanted) << run;
    std::sort(wanted.begin(), wanted.end());
    Ids read = run_with_resizes(length, epoch, random, dealt(Uneven::exact));
    std::sort(read.begin(), read.end());
    ASSERT_EQ(read, wanted) << run;
    read = run_with_resizes(length, epoch, random, dealt(Uneven::pad));
    const std::set<std::int64_t> padded(read.begin(), read.end());
    ASSERT_EQ(static_cast<std::int64_t>(padded.size()), length) << run;
    ASSERT_LE(static_cast<std::int64_t>(read.size()), length + 8) << "less than a sample per rank of the last world";
    read = run_with_resizes(length, epoch, random, dealt(Uneven::drop));
    const std::set<std::int64_t> cut(read.begin(), read.end());
    ASSERT_EQ(cut.size(), read.size()) << run;
    ASSERT_GE(static_cast<std::int64_t>(read.size()), length - 8) << run;
  }
}

TEST(Samplers, CountBatchesOfTheRestAndOfAWholeEpoch) {
  GlobalBatchSampler sampler(103, 1, 3, {.global_batch = 10, .seed = 2}), other = sampler;
  sampler.set_epoch(3);
  other.resume(sampler.state_after(4));
  EXPECT_EQ(other.num_batches(), 7);
  EXPECT_EQ(other.batch(0), sampler.batch(4));
  EXPECT_EQ(sampler.num_batches_after(40), 7);
  EXPECT_EQ(other.num_batches_after(0), 11) << "of a whole epoch";
  other.set_epoch(3);
  EXPECT_EQ(whole_epoch(other), whole_epoch(sampler)) << "from its beginning";
}

TEST(Samplers, CountWhatIsLeftOutAsConsumedAtTheEndOfAnEpoch) {
  const GlobalBatchSampler cut(95, 0, 2, {.global_batch = 10, .drop_last = true});
  EXPECT_EQ(cut.state_after(8).consumed, 80);
  EXPECT_EQ(cut.state_after(9).consumed, 95);
  const DistributedSampler dealt(10, 1, 4, {.rows_per_rank = 1, .uneven = Uneven::drop});
  EXPECT_EQ(dealt.state_after(1).consumed, 4);
  EXPECT_EQ(dealt.state_after(2).consumed, 10);
  DistributedSampler over(10, 0, 2, {.rows_per_rank = 1});
  over.resume(dealt.state_after(2));
  EXPECT_EQ(over.num_batches(), 0);
}

TEST(Samplers, RefuseAStateOfOtherData) {
  GlobalBatchSampler sampler(10, 0, 2, {.global_batch = 2, .seed = 1});
  const std::uint64_t order = sampler.order().digest();
  const SamplerState before = sampler.state_after(0);
  EXPECT_EQ(before, (SamplerState{.length = 10, .seed = 1, .order = order}));
  const auto refused = [&](const char* what, const SamplerState& state) {
    expect_message("data", what, error_of<InvalidArgument>([&] { sampler.resume(state); }));
    EXPECT_THROW(sampler.require_place(state), InvalidArgument);
  };
  refused("a place of 11 samples", {.length = 11, .seed = 1, .epoch = 4, .consumed = 3});
  refused("a place with seed 2", {.length = 10, .seed = 2, .epoch = 4, .consumed = 3});
  refused("a place in epoch -4", {.length = 10, .seed = 1, .order = order, .epoch = -4, .consumed = 3});
  refused("a place behind the last sample", {.length = 10, .seed = 1, .order = order, .epoch = 4, .consumed = 11});
  expect_message("data", "a state behind the last batch",
                 error_of<InvalidArgument>([&] { static_cast<void>(sampler.state_after(6)); }));
  sampler.require_place({.length = 10, .seed = 1, .order = order, .epoch = 4, .consumed = 10});
  EXPECT_EQ(sampler.state_after(0), before) << "nothing was changed, asked or refused";
  // Of one length and one seed, in other orders.
  const std::vector<double> weights(10, 1.0);
  Ids backwards = iota(10);
  std::reverse(backwards.begin(), backwards.end());
  for (const EpochOrder& other : {EpochOrder::in_order(10).within(backwards), EpochOrder::in_order(10),
                                  EpochOrder::weighted(weights, 10, 0), EpochOrder::shuffled(10, 0)}) {
    DistributedSampler writer(other, 0, 2, {.rows_per_rank = 2});
    for (const EpochOrder& own : {EpochOrder::in_order(10), EpochOrder::shuffled(10, 0)}) {
      DistributedSampler reader(own, 0, 2, {.rows_per_rank = 2});
      const auto resume = [&] { reader.resume(writer.state_after(1)); };
      if (own.digest() == other.digest()) {
        EXPECT_NO_THROW(resume());
      } else {
        expect_message("data", "a place in another order", error_of<InvalidArgument>(resume));
      }
    }
  }
}

TEST(Samplers, TellApartWhatDealsOutTheSameOrderInAnotherWay) {
  const EpochOrder order = EpochOrder::shuffled(1000, 3);
  std::set<std::vector<std::pair<std::string, std::uint64_t>>> identities;
  for (const Uneven uneven : {Uneven::pad, Uneven::drop, Uneven::exact}) {
    identities.insert(DistributedSampler(order, 0, 3, {.rows_per_rank = 64, .uneven = uneven}).identity());
  }
  const auto identity = [&](int rank, int world, const GlobalBatchSamplerOptions& options) {
    return GlobalBatchSampler(order, rank, world, options).identity();
  };
  identities.insert({identity(0, 3, {.global_batch = 64}), identity(0, 2, {.global_batch = 64}),
                     identity(0, 3, {.global_batch = 64, .drop_last = true}),
                     identity(0, 3, {.global_batch = 64, .micro_batches = 4})});
  EXPECT_EQ(identities.size(), 7u);
  EXPECT_EQ(identity(2, 3, {.global_batch = 64}), identity(0, 3, {.global_batch = 64}));
}

TEST(Samplers, TakeEveryNumberThatFits) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const DistributedSampler dealt(5, 1, 3, {.rows_per_rank = kMost, .shuffle = false});
  EXPECT_EQ(dealt.batch(0), (Ids{1, 4}));
  EXPECT_EQ(DistributedSampler(kMost, 2, 3, {.rows_per_rank = kMost, .seed = 8}).num_batches(), 1);
  const DistributedSampler vast(kMost, 2, 3, {.rows_per_rank = 4, .seed = 8});
  EXPECT_EQ(vast.batch(vast.num_batches() - 1).size(), static_cast<std::size_t>((kMost / 3 + 1) % 4));
  const GlobalBatchSampler split(kMost, 6, 7, {.global_batch = 1000, .seed = 8});
  EXPECT_EQ(split.batch(split.num_batches() - 1).size(), 111u);
}

TEST(Samplers, RefuseNumbersOutOfRangeByName) {
  const DistributedSamplerOptions dealt{.rows_per_rank = 5};
  const GlobalBatchSamplerOptions split{.global_batch = 5};
  EXPECT_THROW(DistributedSampler(10, 4, 4, dealt), InvalidArgument);
  EXPECT_THROW(DistributedSampler(10, -1, 4, dealt), InvalidArgument);
  EXPECT_THROW(GlobalBatchSampler(10, 0, 0, split), InvalidArgument);
  EXPECT_THROW(GlobalBatchSampler(-1, 0, 1, split), InvalidArgument);
  const auto refused = [](const char* what, const auto& call) {
    expect_message("data", what, error_of<InvalidArgument>(call));
  };
  refused("no global_batch", [] { GlobalBatchSampler(10, 0, 2, {}); });
  refused("rows_per_rank below 1", [] { DistributedSampler(10, 0, 2, {.rows_per_rank = -1}); });
  GlobalBatchSampler sampler(10, 0, 2, split);
  EXPECT_THROW(sampler.set_epoch(-1), InvalidArgument);
  EXPECT_THROW(sampler.batch(-1), InvalidArgument);
  refused("a batch behind the last", [&] { sampler.batch(2); });
  refused("batches after more samples than there are", [&] { static_cast<void>(sampler.num_batches_after(11)); });
}

// What stands for a process group.
struct Group {
  int rank() const { return 2; }
  int size() const { return 3; }
};

TEST(Samplers, TakeTheirRankFromAGroupAndAnyOrder) {
  const std::vector<double> weights{0, 1, 0, 5};
  const EpochOrder weighted = EpochOrder::weighted(weights, 30, 1);
  EXPECT_EQ(GlobalBatchSampler(weighted, 1, 2, {.global_batch = 30}).batch(0)[3], weighted[18]);
  const GlobalBatchSampler split(30, Group(), {.global_batch = 6});
  EXPECT_EQ(split.batch(0), GlobalBatchSampler(30, 2, 3, {.global_batch = 6}).batch(0));
  const DistributedSampler dealt(EpochOrder::in_order(30), Group(), {.rows_per_rank = 6});
  EXPECT_EQ(dealt.batch(0), (Ids{2, 5, 8, 11, 14, 17}));
}

}  // namespace
}  // namespace lockstep::data::sampler_test
