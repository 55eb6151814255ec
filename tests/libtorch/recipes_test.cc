// SPDX-License-Identifier: Apache-2.0
// The programs of docs/RECIPES.md, word for word between the marks, each trained by one rank and by several. recipes.sh
// holds the page to them.
#include <lockstep/libtorch.h>

#include <numeric>
#include <sstream>

#include "tests/libtorch/common.h"

namespace lockstep::testing::recipes_test {
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
void expect_alike(const std::string& name, const std::function<Tensors(const Group&)>& recipe,
                  double tolerance = 1e-4) {
  Tensors alone;
  run_torch_ranks(1, [&](const Group& group) { alone = recipe(group); });
  for (const int ranks : {2, 3}) {
    run_torch_ranks(ranks, [&](const Group& group) {
      expect_close(recipe(group), alone, name + " on " + std::to_string(ranks) + " ranks", tolerance);
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

// The same for one that trains a Net on `count` batches.
using NetRecipe = std::function<void(const Group& group, Net& model, const std::vector<Batch>& batches)>;
void expect_net_alike(const std::string& name, int count, const NetRecipe& recipe) {
  expect_alike(name, [&](const Group& group) {
    Net model(4, 2);
    initialize(model, 1);
    recipe(group, model, batches_of(group, count));
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
      if (stop.step(results.mean("error"))) break;
    }
    // end
    const std::string text = log.str();
    EXPECT_EQ(text.empty(), group->rank() != 0);
    EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 50) << "it stopped early";
    return weights_of(model);
  });
}

TEST(Recipes, LossScaling) {
  expect_net_alike("scaler", 4, [](const Group& group, Net& model, const std::vector<Batch>& batches) {
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
  });
}

struct RecordingNet : Net {
  using Net::Net;
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = Net::forward(x);
    computed_in.push_back(y.scalar_type());
    return y;
  }
  std::vector<torch::ScalarType> computed_in;
};

TEST(Recipes, Autocast) {
  const auto recipe = [](const Group& group) {
    RecordingNet model(4, 2);
    initialize(model, 1);
    const auto batches = batches_of(group, 4);
    lockstep::libtorch::DistributedDataParallel ddp(model, group);
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    // recipe bfloat
    for (const auto& batch : batches) {
      optimizer.zero_grad();
      torch::Tensor loss;
      {
        const lockstep::libtorch::Autocast scope(torch::kCPU, torch::kBFloat16);  // or torch::kCUDA
        loss = torch::mse_loss(ddp(batch.data), batch.target);
      }
      loss.backward();
      optimizer.step();
    }
    // end
    EXPECT_EQ(model.computed_in, std::vector<torch::ScalarType>(4, torch::kBFloat16));
    EXPECT_EQ(model.first->weight.grad().scalar_type(), torch::kFloat);
    ddp.check_replicas();
    return weights_of(model);
  };
  // bfloat16 has 8 bits: what each micro-batch's backward rounds is not what the whole one's does.
  expect_alike("autocast", recipe, 1e-2);
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
    std::vector<std::vector<Batch>> sequences;  // two, of two chunks each: [time, rows, features]
    for (const Batch& batch : batches_of(group, 4, 3 * 4, 3 * 2)) {
      if (sequences.empty() || sequences.back().size() == 2) sequences.emplace_back();
      sequences.back().push_back(
          {batch.data.view({-1, 3, 4}).transpose(0, 1), batch.target.view({-1, 3, 2}).transpose(0, 1)});
    }
    // recipe lstm
    lockstep::libtorch::DistributedDataParallel ddp(model, group, {.batch_dim = 1});  // [time, rows, features]
    torch::optim::SGD optimizer(model.parameters(), 0.2);
    for (const auto& chunks : sequences) {
      torch::optional<Recurrent::State> state;  // of this rank's rows; none at a sequence's beginning
      for (const auto& chunk : chunks) {
        optimizer.zero_grad();
        auto [y, next] = ddp(chunk.data, state);
        torch::mse_loss(y, chunk.target).backward();
        torch::nn::utils::clip_grad_norm_(model.parameters(), 0.5);
        optimizer.step();
        state = {std::get<0>(next).detach(), std::get<1>(next).detach()};  // backward ends at a chunk's beginning
      }
    }
    // end
    return weights_of(model);
  });
}

struct Vae : torch::nn::Module {
  std::shared_ptr<Net> encoder = register_module("encoder", std::make_shared<Net>(4, 2 * 3));
  std::shared_ptr<Net> decoder = register_module("decoder", std::make_shared<Net>(3, 4));
  // The output, and mean and logarithm of the variance of what it was made from.
  std::tuple<torch::Tensor, torch::Tensor, torch::Tensor> forward(const torch::Tensor& x, const torch::Tensor& noise) {
    const auto parts = encoder->forward(x).chunk(2, 1);
    return {decoder->forward(parts[0] + noise * (parts[1] / 2).exp()), parts[0], parts[1]};
  }
};

TEST(Recipes, VaeWhoseLossIsASum) {
  expect_alike("sum", [](const Group& group) {
    Vae model;
    initialize(model, 1);
    const auto batches = batches_of(group, 4, 4, 3);
    // recipe sum
    lockstep::libtorch::DistributedDataParallel ddp(model, group, {.loss = lockstep::Loss::sum});
    torch::optim::SGD optimizer(model.parameters(), 0.01);
    for (const auto& [x, noise] : batches) {
      optimizer.zero_grad();
      const auto [y, mean, log_variance] = ddp(x, noise);
      const torch::Tensor error = torch::mse_loss(y, x, torch::Reduction::Sum);
      const torch::Tensor divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum();
      (error + divergence).backward();  // both are sums over rows
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

TEST(Recipes, GradientPenalty) {
  expect_net_alike("penalty", 4, [](const Group& group, Net& model, const std::vector<Batch>& batches) {
    lockstep::libtorch::DistributedDataParallel ddp(model, group);
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    // recipe penalty
    for (const auto& batch : batches) {
      optimizer.zero_grad();
      const torch::Tensor x = batch.data.clone().requires_grad_(), y = ddp(x);
      const torch::Tensor slope =
          torch::autograd::grad({y.sum()}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
      const torch::Tensor penalty = (slope.square().sum(1) - 1).square().mean();  // a mean over rows, as the loss
      (torch::mse_loss(y, batch.target) + 0.1 * penalty).backward();
      optimizer.step();
    }
    // end
  });
}

}  // namespace
}  // namespace lockstep::testing::recipes_test
