// SPDX-License-Identifier: Apache-2.0
// A small DCGAN (Radford et al., arXiv:1511.06434) on digits: two networks with batch norms, two optimizers, noise.
#include "examples/04_libtorch_mnist/dataset.h"
#include "examples/06_libtorch_same_bits/run.h"

namespace lt = lockstep::libtorch;
namespace nn = torch::nn;
using torch::Tensor;

constexpr int64_t kLatents = 16;
const nn::LeakyReLUOptions leak = nn::LeakyReLUOptions().negative_slope(0.2);

// Both networks are parts of one module: each step runs both of them, and one DistributedDataParallel has the running
// statistics of all batch norms.
struct GanImpl : nn::Module {
  nn::Sequential generator = register_module(
      "generator",
      nn::Sequential(nn::ConvTranspose2d(nn::ConvTranspose2dOptions(kLatents, 32, 7).bias(false)), nn::BatchNorm2d(32),
                     nn::ReLU(),
                     nn::ConvTranspose2d(nn::ConvTranspose2dOptions(32, 16, 4).stride(2).padding(1).bias(false)),
                     nn::BatchNorm2d(16), nn::ReLU(),
                     nn::ConvTranspose2d(nn::ConvTranspose2dOptions(16, 1, 4).stride(2).padding(1)), nn::Tanh()));
  nn::Sequential discriminator = register_module(
      "discriminator",
      nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 16, 4).stride(2).padding(1)), nn::LeakyReLU(leak),
                     nn::Conv2d(nn::Conv2dOptions(16, 32, 4).stride(2).padding(1).bias(false)), nn::BatchNorm2d(32),
                     nn::LeakyReLU(leak), nn::Conv2d(nn::Conv2dOptions(32, 1, 7))));

  GanImpl() {
    for (auto& part : modules(false)) {
      const torch::NoGradGuard no_grad;
      for (auto& parameter : part->parameters(false)) {
        if (parameter.dim() > 1) parameter.normal_(0, 0.02);
      }
    }
  }
  // The loss of the discriminator, or of the generator, which `real` then only gives the number of rows.
  Tensor forward(const Tensor& real, bool is_discriminators) {
    const auto loss = [&](const Tensor& images, double truth) {
      const Tensor judged = discriminator->forward(images).flatten().to(torch::kFloat);
      return torch::binary_cross_entropy_with_logits(judged, torch::full_like(judged, truth));
    };
    const Tensor fake = generator->forward(torch::randn({real.size(0), kLatents, 1, 1}));
    return is_discriminators ? loss(real, 1) + loss(fake.detach(), 0) : loss(fake, 1);
  }
};
TORCH_MODULE(Gan);

int main(int argc, char** argv) {
  const Flags flags(argc, argv);
  torch::manual_seed(1);
  Gan model;
  auto group = lockstep::init_process_group();
  lt::DistributedDataParallel ddp(model, group, {.reproducible = kSame, .seed = 1});
  const auto options = torch::optim::AdamWOptions(2e-3).betas({0.5, 0.999}).weight_decay(0);
  lt::FusedAdamW of_generator(model->generator->parameters(), options);
  lt::FusedAdamW of_discriminator(model->discriminator->parameters(), options);
  auto digits =
      Digits("", true).map(torch::data::transforms::Normalize<>(0.5, 0.5)).map(torch::data::transforms::Stack<>());
  lt::DataLoader loader(std::move(digits), *group,
                        {.global_batch = kSame.global_batch, .micro_batches = kSame.micro_batches});

  std::optional<lt::Snapshots> snapshots;
  if (!flags.snapshot_dir.empty()) {
    snapshots.emplace(flags.snapshot_dir, ddp, lockstep::SnapshotOptions{.every = flags.snapshot_every});
    snapshots->add("generator", of_generator);
    snapshots->add("discriminator", of_discriminator);
    snapshots->add("data", loader);
    snapshots->restore();
  }
  const auto train = [&](const Tensor& images, bool is_discriminators, auto& optimizer) {
    model->zero_grad();  // of both: each loss gives the discriminator gradients
    ddp.backward(images.size(0), [&](int64_t begin, int64_t end) {
      const lt::Autocast bf16(torch::kCPU, torch::kBFloat16);
      return ddp(images.slice(0, begin, end), is_discriminators);
    });
    optimizer.step();
    print_loss(ddp, is_discriminators ? "discriminator" : "generator");
  };
  ddp.watch(loader);
  while (ddp.steps() < flags.steps && !ddp.should_stop()) {
    for (auto& batch : loader) {
      train(batch.data, true, of_discriminator);
      train(batch.data, false, of_generator);
      if (snapshots) snapshots->step();
      if (ddp.steps() >= flags.steps) break;
    }
  }
  if (snapshots && !ddp.should_stop()) snapshots->save("the last step");
  return ddp.exit_code();
}
