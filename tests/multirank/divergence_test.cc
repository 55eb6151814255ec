// Replicas that come apart: every rank hears of it in the next step, or at the next digest, and nobody trains on.
#include <gtest/gtest.h>

#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/base/cause.h"
#include "runtime/base/error.h"
#include "runtime/nn/nn.h"
#include "runtime/optim/adamw.h"
#include "runtime/optim/sgd.h"
#include "runtime/train/distributed_data_parallel.h"
#include "runtime/train/weights.h"
#include "tests/support/rank_threads.h"

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

// What each rank was told, by rank.
std::vector<std::string> mismatches(int ranks, const std::function<void(const Group&)>& train) {
  std::mutex mutex;
  std::vector<std::string> texts(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](const Group& group) {
    try {
      train(group);
      ADD_FAILURE() << "rank " << group->rank() << " has trained on";
    } catch (const Mismatch& error) {
      const std::scoped_lock lock(mutex);
      texts[static_cast<std::size_t>(group->rank())] = error.what();
      ASSERT_NE(error.cause(), nullptr);
      EXPECT_EQ(error.cause()->kind, Cause::Kind::mismatch);
    }
  });
  return texts;
}

void backward(DistributedDataParallel& ddp, std::int64_t rows = 3) {
  const Tensor x = Tensor::full({rows, 5}, 0.5f + static_cast<float>(ddp.group()->rank()));
  ddp.backward(nn::mse_loss(ddp(x), Tensor::zeros({rows, 2})));
}

TEST(Divergence, AnOptimizersStepThatThrewOnOneRankAndWasCaughtIsFoundInTheNextStep) {
  for (const std::size_t parameter : {0, 2}) {
    const auto texts = mismatches(3, [&](const Group& group) {
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
    const std::string first = parameter == 0 ? "'0.weight'" : "'2.weight'";
    for (const std::string& text : texts) {
      EXPECT_EQ(text, texts[0]);
      for (const char* part : {"they came apart before step 4", first.c_str(), "rank 1 differs from the others"}) {
        EXPECT_NE(text.find(part), std::string::npos) << text;
      }
    }
  }
}

TEST(Divergence, WeightsThatAreWrittenThroughAPointerAreFoundByTheDigest) {
  const auto texts = mismatches(2, [](const Group& group) {
    nn::Sequential model = make_model();
    DistributedDataParallel ddp(model, group, {.compare_every = 4});
    optim::AdamW optimizer(ddp.parameters());
    for (int step = 0; step < 20; ++step) {
      backward(ddp);
      optimizer.step();
      if (step == 5 && group->rank() == 1) ddp.parameters()[3].data<float>()[1] += 1e-6f;
    }
  });
  for (const std::string& text : texts) {
    EXPECT_NE(text.find("they came apart between step 4 and step 8"), std::string::npos) << text;
  }
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
