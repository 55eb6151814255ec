// Replicas that come apart: every rank hears of it in the next step, or at the next digest, and nobody trains on.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/base/cause.h"
#include "lockstep/base/error.h"
#include "lockstep/nn/nn.h"
#include "lockstep/optim/adamw.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/train/distributed_data_parallel.h"
#include "lockstep/train/weights.h"
#include "tests/support/error_of.h"
#include "tests/support/rank_threads.h"
#include "tests/support/thrown_on.h"

namespace lockstep::testing {
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
      if (step == 4) load_weights(file, model, group);
      // The same, and on one rank more often.
      if (step == 6 && group->rank() == 2) ddp.parameters()[0].copy_from(ddp.parameters()[0].clone());
      backward(ddp);
      optimizer.step();
    }
    EXPECT_EQ(ddp.step(), 10);
  });
  std::filesystem::remove(file);
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
}  // namespace lockstep::testing
