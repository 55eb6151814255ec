// SPDX-License-Identifier: Apache-2.0
// Samples for torch::data: what each rank gets, and where a run goes on.
#include "lockstep/libtorch/samplers.h"

#include <malloc.h>

#include <atomic>
#include <mutex>
#include <set>
#include <thread>

#include "tests/libtorch/samplers.h"

namespace lockstep::testing::samplers_test {
namespace {

TEST(DistributedSampler, DealsOutEverySample) {
  for (const Uneven uneven : {Uneven::pad, Uneven::drop, Uneven::exact}) {
    for (std::size_t length = 0; length < 12; ++length) {
      for (int world = 1; world < 6; ++world) {
        std::multiset<std::int64_t> seen;
        std::size_t most = 0;
        for (int rank = 0; rank < world; ++rank) {
          const Samples own = epoch_of(DistributedSampler(length, rank, world, {.seed = 5, .uneven = uneven}), 0);
          most = std::max(most, (own.size() + 1) / 2);
          seen.insert(own.begin(), own.end());
        }
        const auto per_rank = static_cast<std::size_t>(world);
        const std::size_t wanted = uneven == Uneven::exact  ? length
                                   : uneven == Uneven::drop ? length / per_rank * per_rank
                                                            : (length + per_rank - 1) / per_rank * per_rank;
        EXPECT_EQ(seen.size(), wanted);
        for (int rank = 0; rank < world; ++rank) {
          EXPECT_EQ(DistributedSampler(length, rank, world, {.uneven = uneven}).num_batches(2), most);
        }
        for (std::size_t i = 0; i < length && uneven != Uneven::drop; ++i) {
          EXPECT_GE(seen.count(static_cast<std::int64_t>(i)), 1u);
        }
        for (const std::int64_t i : seen) {
          EXPECT_LT(i, static_cast<std::int64_t>(length));
          EXPECT_TRUE(uneven == Uneven::pad || seen.count(i) == 1u);
        }
      }
    }
  }
}

TEST(DistributedSampler, BeginsAnEpochPerResetAndCopiesShareIt) {
  DistributedSampler sampler(50, 0, 2);
  DistributedSampler copy = sampler;  // as the loader takes it
  std::vector<Samples> epochs;
  for (int epoch = 0; epoch < 3; ++epoch) {
    copy.reset();
    epochs.push_back(all_of(copy, 7));
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  EXPECT_EQ(sampler.state(), (SamplerState{.length = 50, .seed = 0, .order = kShuffled, .epoch = 2, .consumed = 50}));
  sampler.set_epoch(1);
  copy.reset();
  EXPECT_EQ(all_of(copy, 3), epochs[1]);
  DistributedSampler in_order(5, 1, 2, {.shuffle = false, .uneven = Uneven::exact});
  in_order.reset();
  EXPECT_EQ(all_of(in_order, 9), (Samples{1, 3}));
  in_order.reset(9);
  EXPECT_EQ(all_of(in_order, 9), (Samples{1, 3, 5, 7}));
}

// What PyTorch 1.13's torch.utils.data.DistributedSampler gave, its generator seeded with seed + epoch.
TEST(DistributedSampler, HasPythonsOrderWhereThatIsAskedFor) {
  const auto python = [](std::int64_t length, int rank, int world, std::uint64_t seed, std::int64_t epoch,
                         Uneven uneven) {
    return epoch_of(DistributedSampler(libtorch::randperm_order(length, seed), rank, world, {.uneven = uneven}), epoch);
  };
  EXPECT_EQ(python(10, 0, 4, 0, 0, Uneven::pad), (Samples{4, 3, 6}));
  EXPECT_EQ(python(10, 1, 4, 0, 0, Uneven::pad), (Samples{1, 9, 2}));
  EXPECT_EQ(python(10, 2, 4, 0, 0, Uneven::pad), (Samples{7, 0, 4}));
  EXPECT_EQ(python(10, 3, 4, 0, 0, Uneven::pad), (Samples{5, 8, 1}));
  EXPECT_EQ(python(23, 2, 3, 7, 5, Uneven::pad), (Samples{15, 13, 21, 4, 3, 7, 6, 18}));
  EXPECT_EQ(python(23, 0, 3, 7, 5, Uneven::drop), (Samples{18, 20, 22, 17, 12, 11, 8}));
  EXPECT_EQ(python(3, 4, 7, 1, 2, Uneven::pad), (Samples{0}));
  EXPECT_EQ(python(3, 6, 7, 1, 2, Uneven::pad), (Samples{1}));
}

std::int64_t bytes_in_use() {
  const struct mallinfo2 info = ::mallinfo2();
  return static_cast<std::int64_t>(info.uordblks + info.hblkhd);
}

TEST(Memory, OfPythonsOrderIsOneListOfTheEpochThatIsRead) {
  constexpr std::int64_t kLength = 1 << 20;
  DistributedSampler warm(libtorch::randperm_order(10, 1), 0, 2);  // what torch allocates once
  warm.reset();
  warm.next(1);
  const std::int64_t before = bytes_in_use();
  DistributedSampler sampler(libtorch::randperm_order(kLength, 1), 0, 2);
  DistributedSampler copy = sampler;
  EXPECT_LT(bytes_in_use() - before, kLength) << "none before one is read";
  for (int epoch = 0; epoch < 3; ++epoch) {
    copy.reset();
    copy.next(4);
    static_cast<void>(sampler.num_batches(4));
    EXPECT_EQ(sampler.identity()().size(), 9u);
    const std::int64_t held = bytes_in_use() - before;
    EXPECT_GE(held, 8 * kLength);
    EXPECT_LT(held, 9 * kLength) << "8 bytes per sample, in epoch " << epoch;
  }
}

TEST(DistributedSampler, TakesEveryOrder) {
  const Samples odd{1, 3, 5, 7, 9, 11, 13};
  std::multiset<std::int64_t> seen;
  for (int rank = 0; rank < 3; ++rank) {
    const Samples own =
        epoch_of(DistributedSampler(EpochOrder::shuffled(7, 4).within(odd), rank, 3, {.uneven = Uneven::exact}), 6);
    seen.insert(own.begin(), own.end());
  }
  EXPECT_EQ(Samples(seen.begin(), seen.end()), odd);
  DistributedSampler sampler(EpochOrder::shuffled(7, 4).within(odd), 0, 3);
  expect_text(outcome_of([&] { sampler.reset(8); }), {"InvalidArgument", "8 samples was called, but the order has 7"});
}

TEST(GlobalBatchSampler, GivesTheGlobalBatchInTheSharesOfChunk) {
  GlobalBatchSampler alone(100, 0, 1, {.global_batch = 64, .seed = 1});
  alone.reset();
  const auto whole = *alone.next(1);
  ASSERT_EQ(whole.size(), 64u);
  std::vector<std::size_t> joined, sizes;
  for (int rank = 0; rank < 3; ++rank) {
    GlobalBatchSampler sampler(100, rank, 3, {.global_batch = 64, .seed = 1});
    sampler.reset();
    const auto share = *sampler.next(1);
    sizes.push_back(share.size());
    joined.insert(joined.end(), share.begin(), share.end());
    EXPECT_EQ(sampler.num_batches(), 2u);
    EXPECT_EQ(sampler.state().consumed, 64);
  }
  EXPECT_EQ(sizes, (std::vector<std::size_t>{22, 22, 20}));
  EXPECT_EQ(joined, whole);
  EXPECT_EQ(GlobalBatchSampler(100, 0, 3, {.global_batch = 64, .drop_last = true}).num_batches(), 1u);
}

TEST(GlobalBatchSampler, RefusesWhatTorchsLoaderCantDo) {
  for (int rank = 0; rank < 4; ++rank) {
    GlobalBatchSampler sampler(66, rank, 4, {.global_batch = 64});
    expect_text(outcome_of([&] { sampler.reset(); }),
                {"InvalidArgument", "in epoch 0 a batch has 2 rows for 4 ranks", "lockstep::libtorch::DataLoader"});
    GlobalBatchSampler few(60, rank, 4, {.global_batch = 5});
    expect_text(outcome_of([&] { few.reset(); }), {"InvalidArgument", "has 5 rows for 4 ranks"});
    GlobalBatchSampler cut(66, rank, 4, {.global_batch = 64, .drop_last = true});
    cut.reset();
    EXPECT_EQ(all_of(cut, 1).size(), 16u);
  }
  expect_text(outcome_of([] { GlobalBatchSampler(10, 0, 2, {}); }), {"InvalidArgument", "batch is 0"});
  expect_text(outcome_of([] { GlobalBatchSampler(10, 2, 2, {.global_batch = 4}); }), {"InvalidArgument", "rank 2"});
  EXPECT_THROW(DistributedSampler(4, 3, 3), InvalidArgument);
  DistributedSampler sampler(10, 1, 3);
  sampler.reset();
  expect_text(outcome_of([&] { sampler.next(0); }), {"InvalidArgument", "batch size is 0"});
  expect_text(outcome_of([&] { static_cast<void>(sampler.num_batches(0)); }), {"InvalidArgument", "batch size is 0"});
}

TEST(DistributedSampler, GoesOnThroughTorchsLoaderWhereItWasSaved) {
  const auto make = [](int world = 3) { return DistributedSampler(40, 1, world, {.seed = 3}); };
  const auto loader_over = [](const DistributedSampler& sampler) {
    return ::torch::data::make_data_loader(numbers(40), sampler, 2);
  };
  std::vector<Samples> epochs;
  {
    auto loader = loader_over(make());
    for (int epoch = 0; epoch < 3; ++epoch) epochs.push_back(take(*loader));
  }
  ASSERT_EQ(epochs[1].size(), 14u);
  std::string at_two_batches, at_the_end;
  {
    DistributedSampler sampler = make();
    auto loader = loader_over(sampler);
    take(*loader);
    take(*loader, 2);
    at_two_batches = saved(sampler);
    sampler.set_epoch(1);
    take(*loader);
    at_the_end = saved(sampler);
  }
  const Samples rest(epochs[1].begin() + 4, epochs[1].end());
  for (const bool with_set_epoch : {false, true}) {
    DistributedSampler sampler = make();
    auto loader = loader_over(sampler);
    load(sampler, at_two_batches);
    EXPECT_EQ(sampler.state(), (SamplerState{.length = 40, .seed = 3, .order = kShuffled, .epoch = 1, .consumed = 12}));
    EXPECT_EQ(sampler.num_batches(2), 5u);
    if (with_set_epoch) sampler.set_epoch(1);  // as a loop over the epochs does
    EXPECT_EQ(take(*loader), rest);
    EXPECT_EQ(take(*loader), epochs[2]) << "once only";
    load(sampler, at_two_batches);
    sampler.set_epoch(0);
    EXPECT_EQ(take(*loader), epochs[0]) << "another epoch begins at its beginning";
    load(sampler, at_the_end);
    if (with_set_epoch) {
      sampler.set_epoch(1);
      EXPECT_EQ(take(*loader), Samples{}) << "it is over";
    }
    EXPECT_EQ(take(*loader), epochs[2]) << "nothing is left of the one before";
  }
  DistributedSampler other(41, 1, 3, {.seed = 3});
  expect_text(outcome_of([&] { load(other, at_two_batches); }), {"InvalidArgument", "40 samples", "set_epoch(1)"});
}

// What the program asks while a loader's threads draw, as torch's chunked datasets do: a data race under TSan, were it
// one.
TEST(GlobalBatchSampler, IsAskedWhileOthersDraw) {
  constexpr std::int64_t kLength = 4000;
  GlobalBatchSampler sampler(kLength, 0, 1, {.global_batch = 2, .seed = 9});
  sampler.reset();
  const DataIdentity identity = sampler.identity();
  const auto begun = identity();
  std::atomic<bool> is_over = false;
  std::mutex mutex;
  std::multiset<std::size_t> seen;
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&, own = sampler]() mutable {
      std::vector<std::size_t> samples;
      while (const auto batch = own.next(1)) samples.insert(samples.end(), batch->begin(), batch->end());
      is_over = true;
      const std::lock_guard lock(mutex);
      seen.insert(samples.begin(), samples.end());
    });
  }
  std::int64_t consumed = 0;
  do {
    EXPECT_EQ(identity(), begun) << "of the pass, wherever it stands";
    EXPECT_EQ(sampler.num_batches(), 2000u);
    const std::int64_t now = sampler.state().consumed;
    EXPECT_GE(now, consumed);
    consumed = now;
  } while (!is_over);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(seen.size(), 4000u);
  EXPECT_EQ(std::set<std::size_t>(seen.begin(), seen.end()).size(), 4000u) << "each once";
}

