// SPDX-License-Identifier: Apache-2.0
// The way back through a tape; what operations refuse, and what their gradients and the kernels' tests don't show.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <thread>

#include "lockstep/autograd/graph.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/base/error.h"
#include "runtime/tensor/tensor_internals.h"
#include "tests/support/error_of.h"
#include "tests/support/messages.h"
#include "tests/unit/autograd/gradient_check.h"

namespace lockstep::autograd::graph_test {
namespace {

using lockstep::testing::error_of, lockstep::testing::expect_text;
using testing::random_tensor;

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
  // As of a penalty on a gradient, which is numbers and not a part of a tape.
  lockstep::testing::expect_message("autograd", "no tape", error_of([&] { backward(Tensor::zeros({})); }));
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

RandomSource source(std::vector<std::int64_t> ids, RandomKey key = {.seed = 1, .layer = 2, .step = 3}) {
  return {.key = key, .sample_ids = std::make_shared<const std::vector<std::int64_t>>(std::move(ids))};
}

TEST(Ops, RefuseWhatDoesNotFit) {
  const Tensor a = Tensor::zeros({2, 3}), b = Tensor::zeros({3, 4}), floats = Tensor::zeros({2, 2}),
               ints = Tensor::indices({2, 2}, {0, 1, 0, 1}), logits = Tensor::zeros({3, 2});
  const auto refused = [](const char* what, const std::function<void()>& call) {
    testing::expect_message("autograd", what, testing::error_of(call));
  };
  refused("add of two shapes", [&] { add(a, b); });
  refused("sub of two shapes", [&] { sub(a, b); });
  refused("mul of two shapes", [&] { mul(a, b); });
  refused("mse_loss of two shapes", [&] { mse_loss(a, b); });
  refused("mse_loss without a target", [&] { mse_loss(a, Tensor()); });
  refused("matmul of two shapes", [&] { matmul(b, a); });
  refused("linear with a short bias", [&] { linear(a, b, Tensor::zeros({3})); });
  refused("add_row of a short row", [&] { add_row(a, Tensor::zeros({2})); });
  refused("layer_norm with a short bias", [&] { layer_norm(a, Tensor::zeros({3}), Tensor::zeros({2})); });
  refused("reshape to fewer elements", [&] { reshape(a, {5}); });
  refused("rows beyond the last", [&] { rows(a, 1, 3); });
  refused("transpose of three dimensions", [&] { transpose(Tensor::zeros({2, 3, 4})); });
  refused("attention of 4 channels in 3 heads", [&] { causal_self_attention(Tensor::zeros({2, 3, 12}), 3); });
  refused("cross_entropy with a target more", [&] { cross_entropy(a, Tensor::indices({3}, {0, 0, 0})); });
  refused("add of two dtypes", [&] { add(floats, ints); });
  refused("relu of indices", [&] { relu(ints); });
  refused("matmul of indices", [&] { matmul(ints, floats); });
  refused("embedding without indices", [&] { embedding(floats, floats); });
  refused("cross_entropy without indices", [&] { cross_entropy(floats, floats); });
  refused("embedding of an index too large", [&] { embedding(b, Tensor::indices({3}, {0, 3, 1})); });
  refused("embedding of a negative index", [&] { embedding(b, Tensor::indices({1}, {-1})); });
  refused("cross_entropy of a target too large", [&] { cross_entropy(logits, Tensor::indices({3}, {0, 1, 2})); });
  refused("cross_entropy of a negative target", [&] { cross_entropy(logits, Tensor::indices({3}, {-1, 1, 0})); });
  refused("dropout of all", [&] { dropout(Tensor::ones({3}), 1, source({1})); });
  refused("dropout of other samples", [&] { dropout(Tensor::ones({3}), 0.5f, source({1, 2})); });
  refused("dropout without samples", [&] { dropout(Tensor::ones({3}), 0.5f, {}); });
  refused("argmax of no columns", [&] { argmax(Tensor::zeros({2, 0})); });
  refused("accuracy with a target less", [&] { accuracy(logits, Tensor::indices({2}, {1, 1})); });
}

TEST(Ops, CrossEntropyIsTheMeanOverTheRowsThatCount) {
  const Tensor logits = Tensor::of({3, 2}, {0, 0, 1, 3, -100, 100});
  const Tensor targets = Tensor::indices({3}, {1, 0, -100});
  EXPECT_NEAR(cross_entropy(logits, targets).item(), (std::log(2.0) + std::log1p(std::exp(2.0))) / 2, 1e-6);
  EXPECT_NEAR(cross_entropy(logits, Tensor::indices({3}, {7, 0, 7}), {.ignore_index = 7}).item(),
              std::log1p(std::exp(2.0)), 1e-6);
  EXPECT_EQ(cross_entropy(Tensor::zeros({0, 2}), Tensor::indices({0}, {})).item(), 0);
  EXPECT_EQ(mse_loss(Tensor::zeros({0, 2}), Tensor::zeros({0, 2})).item(), 0);
  EXPECT_EQ(mean(Tensor::zeros({0})).item(), 0);
}

TEST(Ops, AttentionIsTheCausalSoftmaxAverage) {
  const std::int64_t batch = 2, time = 7, heads = 3, size = 5, channels = heads * size;
  const Tensor qkv = random_tensor({batch, time, 3 * channels}, 1);
  const std::vector<float> y = causal_self_attention(qkv, heads).to_vector();
  for (std::int64_t i = 0; i < batch * time * heads; ++i) {  // each position of each head
    const std::int64_t b = i / heads / time, t = i / heads % time, h = i % heads;
    const auto at = [&](std::int64_t position, std::int64_t part, std::int64_t c) {
      return static_cast<double>(qkv.data<float>()[((b * time + position) * 3 + part) * channels + h * size + c]);
    };
    double total = 0;
    std::vector<double> sums(static_cast<std::size_t>(size));
    for (std::int64_t s = 0; s <= t; ++s) {
      double score = 0;
      for (std::int64_t c = 0; c < size; ++c) score += at(t, 0, c) * at(s, 1, c);
      const double weight = std::exp(score / std::sqrt(static_cast<double>(size)));
      total += weight;
      for (std::int64_t c = 0; c < size; ++c) sums[static_cast<std::size_t>(c)] += weight * at(s, 2, c);
    }
    for (std::size_t c = 0; c < sums.size(); ++c) {
      ASSERT_NEAR(y[static_cast<std::size_t>((b * time + t) * channels + h * size) + c], sums[c] / total, 1e-5);
    }
  }
}

std::vector<float> mask(std::int64_t elements, const RandomSource& random, float p = 0.4f) {
  return dropout(Tensor::ones({static_cast<std::int64_t>(random.sample_ids->size()), elements}), p, random).to_vector();
}

TEST(Dropout, AMaskBelongsToTheSampleNotToItsPlace) {
  const std::int64_t elements = 131;
  const std::vector<float> together = mask(elements, source({30, 20, 10}));
  for (std::int64_t i = 0; i < 3; ++i) {
    const std::vector<float> alone = mask(elements, source({10 * (3 - i)}));
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + i * elements)) << i;
  }
}

