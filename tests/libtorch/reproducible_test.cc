// SPDX-License-Identifier: Apache-2.0
// lockstep::libtorch::DistributedDataParallel with fixed micro-batches: what is torch's in it; the rest is in
// tests/multirank/reproducible_contract.h. Without what is random: ranks that are threads share torch's generator.
// Processes have dropout: tests/examples.
#include <functional>

#include "lockstep/data/sampler.h"
#include "lockstep/libtorch/sync_batch_norm.h"
#include "tests/libtorch/common.h"

namespace lockstep::testing::reproducible_test {
namespace {

namespace nn = ::torch::nn;
using libtorch::DistributedDataParallel;

constexpr int kMicroBatches = 8;
constexpr std::int64_t kRowsOfStep = 20;  // micro-batches of 3 rows, the seventh of 2, the eighth empty

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

// The weights after each step, and the losses.
using Record = std::vector<std::pair<double, Tensors>>;

bool same_bits(const Record& a, const Record& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& one, const auto& other) {
    return one.first == other.first && testing::same_bits(one.second, other.second);
  });
}

libtorch::DdpOptions fixed(int micro_batches, std::int64_t global_batch) {
  libtorch::DdpOptions options;
  options.reproducible = {.micro_batches = micro_batches, .global_batch = global_batch};
  return options;
}

Record record_of(int ranks) {
  Record record;
  run_torch_ranks(ranks, [&](const Group& group) {
    Cnn model;
    initialize(*model, 4);
    libtorch::DdpOptions options = fixed(kMicroBatches, kRowsOfStep);
    options.weight_outputs = true;
    DistributedDataParallel ddp(model, group, options);
    ::torch::optim::Adam optimizer(ddp.parameters(), ::torch::optim::AdamOptions(0.01));
    const data::RowRange own =
        data::rows_in_micro_batches(kRowsOfStep, kRowsOfStep, kMicroBatches, group->rank(), ranks);
    while (ddp.steps() < 8) {
      const auto seed = static_cast<std::uint64_t>(2 * ddp.steps());
      const at::Tensor x = random_tensor({kRowsOfStep, 1, 6, 6}, seed), y = random_classes({kRowsOfStep}, 3, seed + 1);
      optimizer.zero_grad();
      ddp.backward(own.count, [&](std::int64_t begin, std::int64_t end) {
        return at::cross_entropy_loss(ddp(x.slice(0, own.begin + begin, own.begin + end)),
                                      y.slice(0, own.begin + begin, own.begin + end));
      });
      optimizer.step();
      if (group->rank() == 0) record.emplace_back(ddp.last_loss().value(), weights_of(*model));
    }
  });
  return record;
}

TEST(Reproducible, WeighedOutputsHaveTheSameBits) {
  const Record alone = record_of(1);
  for (const int ranks : {2, 3, 8}) EXPECT_TRUE(same_bits(record_of(ranks), alone)) << ranks << " ranks";
}

// A step of 4 rows of ones in two micro-batches, and what it throws.
std::string outcome_for(const std::function<nn::Sequential()>& make, int ranks = 1) {
  return outcome_of([&] {
    run_torch_ranks(ranks, [&](const Group& group) {
      nn::Sequential module = make();
      DistributedDataParallel ddp(module, group, fixed(2, 4));
      ddp.backward(4 / ranks, [&](std::int64_t begin, std::int64_t end) {
        return ddp(at::ones({end - begin, 3})).sum();
      });
      EXPECT_EQ(ddp.last_weight(), 4);
    });
  });
}

TEST(Reproducible, WhatComputesWithOtherRowsIsRefusedByName) {
  expect_text(
      outcome_for([] { return nn::Sequential(nn::Linear(3, 4), libtorch::SyncBatchNorm(4)); }),
      {"InvalidArgument: ", "'1' is a SyncBatchNorm, which computes with the rows that all ranks have at once"});
}

TEST(Reproducible, ABackwardOfItsOwnIsRefused) {
  run_torch_ranks(1, [&](const Group& group) {
    nn::Sequential linear(nn::Linear(3, 4));
    DistributedDataParallel ddp(linear, group, fixed(2, 4));
    expect_text(outcome_of([&] {
                  ddp(at::ones({4, 3})).sum().backward();
                }),
                {"InvalidArgument: ", "the program called backward() itself in step 0 of 2 fixed micro-batches"});
  });
}

}  // namespace
}  // namespace lockstep::testing::reproducible_test
