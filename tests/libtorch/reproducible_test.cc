// SPDX-License-Identifier: Apache-2.0
// lockstep::libtorch::DistributedDataParallel with fixed micro-batches: the same bits at any number of ranks. Without
// what is random: ranks that are threads share torch's generator. Processes have dropout: tests/examples.
#include <set>

#include "lockstep/libtorch/samplers.h"
#include "lockstep/libtorch/snapshots.h"
#include "lockstep/libtorch/sync_batch_norm.h"
#include "runtime/base/hash.h"
#include "tests/libtorch/common.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing::reproducible_test {
namespace {

namespace nn = ::torch::nn;
using libtorch::DistributedDataParallel;

constexpr int kMicroBatches = 8;
constexpr std::int64_t kRowsOfStep = 20;  // micro-batches of 3 rows, the seventh of 2, the eighth empty
constexpr std::int64_t kLength = 50;

struct CnnImpl : nn::Module {
  nn::Conv2d first = register_module("first", nn::Conv2d(nn::Conv2dOptions(1, 8, 3).padding(1)));
  nn::GroupNorm norm = register_module("norm", nn::GroupNorm(2, 8));
  nn::Conv2d second = register_module("second", nn::Conv2d(nn::Conv2dOptions(8, 4, 3)));
  nn::Linear head = register_module("head", nn::Linear(4 * 4 * 4, 3));
  at::Tensor forward(at::Tensor x) {
    x = at::silu(norm(first(x)));
    x = at::silu(second(x));
    return head(x.flatten(1));
  }
};
TORCH_MODULE(Cnn);

struct RecurrentImpl : nn::Module {
  nn::LSTM lstm = register_module("lstm", nn::LSTM(nn::LSTMOptions(6, 10).num_layers(2).batch_first(true)));
  nn::Linear head = register_module("head", nn::Linear(10, 3));
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = std::get<0>(lstm(x.flatten(1, 2)));
    return head(y.select(1, y.size(1) - 1));
  }
};
TORCH_MODULE(Recurrent);

// [rows, 1, 6, 6]
at::Tensor inputs() {
  const at::Tensor x = at::empty({kLength, 1, 6, 6});
  Generator random(9);
  for (std::int64_t i = 0; i < x.numel(); ++i) x.data_ptr<float>()[i] = random.normal();
  return x;
}
at::Tensor targets() { return at::arange(kLength).remainder(3); }

std::uint64_t hash_of(const nn::Module& module) {
  std::uint64_t hash = 0;
  for (const at::Tensor& parameter : module.parameters()) {
    const at::Tensor dense = parameter.detach().contiguous();
    hash = hash64(dense.data_ptr(), static_cast<std::size_t>(dense.nbytes()), hash);
  }
  return hash;
}

struct Record {
  std::vector<std::uint64_t> weights;
  std::vector<double> losses;
  bool operator==(const Record&) const = default;
};

struct Settings {
  int ranks = 1;
  std::int64_t stop = 8;
  std::optional<std::string> folder = {};
  bool weight_outputs = false;
};

template <typename Net>
Record record_of(const Settings& settings) {
  Record record;
  const at::Tensor x = inputs(), y = targets();
  run_torch_ranks(settings.ranks, [&](const Group& group) {
    Net model;
    initialize(*model, 4);
    libtorch::DdpOptions options;
    options.seed = 21;
    options.weight_outputs = settings.weight_outputs;
    options.reproducible = {.micro_batches = kMicroBatches, .global_batch = kRowsOfStep};
    DistributedDataParallel ddp(model, group, options);
    ::torch::optim::Adam optimizer(ddp.parameters(), ::torch::optim::AdamOptions(0.01));
    libtorch::GlobalBatchSampler sampler(kLength, *group,
                                         {.global_batch = kRowsOfStep, .seed = 2, .micro_batches = kMicroBatches});
    sampler.hand_out_every_batch();
    std::optional<libtorch::Snapshots> snapshots;
    if (settings.folder) {
      snapshots.emplace(*settings.folder, ddp, SnapshotOptions{.every = 1});
      snapshots->add("optimizer", optimizer);
      snapshots->add("data", sampler);
      snapshots->restore();
    }
    while (ddp.steps() < settings.stop) {
      sampler.reset();
      while (ddp.steps() < settings.stop) {
        const auto batch = sampler.next(0);
        if (!batch) break;
        std::vector<std::int64_t> rows(batch->begin(), batch->end());
        if (!sampler.took_batch()) rows.clear();
        const at::Tensor ids = at::tensor(rows, at::kLong);
        optimizer.zero_grad();
        ddp.backward(ids.numel(), [&](std::int64_t begin, std::int64_t end) {
          const at::Tensor mine = ids.slice(0, begin, end);
          return at::cross_entropy_loss(ddp(x.index_select(0, mine)), y.index_select(0, mine));
        });
        optimizer.step();
        if (group->rank() == 0) {
          record.weights.push_back(hash_of(*model));
          record.losses.push_back(ddp.last_loss().value());
        }
        if (snapshots) {
          snapshots->step();
          snapshots->wait();
        }
      }
    }
  });
  return record;
}

