// SPDX-License-Identifier: Apache-2.0
// Samples for torch::data: what each rank gets, where a run goes on, and training on it.
#include "lockstep/libtorch/samplers.h"

#include <mutex>
#include <set>
#include <sstream>

#include "lockstep/libtorch/data_loader.h"
#include "tests/libtorch/small_net.h"

namespace lockstep::testing {
namespace {

using data::EpochOrder;
using data::SamplerState;
using libtorch::BatchShardSampler;
using libtorch::DistributedSampler;
using libtorch::ShardSampler;
using libtorch::Uneven;
using Samples = std::vector<std::int64_t>;
const std::uint64_t kShuffled = EpochOrder::shuffled(1, 0).digest();

Samples all_of(ShardSampler& sampler, std::size_t batch_size) {
  Samples seen;
  while (const auto batch = sampler.next(batch_size)) {
    EXPECT_GT(batch->size(), 0u);
    seen.insert(seen.end(), batch->begin(), batch->end());
  }
  return seen;
}

Samples epoch_of(ShardSampler sampler, std::int64_t epoch, std::size_t batch_size = 2) {
  sampler.set_epoch(epoch);
  sampler.reset();
  return all_of(sampler, batch_size);
}

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
    return epoch_of(DistributedSampler(libtorch::randperm_order(length, seed), rank, world, uneven), epoch);
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

TEST(DistributedSampler, TakesEveryOrder) {
  const Samples odd{1, 3, 5, 7, 9, 11, 13};
  std::multiset<std::int64_t> seen;
  for (int rank = 0; rank < 3; ++rank) {
    const Samples own = epoch_of(DistributedSampler(EpochOrder::shuffled(7, 4).within(odd), rank, 3, Uneven::exact), 6);
    seen.insert(own.begin(), own.end());
  }
  EXPECT_EQ(Samples(seen.begin(), seen.end()), odd);
  DistributedSampler sampler(EpochOrder::shuffled(7, 4).within(odd), 0, 3);
  expect_says(error_of([&] { sampler.reset(8); }), {"InvalidArgument", "8 samples, of an order of 7"});
}

TEST(BatchShardSampler, GivesTheGlobalBatchInTheSharesOfChunk) {
  BatchShardSampler alone(100, 0, 1, {.batch = 64, .seed = 1});
  alone.reset();
  const auto whole = *alone.next(1);
  ASSERT_EQ(whole.size(), 64u);
  std::vector<std::size_t> joined, sizes;
  for (int rank = 0; rank < 3; ++rank) {
    BatchShardSampler sampler(100, rank, 3, {.batch = 64, .seed = 1});
    sampler.reset();
    const auto share = *sampler.next(1);
    sizes.push_back(share.size());
    joined.insert(joined.end(), share.begin(), share.end());
    EXPECT_EQ(sampler.num_batches(), 2u);
    EXPECT_EQ(sampler.state().consumed, 64);
  }
  EXPECT_EQ(sizes, (std::vector<std::size_t>{22, 22, 20}));
  EXPECT_EQ(joined, whole);
  EXPECT_EQ(BatchShardSampler(100, 0, 3, {.batch = 64, .drop_last = true}).num_batches(), 1u);
}

TEST(BatchShardSampler, RefusesWhatTorchsLoaderCantDo) {
  for (int rank = 0; rank < 4; ++rank) {
    BatchShardSampler sampler(66, rank, 4, {.batch = 64});
    expect_says(error_of([&] { sampler.reset(); }),
                {"InvalidArgument", "in epoch 0 a batch has 2 rows for 4 ranks", "lockstep::libtorch::DataLoader"});
    BatchShardSampler few(60, rank, 4, {.batch = 5});
    expect_says(error_of([&] { few.reset(); }), {"InvalidArgument", "has 5 rows for 4 ranks"});
    BatchShardSampler cut(66, rank, 4, {.batch = 64, .drop_last = true});
    cut.reset();
    EXPECT_EQ(all_of(cut, 1).size(), 16u);
  }
  expect_says(error_of([] { BatchShardSampler(10, 0, 2, {}); }), {"InvalidArgument", "batch is 0"});
  expect_says(error_of([] { BatchShardSampler(10, 2, 2, {.batch = 4}); }), {"InvalidArgument", "rank 2"});
  EXPECT_THROW(DistributedSampler(4, 3, 3), InvalidArgument);
  DistributedSampler sampler(10, 1, 3);
  sampler.reset();
  expect_says(error_of([&] { sampler.next(0); }), {"InvalidArgument", "batch size of 0"});
  expect_says(error_of([&] { static_cast<void>(sampler.num_batches(0)); }), {"InvalidArgument", "batch size of 0"});
}

auto numbers(std::int64_t length) {
  return ::torch::data::datasets::TensorDataset(at::arange(length))
      .map(::torch::data::transforms::Stack<::torch::data::TensorExample>());
}
using Numbers = decltype(numbers(1));

// What a loader returns in an epoch, `most` batches at most.
template <typename Loader>
Samples take(Loader& loader, std::size_t most = 100) {
  Samples seen;
  std::size_t batches = 0;
  for (auto& batch : loader) {
    for (std::int64_t i = 0; i < batch.data.size(0); ++i) seen.push_back(batch.data[i].template item<std::int64_t>());
    if (++batches == most) break;
  }
  return seen;
}

std::string saved(const ShardSampler& sampler) {
  std::stringstream file;
  ::torch::serialize::OutputArchive out;
  sampler.save(out);
  out.save_to(file);
  return file.str();
}

void load(ShardSampler& sampler, const std::string& bytes) {
  std::stringstream file(bytes);
  ::torch::serialize::InputArchive in;
  in.load_from(file);
  sampler.load(in);
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
  expect_says(error_of([&] { load(other, at_two_batches); }), {"InvalidArgument", "40 samples", "set_epoch(1)"});
}

TEST(LibtorchDataLoader, HasAsManyBatchesOnEveryRank) {
  for (const std::size_t workers : {0, 2}) {
    const auto options = ::torch::data::DataLoaderOptions().workers(workers);
    for (int world = 1; world <= 5; ++world) {
      std::vector<Samples> sizes;
      std::multiset<std::int64_t> seen;
      for (int rank = 0; rank < world; ++rank) {
        libtorch::DataLoader loader(numbers(18), BatchShardSampler(18, rank, world, {.batch = 8}), options);
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
  Samples whole = epoch_of(BatchShardSampler(50, 0, 1, {.batch = 6, .seed = 2}), 1);
  for (const std::size_t workers : {0, 3}) {
    const auto options = ::torch::data::DataLoaderOptions().workers(workers);
    BatchShardSampler first(50, 0, 1, {.batch = 6, .seed = 2});
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
      EXPECT_EQ(next, epoch_of(BatchShardSampler(50, 0, 1, {.batch = 6, .seed = 2}), 2)) << "behind one left early";
    }
    std::vector<Samples> batches(6);
    for (int rank = 0; rank < 2; ++rank) {
      BatchShardSampler sampler(50, rank, 2, {.batch = 6, .seed = 2});
      libtorch::DataLoader loader(numbers(50), sampler, options);
      sampler.resume(place);
      EXPECT_EQ(loader.num_batches(), 6u);
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
    BatchShardSampler sampler(8, 0, 1, {.batch = 2, .shuffle = false});
    libtorch::DataLoader loader(Broken(), sampler, ::torch::data::DataLoaderOptions().workers(workers));
    for (int epoch = 0; epoch < 2; ++epoch) {
      int batches = 0;
      expect_says(error_of([&] {
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
  const BatchShardSampler sampler(10, 0, 2, {.batch = 4});
  expect_says(
      error_of([&] { libtorch::DataLoader(numbers(10), sampler, ::torch::data::DataLoaderOptions().drop_last(true)); }),
      {"InvalidArgument", "drop_last"});
  expect_says(error_of([&] {
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
  BatchShardSampler sampler(20, *group, {.batch = 9, .seed = 5});
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

TEST(LibtorchDataDivergence, NamesWhatDiffersAndWhere) {
  for (const bool by_loader : {false, true}) {
    run_torch_ranks(3, [&](const Group& group) {
      Net net;
      libtorch::DistributedDataParallel ddp(net, group);
      const std::uint64_t seed = group->rank() == 2 ? 6 : 5;
      BatchShardSampler sampler(20, *group, {.batch = 9, .seed = seed});
      libtorch::DataLoader loader(numbers(20), sampler);
      by_loader ? ddp.watch(loader) : ddp.watch(sampler);
      expect_says(error_of([&] {
                    for (auto& batch : loader) ddp(rows(group->rank(), batch.data.size(0))).sum().backward();
                  }),
                  {"Mismatch", "the ranks read different data in step 0: seed: ranks 0 and 1 have 5; rank 2 has 6."});
    });
  }
}

}  // namespace
}  // namespace lockstep::testing
