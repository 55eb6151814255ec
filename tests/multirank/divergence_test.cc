// SPDX-License-Identifier: Apache-2.0
// Replicas that come apart: every rank hears of it in the next step, or at the next digest, and nobody trains on.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/data/tensor/batch.h"
#include "lockstep/job/cause.h"
#include "lockstep/nn/nn.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/train/distributed_data_parallel.h"
#include "lockstep/train/weights.h"
#include "runtime/ddp/equality/data_check.h"
#include "tests/support/error_of.h"
#include "tests/support/rank_threads.h"
#include "tests/support/thrown_on.h"

namespace lockstep::testing::divergence_test {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

nn::Sequential make_model() {
  nn::Sequential model{nn::Linear(5, 4), nn::Tanh(), nn::Linear(4, 2)};
  model.initialize(3);
  return model;
}

// Fails in the middle of a step on one rank, once: the first parameters are updated, the others are not.
class FailingOnce final : public optim::Optimizer {
 public:
  FailingOnce(std::vector<Tensor> parameters, std::int64_t step, std::size_t parameter)
      : Optimizer({{std::move(parameters)}}, 0.1), step_(step), parameter_(parameter) {}
  std::string name() const override { return "Test"; }
  std::vector<std::pair<std::string, double>> settings() const override { return {}; }
  std::vector<optim::NamedState> state() const override { return {}; }

 private:
  void update(std::size_t index, const Tensor& parameter, const Tensor& gradient) override {
    if (steps() == step_ && index == parameter_) throw std::runtime_error("out of luck");
    for (std::int64_t i = 0; i < parameter.count(); ++i) {
      parameter.data<float>()[i] -= 0.1f * gradient.data<float>()[i];
    }
  }
  std::int64_t step_;
  std::size_t parameter_;
};

// What each rank was told, which must be the same.
std::string mismatch_of_all(int ranks, const RankBody& train) {
  const auto thrown = thrown_on(ranks, train);
  for (const auto& error : thrown) {
    expect_thrown<Mismatch>(error, {.kind = Cause::Kind::mismatch});
    EXPECT_EQ(text_of(error), text_of(thrown[0]));
  }
  return text_of(thrown[0]);
}

void backward(DistributedDataParallel& ddp, std::int64_t rows = 3) {
  const Tensor x = Tensor::full({rows, 5}, 0.5f + static_cast<float>(ddp.group()->rank()));
  ddp.backward(mse_loss(ddp(x), Tensor::zeros({rows, 2})));
}

TEST(Divergence, AnOptimizersStepThatThrewOnOneRankAndWasCaughtIsFoundInTheNextStep) {
  for (const std::size_t parameter : {0, 2}) {
    const std::string text = mismatch_of_all(3, [&](const Group& group) {
      nn::Sequential model = make_model();
      DistributedDataParallel ddp(model, group);
      FailingOnce optimizer(ddp.parameters(), group->rank() == 1 ? 4 : -1, parameter);
      for (int step = 0; step < 20; ++step) {
        backward(ddp, group->rank() == 2 ? 0 : 3);
        try {
          optimizer.step();
        } catch (const std::runtime_error& error) {
          EXPECT_STREQ(error.what(), "out of luck");
        }
      }
    });
    expect_text(text, {"they came apart before step 4", parameter == 0 ? "'0.weight'" : "'2.weight'",
                       "rank 1 differs from the others"});
  }
}

TEST(Divergence, WeightsThatAreWrittenThroughAPointerAreFoundByTheDigest) {
  const std::string text = mismatch_of_all(2, [](const Group& group) {
    nn::Sequential model = make_model();
    DistributedDataParallel ddp(model, group, {.compare_every = 4});
    optim::AdamW optimizer(ddp.parameters());
    for (int step = 0; step < 20; ++step) {
      backward(ddp);
      optimizer.step();
      if (step == 5 && group->rank() == 1) ddp.parameters()[3].data<float>()[1] += 1e-6f;
    }
  });
  expect_text(text, {"they came apart between step 4 and step 8"});
}

// Beside the parameters nothing need be equal, and rank 0 alone reads the file.
TEST(Divergence, LoadingWeightsForAllIsNone) {
  const auto file = std::filesystem::temp_directory_path() / "lockstep-divergence-test.safetensors";
  save_weights(file, make_model());
  run_ranks(3, [&](const Group& group) {
    nn::Sequential model = make_model();
    DistributedDataParallel ddp(model, group, {.compare_every = 3});
    optim::SGD optimizer(ddp.parameters(), {.lr = 0.1});
    for (int step = 0; step < 10; ++step) {
      if (step == 4) load_weights(file, model, *group);
      // The same, and on one rank more often.
      if (step == 6 && group->rank() == 2) ddp.parameters()[0].copy_from(ddp.parameters()[0].clone());
      backward(ddp);
      optimizer.step();
    }
    EXPECT_EQ(ddp.steps(), 10);
  });
  std::filesystem::remove(file);
}

// Reads an epoch, then another, with what `loader_of` makes for each rank.
template <typename LoaderOf>
void train_watched(const Group& group, const LoaderOf& loader_of) {
  nn::Sequential model = make_model();
  DistributedDataParallel ddp(model, group);
  auto loader = loader_of(group->rank());
  ddp.watch(loader);
  for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
    loader.set_epoch(epoch);
    for (const data::Batch& batch : loader) ddp.backward(mse_loss(ddp(batch.x), Tensor::zeros({batch.x.size(0), 2})));
  }
}

