// SPDX-License-Identifier: Apache-2.0
// The listings for lockstep's own engine in docs/RECIPES.md, word for word between the marks, each trained on one rank
// and on several. tests/libtorch/recipes.sh compares the page with them.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/lockstep.h"
#include "tests/multirank/compare.h"
#include "tests/support/rank_threads.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing::recipes_test {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

// The weights on 2 and 3 ranks equal those on one. Batches are uneven: of the last one a rank may have no rows.
void expect_alike(const std::string& name, const std::function<Values(const Group&)>& recipe) {
  Values alone;
  run_ranks(1, [&](const Group& group) { alone = recipe(group); });
  for (const int ranks : {2, 3}) {
    run_ranks(ranks, [&](const Group& group) {
      expect_close(recipe(group), alone, name + " on " + std::to_string(ranks) + " ranks");
    });
  }
}

// Twenty-five rows of four numbers, and two targets each.
data::TensorDataset random_dataset() {
  const Tensor x = Tensor::empty({25, 4}), y = Tensor::empty({25, 2});
  Generator random(1);
  for (float& value : x.values<float>()) value = random.normal();
  for (float& value : y.values<float>()) value = random.normal();
  return data::TensorDataset(x, y);
}

// Trains `model` for two epochs of batches of 8 rows.
template <typename Dataset>
Values train(nn::Module& model, const Dataset& dataset, const Group& group) {
  DistributedDataParallel ddp(model, group);
  optim::SGD optimizer(ddp.parameters(), {.lr = 0.1});
  data::DataLoader loader(dataset, data::GlobalBatchSampler(dataset.size(), *group, {.global_batch = 8}));
  for (int epoch = 0; epoch < 2; ++epoch) {
    loader.set_epoch(epoch);
    for (const auto& [x, y, ids] : loader) {
      ddp.backward(mse_loss(ddp(x), y));
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  return weights_of(model);
}

TEST(EngineRecipes, GradientAccumulation) {
  expect_alike("accumulation", [](const Group& group) {
    nn::Sequential model{nn::Linear(4, 8), nn::Tanh(), nn::Linear(8, 2)};
    DistributedDataParallel ddp(model, group);
    optim::SGD optimizer(ddp.parameters(), {.lr = 0.1});
    data::DataLoader loader(random_dataset(), data::GlobalBatchSampler(25, *group, {.global_batch = 8}));
    // recipe accumulation
    int batches = 0;
    for (const auto& [x, y, ids] : loader) {
      const bool is_last = ++batches % 2 == 0;
      const auto local = ddp.no_sync(!is_last);  // sends nothing
      ddp.backward(lockstep::mse_loss(ddp(x), y));
      if (!is_last) continue;
      optimizer.step();
      optimizer.zero_grad();
    }
    // end
    EXPECT_EQ(ddp.steps(), 2);
    return weights_of(model);
  });
}

TEST(EngineRecipes, Inference) {
  const TemporaryFolder folder;
  const std::string file = (folder / "model.safetensors").string();
  const Tensor input = Tensor::of({1, 4}, {0.1f, 0.2f, 0.3f, 0.4f});
  nn::Sequential trained{nn::Linear(4, 8), nn::Dropout(0.5f), nn::Linear(8, 2)};
  trained.initialize(7);  // other weights than a new model's
  save_weights(file, trained);
  // recipe inference
  lockstep::nn::Sequential model{lockstep::nn::Linear(4, 8), lockstep::nn::Dropout(0.5f), lockstep::nn::Linear(8, 2)};
  lockstep::load_weights(file, model);
  model.eval();  // no dropout
  const lockstep::NoGrad no_grad;
  const std::vector<float> scores = model(input).to_vector();
  // end
  EXPECT_EQ(weights_of(model), weights_of(trained));
  trained.eval();
  EXPECT_EQ(scores, trained(input).to_vector());
}

TEST(EngineRecipes, ParameterGroups) {
  expect_alike("decay", [](const Group& group) {
    nn::Sequential model{nn::Linear(4, 8), nn::LayerNorm(8), nn::Linear(8, 2)};
    DistributedDataParallel ddp(model, group);
    data::DataLoader loader(random_dataset(), data::GlobalBatchSampler(25, *group, {.global_batch = 8}));
    // recipe decay
    std::vector<lockstep::optim::ParameterGroup> groups{{.weight_decay = 0.1}, {.weight_decay = 0}};
    for (const lockstep::Tensor& parameter : ddp.parameters()) {
      const bool is_vector = parameter.shape().dims() < 2;  // a bias or a gain
      groups[is_vector].parameters.push_back(parameter);
    }
    lockstep::optim::SGD optimizer(groups, {.lr = 0.1});
    for (const auto& [x, y, ids] : loader) {
      ddp.backward(lockstep::mse_loss(ddp(x), y));
      optimizer.step();
      optimizer.zero_grad();
    }
    // end
    EXPECT_EQ(groups[0].parameters.size(), 2u);
    EXPECT_EQ(groups[1].parameters.size(), 4u);
    return weights_of(model);
  });
}

// recipe module
struct Residual : lockstep::nn::Module {
  explicit Residual(std::int64_t width) : in(width, 16), out(16, width) {
    register_module("in", in);
    register_module("out", out);
    shift = register_parameter("shift", {width}, lockstep::nn::Init::normal(0.02f));
  }
  lockstep::Tensor forward(const lockstep::Tensor& x) override {
    ensure_initialized();  // before a forward that uses a parameter of this module itself
    return lockstep::add_row(x + out(lockstep::gelu(in(x))), shift);
  }
  lockstep::nn::Linear in, out;
  lockstep::Tensor shift;
};
// end

TEST(EngineRecipes, ModuleOfOnesOwn) {
  expect_alike("module", [](const Group& group) {
    nn::Sequential model{nn::Linear(4, 8), Residual(8), Residual(8), nn::Linear(8, 2)};
    EXPECT_EQ(model.named_parameters().size(), 2u + 5u + 5u + 2u);
    return train(model, random_dataset(), group);
  });
}

TEST(EngineRecipes, DatasetOfOnesOwn) {
  // recipe sample
  struct Wave {
    std::int64_t size() const { return 25; }
    lockstep::data::Sample get(std::int64_t id) const {  // one sample, without the dimension of the batch
      const float t = 0.1f * static_cast<float>(id);
      return {lockstep::Tensor::of({4}, {t, t * t, std::sin(t), std::cos(t)}),
              lockstep::Tensor::of({2}, {std::sin(2 * t), std::cos(2 * t)})};
    }
  };
  const lockstep::data::Collated waves(Wave{});
  // end
  expect_alike("sample", [&](const Group& group) {
    nn::Linear model(4, 2);
    return train(model, waves, group);
  });
}

TEST(EngineRecipes, MappedTokens) {
  const TemporaryFolder folder;
  const std::string file = (folder / "train.bin").string();
  std::ofstream out(file, std::ios::binary);
  for (int i = 0; i < 201; ++i) out.put(static_cast<char>(i * i % 7)).put(0);  // 25 windows
  out.close();
  expect_alike("tokens", [&](const Group& group) {
    nn::Sequential model{nn::Embedding(7, 8), nn::Linear(8, 7)};
    DistributedDataParallel ddp(model, group);
    optim::SGD optimizer(ddp.parameters(), {.lr = 0.1});
    // recipe tokens
    const lockstep::data::MappedTokens text(file, {.bytes = 2, .window = 9, .stride = 8});
    lockstep::data::DataLoader loader(text, *group, {.global_batch = 6, .workers = 1});
    for (const auto& [ids, window, tokens] : loader) {  // a TokenBatch: `tokens` is [ids.size(), window], row by row
      std::vector<std::int64_t> in, next;
      for (auto row = tokens.begin(); row != tokens.end(); row += window) {
        in.insert(in.end(), row, row + window - 1);
        next.insert(next.end(), row + 1, row + window);
      }
      const lockstep::Shape shape{static_cast<std::int64_t>(ids.size()), window - 1};
      const auto x = lockstep::Tensor::of(shape, in), y = lockstep::Tensor::of(shape, next);
      ddp.backward(lockstep::cross_entropy(ddp(x, ids), y));
      optimizer.step();
      optimizer.zero_grad();
    }
    // end
    EXPECT_EQ(text.size(), 25);
    return weights_of(model);
  });
}

}  // namespace
}  // namespace lockstep::testing::recipes_test
