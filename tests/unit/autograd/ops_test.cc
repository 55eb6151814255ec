// SPDX-License-Identifier: Apache-2.0
// What operations refuse, and what their gradients and the kernels' tests don't show.
#include "lockstep/autograd/ops.h"

#include <cmath>
#include <set>

#include "lockstep/autograd/graph.h"
#include "lockstep/base/error.h"
#include "tests/support/error_of.h"
#include "tests/support/messages.h"
#include "tests/unit/autograd/gradient_check.h"

namespace lockstep::ops_test {
namespace {

using testing::random_tensor;

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
}  // namespace lockstep::ops_test
