// SPDX-License-Identifier: Apache-2.0
// bench_libtorch_fast [cpu|cuda] [BLOCKS]: what docs/SPEED.md advises against and what it advises, in alternating
// blocks.
#include <lockstep/libtorch.h>
#include <torch/torch.h>
#include <torch/version.h>

#include <chrono>
#include <cmath>
#include <cstdio>

#include "lockstep/libtorch/autocast.h"
#include "lockstep/libtorch/fused_optimizers.h"

namespace {

using Step = std::function<void()>;
at::Device device(at::kCPU);
std::size_t blocks = 15;

double milliseconds(const Step& step, int steps) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < steps; ++i) step();
  if (device.is_cuda()) torch::cuda::synchronize();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count() / steps;
}

double median(const std::vector<double>& values) { return at::tensor(values).median().item<double>(); }

void compare(const char* name, const Step& slow, const Step& fast) {
  milliseconds(fast, 3), milliseconds(slow, 3);
  const int steps = 1 + static_cast<int>(300 / milliseconds(slow, 3));
  std::vector<double> slows, fasts, ratios;
  while (ratios.size() < blocks) {
    slows.push_back(milliseconds(slow, steps)), fasts.push_back(milliseconds(fast, steps));
    ratios.push_back(slows.back() / fasts.back());
  }
  std::printf("%-40s %9.3f %9.3f %7.2f\n", name, median(slows), median(fasts), median(ratios));
}

void run() {
  torch::nn::Linear linear(768, 3072);
  linear->to(device);
  const at::Tensor x = at::randn({device.is_cuda() ? 16 : 4, 256, 768}, device);
  const auto layer = [&] { return linear(x).sum(); };
  const auto product = [&] { return at::linear(x, linear->weight, linear->bias).sum(); };
  const Step train_layer = [&] { layer().backward(); }, train = [&] { product().backward(); };
  compare("nn::Linear, at::linear: float32", train_layer, train);
  const Step zeroed = [&] { linear->zero_grad(false), train(); }, to_none = [&] { linear->zero_grad(true), train(); };
  compare("gradients: zeroed, set to none", zeroed, to_none);
  const Step without_graph = [&] {
    const torch::NoGradGuard guard;
    product();
  };
  compare("forward: with a graph, without", product, without_graph);
#if TORCH_VERSION_MAJOR >= 2
  const auto in_bf16 = [](const std::function<at::Tensor()>& loss_of) {
    const lockstep::libtorch::Autocast scope(device.type(), at::kBFloat16);
    return loss_of();
  };
  const Step layer_in_bf16 = [&] { in_bf16(layer).backward(); };
  const Step train_in_bf16 = [&] { in_bf16(product).backward(); };
  if (device.is_cuda()) compare("nn::Linear, at::linear: bfloat16", layer_in_bf16, train_in_bf16);
  compare("at::linear: float32, bfloat16", train, train_in_bf16);
  const at::Tensor q = at::randn({4, 12, 256, 64}, device).requires_grad_();
  const at::Tensor mask = at::ones({256, 256}, device).triu(1).to(at::kBool);
  const auto scores = [&] { return (at::matmul(q, q.mT()) / 8).masked_fill(mask, -INFINITY).softmax(-1); };
  const Step written_out = [&] { at::matmul(scores(), q).sum().backward(); };
  const Step attention = [&] { at::scaled_dot_product_attention(q, q, q, {}, 0.0, true).sum().backward(); };
  compare("attention: written out, in one function", written_out, attention);
#endif
  const at::Tensor image = at::randn({8, 64, 32, 32}, device), weight = at::randn({64, 64, 3, 3}, device);
  const auto convolve = [&](at::MemoryFormat format) -> Step {
    return [in = image.contiguous(format), by = weight.clone(format).requires_grad_()] {
      at::conv2d(in, by, {}, 1, 1).relu().sum().backward();
    };
  };
  const Step channels_first = convolve(at::MemoryFormat::Contiguous), last = convolve(at::MemoryFormat::ChannelsLast);
  compare("convolution: contiguous, channels_last", channels_first, last);
  std::vector<at::Tensor> parameters;
  for (int i = 0; i < 150; ++i) parameters.push_back(at::zeros({i % 3 == 0 ? 256 : 1, 256}, device).requires_grad_());
  for (at::Tensor& parameter : parameters) parameter.mutable_grad() = at::ones_like(parameter);
  torch::optim::AdamW plain(parameters);
  lockstep::libtorch::FusedAdamW fused(parameters);
  const Step step_plain = [&] { plain.step(); }, step_fused = [&] { fused.step(); };
  compare("150 parameters: AdamW, FusedAdamW", step_plain, step_fused);
  if (!device.is_cuda()) return;
  const at::Tensor batch = at::rand({64, 3, 224, 224}), pinned = batch.pin_memory();
  const Step copy = [&] { batch.to(device); }, copy_pinned = [&] { pinned.to(device, at::kFloat, true); };
  compare("copy of 38 MB: pageable, pinned", copy, copy_pinned);
  const auto train_in = [&](const char* precision) -> Step {
    return [precision, &train] { at::globalContext().setFloat32MatmulPrecision(precision), train(); };
  };
  compare("at::linear: float32, TF32", train_in("highest"), train_in("high"));
}

}  // namespace

int main(int argc, char** argv) {
  torch::set_num_threads(1);
  if (argc > 1) device = at::Device(argv[1]);
  if (argc > 2) blocks = std::stoul(argv[2]);
  std::printf("LibTorch %s; ms a step %16s %9s %7s\n", TORCH_VERSION, "first", "second", "ratio");
  run();
}
