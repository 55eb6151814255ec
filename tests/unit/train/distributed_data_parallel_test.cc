// SPDX-License-Identifier: Apache-2.0
#include "lockstep/train/distributed_data_parallel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/nn/nn.h"
#include "lockstep/optim/optimizer.h"
#include "runtime/tensor/tensor_internals.h"
#include "tests/support/error_of.h"
#include "tests/unit/train/single_group.h"

namespace lockstep::distributed_data_parallel_test {
namespace {

nn::Sequential mlp() {
  nn::Sequential model{nn::Linear(3, 8), nn::Tanh(), nn::Linear(8, 2)};
  model.initialize(7);
  return model;
}

Tensor input(std::int64_t rows) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < rows * 3; ++i) values.push_back(static_cast<float>(i % 7 - 3));
  return Tensor::of({rows, 3}, values);
}

Tensor loss_of(const Tensor& y) { return mean(y * y); }

double norm_of_gradients(const nn::Module& model) { return optim::grad_norm(model.parameters()).value(); }

void expect_plain_gradients(const nn::Module& model, const Tensor& x) {
  nn::Sequential plain = mlp();
  backward(loss_of(plain(x)));
  EXPECT_NEAR(norm_of_gradients(model), norm_of_gradients(plain), 1e-5 * norm_of_gradients(plain));
}

TEST(DistributedDataParallel, BucketsFollowTheTapeFromTheFirstStepOn) {
  nn::Sequential model = mlp();
  DistributedDataParallel ddp(model, testing::single_group(), {.buckets = {.cap_bytes = 1, .first_cap_bytes = 1}});
  const Tensor loss = loss_of(ddp(input(5)));
  std::vector<std::vector<int>> wanted;
  for (const Tensor& leaf : ready_order(loss)) {
    const auto parameters = model.parameters();
    const auto found = std::find_if(parameters.begin(), parameters.end(),
                                    [&](const Tensor& parameter) { return parameter.id() == leaf.id(); });
    wanted.push_back({static_cast<int>(found - parameters.begin())});
  }
  ddp.backward(loss);
  std::vector<std::vector<int>> seen;
  for (const Bucket& bucket : ddp.reducer().plan().buckets) seen.push_back(bucket.parameters);
  EXPECT_EQ(seen, wanted);
  // The proof of overlap, in the first step: bucket 0 left before the last gradient was ready.
  EXPECT_LT(ddp.last_step().buckets[0].gradients_ready, ddp.last_step().gradients_ready);
}

TEST(DistributedDataParallel, BackwardReturnsTheWeightsOfMicroBatchesSoFar) {
  nn::Sequential model = mlp();
  DistributedDataParallel ddp(model, testing::single_group());
  {
    const auto local = ddp.no_sync();
    EXPECT_EQ(ddp.backward(loss_of(ddp(input(2)))), 2);
    const Tensor loss = loss_of(ddp(input(2)));
    ddp.set_weight(30);
    EXPECT_EQ(ddp.backward(loss), 32);
  }
  EXPECT_EQ(ddp.backward(loss_of(ddp(input(3)))), 35);
}

TEST(DistributedDataParallel, DropoutIsKeyedBySampleIdAndStep) {
  nn::Sequential model{nn::Dropout(0.5f), nn::Linear(64, 1)};
  DistributedDataParallel ddp(model, testing::single_group(), {.seed = 3});
  const Tensor x = Tensor::ones({2, 64});
  const auto forward = [&](std::vector<std::int64_t> ids) { return ddp(x, std::move(ids)).to_vector(); };
  const auto first = forward({10, 11});
  EXPECT_NE(first[0], first[1]);
  EXPECT_EQ(forward({10, 11}), first);
  EXPECT_EQ(forward({11, 10}), (std::vector<float>{first[1], first[0]}));
  EXPECT_NE(DistributedDataParallel(model, testing::single_group(), {.seed = 4})(x, {10, 11}).to_vector(), first);
  ddp.backward(mean(ddp(x, {10, 11})));
  EXPECT_NE(forward({10, 11}), first);
  ddp.set_steps(0);
  EXPECT_EQ(forward({10, 11}), first) << "as a run that resumes from there";
  EXPECT_THROW(ddp(x, {10}), InvalidArgument);
  EXPECT_THROW(ddp(x), InvalidArgument) << "an earlier batch's ids don't count";
  forward({10, 11});
  EXPECT_EQ(ddp(Tensor::ones({0, 64})).size(0), 0) << "a shard without rows needs no ids";
  // A context of the program's own stays.
  model.set_context({.seed = 1, .step = 0, .sample_ids = {10, 11}});
  EXPECT_EQ(ddp(x).to_vector(), ddp(x).to_vector());
}

