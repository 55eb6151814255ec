// SPDX-License-Identifier: Apache-2.0
#include "lockstep/autograd/ops.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/autograd/graph.h"
#include "lockstep/base/error.h"
#include "tests/unit/autograd/gradient_check.h"

namespace lockstep::ops_test {
namespace {

using testing::random_tensor;

// f throws InvalidArgument, and its message has all of the parts.
template <typename F>
void expect_error(const F& f, std::initializer_list<const char*> parts) {
  try {
    f();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const InvalidArgument& error) {
    const std::string message = error.what();
    for (const char* part : parts) EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
  }
}

TEST(Ops, WrongShapesNameTheOperationAndBothShapes) {
  const Tensor a = Tensor::zeros({2, 3}), b = Tensor::zeros({3, 4});
  expect_error([&] { add(a, b); }, {"add", "[2, 3]", "[3, 4]"});
  expect_error([&] { sub(a, b); }, {"sub", "[2, 3]", "[3, 4]"});
  expect_error([&] { mul(a, b); }, {"mul", "[2, 3]", "[3, 4]"});
  expect_error([&] { mse_loss(a, b); }, {"mse_loss", "[2, 3]", "[3, 4]"});
  expect_error([&] { mse_loss(a, Tensor()); }, {"mse_loss: b is undefined", "a dataset without targets"});
  expect_error([&] { matmul(b, a); }, {"matmul", "[3, 4]", "[2, 3]"});
  expect_error([&] { linear(a, b, Tensor::zeros({3})); }, {"linear", "bias", "[3]", "[4]"});
  expect_error([&] { add_row(a, Tensor::zeros({2})); }, {"add_row", "[2, 3]", "[3]", "[2]"});
  expect_error([&] { layer_norm(a, Tensor::zeros({3}), Tensor::zeros({2})); }, {"layer_norm", "[2, 3]", "[2]"});
  expect_error([&] { reshape(a, {5}); }, {"[2, 3]", "[5]"});
  expect_error([&] { rows(a, 1, 3); }, {"[1, 3)", "[2, 3]"});
  expect_error([&] { transpose(Tensor::zeros({2, 3, 4})); }, {"transpose", "[2, 3, 4]"});
  expect_error([&] { causal_self_attention(Tensor::zeros({2, 3, 12}), 3); }, {"causal_self_attention", "[2, 3, 12]"});
  expect_error([&] { cross_entropy(a, Tensor::indices({3}, {0, 0, 0})); }, {"cross_entropy", "[2, 3]", "[3]"});
}

TEST(Ops, WrongDtypesAreRefused) {
  const Tensor floats = Tensor::zeros({2, 2}), ints = Tensor::indices({2, 2}, {0, 1, 0, 1});
  expect_error([&] { add(floats, ints); }, {"add", "int64", "float32"});
  expect_error([&] { relu(ints); }, {"relu", "int64"});
  expect_error([&] { matmul(ints, floats); }, {"matmul", "int64"});
  expect_error([&] { embedding(floats, floats); }, {"embedding", "indices", "int64"});
  expect_error([&] { cross_entropy(floats, floats); }, {"cross_entropy", "targets", "int64"});
}

TEST(Ops, IndicesOutOfRangeAreNamedWithTheirPlace) {
  const Tensor table = Tensor::zeros({4, 2});
  expect_error([&] { embedding(table, Tensor::indices({3}, {0, 4, 1})); }, {"index 4", "position 1", "[0, 4)"});
  expect_error([&] { embedding(table, Tensor::indices({1}, {-1})); }, {"index -1", "position 0"});
  const Tensor logits = Tensor::zeros({3, 2});
  expect_error([&] { cross_entropy(logits, Tensor::indices({3}, {0, 1, 2})); }, {"target 2", "row 2", "[0, 2)"});
  expect_error([&] { cross_entropy(logits, Tensor::indices({3}, {-1, 1, 0})); }, {"target -1", "row 0"});
  expect_error(
      [&] {
        cross_entropy(logits, Tensor::of({3}, {0, 1, 0}));
      },
      {"cross_entropy: targets is float32 [3], and must be int64; give a tensor of this dtype, made by "
       "Tensor::indices"});
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

TEST(Ops, CrossEntropyOfLargeLogitsStaysFinite) {
  const Tensor logits = Tensor::of({2, 3}, {1e4f, 0, -1e4f, -1e4f, -1e4f, -1e4f});
  EXPECT_NEAR(cross_entropy(logits, Tensor::indices({2}, {0, 1})).item(), std::log(3.0) / 2, 1e-5);
}

// The largest and the log of the sum kept in one float would leave no digits of what is between them.
TEST(Ops, CrossEntropysGradientDoesNotLoseDigitsToTheLogitsOffset) {
  const std::int64_t classes = 10;
  for (const float offset : {0.0f, 1e3f, -1e3f, 1e4f, 1e6f}) {
    const Tensor logits = random_tensor({1, classes}, 4);
    for (float& value : logits.values<float>()) value = 3 * value + offset;
    logits.set_requires_grad();
    backward(cross_entropy(logits, Tensor::indices({1}, {2})));
    double total = 0, sum = 0;
    const auto exponential = [&](std::int64_t c) {
      return std::exp(static_cast<double>(logits.data<float>()[c]) - static_cast<double>(logits.data<float>()[0]));
    };
    for (std::int64_t c = 0; c < classes; ++c) total += exponential(c);
    const std::vector<float> gradients = logits.grad().to_vector();
    for (std::int64_t c = 0; c < classes; ++c) {
      const auto gradient = static_cast<double>(gradients[static_cast<std::size_t>(c)]);
      EXPECT_NEAR(gradient, exponential(c) / total - (c == 2 ? 1 : 0), 2e-7) << offset << " " << c;
      sum += gradient;
    }
    EXPECT_NEAR(sum, 0, 3e-7) << offset;
  }
}

// As torch.relu's (PyTorch 1.13): the gradient is stopped where the output is at most 0, which NaN is not.
TEST(Ops, ReluLetsTheGradientPassAtNan) {
  const Tensor x = Tensor::of({4}, {std::numeric_limits<float>::quiet_NaN(), -1, 0, 2}).set_requires_grad();
  backward(sum(relu(x)));
  EXPECT_EQ(x.grad().to_vector(), (std::vector<float>{1, 0, 0, 1}));
}

TEST(Ops, LayerNormIsRightWhereTheVarianceOverflowsAFloat) {
  for (const float scale : {1.0f, 1e19f, 1e20f, 1e30f, 1e36f}) {
    const Tensor x = Tensor::of({1, 4}, {1 * scale, 2 * scale, 3 * scale, -6 * scale}).set_requires_grad();
    const Tensor y = layer_norm(x, Tensor::ones({4}), Tensor::zeros({4}), 1e-30f);
    for (std::int64_t i = 0; i < 4; ++i) {
      const double wanted = (i < 3 ? static_cast<double>(i) + 1 : -6) / std::sqrt(12.5);
      EXPECT_NEAR(y.data<float>()[i], wanted, 3e-7) << scale;
    }
    backward(sum(y * Tensor::of({1, 4}, {1, 0, 0, 0})));
    // d y0 / d x0 = (1 - 1/4 - y0^2 / 4) / deviation.
    EXPECT_NEAR(x.grad().to_vector()[0] * scale, (0.75 - 0.25 / 12.5) / std::sqrt(12.5), 3e-7) << scale;
  }
}

TEST(Ops, AttentionIsTheCausalSoftmaxAverage) {
  const std::int64_t batch = 2, time = 7, heads = 3, size = 5, channels = heads * size;
  const Tensor qkv = random_tensor({batch, time, 3 * channels}, 1);
  const std::vector<float> y = causal_self_attention(qkv, heads).to_vector();
  const auto at = [&](std::int64_t b, std::int64_t t, std::int64_t part, std::int64_t h, std::int64_t c) {
    return static_cast<double>(qkv.data<float>()[(b * time + t) * 3 * channels + part * channels + h * size + c]);
  };
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t t = 0; t < time; ++t) {
      for (std::int64_t h = 0; h < heads; ++h) {
        std::vector<double> weights;
        double total = 0;
        for (std::int64_t s = 0; s <= t; ++s) {
          double score = 0;
          for (std::int64_t c = 0; c < size; ++c) score += at(b, t, 0, h, c) * at(b, s, 1, h, c);
          weights.push_back(std::exp(score / std::sqrt(static_cast<double>(size))));
          total += weights.back();
        }
        for (std::int64_t c = 0; c < size; ++c) {
          double wanted = 0;
          for (std::int64_t s = 0; s <= t; ++s)
            wanted += weights[static_cast<std::size_t>(s)] / total * at(b, s, 2, h, c);
          const std::int64_t element = (b * time + t) * channels + h * size + c;
          ASSERT_NEAR(y[static_cast<std::size_t>(element)], wanted, 1e-5);
        }
      }
    }
  }
}

TEST(Ops, ARowDoesNotDependOnTheRowsBesideIt) {
  const std::int64_t in = 48, out = 33;
  const Tensor x = random_tensor({70, in}, 1), w = random_tensor({in, out}, 2), b = random_tensor({out}, 3);
  const Tensor all = linear(x, w, b);
  for (const std::int64_t row : {0, 31, 69}) {
    const Tensor alone = linear(rows(x, row, row + 1), w, b);
    for (std::int64_t c = 0; c < out; ++c) {
      ASSERT_NEAR(alone.data<float>()[c], all.data<float>()[row * out + c], 1e-5);
    }
  }
}

RandomSource source(std::vector<std::int64_t> ids, RandomKey key = {.seed = 1, .layer = 2, .step = 3}) {
  return {.key = key, .sample_ids = std::make_shared<const std::vector<std::int64_t>>(std::move(ids))};
}

std::vector<float> mask(std::int64_t elements, const RandomSource& random, float p = 0.4f) {
  return dropout(Tensor::ones({static_cast<std::int64_t>(random.sample_ids->size()), elements}), p, random).to_vector();
}

TEST(Dropout, AMaskBelongsToTheSampleNotToItsPlace) {
  const std::int64_t elements = 131;
  const std::vector<float> together = mask(elements, source({10, 20, 30}));
  for (std::int64_t i = 0; i < 3; ++i) {
    const std::vector<float> alone = mask(elements, source({10 * (i + 1)}));
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + i * elements)) << i;
  }
  const std::vector<float> reversed = mask(elements, source({30, 20, 10}));
  EXPECT_TRUE(std::equal(reversed.begin(), reversed.begin() + elements, together.begin() + 2 * elements));
}

