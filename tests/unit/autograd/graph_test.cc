// SPDX-License-Identifier: Apache-2.0
#include "lockstep/autograd/graph.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <thread>

#include "lockstep/autograd/ops.h"
#include "lockstep/base/error.h"
#include "runtime/tensor/tensor_internals.h"
#include "tests/support/error_of.h"

namespace lockstep::autograd::graph_test {
namespace {

using lockstep::testing::error_of, lockstep::testing::expect_text;

Tensor leaf(std::initializer_list<float> values) {
  return Tensor::of({static_cast<std::int64_t>(values.size())}, values).set_requires_grad();
}

std::vector<const void*> ids(const std::vector<Tensor>& tensors) {
  std::vector<const void*> result;
  for (const Tensor& tensor : tensors) result.push_back(tensor.id());
  return result;
}

TEST(Backward, SeedScalesAndGradientsAddUpOverMicroBatches) {
  const Tensor w = leaf({2, 3});
  const auto loss = [&](float factor) { return mean(scale(w, factor)); };
  backward(loss(1), 4);
  EXPECT_EQ(w.grad().to_vector(), (std::vector<float>{2, 2}));
  backward(loss(3), 2);
  EXPECT_EQ(w.grad().to_vector(), (std::vector<float>{5, 5}));
  w.clear_grad();
  EXPECT_FALSE(w.grad().defined());
  backward(loss(1), 4);
  EXPECT_EQ(w.grad().to_vector(), (std::vector<float>{2, 2}));
}

TEST(Backward, WithoutAccumulationTheFirstContributionOverwritesAndLaterOnesAdd) {
  const Tensor twice = leaf({1}), never = leaf({1});
  float arena[2] = {std::numeric_limits<float>::quiet_NaN(), 7};
  TensorInternals(twice).bind_grad(&arena[0]);
  TensorInternals(never).bind_grad(&arena[1]);
  backward(sum(scale(twice, 2) + scale(twice, 3)), 1, {.accumulate = false});
  EXPECT_EQ(arena[0], 5);
  EXPECT_EQ(arena[1], 7) << "a leaf that the loss does not depend on is left alone";
  const Tensor gradient = twice.grad();
  EXPECT_EQ(gradient.data<float>(), &arena[0]);
}

TEST(Backward, ALeafIsReadyAfterItsLastUseAndHoldsItsFinalValueThen) {
  const Tensor early = leaf({1}), middle = leaf({1}), late = leaf({1});
  const Tensor loss = sum(mul(mul(mul(late, middle), early), middle));
  const std::vector<Tensor> planned = ready_order(loss);
  EXPECT_FALSE(late.has_grad()) << "nothing is computed, and the tape is kept";
  // `middle` is used last and near the beginning: it can't be ready before its first use was walked.
  ASSERT_EQ(planned.size(), 3u);
  EXPECT_EQ(planned[0].id(), early.id());

  std::vector<Tensor> seen;
  std::vector<float> values;
  backward(loss, 1, {.on_leaf_ready = [&](const Tensor& t) {
             seen.push_back(t);
             values.push_back(t.grad().item());
           }});
  EXPECT_EQ(ids(seen), ids(planned));
  for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(values[i], seen[i].grad().item());
  EXPECT_EQ(middle.grad().item(), 2);
}

TEST(Backward, FreesTheTapeWhileItWalks) {
  const Tensor first = leaf({2}), second = leaf({3});
  std::weak_ptr<void> first_input, second_input;
  static float memory[2] = {5, 7};
  const auto input = [&](int i, std::weak_ptr<void>& watch) {
    const auto owner = std::make_shared<int>(0);
    watch = owner;
    return Tensor::borrow(BufferView(&memory[i], 1, DType::f32), {1}, owner);
  };
  const Tensor loss = sum(mul(mul(first, input(0, first_input)), mul(second, input(1, second_input))));
  EXPECT_FALSE(first_input.expired());
  EXPECT_FALSE(second_input.expired());
  int ready = 0;
  backward(loss, 1, {.on_leaf_ready = [&](const Tensor&) {
             ++ready;
             EXPECT_EQ(first_input.expired() + second_input.expired(), ready);
           }});
  EXPECT_EQ(ready, 2);
}

TEST(Backward, TwiceIsAnErrorUnlessTheTapeWasKept) {
  const Tensor w = leaf({3});
  const Tensor loss = sum(mul(w, w));
  backward(loss, 1, {.retain_graph = true});
  backward(loss);
  EXPECT_EQ(w.grad().item(), 12);
  expect_text(error_of([&] { backward(loss); }), {"freed at 'sum'"});
  expect_text(error_of([&] { ready_order(loss); }), {"freed"});
}

TEST(Backward, AFreedPartIsFoundBeforeAnyGradientIsTouched) {
  const Tensor w = leaf({3}), v = leaf({2});
  const Tensor shared = mul(w, w);
  backward(sum(shared));
  const Tensor loss = sum(mul(shared, v));
  expect_text(error_of([&] { backward(loss); }), {"freed at 'mul'"});
  EXPECT_FALSE(v.has_grad());
  EXPECT_EQ(w.grad().item(), 6);
}

TEST(Backward, RefusesWhatIsNoLoss) {
  const Tensor w = leaf({1, 2});
  expect_text(error_of([&] { backward(scale(w, 1)); }), {"float32 [2]"});
  expect_text(error_of([&] { backward(Tensor::zeros({})); }), {"depends on no tensor"});
  const NoGrad no_grad;
  expect_text(error_of([&] { backward(sum(w)); }), {"NoGrad"});
  EXPECT_THROW(backward(Tensor()), InvalidArgument);
}

TEST(Backward, AnErrorOfTheHookEndsTheWalkAndFreesTheTape) {
  const Tensor w = leaf({3}), v = leaf({2});
  const Tensor loss = sum(mul(mul(w, w), v));
  EXPECT_THROW(backward(loss, 1, {.on_leaf_ready = [](const Tensor&) { throw PeerLost("rank 1 is gone"); }}), PeerLost);
  EXPECT_FALSE(w.has_grad());
  expect_text(error_of([&] { backward(loss); }), {"freed"});
}

TEST(Backward, LongTapesNeitherWalkNorFreeByRecursion) {
  const Tensor w = leaf({1});
  const auto chain = [&] {
    Tensor y = w;
    for (int i = 0; i < 200000; ++i) y = scale(y, 1);
    return sum(y);
  };
  { const Tensor dropped = chain(); }
  backward(chain());
  EXPECT_EQ(w.grad().item(), 1);
}

TEST(NoGrad, IsPerThreadAndNests) {
  const Tensor w = leaf({1});
  const NoGrad outer;
  { const NoGrad inner; }
  EXPECT_FALSE(grad_enabled());
  EXPECT_TRUE(scale(w, 1).is_leaf());
  bool elsewhere = false;
  std::thread([&] { elsewhere = grad_enabled(); }).join();
  EXPECT_TRUE(elsewhere);
}

TEST(Tape, IsRecordedOnlyWhereAGradientIsWanted) {
  const Tensor plain = Tensor::ones({2});
  EXPECT_FALSE(add(plain, plain).requires_grad());
  const Tensor w = leaf({1, 2});
  const Tensor y = mul(w, plain);
  EXPECT_TRUE(y.requires_grad());
  EXPECT_FALSE(y.detach().requires_grad());
  EXPECT_THROW(y.set_requires_grad(), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::autograd::graph_test
