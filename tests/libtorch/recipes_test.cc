// SPDX-License-Identifier: Apache-2.0
// The programs of docs/RECIPES.md, word for word between the marks, each trained by one rank and by several. recipes.sh
// holds the page to them.
#include <lockstep/libtorch.h>

#include <filesystem>
#include <numeric>
#include <sstream>

#include "tests/libtorch/common.h"

namespace lockstep::testing {
namespace {

struct Batch {
  torch::Tensor data;
  torch::Tensor target;
};
constexpr std::int64_t kRows = 12;

// This rank's rows of `count` global batches, uneven: the later a rank, the fewer.
std::vector<Batch> batches_of(const Group& group, int count, std::int64_t features = 4, std::int64_t outputs = 2) {
  const std::int64_t n = group->size(), r = group->rank();
  const auto cut = [&](std::int64_t rank) { return kRows - kRows * (n - rank) * (n - rank) / (n * n); };
  std::vector<Batch> batches;
  for (int i = 0; i < count; ++i) {
    const auto seed = static_cast<std::uint64_t>(1000 + 2 * i);
    batches.push_back({random_tensor({kRows, features}, seed).slice(0, cut(r), cut(r + 1)),
                       random_tensor({kRows, outputs}, seed + 1).slice(0, cut(r), cut(r + 1))});
  }
  return batches;
}

// What `recipe` trains on 2 and 3 ranks is what it trains on one.
void expect_alike(const std::string& name, const std::function<Tensors(const Group&)>& recipe) {
  Tensors alone;
  run_torch_ranks(1, [&](const Group& group) { alone = recipe(group); });
  for (const int ranks : {2, 3}) {
    run_torch_ranks(ranks, [&](const Group& group) {
      expect_close(recipe(group), alone, name + " on " + std::to_string(ranks) + " ranks", 1e-4);
    });
  }
}

struct Net : torch::nn::Module {
  Net(std::int64_t in, std::int64_t out) : first(in, 8), last(8, out) {
    register_module("first", first);
    register_module("last", last);
  }
  torch::Tensor forward(const torch::Tensor& x) { return last(torch::tanh(first(x))); }
  torch::nn::Linear first, last;
};

TEST(Recipes, ScheduleAndClipping) {
  expect_alike("schedule", [](const Group& group) {
    Net model(4, 2);
    initialize(model, 1);
    const auto batches = batches_of(group, 6);
    // recipe schedule
    lockstep::libtorch::DistributedDataParallel ddp(model, group);
    torch::optim::SGD optimizer(model.parameters(), 0.5);
    torch::optim::StepLR schedule(optimizer, /*step_size=*/2, /*gamma=*/0.5);
    for (const auto& batch : batches) {
      optimizer.zero_grad();
      torch::mse_loss(ddp(batch.data), batch.target).backward();
      torch::nn::utils::clip_grad_norm_(model.parameters(), 0.5);  // reduced gradients: the same norm on every rank
      optimizer.step();
      schedule.step();
    }
    // end
    return weights_of(model);
  });
}

TEST(Recipes, EvaluationAndEarlyStop) {
  expect_alike("evaluation", [](const Group& group) {
    Net model(4, 2);
    initialize(model, 1);
    std::ostringstream log;
    const auto batches = batches_of(group, 3), held_out = batches_of(group, 2);
    lockstep::libtorch::DistributedDataParallel ddp(model, group);
    torch::optim::SGD optimizer(model.parameters(), 0.3);
    const auto train_epoch = [&] {
      for (const auto& batch : batches) {
        optimizer.zero_grad();
        torch::mse_loss(ddp(batch.data), batch.target).backward();
        optimizer.step();
      }
    };
    // recipe evaluation
    lockstep::EarlyStop stop(*group, {.patience = 2, .min_delta = 0.02});
    for (int epoch = 0; epoch < 50; ++epoch) {
      train_epoch();
      lockstep::Metrics metrics(*group);
      torch::NoGradGuard no_grad;
      for (const auto& batch : held_out) {  // of this rank: each sample on one rank
        const torch::Tensor errors = (model.forward(batch.data) - batch.target).square();
        metrics.add("error", errors.sum().item<double>(), errors.numel());
      }
      const lockstep::MetricResults results = metrics.result();
      if (group->rank() == 0) log << "epoch " << epoch << ": " << results.str() << '\n';
      if (stop.should_stop(results.mean("error"))) break;
    }
    // end
    const std::string text = log.str();
    EXPECT_EQ(text.empty(), group->rank() != 0);
    EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 50) << "it stopped early";
    return weights_of(model);
  });
}

TEST(Recipes, LossScaling) {
  expect_alike("scaler", [](const Group& group) {
    Net model(4, 2);
    initialize(model, 1);
    const auto batches = batches_of(group, 4);
    lockstep::libtorch::DistributedDataParallel ddp(model, group);
    // recipe scaler
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    lockstep::libtorch::GradScaler scaler;
    for (const auto& batch : batches) {
      optimizer.zero_grad();
      scaler.scale(torch::mse_loss(ddp(batch.data), batch.target)).backward();
      scaler.unscale_(optimizer);
      torch::nn::utils::clip_grad_norm_(model.parameters(), 1.0);
      scaler.step(optimizer);
      scaler.update();
    }
    // end
    return weights_of(model);
  });
}

TEST(Recipes, Gan) {
  expect_alike("gan", [](const Group& group) {
    Net generator(4, 3), discriminator(3, 1);
    initialize(generator, 1);
    initialize(discriminator, 2);
    const auto batches = batches_of(group, 4, 4, 3);
    // recipe gan
    lockstep::libtorch::DistributedDataParallel make(generator, group), judge(discriminator, group);
    torch::optim::SGD of_generator(generator.parameters(), 0.1), of_discriminator(discriminator.parameters(), 0.1);
    const auto loss = [](const torch::Tensor& judged, double real) {
      return torch::binary_cross_entropy_with_logits(judged, torch::full_like(judged, real));
    };
    for (const auto& [noise, real] : batches) {
      of_discriminator.zero_grad();
      const torch::Tensor fake = make(noise);
      loss(judge(torch::cat({real, fake.detach()})), 0.5).backward();
      of_discriminator.step();
      of_generator.zero_grad();
      for (auto& parameter : discriminator.parameters()) parameter.requires_grad_(false);  // it only judges
      loss(discriminator.forward(fake), 1).backward();
      for (auto& parameter : discriminator.parameters()) parameter.requires_grad_(true);
      of_generator.step();
    }
    // end
    Tensors weights = weights_of(generator);
    for (const auto& [name, weight] : weights_of(discriminator)) weights["discriminator." + name] = weight;
    return weights;
  });
}

struct Recurrent : torch::nn::Module {
  torch::nn::LSTM lstm = register_module("lstm", torch::nn::LSTM(4, 5));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(5, 2));
  using State = std::tuple<torch::Tensor, torch::Tensor>;
  std::tuple<torch::Tensor, State> forward(const torch::Tensor& x, const torch::optional<State>& state) {
    const auto [y, next] = lstm->forward(x, state);
    return {out(y), next};
  }
};