TEST(Dropout, EverythingThatMayMatterDoes) {
  const std::vector<float> base = mask(100, source({10}));
  EXPECT_EQ(base, mask(100, source({10})));
  EXPECT_NE(base, mask(100, source({11})));
  EXPECT_NE(base, mask(100, source({10 + (std::int64_t{1} << 32)})));
  EXPECT_NE(base, mask(100, source({10}, {.seed = 2, .layer = 2, .step = 3})));
  EXPECT_NE(base, mask(100, source({10}, {.seed = 1, .layer = 3, .step = 3})));
  EXPECT_NE(base, mask(100, source({10}, {.seed = 1, .layer = 2, .step = 4})));
  EXPECT_NE(mask(100, source({10}, {.seed = 1, .layer = 2, .step = 3})),
            mask(100, source({10}, {.seed = 1, .layer = 3, .step = 2})));
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
}

TEST(Argmax, IsTheFirstLargestOfTheLastDimension) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor x = Tensor::of({2, 2, 3}, {1, 3, 3, -1, -2, -3, 0, nan, 9, 5, 6, 7});
  const Tensor largest = argmax(x);
  EXPECT_EQ(largest.shape(), (Shape{2, 2}));
  const auto ids = largest.values<std::int64_t>();
  EXPECT_EQ(std::vector<std::int64_t>(ids.begin(), ids.end()), (std::vector<std::int64_t>{1, 0, 1, 2}));
  EXPECT_EQ(argmax(Tensor::zeros({0, 3})).count(), 0);
  expect_error([] { argmax(Tensor::zeros({2, 0})); }, {"argmax", "[2, 0]", "at least one value"});
}

TEST(Accuracy, CountsTheRowsWhoseLargestValueIsTheTarget) {
  const Tensor logits = Tensor::of({4, 2}, {1, 2, 2, 1, 1, 2, 2, 1});
  EXPECT_EQ(accuracy(logits, Tensor::indices({4}, {1, 1, 1, 0})), 0.75);
  EXPECT_TRUE(std::isnan(accuracy(Tensor::zeros({0, 2}), Tensor::indices({0}, {}))));
  expect_error([&] { accuracy(logits, Tensor::indices({2}, {1, 1})); }, {"accuracy", "one target per row"});
}

TEST(Dropout, NothingToDropIsTheIdentity) {
  const Tensor x = Tensor::ones({3});
  EXPECT_EQ(dropout(x, 0, {}).id(), x.id());
  expect_error([&] { dropout(x, 1, source({1})); }, {"dropout", "[0, 1)"});
  expect_error([&] { dropout(x, 0.5f, source({1, 2})); }, {"dropout", "[3]", "2 equal samples", "sample_ids"});
  expect_error([&] { dropout(x, 0.5f, {}); }, {"0 equal samples"});
}

}  // namespace
}  // namespace lockstep::ops_test
