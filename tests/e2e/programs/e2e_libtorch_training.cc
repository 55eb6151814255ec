// SPDX-License-Identifier: Apache-2.0
// A training job of LibTorch's with snapshots, to be stopped, killed and started again:
//
//   e2e_libtorch_training FOLDER WEIGHTS STEPS
//
// With batch norm, dropout, SGD with momentum, a schedule, clipped gradients and a worker that reads ahead. Rank 0 says
// "at N" after every 10th step; the weights of a run that has come to its end are in the file WEIGHTS. With
// LOCKSTEP_TEST_DELAY=data, forward or backward that takes the last rank 20 ms longer, from step 20 on.
#include <lockstep/libtorch.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include "lockstep/base/environment.h"

namespace lockstep::e2e {
namespace {

constexpr std::int64_t kSamples = 240, kSide = 8, kBatch = 12;

// The fault: time that a slow disk or processor would take.
struct Delay {
  std::string phase = Environment::of_process().get("LOCKSTEP_TEST_DELAY").value_or("");
  std::atomic<bool> is_on{false};
  void in(const char* name, std::chrono::milliseconds time = std::chrono::milliseconds(20)) const {
    if (is_on && phase == name) std::this_thread::sleep_for(time);
  }
};
Delay delay;

// Images of stripes, and how close they are.
struct Stripes : torch::data::datasets::Dataset<Stripes> {
  torch::data::Example<> get(std::size_t index) override {
    // A worker reads ahead of the steps: a batch of six takes longer than they do.
    delay.in("data", std::chrono::milliseconds(10));
    const double frequency = 0.2 + 0.01 * static_cast<double>(index);
    return {torch::arange(kSide * kSide).mul(frequency).sin().view({1, kSide, kSide}), torch::full({1}, frequency)};
  }
  torch::optional<std::size_t> size() const override { return kSamples; }
};

struct Cnn : torch::nn::Module {
  torch::nn::Conv2d conv = register_module("conv", torch::nn::Conv2d(1, 6, 3));
  torch::nn::BatchNorm2d norm = register_module("norm", torch::nn::BatchNorm2d(6));
  torch::nn::Dropout dropout = register_module("dropout", torch::nn::Dropout(0.2));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(54, 1));
  torch::Tensor forward(const torch::Tensor& x) {
    delay.in("forward");
    const torch::Tensor hidden = norm(conv(x));
    if (hidden.requires_grad()) hidden.register_hook([](const torch::Tensor&) { delay.in("backward"); });
    return out(dropout(torch::max_pool2d(torch::relu(hidden), 2).flatten(1)));
  }
};

int train(const std::string& folder, const std::string& weights, std::int64_t steps) {
  torch::manual_seed(3);
  auto group = init_process_group();
  const auto net = std::make_shared<Cnn>();
  libtorch::DistributedDataParallel ddp(net, group, {.seed = 5});
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  auto dataset = Stripes().map(torch::data::transforms::Stack<>());
  libtorch::GlobalBatchSampler sampler(kSamples, *group, {.global_batch = kBatch});
  libtorch::DataLoader loader(dataset, sampler, torch::data::DataLoaderOptions().workers(1));
  ddp.watch(loader);
  libtorch::Snapshots snapshots(folder, ddp, {.every = 25});
  snapshots.add("optimizer", optimizer);
  snapshots.add("data", sampler);
  snapshots.restore();
  while (ddp.steps() < steps && !ddp.should_stop()) {
    for (auto& batch : loader) {
      delay.is_on = group->rank() == group->size() - 1 && ddp.steps() >= 20;
      const double progress = static_cast<double>(ddp.steps()) / static_cast<double>(steps);
      for (auto& parameters : optimizer.param_groups()) parameters.options().set_lr(0.01 * (1 - 0.9 * progress));
      optimizer.zero_grad();
      ddp.backward(batch.data.size(0), [&](std::int64_t begin, std::int64_t end) {
        return torch::mse_loss(ddp(batch.data.slice(0, begin, end)), batch.target.slice(0, begin, end));
      });
      torch::nn::utils::clip_grad_norm_(ddp.parameters(), 1.0);
      optimizer.step();
      snapshots.step();
      if (group->rank() == 0 && ddp.steps() % 10 == 0) {
        std::printf("at %lld\n", static_cast<long long>(ddp.steps()));
        std::fflush(stdout);
      }
      if (ddp.steps() == steps) break;
    }
  }
  if (!ddp.should_stop()) {
    snapshots.save("the last step");
    libtorch::save_weights(weights, net, *group);
  }
  group->barrier().wait();
  return ddp.exit_code();
}

}  // namespace
}  // namespace lockstep::e2e

int main(int count, char** arguments) {
  if (count != 4) {
    std::fprintf(stderr, "e2e_libtorch_training FOLDER WEIGHTS STEPS\n");
    return 2;
  }
  std::fprintf(stderr, "pid %d\n", static_cast<int>(getpid()));
  return lockstep::e2e::train(arguments[1], arguments[2], std::atoll(arguments[3]));
}