data::DataLoader<data::Batch> loader_of(std::int64_t length, int rank, std::uint64_t seed, std::int64_t batch_size,
                                        bool drop_last = false, int world = 3) {
  return data::DataLoader(
      data::TensorDataset(Tensor::full({length, 5}, 0.5f)),
      data::GlobalBatchSampler(length, rank, world, {.global_batch = batch_size, .seed = seed, .drop_last = drop_last}),
      {.workers = 1});
}

TEST(DataDivergence, OfSeedLengthOrBatchNamesWhatAndWho) {
  const auto text_of = [](std::int64_t length, std::uint64_t seed, std::int64_t batch_size, bool drop_last = false) {
    return mismatch_of_all(3, [&](const Group& group) {
      train_watched(group, [&](int rank) {
        return rank == 1 ? loader_of(length, rank, seed, batch_size, drop_last) : loader_of(10, rank, 1, 4);
      });
    });
  };
  expect_text(
      text_of(10, 7, 4),
      {"DistributedDataParallel: the ranks read different data in step 0: seed: ranks 0 and 2 have 1; rank 1 has "
       "7. Give the samplers of all ranks the same numbers"});
  expect_text(text_of(11, 1, 4), {"in step 0: length: ranks 0 and 2 have 10; rank 1 has 11. Give"});
  expect_text(text_of(11, 2, 4),
              {"length: ranks 0 and 2 have 10; rank 1 has 11; seed: ranks 0 and 2 have 1; rank 1 has 2"});
  expect_text(text_of(10, 1, 5), {"batch size: ranks 0 and 2 have 4; rank 1 has 5", "batches in the pass"});
  expect_text(text_of(10, 1, 4, true),
              {"in step 0: batches in the pass: ranks 0 and 2 have 3; rank 1 has 2; what becomes of a remainder: "});
}

// As on a device, where a step's note is known two steps of the same model later: by then all ranks may be in that
// model.
TEST(DataDivergence, OfModelsThatAreJudgedLateIsNotSaidOfTheData) {
  const std::string text = mismatch_of_all(2, [](const Group& group) {
    DataCheck first(group), second(group);
    (group->rank() == 0 ? first : second).digest(0);
    NotedStep noted{.step = 0};
    noted.of_all.data = 0;  // the ranks' differ
    first.judge(noted);
  });
  expect_text(
      text,
      {"the ranks averaged the gradients of different models in step 0, since the ranks stepped their models in"});
}