TEST(DistributedDataParallel, RefusesAModelWithoutParametersAndALossWithoutATape) {
  nn::ReLU empty;
  EXPECT_THROW(DistributedDataParallel(empty, testing::single_group()), InvalidArgument);
  nn::Sequential model = mlp();
  DistributedDataParallel ddp(model, testing::single_group());
  ddp(input(5));
  testing::expect_text(testing::error_of([&] { ddp.backward(Tensor::full({}, 1.0f)); }),
                       {"depends on no tensor that requires a gradient"});
  // Nothing was begun: the next step works.
  EXPECT_EQ(ddp.backward(loss_of(ddp(input(5)))), 5);
}

TEST(DistributedDataParallel, WhatChangedSinceItWasWrappedIsRefusedOnEveryWayToAStep) {
  struct Growing : nn::Module {
    nn::Linear first = register_module("first", nn::Linear(3, 2));
    void grow() const { register_module("second", nn::Linear(2, 2)); }
    Tensor forward(const Tensor& x) override { return first(x); }
  };
  const auto way = [](DistributedDataParallel& ddp, int which) {
    if (which == 0) ddp.backward(loss_of(ddp(input(5))));
    if (which == 1) ddp.backward(5, [&](std::int64_t, std::int64_t) { return loss_of(ddp(input(5))); });
    if (which == 2) ddp.step_without_data();
    if (which == 3) ddp.check_replicas();
  };
  for (const bool is_new : {true, false}) {
    for (int which = 0; which < (is_new ? 4 : 3); ++which) {
      Growing model;
      DistributedDataParallel ddp(model, testing::single_group());
      way(ddp, 0);
      // As move_to() another device and back leaves it: backward would write beside the arena.
      is_new ? model.grow() : TensorInternals(model.parameters()[0]).unbind_grad();
      testing::expect_text(testing::error_of([&] { way(ddp, which); }),
                           {is_new ? "parameter 'second.weight' was added to the module after it was wrapped"
                                   : "'first.weight' has been converted or moved since the module was wrapped"});
    }
  }
}

TEST(DistributedDataParallel, AForwardThatRecordsNothingLeavesThePendingWeight) {
  nn::Sequential model = mlp();
  DistributedDataParallel ddp(model, testing::single_group());
  const auto evaluate = [&] {
    const NoGrad no_grad;
    ddp(input(9));
  };
  const Tensor loss = loss_of(ddp(input(5)));
  evaluate();
  EXPECT_EQ(ddp.backward(loss), 5);
  evaluate();
  EXPECT_THROW(ddp.backward(loss_of(model(input(3)))), InvalidArgument)
      << "no forward with a backward went through ddp";
}

TEST(DistributedDataParallel, AFreeBackwardIntoItsParametersIsItsOwn) {
  nn::Sequential model = mlp();
  {
    DistributedDataParallel ddp(model, testing::single_group());
    backward(loss_of(ddp(input(5))));
    EXPECT_EQ(ddp.steps(), 1);
    EXPECT_EQ(ddp.last_weight(), 5);
    expect_plain_gradients(model, input(5));
    testing::expect_text(testing::error_of([&] { backward(loss_of(model(input(5)))); }), {"a loss without a weight"});
    const Tensor other = input(5).set_requires_grad();  // past its parameters
    backward(loss_of(other));
    EXPECT_TRUE(other.has_grad());
  }
  backward(loss_of(model(input(5))));
  expect_plain_gradients(model, input(5));
}

TEST(DistributedDataParallel, AFreeBackwardThatItCantDoIsRefused) {
  nn::Sequential model = mlp();
  const auto expect_refused = [&](const Tensor& loss, float seed = 1, const BackwardOptions& options = {}) {
    const double before = norm_of_gradients(model);
    testing::expect_text(testing::error_of([&] { backward(loss, seed, options); }), {"call ddp.backward(loss)"});
    EXPECT_EQ(norm_of_gradients(model), before) << "no gradient was touched";
  };
  auto first = std::make_unique<DistributedDataParallel>(model, testing::single_group());
  const Tensor loss = loss_of((*first)(input(5)));
  expect_refused(loss, 2);
  expect_refused(loss, 1, {.accumulate = false});
  expect_refused(loss, 1, {.retain_graph = true});
  expect_refused(loss, 1, {.on_leaf_ready = [](const Tensor&) {}});
  DistributedDataParallel second(model, testing::single_group());
  expect_refused(loss);
  expect_refused(loss_of(second(input(5))));
  first.reset();
  backward(loss_of(second(input(5))));
  EXPECT_EQ(second.last_weight(), 5);
}

}  // namespace
}  // namespace lockstep::distributed_data_parallel_test