template <typename Net>
void expect_same_bits() {
  const Record alone = record_of<Net>({.ranks = 1});
  ASSERT_EQ(alone.weights.size(), 8u);
  EXPECT_EQ(std::set<std::uint64_t>(alone.weights.begin(), alone.weights.end()).size(), 8u);
  for (const int ranks : {2, 3, 5, 8}) EXPECT_EQ(record_of<Net>({.ranks = ranks}), alone) << ranks << " ranks";
}

TEST(Reproducible, ACnnWithGroupNormHasTheSameBitsAtAnyNumberOfRanks) { expect_same_bits<Cnn>(); }
TEST(Reproducible, AnLstmHasTheSameBitsAtAnyNumberOfRanks) { expect_same_bits<Recurrent>(); }

TEST(Reproducible, WeighedOutputsHaveTheSameBits) {
  const Record alone = record_of<Cnn>({.ranks = 1, .weight_outputs = true});
  for (const int ranks : {2, 3}) {
    EXPECT_EQ(record_of<Cnn>({.ranks = ranks, .weight_outputs = true}), alone) << ranks;
  }
}

TEST(Reproducible, ARunThatGoesOnAtOtherNumbersOfRanksHasTheSameBits) {
  using Net = Cnn;
  const Record undisturbed = record_of<Net>({.ranks = 1, .stop = 12});
  const TemporaryFolder folder;
  std::vector<std::uint64_t> weights;
  for (const auto& [ranks, stop] : std::vector<std::pair<int, std::int64_t>>{{4, 5}, {3, 8}, {1, 9}, {2, 12}}) {
    const Record part = record_of<Net>({.ranks = ranks, .stop = stop, .folder = folder.string()});
    weights.insert(weights.end(), part.weights.begin(), part.weights.end());
  }
  EXPECT_EQ(weights, undisturbed.weights);
}

template <typename Net>
std::string refusal(const Net& module, const std::function<void(DistributedDataParallel<nn::SequentialImpl>&)>& body) {
  return error_of<InvalidArgument>([&] {
    run_torch_ranks(1, [&](const Group& group) {
      libtorch::DdpOptions options;
      options.reproducible = {.micro_batches = 2, .global_batch = 4};
      DistributedDataParallel ddp(module, group, options);
      body(ddp);
    });
  });
}

TEST(Reproducible, RunningStatisticsAreRefusedByName) {
  const nn::Sequential norm(nn::Linear(3, 4), nn::BatchNorm1d(4));
  const std::string told = refusal(norm, [](auto& ddp) {
    ddp.backward(4, [&](std::int64_t begin, std::int64_t end) { return ddp(at::ones({end - begin, 3})).sum(); });
  });
  EXPECT_NE(told.find("wrote the buffer '1.num_batches_tracked' (running statistics?)"), std::string::npos) << told;
}

TEST(Reproducible, AForwardOfOtherRowsThanItsShardIsRefused) {
  const nn::Sequential linear(nn::Linear(3, 4));
  const std::string told = refusal(linear, [](auto& ddp) {
    ddp.backward(4, [&](std::int64_t, std::int64_t) { return ddp(at::ones({4, 3})).sum(); });
  });
  EXPECT_NE(told.find("the forward of fixed micro-batch 0 had 4 rows, but the micro-batch is rows 0 to 2"),
            std::string::npos)
      << told;
}

TEST(Reproducible, AWeightForAllShardsTogetherIsRefused) {
  const nn::Sequential linear(nn::Linear(3, 4));
  const std::string told = refusal(linear, [](auto& ddp) {
    ddp.set_weight(4);
    ddp.backward(4, [&](std::int64_t begin, std::int64_t end) { return ddp(at::ones({end - begin, 3})).sum(); });
  });
  EXPECT_NE(told.find("set_weight(4) was called before step 0 of 2 fixed micro-batches"), std::string::npos) << told;
}

