// SPDX-License-Identifier: Apache-2.0
// A small diffusion model (Ho et al., arXiv:2006.11239) on digits: a U-Net, noise and times drawn in the loss, and an
// average of the weights.
#include <cmath>

#include "examples/04_libtorch_mnist/dataset.h"
#include "examples/06_libtorch_same_bits/run.h"

namespace lt = lockstep::libtorch;
namespace nn = torch::nn;
using torch::Tensor;

constexpr int64_t kTimes = 200, kWidth = 16;

// Two convolutions, between which the time is added.
struct BlockImpl : nn::Module {
  nn::Conv2d first, second;
  nn::BatchNorm2d norm;
  nn::Linear time;
  BlockImpl(int64_t in, int64_t out)
      : first(register_module("first", nn::Conv2d(nn::Conv2dOptions(in, out, 3).padding(1)))),
        second(register_module("second", nn::Conv2d(nn::Conv2dOptions(out, out, 3).padding(1)))),
        norm(register_module("norm", nn::BatchNorm2d(out))),
        time(register_module("time", nn::Linear(kWidth, out))) {}
  Tensor forward(const Tensor& x, const Tensor& of_time) {
    const Tensor y = torch::silu(norm(first(x))) + time(of_time).unsqueeze(2).unsqueeze(3);
    return torch::silu(second(y));
  }
};
TORCH_MODULE(Block);

struct UNetImpl : nn::Module {
  Block down = register_module("down", Block(1, kWidth));
  Block middle = register_module("middle", Block(kWidth, kWidth));
  Block up = register_module("up", Block(2 * kWidth, kWidth));
  nn::Conv2d out = register_module("out", nn::Conv2d(kWidth, 1, 1));

  // The noise in `x`, of [rows, 1, 28, 28] at `times` [rows].
  Tensor forward(const Tensor& x, const Tensor& times) {
    const Tensor rates = torch::exp(torch::arange(kWidth / 2) * (-std::log(1000.0) / (kWidth / 2)));
    const Tensor angles = times.unsqueeze(1) * rates;
    const Tensor of_time = torch::cat({angles.sin(), angles.cos()}, 1);
    const Tensor fine = down(x, of_time);
    const Tensor coarse = middle(torch::avg_pool2d(fine, 2), of_time);
    return out(up(torch::cat({fine, torch::upsample_nearest2d(coarse, {28, 28})}, 1), of_time));
  }
};
TORCH_MODULE(UNet);

int main(int argc, char** argv) {
  const Flags flags(argc, argv);
  torch::manual_seed(1);
  UNet model, average;
  average->eval();
  auto group = lockstep::init_process_group();
  lt::DistributedDataParallel ddp(model, group, {.reproducible = kSame, .seed = 1});
  lt::FusedAdamW optimizer(ddp.parameters(), torch::optim::AdamWOptions(2e-3));
  auto digits =
      Digits("", true).map(torch::data::transforms::Normalize<>(0.5, 0.5)).map(torch::data::transforms::Stack<>());
  lt::DataLoader loader(std::move(digits), *group,
                        {.global_batch = kSame.global_batch, .micro_batches = kSame.micro_batches});
  const auto follow = [&](double share) {
    const torch::NoGradGuard no_grad;
    const auto from = model->parameters(), buffers = model->buffers();
    for (size_t i = 0; i < from.size(); ++i) average->parameters()[i].lerp_(from[i], share);
    for (size_t i = 0; i < buffers.size(); ++i) average->buffers()[i].copy_(buffers[i]);
  };
  follow(1);

  std::optional<lt::Snapshots> snapshots;
  if (!flags.snapshot_dir.empty()) {
    snapshots.emplace(flags.snapshot_dir, ddp, lockstep::SnapshotOptions{.every = flags.snapshot_every});
    snapshots->add("optimizer", optimizer);
    snapshots->add("average", average);
    snapshots->add("data", loader);
    snapshots->restore();
  }
  const Tensor kept = torch::cumprod(1 - torch::linspace(1e-4, 0.05, kTimes), 0);  // the image's share at each time
  ddp.watch(loader);
  while (ddp.steps() < flags.steps && !ddp.should_stop()) {
    for (auto& batch : loader) {
      optimizer.zero_grad();
      ddp.backward(batch.data.size(0), [&](int64_t begin, int64_t end) {
        const Tensor image = batch.data.slice(0, begin, end);
        const Tensor times = torch::randint(kTimes, {image.size(0)}, torch::kLong);
        const Tensor noise = torch::randn_like(image), share = kept.index_select(0, times).view({-1, 1, 1, 1});
        const lt::Autocast bf16(torch::kCPU, torch::kBFloat16);
        const Tensor guess = ddp(share.sqrt() * image + (1 - share).sqrt() * noise, times);
        return torch::mse_loss(guess.to(torch::kFloat), noise);
      });
      optimizer.step();
      follow(0.05);
      print_loss(ddp, "loss");
      if (snapshots) snapshots->step();
      if (ddp.steps() >= flags.steps) break;
    }
  }
  if (snapshots && !ddp.should_stop()) snapshots->save("the last step");
  return ddp.exit_code();
}