TEST(Recipes, LstmWithCarriedState) {
  expect_alike("lstm", [](const Group& group) {
    Recurrent model;
    initialize(model, 1);
    std::vector<Batch> chunks;  // [time, rows, features]
    for (const Batch& batch : batches_of(group, 4, 3 * 4, 3 * 2)) {
      chunks.push_back({batch.data.view({-1, 3, 4}).transpose(0, 1), batch.target.view({-1, 3, 2}).transpose(0, 1)});
    }
    // recipe lstm
    lockstep::libtorch::DistributedDataParallel ddp(model, group, {.batch_dim = 1});  // [time, rows, features]
    torch::optim::SGD optimizer(model.parameters(), 0.2);
    torch::optional<Recurrent::State> state;  // of this rank's rows
    for (const auto& chunk : chunks) {
      optimizer.zero_grad();
      auto [y, next] = ddp(chunk.data, state);
      torch::mse_loss(y, chunk.target).backward();
      optimizer.step();
      state = {std::get<0>(next).detach(), std::get<1>(next).detach()};
    }
    // end
    return weights_of(model);
  });
}

TEST(Recipes, SumOverRows) {
  expect_alike("sum", [](const Group& group) {
    Net model(4, 2);
    initialize(model, 1);
    const auto batches = batches_of(group, 4);
    // recipe sum
    lockstep::libtorch::DistributedDataParallel ddp(model, group, {.loss = lockstep::Loss::sum});  // as a VAE's
    torch::optim::SGD optimizer(model.parameters(), 0.01);
    for (const auto& batch : batches) {
      optimizer.zero_grad();
      torch::mse_loss(ddp(batch.data), batch.target, torch::Reduction::Sum).backward();
      optimizer.step();
    }
    // end
    return weights_of(model);
  });
}