TEST(Reproducible, WeightsThatAreRowsByChanceAreTheProgramsOwnToo) {
  run_torch_ranks(2, [&](const Group& group) {
    const nn::Sequential linear(nn::Linear(3, 4));
    libtorch::DdpOptions options;
    options.reproducible = {.micro_batches = 2, .global_batch = 4};
    DistributedDataParallel ddp(linear, group, options);
    ddp.backward(2, [&](std::int64_t begin, std::int64_t end) {
      const at::Tensor loss = ddp(at::ones({end - begin, 3})).mean();
      ddp.set_weight(group->rank() == 0 ? 2 : 1);
      return loss;
    });
    EXPECT_EQ(ddp.last_weight(), 3);
  });
}

// As in most programs of LibTorch's examples.
TEST(Reproducible, AModuleOfTheStackTrains) {
  struct OnStack : nn::Module {
    nn::Linear linear = register_module("linear", nn::Linear(3, 4));
    at::Tensor forward(const at::Tensor& x) { return linear->forward(x); }
  };
  run_torch_ranks(2, [&](const Group& group) {
    OnStack net;
    libtorch::DdpOptions options;
    options.reproducible = {.micro_batches = 2, .global_batch = 4};
    DistributedDataParallel ddp(net, group, options);
    ddp.backward(2, [&](std::int64_t begin, std::int64_t end) { return ddp(at::ones({end - begin, 3})).mean(); });
    EXPECT_EQ(ddp.last_weight(), 4);
  });
}

TEST(Reproducible, WhatALossThrowsIsToldToAll) {
  run_torch_ranks(2, [&](const Group& group) {
    const nn::Sequential linear(nn::Linear(3, 4));
    libtorch::DdpOptions options;
    options.reproducible = {.micro_batches = 4, .global_batch = 4};
    DistributedDataParallel ddp(linear, group, options);
    const auto train = [&] {
      ddp.backward(2, [&](std::int64_t begin, std::int64_t end) {
        if (group->rank() == 1 && begin == 1) throw std::runtime_error("no such label");
        return ddp(at::ones({end - begin, 3})).mean();
      });
    };
    if (group->rank() == 1) {
      EXPECT_EQ(error_of<std::runtime_error>(train), "no such label");
    } else {
      const std::string told = error_of<Error>(train);
      EXPECT_NE(told.find("rank 1"), std::string::npos) << told;
      EXPECT_NE(told.find("failed in the backward of step 0: no such label"), std::string::npos) << told;
    }
  });
}

TEST(Reproducible, BatchStatisticsOfAShardAreNot) {
  run_torch_ranks(2, [&](const Group& group) {
    const nn::Sequential norm(nn::Linear(3, 4), nn::BatchNorm1d(nn::BatchNormOptions(4).track_running_stats(false)));
    libtorch::DdpOptions options;
    options.reproducible = {.micro_batches = 2, .global_batch = 4};
    DistributedDataParallel ddp(norm, group, options);
    ddp.backward(2, [&](std::int64_t begin, std::int64_t end) { return ddp(at::ones({end - begin, 3})).sum(); });
    EXPECT_EQ(ddp.last_weight(), 4);
  });
}

TEST(Reproducible, ASyncBatchNormIsRefusedByName) {
  run_torch_ranks(1, [&](const Group& group) {
    nn::Sequential norm(nn::Linear(3, 4), libtorch::SyncBatchNorm(4));
    libtorch::DdpOptions options;
    options.reproducible = {.micro_batches = 2, .global_batch = 4};
    const std::string told = error_of<InvalidArgument>([&] { DistributedDataParallel(norm, group, options); });
    EXPECT_NE(told.find("'1' is a SyncBatchNorm, which computes with the rows that all ranks have at once"),
              std::string::npos)
        << told;
  });
}

TEST(Reproducible, ABackwardOfItsOwnIsRefused) {
  const nn::Sequential linear(nn::Linear(3, 4));
  const std::string told = refusal(linear, [](auto& ddp) { ddp(at::ones({4, 3})).sum().backward(); });
  EXPECT_NE(told.find("the program called backward() itself in step 0 of 2 fixed micro-batches"), std::string::npos)
      << told;
}

TEST(Reproducible, WithoutShardsTheSameLoopIsOneBackward) {
  run_torch_ranks(2, [&](const Group& group) {
    nn::Sequential linear(nn::Linear(3, 4));
    DistributedDataParallel ddp(linear, group);
    int calls = 0;
    ddp.backward(group->rank() == 0 ? 3 : 2, [&](std::int64_t begin, std::int64_t end) {
      ++calls;
      return ddp(at::ones({end - begin, 3})).mean();
    });
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(ddp.last_weight(), 5);
  });
}

}  // namespace
}  // namespace lockstep::testing::reproducible_test