TEST(DataDivergence, ASamplerOfAnotherRankOrNumberOfRanksIsRefused) {
  run_ranks(2, [](const Group& group) {
    nn::Sequential model = make_model();
    DistributedDataParallel ddp(model, group);
    const auto watch = [&](int rank, int world) {
      ddp.watch(data::DataLoader(data::TensorDataset(Tensor::full({10, 5}, 0.5f)),
                                 data::GlobalBatchSampler(10, rank, world, {.global_batch = 4})));
    };
    const auto refusal_of = [&](int rank, int world) { return error_of<InvalidArgument>([&] { watch(rank, world); }); };
    expect_text(refusal_of(1 - group->rank(), 2),
                {"watch() got a sampler that reads for rank " + std::to_string(1 - group->rank()) +
                 " of 2, but this is rank " + std::to_string(group->rank()) + " of 2"});
    expect_text(refusal_of(0, 1), {"reads for rank 0 of 1"});
    EXPECT_NO_THROW(watch(group->rank(), 2));
  });
}

TEST(DataDivergence, OfTheEpochIsFoundWhereItBegins) {
  const std::string text = mismatch_of_all(2, [](const Group& group) {
    nn::Sequential model = make_model();
    DistributedDataParallel ddp(model, group);
    auto loader = loader_of(10, group->rank(), 1, 4, false, 2);
    ddp.watch(loader);
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      loader.set_epoch(group->rank() == 0 ? epoch : std::min<std::int64_t>(epoch, 1));
      for (const data::Batch& batch : loader) ddp.backward(mse_loss(ddp(batch.x), Tensor::zeros({batch.x.size(0), 2})));
    }
  });
  expect_text(text, {"in step 6: epoch: rank 0 has 2; rank 1 has 1. Give"});
}

TEST(DataDivergence, OfWhatOneRankAloneWatchesIsNamed) {
  const std::string text = mismatch_of_all(3, [](const Group& group) {
    nn::Sequential model = make_model();
    DistributedDataParallel ddp(model, group);
    if (group->rank() == 2) ddp.watch(loader_of(10, 2, 1, 4));
    backward(ddp);
  });
  expect_text(text, {"the number of values that watch() was given to compare: ranks 0 and 1 have 0; rank 2 has 9"});
}

TEST(DataDivergence, IsNoneWhereAllGoOnFromOnePlace) {
  run_ranks(3, [](const Group& group) {
    nn::Sequential model = make_model();
    DistributedDataParallel ddp(model, group);
    auto loader = loader_of(40, group->rank(), 1, 4);
    loader.resume({.length = 40, .seed = 1, .order = loader.sampler().order().digest(), .epoch = 3, .consumed = 16});
    ddp.watch(loader);
    for (const data::Batch& batch : loader) ddp.backward(mse_loss(ddp(batch.x), Tensor::zeros({batch.x.size(0), 2})));
    EXPECT_EQ(ddp.steps(), 6);
  });
}

TEST(Divergence, WhatIsWrittenToATensorCountsHoweverItIsReached) {
  const Tensor tensor = Tensor::zeros({4, 2});
  std::uint64_t before = tensor.version();
  const auto writes = [&] { return tensor.version() - std::exchange(before, tensor.version()); };
  tensor.fill(1);
  EXPECT_EQ(writes(), 1u);
  tensor.zero();
  EXPECT_EQ(writes(), 1u);
  tensor.copy_from(tensor.clone());
  EXPECT_EQ(writes(), 1u);
  tensor.view_rows(1, 2).fill(3);
  EXPECT_EQ(writes(), 1u) << "through a view";
  tensor.mark_written();
  EXPECT_EQ(writes(), 1u);
  tensor.to_vector();
  tensor.values<float>()[0] = 1;
  EXPECT_EQ(writes(), 0u);
}

}  // namespace
}  // namespace lockstep::testing::divergence_test
