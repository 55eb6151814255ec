// SPDX-License-Identifier: Apache-2.0
// Autocast as a scope: nesting, cache, and training under it.
#include "lockstep/libtorch/autocast.h"

#include <ATen/autocast_mode.h>
#include <torch/version.h>

#include <array>

#include "lockstep/libtorch/fused_optimizers.h"
#include "lockstep/libtorch/grad_scaler.h"
#include "lockstep/libtorch/sharded_optimizer.h"
#include "runtime/libtorch/operators.h"
#include "tests/libtorch/common.h"

namespace lockstep::testing::autocast_test {
namespace {

using libtorch::Autocast;

at::ScalarType product_dtype() { return at::matmul(at::ones({2, 2}), at::ones({2, 2})).scalar_type(); }

bool is_cuda_on() {
#if LOCKSTEP_TORCH_AT_LEAST(2, 4)
  return at::autocast::is_autocast_enabled(at::kCUDA);
#else
  return at::autocast::is_enabled();
#endif
}

TEST(Autocast, LastsAsLongAsItsScopeAndReplacesTheOuterOne) {
  EXPECT_EQ(product_dtype(), at::kFloat);
  {
    const Autocast scope(at::kCPU, at::kBFloat16);
    EXPECT_EQ(product_dtype(), at::kBFloat16);
    EXPECT_FALSE(is_cuda_on()) << "another device's";
    {
      const Autocast inner(at::kCPU, at::kBFloat16, {.enabled = false});
      EXPECT_EQ(product_dtype(), at::kFloat);
      { const Autocast innermost(at::kCPU, at::kBFloat16); }
      EXPECT_EQ(product_dtype(), at::kFloat);
    }
    EXPECT_EQ(product_dtype(), at::kBFloat16);
  }
  EXPECT_EQ(product_dtype(), at::kFloat);
  {
    const Autocast scope(at::kCUDA, at::kHalf);  // needs no GPU
    EXPECT_TRUE(is_cuda_on());
    EXPECT_EQ(product_dtype(), at::kFloat);
  }
  EXPECT_FALSE(is_cuda_on());
}

// How often a parameter that is used twice is cast, by the graph that autograd makes: a cast is a node that both uses
// share.
bool is_cast_once(const libtorch::AutocastOptions& options) {
  const at::Tensor weight = at::ones({2, 2}).requires_grad_();
  const Autocast scope(at::kCPU, at::kBFloat16, options);
  const at::Tensor first = at::mm(at::ones({2, 2}), weight);
  { const Autocast inner(at::kCPU, at::kBFloat16, options); }
  const at::Tensor second = at::mm(at::ones({2, 2}), weight);
  return first.grad_fn()->next_edge(1).function == second.grad_fn()->next_edge(1).function;
}

TEST(Autocast, AParameterIsCastOnceInTheOutermostScope) {
  EXPECT_TRUE(is_cast_once({}));
  EXPECT_FALSE(is_cast_once({.cache_enabled = false}));
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
}

TEST(Autocast, ACastDoesNotOutliveTheScope) {
  const at::Tensor weight = at::ones({2, 2}).requires_grad_();
  const auto product = [&] {
    const Autocast scope(at::kCPU, at::kBFloat16);
    return at::mm(at::ones({1, 2}), weight).sum().item<float>();
  };
  EXPECT_EQ(product(), 4);
  weight.detach().fill_(3);
  EXPECT_EQ(product(), 12);
}

TEST(Autocast, WhatLibTorchLacksIsRefusedAndChangesNothing) {
  const auto says = [](const std::function<void()>& call, const std::string& words) {
    expect_text(outcome_of(call), {"InvalidArgument: Autocast", words});
    EXPECT_EQ(product_dtype(), at::kFloat);
  };
  says([] { const Autocast scope(at::kCPU, at::kLong); }, "the dtype is Long");
  says([] { const Autocast scope(at::kCPU, at::kFloat); }, "give at::kBFloat16");
  says([] { const Autocast scope(at::kMeta, at::kBFloat16); }, "the device is meta");
  if (TORCH_VERSION_MAJOR == 1) says([] { const Autocast scope(at::kCPU, at::kHalf); }, "the dtype is Half");
}

// Weights and biases are cast: the product is one operator.
struct CastNet : ::torch::nn::Module {
  ::torch::nn::Linear in = register_module("in", ::torch::nn::Linear(4, 8));
  ::torch::nn::Linear out = register_module("out", ::torch::nn::Linear(8, 2));
  at::Tensor forward(const at::Tensor& x) {
    return at::linear(at::tanh(at::linear(x, in->weight, in->bias)), out->weight, out->bias);
  }
};

// Where a program has its scopes, and what it does in them.
struct Scopes {
  bool around_loop = false;
  bool around_forward = true;
  bool evaluates = false;              // the module, before each micro-batch and on both sides of each update
  bool evaluates_through_ddp = false;  // the same
  bool keeps_casts = true;
};

struct Trained {
  Tensors weights;
  std::vector<double> evaluated;  // the mean output after each step
};

using Options = ::torch::optim::AdamWOptions;

// Two micro-batches to a step, or in fixed micro-batches.
Trained train_in(const Scopes& scopes, const Group& group, const libtorch::DdpOptions& options, const auto& made_for) {
  CastNet net;
  initialize(net, 3);
  libtorch::DistributedDataParallel ddp(net, group, options);
  auto optimizer = made_for(ddp);
  libtorch::GradScaler scaler({.init_scale = 16});
  const libtorch::AutocastOptions kept{.cache_enabled = scopes.keeps_casts};
  std::optional<Autocast> outer, inner;
  const auto evaluate = [&](const at::Tensor& x) {
    const at::NoGradGuard no_grad;
    const at::Tensor y = scopes.evaluates_through_ddp ? ddp(x) : net.forward(x);
    return y.mean().item<double>();
  };
  const auto loss_of = [&](const at::Tensor& x) {
    if (scopes.evaluates || scopes.evaluates_through_ddp) evaluate(x);
    if (scopes.around_forward) inner.emplace(at::kCPU, at::kBFloat16, kept);
    const at::Tensor loss = at::mse_loss(ddp(x).to(at::kFloat), x.slice(1, 0, 2));
    inner.reset();
    return loss;
  };
  const std::int64_t rows = 12 / group->size();
  Trained result;
  if (scopes.around_loop) outer.emplace(at::kCPU, at::kBFloat16, kept);
  for (int step = 0; step < 6; ++step) {
    optimizer.zero_grad();
    const at::Tensor x = random_tensor({rows, 4}, static_cast<std::uint64_t>(10 * step + group->rank()));
    if (options.reproducible.is_on()) {
      ddp.backward(rows, [&](std::int64_t begin, std::int64_t end) { return loss_of(x.slice(0, begin, end)); });
      optimizer.step();
    } else {
      {
        const auto local = ddp.no_sync();
        scaler.scale(loss_of(x.slice(0, 0, 2))).backward();
      }
      scaler.scale(loss_of(x.slice(0, 2))).backward();
      if (scopes.evaluates) evaluate(x);
      scaler.step(optimizer);
      scaler.update();
    }
    if (!scopes.around_loop) inner.emplace(at::kCPU, at::kBFloat16, kept);
    result.evaluated.push_back(evaluate(x));
    inner.reset();
  }
  ddp.check_replicas();
  result.weights = weights_of(net);
  return result;
}

// Casts that autocast keeps are those of the current weights, with a graph, wherever the scope is.
void expect_the_same_in_any_scope(const auto& made_for, const libtorch::DdpOptions& options = {}) {
  const std::array<Scopes, 6> all{{{.around_loop = true, .around_forward = false},
                                   {.around_loop = true},
                                   {.around_loop = true, .around_forward = false, .evaluates = true},
                                   {.around_loop = true, .around_forward = false, .evaluates_through_ddp = true},
                                   {.around_loop = true, .evaluates = true, .evaluates_through_ddp = true},
                                   {.around_loop = true, .evaluates = true, .keeps_casts = false}}};
  for (const int ranks : {1, 2}) {
    run_torch_ranks(ranks, [&](const Group& group) {
      const Trained wanted = train_in({}, group, options, made_for);
      for (std::size_t i = 0; i < all.size(); ++i) {
        const Trained seen = train_in(all[i], group, options, made_for);
        EXPECT_TRUE(same_bits(seen.weights, wanted.weights)) << "scopes " << i << ", " << ranks << " ranks";
        EXPECT_EQ(seen.evaluated, wanted.evaluated) << "scopes " << i << ", " << ranks << " ranks";
      }
    });
  }
}

TEST(Autocast, AScopeMayBeAnywhereAroundSteps) {
  using ::torch::optim::AdamW;
  const auto torchs = [](auto& ddp) { return AdamW(ddp.parameters(), Options(0.05)); };
  expect_the_same_in_any_scope(torchs);
  expect_the_same_in_any_scope([](auto& ddp) { return libtorch::FusedAdamW(ddp.parameters(), Options(0.05)); });
  expect_the_same_in_any_scope(torchs, {.reproducible = {.micro_batches = 4, .global_batch = 12}});
  expect_the_same_in_any_scope([](auto& ddp) { return libtorch::ShardedOptimizer<AdamW>(ddp, Options(0.05)); },
                               {.shard = Shard::optimizer});
}

}  // namespace
}  // namespace lockstep::testing::autocast_test
