// SPDX-License-Identifier: Apache-2.0
// Samples for torch::data: what each rank gets, where a run goes on, and lockstep::libtorch::DataLoader over them.
#include "lockstep/libtorch/data_loader.h"

#include <malloc.h>

#include <atomic>
#include <future>
#include <latch>
#include <mutex>
#include <set>
#include <thread>

#include "lockstep/libtorch/samplers.h"
#include "tests/libtorch/small_net.h"
#include "tests/support/wait_until.h"

namespace lockstep::testing::data_test {
namespace {

using data::EpochOrder;
using data::SamplerState;
using libtorch::DistributedSampler;
using libtorch::GlobalBatchSampler;
using libtorch::RankSampler;
using libtorch::Uneven;
using Samples = std::vector<std::int64_t>;
const std::uint64_t kShuffled = EpochOrder::shuffled(1, 0).digest();

Samples all_of(RankSampler& sampler, std::size_t batch_size) {
  Samples seen;
  while (const auto batch = sampler.next(batch_size)) {
    EXPECT_GT(batch->size(), 0u);
    seen.insert(seen.end(), batch->begin(), batch->end());
  }
  return seen;
}

Samples epoch_of(RankSampler sampler, std::int64_t epoch, std::size_t batch_size = 2) {
  sampler.set_epoch(epoch);
  sampler.reset();
  return all_of(sampler, batch_size);
}

auto numbers(std::int64_t length) {
  return ::torch::data::datasets::TensorDataset(at::arange(length))
      .map(::torch::data::transforms::Stack<::torch::data::TensorExample>());
}

// What a loader returns in an epoch, `most` batches at most.
template <typename Loader>
std::vector<Samples> batches_of(Loader& loader, std::size_t most = 100) {
  std::vector<Samples> batches;
  for (auto& batch : loader) {
    const auto* rows = batch.data.template data_ptr<std::int64_t>();
    batches.emplace_back(rows, rows + batch.data.numel());
    if (batches.size() == most) break;
  }
  return batches;
}
template <typename Loader>
Samples take(Loader& loader, std::size_t most = 100) {
  Samples seen;
  for (const Samples& batch : batches_of(loader, most)) seen.insert(seen.end(), batch.begin(), batch.end());
  return seen;
}

// What each rank gets is unit/data's to test.
TEST(DistributedSampler, HasTheBatchesOfTheRankWithMostOnEveryRank) {
  for (const Uneven uneven : {Uneven::pad, Uneven::drop, Uneven::exact}) {
    for (std::size_t length = 0; length < 12; ++length) {
      for (int world = 1; world < 6; ++world) {
        const std::size_t most = (epoch_of(DistributedSampler(length, 0, world, {.uneven = uneven}), 0).size() + 1) / 2;
        for (int rank = 0; rank < world; ++rank) {
          EXPECT_EQ(DistributedSampler(length, rank, world, {.uneven = uneven}).num_batches(2), most);
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
  EXPECT_EQ(python(10, 3, 4, 0, 0, Uneven::pad), (Samples{5, 8, 1}));
  EXPECT_EQ(python(23, 2, 3, 7, 5, Uneven::pad), (Samples{15, 13, 21, 4, 3, 7, 6, 18}));
  EXPECT_EQ(python(23, 0, 3, 7, 5, Uneven::drop), (Samples{18, 20, 22, 17, 12, 11, 8}));
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

TEST(GlobalBatchSampler, RefusesWhatTorchsLoaderCantDo) {
  for (int rank = 0; rank < 4; ++rank) {
    GlobalBatchSampler sampler(66, rank, 4, {.global_batch = 64});
    expect_text(outcome_of([&] { sampler.reset(); }),
                {"InvalidArgument", "in epoch 0 a batch has 2 rows for 4 ranks", "lockstep::libtorch::DataLoader"});
    GlobalBatchSampler few(60, rank, 4, {.global_batch = 5});
    expect_text(outcome_of([&] { few.reset(); }), {"InvalidArgument", "has 5 rows for 4 ranks"});
    GlobalBatchSampler cut(66, rank, 4, {.global_batch = 64, .drop_last = true});
    EXPECT_EQ(cut.num_batches(), 1u);
    cut.reset();
    EXPECT_EQ(all_of(cut, 1).size(), 16u);
    EXPECT_EQ(cut.state().consumed, 66);
  }
  expect_text(outcome_of([] { GlobalBatchSampler(10, 0, 2, {}); }), {"InvalidArgument", "batch is 0"});
  expect_text(outcome_of([] { GlobalBatchSampler(10, 2, 2, {.global_batch = 4}); }), {"InvalidArgument", "rank 2"});
  EXPECT_THROW(DistributedSampler(4, 3, 3), InvalidArgument);
  DistributedSampler odd(EpochOrder::shuffled(7, 4).within(Samples{1, 3, 5, 7, 9, 11, 13}), 0, 3);
  EXPECT_EQ(epoch_of(odd, 6).size(), 3u);
  expect_text(outcome_of([&] { odd.reset(8); }), {"InvalidArgument", "8 samples was called, but the order has 7"});
  DistributedSampler sampler(10, 1, 3);
  sampler.reset();
  expect_text(outcome_of([&] { sampler.next(0); }), {"InvalidArgument", "batch size is 0"});
  expect_text(outcome_of([&] { static_cast<void>(sampler.num_batches(0)); }), {"InvalidArgument", "batch size is 0"});
}

TEST(DistributedSampler, GoesOnThroughTorchsLoaderWhereItWasSaved) {
  const auto make = [] { return DistributedSampler(40, 1, 3, {.seed = 3}); };
  DistributedSampler first = make();
  const auto all = ::torch::data::make_data_loader(numbers(40), first, 2);
  std::vector<Samples> epochs;
  for (int epoch = 0; epoch < 3; ++epoch) epochs.push_back(take(*all));
  ASSERT_EQ(epochs[1].size(), 14u);
  first.set_epoch(1);
  take(*all, 2);
  const std::string at_two_batches = archive_of(first);
  first.set_epoch(1);
  take(*all);
  const std::string at_the_end = archive_of(first);
  for (const bool with_set_epoch : {false, true}) {
    DistributedSampler sampler = make();
    const auto loader = ::torch::data::make_data_loader(numbers(40), sampler, 2);
    load_archive(sampler, at_two_batches);
    EXPECT_EQ(sampler.state(), (SamplerState{.length = 40, .seed = 3, .order = kShuffled, .epoch = 1, .consumed = 12}));
    EXPECT_EQ(sampler.num_batches(2), 5u);
    if (with_set_epoch) sampler.set_epoch(1);  // as a loop over the epochs does
    EXPECT_EQ(take(*loader), Samples(epochs[1].begin() + 4, epochs[1].end()));
    EXPECT_EQ(take(*loader), epochs[2]) << "once only";
    load_archive(sampler, at_two_batches);
    sampler.set_epoch(0);
    EXPECT_EQ(take(*loader), epochs[0]) << "another epoch begins at its beginning";
    load_archive(sampler, at_the_end);
    if (with_set_epoch) {
      sampler.set_epoch(1);
      EXPECT_EQ(take(*loader), Samples{}) << "it is over";
    }
    EXPECT_EQ(take(*loader), epochs[2]) << "nothing is left of the one before";
  }
  DistributedSampler other(41, 1, 3, {.seed = 3});
  expect_text(outcome_of([&] { load_archive(other, at_two_batches); }),
              {"InvalidArgument", "40 samples", "set_epoch(1)"});
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
  const std::string archive = archive_of(other);
  const auto expect_resumed = [&](GlobalBatchSampler sampler, auto& loader) {
    Samples seen;
    for (auto& batch : loader) {
      const auto* rows = batch.data.template data_ptr<std::int64_t>();
      seen.insert(seen.end(), rows, rows + batch.data.numel());
      if (seen.size() == 8) load_archive(sampler, archive);
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

TEST(LibtorchDataLoader, MakesTheSamplerOfAGroup) {
  run_torch_ranks(3, [](const Group& group) {
    libtorch::DataLoader loader(numbers(20), *group, {.global_batch = 10, .seed = 5, .workers = 1});
    GlobalBatchSampler sampler(20, *group, {.global_batch = 10, .seed = 5});
    EXPECT_EQ(take(loader), epoch_of(sampler, 0));
    EXPECT_EQ(take(loader), epoch_of(sampler, 1)) << "each loop is the next epoch";
    EXPECT_THROW(libtorch::DataLoader(numbers(20), *group, {.global_batch = 10, .workers = -1}), InvalidArgument);
    EXPECT_THROW(libtorch::DataLoader(numbers(20), *group, {}), InvalidArgument);
  });
}

// A sampler's rows_per_rank count in place of the loader's batch size.
TEST(LibtorchDataLoader, TakesTheSizeOfADistributedSampler) {
  libtorch::DataLoader loader(numbers(20), DistributedSampler(20, 0, 2, {.rows_per_rank = 4, .shuffle = false}));
  EXPECT_EQ(loader.num_batches(), 3u);
  std::vector<std::size_t> sizes;
  for (const Samples& batch : batches_of(loader)) sizes.push_back(batch.size());
  EXPECT_EQ(sizes, (std::vector<std::size_t>{4, 4, 2}));
  expect_text(outcome_of([] { DistributedSampler(20, 0, 2, {.rows_per_rank = -4}); }), {"rows_per_rank is -4"});
}

// Of 18 rows in batches of 8 over five ranks the last rank has none: 2, 2, 2, 2 and 0.
TEST(LibtorchDataLoader, HasAsManyBatchesOnEveryRankAndEachSampleOnce) {
  for (const std::size_t workers : {0, 2}) {
    const auto options = ::torch::data::DataLoaderOptions().workers(workers);
    for (int world = 1; world <= 5; ++world) {
      std::multiset<std::int64_t> seen;
      for (int rank = 0; rank < world; ++rank) {
        libtorch::DataLoader loader(numbers(18), GlobalBatchSampler(18, rank, world, {.global_batch = 8}), options);
        EXPECT_EQ(loader.num_batches(), 3u);
        for (int epoch = 0; epoch < 2; ++epoch) {
          const std::vector<Samples> batches = batches_of(loader);
          EXPECT_EQ(batches.size(), 3u) << world;
          for (const Samples& batch : batches) {
            seen.insert(batch.begin(), batch.end());
            EXPECT_TRUE(rank < 4 || batch.empty());
          }
        }
      }
      ASSERT_EQ(seen.size(), 36u);
      for (std::int64_t i = 0; i < 18; ++i) ASSERT_EQ(seen.count(i), 2u);
    }
  }
  for (int rank = 0; rank < 4; ++rank) {  // so does an exact deal
    libtorch::DataLoader loader(numbers(9), DistributedSampler(9, rank, 4, {.uneven = Uneven::exact}),
                                ::torch::data::DataLoaderOptions(1));
    const std::vector<Samples> batches = batches_of(loader);
    ASSERT_EQ(batches.size(), 3u);
    EXPECT_EQ(batches[2].size(), rank == 0 ? 1u : 0u);
  }
}

// With workers, which draw ahead of what the program has got; at another world size; loops that are left early.
TEST(LibtorchDataLoader, GoesOnBehindWhatWasHandedOut) {
  const auto make = [](int rank, int world) {
    return GlobalBatchSampler(50, rank, world, {.global_batch = 6, .seed = 2});
  };
  for (const std::size_t workers : {0, 3}) {
    const auto options = ::torch::data::DataLoaderOptions().workers(workers);
    GlobalBatchSampler first = make(0, 1);
    SamplerState place;
    Samples read;
    {
      libtorch::DataLoader loader(numbers(50), first, options);
      take(loader);
      EXPECT_EQ(first.state(), (SamplerState{.length = 50, .seed = 2, .order = kShuffled, .epoch = 0, .consumed = 50}));
      read = take(loader, 3);
      place = first.state();
      EXPECT_EQ(place, (SamplerState{.length = 50, .seed = 2, .order = kShuffled, .epoch = 1, .consumed = 18}));
      EXPECT_EQ(take(loader), epoch_of(make(0, 1), 2)) << "behind one left early";
    }
    std::vector<Samples> batches(6);
    for (int rank = 0; rank < 2; ++rank) {
      GlobalBatchSampler sampler = make(rank, 2);
      libtorch::DataLoader loader(numbers(50), sampler, options);
      sampler.resume(place);
      EXPECT_EQ(loader.num_batches(), 9u) << "of a whole epoch, for a schedule";
      EXPECT_EQ(loader.batches_in_pass(), 6u);
      const std::vector<Samples> own = batches_of(loader);
      ASSERT_EQ(own.size(), 6u);
      for (std::size_t i = 0; i < 6; ++i) batches[i].insert(batches[i].end(), own[i].begin(), own[i].end());
    }
    for (const Samples& batch : batches) read.insert(read.end(), batch.begin(), batch.end());
    EXPECT_EQ(read, epoch_of(make(0, 1), 1));
  }
}

TEST(LibtorchDataLoader, ResumesInALoopOverItsEpochs) {
  const GlobalBatchSampler sampler(50, 0, 1, {.global_batch = 6, .seed = 2});
  for (const std::int64_t consumed : {0, 18, 50}) {
    libtorch::DataLoader loader(numbers(50), GlobalBatchSampler(50, 0, 1, {.global_batch = 6, .seed = 2}));
    EXPECT_EQ(loader.epoch(), 0);
    SamplerState place = loader.state();
    place.epoch = 1;
    place.consumed = consumed;
    loader.resume(place);
    for (std::int64_t epoch = loader.epoch(); epoch < 3; ++epoch) {
      loader.set_epoch(epoch);
      Samples wanted = epoch_of(sampler, epoch);
      if (epoch == 1) wanted.erase(wanted.begin(), wanted.begin() + consumed);
      EXPECT_EQ(take(loader), wanted) << consumed;
      EXPECT_EQ(loader.epoch(), epoch);
    }
    EXPECT_EQ(loader.state().epoch, 2);
    loader.end_when([] { return true; });
    loader.set_epoch(7);
    EXPECT_EQ(loader.state().epoch, 2);
  }
}

// Its copies, one in each worker, share what the test releases.
struct Hanging : ::torch::data::datasets::Dataset<Hanging> {
  ::torch::data::Example<> get(std::size_t) override {
    released->wait();
    return {::torch::zeros({1}), ::torch::zeros({1})};
  }
  c10::optional<std::size_t> size() const override { return 4; }
  std::shared_ptr<std::latch> released = std::make_shared<std::latch>(1);
};

TEST(LibtorchDataLoader, AReaderThatHangsIsLeftBehindWithItsDataset) {
  const auto released = std::make_shared<std::latch>(1);
  const std::weak_ptr<std::latch> in_use = released;
  std::promise<bool> told;
  std::thread program([&told, released] {
    Hanging dataset;
    dataset.released = released;
    try {
      libtorch::DataLoader loader(dataset.map(::torch::data::transforms::Stack<>()),
                                  GlobalBatchSampler(4, 0, 1, {.global_batch = 2}),
                                  ::torch::data::DataLoaderOptions().workers(1).timeout(std::chrono::milliseconds(20)));
      loader.begin();
      told.set_value(false);
    } catch (const std::exception&) {
      told.set_value(true);
    }
  });
  auto was_told = told.get_future();
  const bool is_there = was_told.wait_for(kPatience) == std::future_status::ready;
  EXPECT_TRUE(is_there && was_told.get()) << "the program waits for the reader";
  released->count_down();
  program.join();
  EXPECT_TRUE(wait_until([&] { return in_use.use_count() == 1; })) << "the last reader lets go of it";
}

TEST(LibtorchDataLoader, EndsWithTheTrainingAndKeepsItsPlace) {
  for (const std::size_t workers : {0, 3}) {
    GlobalBatchSampler sampler(50, 0, 1, {.global_batch = 6, .seed = 2});
    libtorch::DataLoader loader(numbers(50), sampler, ::torch::data::DataLoaderOptions().workers(workers));
    bool is_over = false;
    loader.end_when([&] { return is_over; });
    take(loader);
    int seen = 0;
    for ([[maybe_unused]] auto& batch : loader) is_over = ++seen == 3;
    EXPECT_EQ(seen, 3);
    const SamplerState place = sampler.state();
    EXPECT_EQ(place.epoch, 1);
    EXPECT_EQ(place.consumed, 18);
    for ([[maybe_unused]] auto& batch : loader) FAIL() << "a pass behind the end";
    EXPECT_EQ(sampler.state(), place);
    is_over = false;
    EXPECT_EQ(take(loader), epoch_of(GlobalBatchSampler(50, 0, 1, {.global_batch = 6, .seed = 2}), 2));
  }
}

// Throws at one sample.
struct Broken : ::torch::data::datasets::Dataset<Broken, ::torch::data::TensorExample> {
  ::torch::data::TensorExample get(std::size_t index) override {
    if (index == 4) throw std::runtime_error("sample 4 is broken");
    return at::scalar_tensor(static_cast<std::int64_t>(index), at::kLong);
  }
  ::torch::optional<std::size_t> size() const override { return 8; }
};

TEST(LibtorchDataLoader, LeavesAnErrorOfTheDatasetBehind) {
  for (const std::size_t workers : {0, 2}) {
    GlobalBatchSampler sampler(8, 0, 1, {.global_batch = 2, .shuffle = false});
    libtorch::DataLoader loader(Broken(), sampler, ::torch::data::DataLoaderOptions().workers(workers));
    for (int epoch = 0; epoch < 2; ++epoch) {
      int batches = 0;
      expect_text(outcome_of([&] {
                    for (auto& batch : loader) {
                      EXPECT_EQ(batch.size(), 2u);
                      ++batches;
                    }
                  }),
                  {"sample 4 is broken"});
      EXPECT_EQ(batches, 2);
      EXPECT_EQ(sampler.state().consumed, 6);
      EXPECT_EQ(sampler.state().epoch, epoch);
    }
  }
}

TEST(LibtorchDataLoader, RefusesOptionsThatWouldPartTheRanks) {
  const GlobalBatchSampler sampler(10, 0, 2, {.global_batch = 4});
  const auto refusal = [&](const ::torch::data::DataLoaderOptions& options) {
    return outcome_of([&] { libtorch::DataLoader(numbers(10), sampler, options); });
  };
  expect_text(refusal(::torch::data::DataLoaderOptions().drop_last(true)), {"InvalidArgument", "drop_last"});
  expect_text(refusal(::torch::data::DataLoaderOptions().enforce_ordering(false)),
              {"InvalidArgument", "enforce_ordering is"});
}

TEST(LibtorchDataDivergence, IsNamed) {
  for (const bool by_loader : {false, true}) {
    run_torch_ranks(3, [&](const Group& group) {
      Net net;
      libtorch::DistributedDataParallel ddp(net, group);
      const auto watch = [&](GlobalBatchSampler sampler) {
        libtorch::DataLoader loader(numbers(20), sampler);
        by_loader ? ddp.watch(loader) : ddp.watch(sampler);
        for (auto& batch : loader) ddp(rows(group->rank(), batch.data.size(0))).sum().backward();
      };
      expect_text(outcome_of([&] {
                    watch({20, (group->rank() + 1) % 3, 3, {.global_batch = 9}});
                  }),
                  {"InvalidArgument", "reads for rank", "of 3, but this is rank"});
      const std::uint64_t seed = group->rank() == 2 ? 6 : 5;
      expect_text(outcome_of([&] {
                    watch({20, *group, {.global_batch = 9, .seed = seed}});
                  }),
                  {"Mismatch", "the ranks read different data in step 0: seed: ranks 0 and 1 have 5; rank 2 has 6."});
    });
  }
}

}  // namespace
}  // namespace lockstep::testing::data_test
