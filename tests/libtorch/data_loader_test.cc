// SPDX-License-Identifier: Apache-2.0
// lockstep::libtorch::DataLoader: as many batches on every rank, where a run goes on, and training on it.
#include "lockstep/libtorch/data_loader.h"

#include <future>
#include <latch>
#include <mutex>
#include <set>
#include <thread>

#include "tests/libtorch/samplers.h"
#include "tests/libtorch/small_net.h"
#include "tests/support/wait_until.h"

namespace lockstep::testing::data_loader_test {
namespace {

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
  std::vector<std::int64_t> sizes;
  for (auto& batch : loader) sizes.push_back(batch.data.size(0));
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{4, 4, 2}));
  expect_text(outcome_of([] { DistributedSampler(20, 0, 2, {.rows_per_rank = -4}); }), {"rows_per_rank is -4"});
}

TEST(LibtorchDataLoader, HasAsManyBatchesOnEveryRank) {
  for (const std::size_t workers : {0, 2}) {
    const auto options = ::torch::data::DataLoaderOptions().workers(workers);
    for (int world = 1; world <= 5; ++world) {
      std::vector<Samples> sizes;
      std::multiset<std::int64_t> seen;
      for (int rank = 0; rank < world; ++rank) {
        libtorch::DataLoader loader(numbers(18), GlobalBatchSampler(18, rank, world, {.global_batch = 8}), options);
        EXPECT_EQ(loader.num_batches(), 3u);
        for (int epoch = 0; epoch < 2; ++epoch) {
          Samples of_epoch;
          for (auto& batch : loader) {
            of_epoch.push_back(batch.data.size(0));
            for (std::int64_t i = 0; i < batch.data.size(0); ++i) seen.insert(batch.data[i].item<std::int64_t>());
          }
          sizes.push_back(of_epoch);
        }
      }
      for (const Samples& of_epoch : sizes) ASSERT_EQ(of_epoch.size(), 3u) << world;
      ASSERT_EQ(seen.size(), 36u);
      for (std::int64_t i = 0; i < 18; ++i) ASSERT_EQ(seen.count(i), 2u);
      if (world == 5) {
        EXPECT_EQ(sizes.back(), (Samples{0, 0, 0})) << "8 over 5 is 2, 2, 2, 2 and none";
      }
    }
  }
}

TEST(LibtorchDataLoader, HandsAnExactDealOutInAsManyBatchesToo) {
  for (int rank = 0; rank < 4; ++rank) {
    libtorch::DataLoader loader(numbers(9), DistributedSampler(9, rank, 4, {.uneven = Uneven::exact}),
                                ::torch::data::DataLoaderOptions(1));
    Samples sizes;
    for (auto& batch : loader) sizes.push_back(batch.data.size(0));
    EXPECT_EQ(sizes, (Samples{1, 1, rank == 0 ? 1 : 0}));
  }
}