TEST(Dropout, EverythingThatMayMatterDoes) {
  const auto of_key = [](std::uint64_t seed, std::uint64_t layer, std::uint64_t step) {
    return mask(100, source({10}, {.seed = seed, .layer = layer, .step = step}));
  };
  const std::set<std::vector<float>> masks{of_key(1, 2, 3),
                                           of_key(2, 2, 3),
                                           of_key(1, 3, 3),
                                           of_key(1, 2, 4),
                                           of_key(1, 3, 2),
                                           mask(100, source({11})),
                                           mask(100, source({10 + (std::int64_t{1} << 32)}))};
  EXPECT_EQ(masks.size(), 7u);
  EXPECT_TRUE(masks.contains(mask(100, source({10}))));
}

TEST(Dropout, KeepsTheShareAndTheMean) {
  const std::int64_t elements = 100000;
  for (const float p : {0.1f, 0.5f, 0.9f}) {
    double sum = 0;
    std::int64_t kept = 0;
    for (const float value : mask(elements, source({1}), p)) {
      ASSERT_TRUE(value == 0 || std::abs(value - 1 / (1 - p)) < 1e-5f);
      sum += value;
      kept += value != 0;
    }
    EXPECT_NEAR(static_cast<double>(kept) / elements, 1 - p, 0.006) << p;
    EXPECT_NEAR(sum / elements, 1, 0.05) << p;
  }
  const Tensor x = Tensor::ones({3});
  EXPECT_EQ(dropout(x, 0, {}).id(), x.id()) << "nothing to drop";
}

TEST(Argmax, IsTheFirstLargestOfTheLastDimension) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor largest = argmax(Tensor::of({2, 2, 3}, {1, 3, 3, -1, -2, -3, 0, nan, 9, 5, 6, 7}));
  EXPECT_EQ(largest.shape(), (Shape{2, 2}));
  const auto ids = largest.values<std::int64_t>();
  EXPECT_EQ(std::vector<std::int64_t>(ids.begin(), ids.end()), (std::vector<std::int64_t>{1, 0, 1, 2}));
  EXPECT_EQ(argmax(Tensor::zeros({0, 3})).count(), 0);
  const Tensor logits = Tensor::of({4, 2}, {1, 2, 2, 1, 1, 2, 2, 1});
  EXPECT_EQ(accuracy(logits, Tensor::indices({4}, {1, 1, 1, 0})), 0.75);
  EXPECT_TRUE(std::isnan(accuracy(Tensor::zeros({0, 2}), Tensor::indices({0}, {}))));
}

}  // namespace
}  // namespace lockstep::autograd::graph_test
