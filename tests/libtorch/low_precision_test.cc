// SPDX-License-Identifier: Apache-2.0
// Parameters in bfloat16, and float32 parameters under autocast.
#include <ATen/autocast_mode.h>
#include <torch/version.h>

#include "tests/libtorch/common.h"

namespace lockstep::testing {
namespace {

namespace nn = ::torch::nn;

// Whose gradient is the mean of x's rows.
struct Weights : nn::Module {
  at::Tensor weight = register_parameter("weight", at::zeros({256}, at::kBFloat16));
  at::Tensor forward(const at::Tensor& x) { return (weight * x).sum(1).mean(); }
};

// One row of each rank, so that each rank's own gradient is that row, to the last bit.
TEST(LowPrecision, MeansOfBfloat16GradientsAreRoundedOnce) {
  const auto row_of = [](int rank) {
    return random_tensor({1, 256}, 90 + static_cast<std::uint64_t>(rank)).to(at::kBFloat16);
  };
  for (const int ranks : {1, 2, 3}) {
    at::Tensor exact = at::zeros({256}, at::kDouble), rounded_often = at::zeros({256}, at::kBFloat16);
    for (int r = 0; r < ranks; ++r) {
      exact += row_of(r)[0].to(at::kDouble);
      rounded_often += row_of(r)[0];
    }
    const at::Tensor wanted = (exact / ranks).to(at::kFloat).to(at::kBFloat16);
    if (ranks == 3) {
      EXPECT_FALSE(at::equal(rounded_often / ranks, wanted)) << "a sum in bfloat16 would be as good";
    }
    run_torch_ranks(ranks, [&](const Group& group) {
      Weights net;
      libtorch::DistributedDataParallel ddp(net, group);
      ddp(row_of(group->rank())).backward();
      EXPECT_EQ(net.weight.grad().scalar_type(), at::kBFloat16);
      EXPECT_TRUE(at::equal(net.weight.grad(), wanted)) << ranks << " ranks";
    });
  }
}

// While one lives, this thread computes in bfloat16.
struct Autocast {
  Autocast() { set(true); }
  ~Autocast() {
    set(false);
    at::autocast::clear_cache();
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

  static void set(bool on) {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
    at::autocast::set_autocast_enabled(at::kCPU, on);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
#else
    at::autocast::set_cpu_enabled(on);
    at::autocast::set_autocast_cpu_dtype(at::kBFloat16);
#endif
  }
};

struct Net : nn::Module {
  nn::Linear in = register_module("in", nn::Linear(4, 8));
  nn::Linear out = register_module("out", nn::Linear(8, 2));
  at::Tensor forward(const at::Tensor& x) { return out(at::tanh(in(x))); }
};

TEST(LowPrecision, AutocastTrainsAsInOneProcess) {
  constexpr std::int64_t kRows = 12;
  constexpr int kSteps = 4;
  const auto data = [](int step) { return random_tensor({kRows, 4}, 10 + static_cast<std::uint64_t>(step)); };
  const auto loss_of = [](auto& net, const at::Tensor& x) {
    const Autocast in_bfloat16;
    const at::Tensor y = net.forward(x);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    return (y.to(at::kFloat) - 1).square().mean();
  };
  Net alone;
  initialize(alone, 2);
  ::torch::optim::SGD sgd(alone.parameters(), 0.1);
  for (int step = 0; step < kSteps; ++step) {
    sgd.zero_grad();
    loss_of(alone, data(step)).backward();
    sgd.step();
  }
  for (const int ranks : {1, 2, 3}) {
    run_torch_ranks(ranks, [&](const Group& group) {
      Net net;
      initialize(net, 2);
      libtorch::DistributedDataParallel ddp(net, group);
      ::torch::optim::SGD optimizer(net.parameters(), 0.1);
      const std::int64_t rows = kRows / ranks, first = rows * group->rank();
      for (int step = 0; step < kSteps; ++step) {
        optimizer.zero_grad();
        loss_of(ddp, data(step).slice(0, first, first + rows)).backward();
        EXPECT_EQ(net.in->weight.grad().scalar_type(), at::kFloat);
        optimizer.step();
      }
      ddp.check_replicas();
      // bfloat16 has 8 bits: what each shard's backward rounds is not what the whole one's does.
      expect_close(weights_of(net), weights_of(alone), std::to_string(ranks) + " ranks", 1e-2);
    });
  }
}

}  // namespace
}  // namespace lockstep::testing