// With workers, which draw ahead of what the program has got; at another world size; loops that are left early.
TEST(LibtorchDataLoader, GoesOnBehindWhatWasHandedOut) {
  Samples whole = epoch_of(GlobalBatchSampler(50, 0, 1, {.global_batch = 6, .seed = 2}), 1);
  for (const std::size_t workers : {0, 3}) {
    const auto options = ::torch::data::DataLoaderOptions().workers(workers);
    GlobalBatchSampler first(50, 0, 1, {.global_batch = 6, .seed = 2});
    SamplerState place;
    Samples read;
    {
      libtorch::DataLoader loader(numbers(50), first, options);
      take(loader);
      EXPECT_EQ(first.state(), (SamplerState{.length = 50, .seed = 2, .order = kShuffled, .epoch = 0, .consumed = 50}));
      read = take(loader, 3);
      place = first.state();
      EXPECT_EQ(place, (SamplerState{.length = 50, .seed = 2, .order = kShuffled, .epoch = 1, .consumed = 18}));
      const Samples next = take(loader);
      EXPECT_EQ(next, epoch_of(GlobalBatchSampler(50, 0, 1, {.global_batch = 6, .seed = 2}), 2))
          << "behind one left early";
    }
    std::vector<Samples> batches(6);
    for (int rank = 0; rank < 2; ++rank) {
      GlobalBatchSampler sampler(50, rank, 2, {.global_batch = 6, .seed = 2});
      libtorch::DataLoader loader(numbers(50), sampler, options);
      sampler.resume(place);
      EXPECT_EQ(loader.num_batches(), 9u) << "of a whole epoch, for a schedule";
      EXPECT_EQ(loader.batches_in_pass(), 6u);
      std::size_t index = 0;
      for (auto& batch : loader) {
        for (std::int64_t i = 0; i < batch.data.size(0); ++i) {
          batches.at(index).push_back(batch.data[i].item<std::int64_t>());
        }
        ++index;
      }
    }
    for (const Samples& batch : batches) read.insert(read.end(), batch.begin(), batch.end());
    EXPECT_EQ(read, whole);
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
    Samples wanted = epoch_of(sampler, 1);
    wanted.erase(wanted.begin(), wanted.begin() + consumed);
    for (const std::int64_t sample : epoch_of(sampler, 2)) wanted.push_back(sample);
    Samples read;
    int passes = 0;
    for (std::int64_t epoch = loader.epoch(); epoch < 3; ++epoch, ++passes) {
      loader.set_epoch(epoch);
      for (const std::int64_t sample : take(loader)) read.push_back(sample);
      EXPECT_EQ(loader.epoch(), epoch);
    }
    EXPECT_EQ(read, wanted) << consumed;
    EXPECT_EQ(passes, 2);
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
  expect_text(outcome_of([&] {
                libtorch::DataLoader(numbers(10), sampler, ::torch::data::DataLoaderOptions().drop_last(true));
              }),
              {"InvalidArgument", "drop_last"});
  expect_text(outcome_of([&] {
                libtorch::DataLoader(numbers(10), sampler, ::torch::data::DataLoaderOptions().enforce_ordering(false));
              }),
              {"InvalidArgument", "enforce_ordering"});
}

// Two epochs of 20 rows in batches of 9, the last of 2: with three ranks one has no rows then.
Tensors train(const Group& group, std::int64_t* empty_batches = nullptr) {
  const at::Tensor x = random_tensor({20, 4}, 7);
  const at::Tensor y = random_classes({20}, 3, 8);
  struct Rows : ::torch::data::datasets::Dataset<Rows> {
    Rows(at::Tensor the_x, at::Tensor the_y) : x(std::move(the_x)), y(std::move(the_y)) {}
    ::torch::data::Example<> get(std::size_t index) override {
      return {x[static_cast<std::int64_t>(index)], y[static_cast<std::int64_t>(index)]};
    }
    ::torch::optional<std::size_t> size() const override { return 20; }
    at::Tensor x, y;
  };
  Net net;
  initialize(net, 1);
  libtorch::DistributedDataParallel ddp(net, group);
  ::torch::optim::SGD optimizer(net.parameters(), ::torch::optim::SGDOptions(0.1).momentum(0.9));
  GlobalBatchSampler sampler(20, *group, {.global_batch = 9, .seed = 5});
  libtorch::DataLoader loader(Rows(x, y).map(::torch::data::transforms::Stack<>()), sampler);
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (auto& batch : loader) {
      optimizer.zero_grad();
      ::torch::cross_entropy_loss(ddp(batch.data), batch.target).backward();
      optimizer.step();
      if (empty_batches && batch.data.size(0) == 0) ++*empty_batches;
    }
  }
  EXPECT_EQ(ddp.steps(), 6);
  return weights_of(net);
}

TEST(LibtorchDataLoader, TrainsAsOneProcessDoesWhereARankHasNoRows) {
  Tensors alone;
  run_torch_ranks(1, [&](const Group& group) { alone = train(group); });
  for (const int world : {2, 3}) {
    std::mutex mutex;
    std::int64_t empty_batches = 0;
    run_torch_ranks(world, [&](const Group& group) {
      std::int64_t own = 0;
      const Tensors weights = train(group, &own);
      const std::lock_guard lock(mutex);
      empty_batches += own;
      expect_close(weights, alone, "world " + std::to_string(world));
    });
    EXPECT_EQ(empty_batches, world == 3 ? 2 : 0);
  }
}

TEST(LibtorchDataDivergence, ASamplerOfAnotherRankIsRefused) {
  run_torch_ranks(2, [](const Group& group) {
    Net net;
    libtorch::DistributedDataParallel ddp(net, group);
    DistributedSampler sampler(20, 0, 1);
    expect_text(outcome_of([&] { ddp.watch(sampler); }),
                {"InvalidArgument", "reads for rank 0 of 1, but this is rank"});
    GlobalBatchSampler other(20, 1 - group->rank(), 2, {.global_batch = 9});
    libtorch::DataLoader loader(numbers(20), other);
    expect_text(outcome_of([&] { ddp.watch(loader); }), {"InvalidArgument", "reads for rank"});
  });
}

TEST(LibtorchDataDivergence, NamesWhatDiffersAndWhere) {
  for (const bool by_loader : {false, true}) {
    run_torch_ranks(3, [&](const Group& group) {
      Net net;
      libtorch::DistributedDataParallel ddp(net, group);
      const std::uint64_t seed = group->rank() == 2 ? 6 : 5;
      GlobalBatchSampler sampler(20, *group, {.global_batch = 9, .seed = seed});
      libtorch::DataLoader loader(numbers(20), sampler);
      by_loader ? ddp.watch(loader) : ddp.watch(sampler);
      expect_text(outcome_of([&] {
                    for (auto& batch : loader) ddp(rows(group->rank(), batch.data.size(0))).sum().backward();
                  }),
                  {"Mismatch", "the ranks read different data in step 0: seed: ranks 0 and 1 have 5; rank 2 has 6."});
    });
  }
}

}  // namespace
}  // namespace lockstep::testing::data_loader_test