TEST(Recipes, ContrastiveLoss) {
  expect_alike("contrastive", [](const Group& group) {
    Net model(4, 3);
    initialize(model, 1);
    const auto batches = batches_of(group, 4);
    // recipe contrastive
    lockstep::libtorch::DistributedDataParallel ddp(model, group);
    torch::optim::SGD optimizer(model.parameters(), 0.2);
    for (const auto& batch : batches) {
      optimizer.zero_grad();
      const torch::Tensor own = ddp(batch.data), twins = ddp.module().forward(batch.data.flip(1));
      const torch::Tensor all = lockstep::libtorch::all_gather_rows(twins, ddp);
      const auto counts = lockstep::all_gather_value(own.size(0), *group);
      const auto first = std::accumulate(counts.begin(), counts.begin() + group->rank(), int64_t{0});
      const torch::Tensor target = torch::arange(first, first + own.size(0));  // each row's twin among all
      torch::nn::functional::cross_entropy(torch::matmul(own, all.t()), target).backward();
      optimizer.step();
    }
    // end
    return weights_of(model);
  });
}

TEST(Recipes, FrozenLayersAndTwoParameterGroups) {
  expect_alike("groups", [](const Group& group) {
    Net model(4, 2);
    initialize(model, 1);
    const auto batches = batches_of(group, 4);
    // recipe groups
    model.first->weight.requires_grad_(false);  // before it is wrapped
    lockstep::libtorch::DistributedDataParallel ddp(model, group);
    std::vector<torch::optim::OptimizerParamGroup> groups{{{model.first->bias}}, {model.last->parameters()}};
    groups[0].set_options(std::make_unique<torch::optim::SGDOptions>(0.01));
    groups[1].set_options(std::make_unique<torch::optim::SGDOptions>(0.1));
    torch::optim::SGD optimizer(groups, torch::optim::SGDOptions(0.1));
    for (const auto& batch : batches) {
      optimizer.zero_grad();
      torch::mse_loss(ddp(batch.data), batch.target).backward();
      optimizer.step();
    }
    // end
    return weights_of(model);
  });
}

TEST(Recipes, FineTuningFromAFileOfRankZeros) {
  const std::string folder = ::testing::TempDir() + "lockstep_recipes";
  std::filesystem::create_directories(folder);
  const std::string file = folder + "/pretrained.pt";
  auto pretrained = std::make_shared<Net>(4, 2);
  initialize(*pretrained, 7);
  torch::save(pretrained, file);
  expect_alike("file", [&](const Group& group) {
    const auto batches = batches_of(group, 4);
    // recipe file
    auto model = std::make_shared<Net>(4, 2);
    lockstep::on_rank0(*group, [&] { torch::load(model, file); });  // an error of it reaches every rank
    lockstep::libtorch::DistributedDataParallel ddp(model, group);  // rank 0's weights everywhere
    torch::optim::SGD optimizer(model->parameters(), 0.05);
    for (const auto& batch : batches) {
      optimizer.zero_grad();
      torch::mse_loss(ddp(batch.data), batch.target).backward();
      optimizer.step();
    }
    // end
    return weights_of(*model);
  });
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace lockstep::testing