TEST(GlobalBatchSampler, ResumedInTheMiddleOfAPassGoesThereAtTheNextOne) {
  const auto make = [] { return GlobalBatchSampler(20, 0, 1, {.global_batch = 4, .shuffle = false}); };
  GlobalBatchSampler other = make();
  SamplerState place = other.state();
  place.epoch = 3;
  place.consumed = 12;
  other.resume(place);
  const std::string archive = saved(other);
  const auto expect_resumed = [&](GlobalBatchSampler sampler, auto& loader) {
    Samples seen;
    for (auto& batch : loader) {
      const auto* rows = batch.data.template data_ptr<std::int64_t>();
      seen.insert(seen.end(), rows, rows + batch.data.numel());
      if (seen.size() == 8) load(sampler, archive);
    }
    EXPECT_EQ(seen.size(), 20u) << "the pass itself goes on";
    EXPECT_EQ(sampler.state(), place);
    EXPECT_EQ(sampler.num_batches(), 2u);
    EXPECT_EQ(take(loader), (Samples{12, 13, 14, 15, 16, 17, 18, 19}));
    EXPECT_EQ(sampler.state().epoch, 3);
    EXPECT_EQ(take(loader).size(), 20u);
    EXPECT_EQ(sampler.state().epoch, 4);
    SamplerState beyond = place;
    beyond.consumed = 21;
    expect_text(outcome_of([&] { sampler.resume(beyond); }), {"InvalidArgument", "21 of the 20 samples of epoch 3"});
    EXPECT_EQ(sampler.state().epoch, 4) << "nothing is resumed";
  };
  for (const std::size_t workers : {0, 2}) {
    const auto options = ::torch::data::DataLoaderOptions().workers(workers);
    const GlobalBatchSampler sampler = make(), of_torchs = make();
    libtorch::DataLoader loader(numbers(20), sampler, options);
    expect_resumed(sampler, loader);
    const auto torchs = ::torch::data::make_data_loader(numbers(20), of_torchs, options);
    expect_resumed(of_torchs, *torchs);
  }
}

}  // namespace
}  // namespace lockstep::testing::samplers_test
