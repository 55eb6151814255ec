// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/autograd/gradient_check.h"

// Sizes: none, one, below, at and above the width of a vector, and with a remainder.
namespace lockstep::ops_gradient_test {
namespace {

using testing::expect_gradients;
using testing::random_tensor;
using Inputs = std::vector<Tensor>;

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> kShapes{{0, 5}, {1}, {3, 5}, {2, 16}, {67}, {}};
  return kShapes;
}

TEST(OpsGradient, ElementByElementOfTwo) {
  for (const Shape& shape : shapes()) {
    const Inputs inputs{random_tensor(shape, 1), random_tensor(shape, 2)};
    expect_gradients([](const Inputs& x) { return add(x[0], x[1]); }, inputs);
    expect_gradients([](const Inputs& x) { return sub(x[0], x[1]); }, inputs);
    expect_gradients([](const Inputs& x) { return mul(x[0], x[1]); }, inputs);
    expect_gradients([](const Inputs& x) { return mse_loss(x[0], x[1]); }, inputs);
  }
}

TEST(OpsGradient, ElementByElementOfOne) {
  for (const Shape& shape : shapes()) {
    // Away from the kink of relu by more than the steps of the quotient.
    expect_gradients([](const Inputs& x) { return relu(x[0]); }, {random_tensor(shape, 3, 0.1f)});
    expect_gradients([](const Inputs& x) { return tanh(x[0]); }, {random_tensor(shape, 4)});
    expect_gradients([](const Inputs& x) { return gelu(x[0]); }, {random_tensor(shape, 5, 1.0f)});
    expect_gradients([](const Inputs& x) { return scale(x[0], -1.5f); }, {random_tensor(shape, 6)});
    expect_gradients([](const Inputs& x) { return sum(x[0]); }, {random_tensor(shape, 7)});
    expect_gradients([](const Inputs& x) { return mean(x[0]); }, {random_tensor(shape, 8)});
  }
}

TEST(OpsGradient, OneTensorOnBothSides) {
  expect_gradients([](const Inputs& x) { return mul(x[0], x[0]); }, {random_tensor({19}, 1)});
  expect_gradients([](const Inputs& x) { return add(x[0], x[0]); }, {random_tensor({19}, 2)});
  expect_gradients([](const Inputs& x) { return matmul(x[0], x[0]); }, {random_tensor({4, 4}, 3)});
}

TEST(OpsGradient, Rows) {
  for (const Shape& shape : {Shape{0, 5}, Shape{1, 1}, Shape{7, 67}, Shape{2, 3, 64}, Shape{70, 3}}) {
    expect_gradients([](const Inputs& x) { return add_row(x[0], x[1]); },
                     {random_tensor(shape, 1), random_tensor({shape.columns()}, 2)});
  }
}

TEST(OpsGradient, Shapes) {
  for (const std::int64_t n : {0, 1, 5, 33}) {
    expect_gradients([n](const Inputs& x) { return reshape(x[0], {3, n}); }, {random_tensor({n, 3}, 1)});
    expect_gradients([](const Inputs& x) { return transpose(x[0]); }, {random_tensor({n, 17}, 2)});
    expect_gradients([n](const Inputs& x) { return rows(x[0], n / 3, n); }, {random_tensor({n, 4}, 3)});
    expect_gradients([n](const Inputs& x) { return repeat(x[0], n); }, {random_tensor({2, 5}, 4)});
  }
}

TEST(OpsGradient, Products) {
  for (const std::int64_t m : {0, 1, 7}) {
    for (const std::int64_t k : {1, 5, 18}) {
      for (const std::int64_t n : {1, 2, 33}) {
        const Tensor x = random_tensor({m, k}, 1), w = random_tensor({k, n}, 2), b = random_tensor({n}, 3);
        expect_gradients([](const Inputs& t) { return matmul(t[0], t[1]); }, {x, w});
        expect_gradients([](const Inputs& t) { return linear(t[0], t[1], t[2]); }, {x, w, b});
      }
    }
  }
  expect_gradients([](const Inputs& t) { return linear(t[0], t[1], t[2]); },
                   {random_tensor({2, 3, 4}, 1), random_tensor({4, 5}, 2), random_tensor({5}, 3)});
}

TEST(OpsGradient, LayerNorm) {
  for (const Shape& shape : {Shape{0, 8}, Shape{1, 8}, Shape{3, 5}, Shape{2, 2, 17}, Shape{2, 64}}) {
    expect_gradients(
        [](const Inputs& x) { return layer_norm(x[0], x[1], x[2], 1e-2f); },
        {random_tensor(shape, 1), random_tensor({shape.columns()}, 2), random_tensor({shape.columns()}, 3)});
  }
}

TEST(OpsGradient, Embedding) {
  for (const std::int64_t channels : {1, 5, 17}) {
    const Tensor table = random_tensor({6, channels}, 1);
    const Tensor repeated = Tensor::indices({2, 3}, {4, 0, 4, 5, 4, 1});
    expect_gradients([&](const Inputs& x) { return embedding(x[0], repeated); }, {table});
    const Tensor none = Tensor::indices({0, 3}, {});
    expect_gradients([&](const Inputs& x) { return embedding(x[0], none); }, {table});
  }
}

TEST(OpsGradient, CausalSelfAttention) {
  struct Case {
    std::int64_t batch, time, heads, size;
  };
  for (const Case& c : {Case{0, 4, 2, 3}, Case{1, 1, 1, 1}, Case{2, 5, 2, 3}, Case{1, 19, 1, 4}, Case{1, 3, 2, 17}}) {
    expect_gradients([&](const Inputs& x) { return causal_self_attention(x[0], c.heads); },
                     {random_tensor({c.batch, c.time, 3 * c.heads * c.size}, 1)});
  }
}

TEST(OpsGradient, Dropout) {
  for (const std::int64_t elements : {1, 63, 130}) {
    const auto ids = std::make_shared<const std::vector<std::int64_t>>(std::vector<std::int64_t>{7, 3, 1000000007});
    const RandomSource source{.key = {.seed = 1, .layer = 2, .step = 3}, .sample_ids = ids};
    expect_gradients([&](const Inputs& x) { return dropout(x[0], 0.3f, source); }, {random_tensor({3, elements}, 1)});
  }
  const RandomSource nobody{.key = {}, .sample_ids = std::make_shared<const std::vector<std::int64_t>>()};
  expect_gradients([&](const Inputs& x) { return dropout(x[0], 0.3f, nobody); }, {random_tensor({0, 9}, 1)});
}

TEST(OpsGradient, CrossEntropy) {
  for (const std::int64_t classes : {1, 2, 19}) {
    const Tensor targets = Tensor::indices({4}, {0, classes - 1, -100, classes / 2});
    expect_gradients([&](const Inputs& x) { return cross_entropy(x[0], targets); }, {random_tensor({4, classes}, 1)});
    expect_gradients(
        [&](const Inputs& x) {
          return cross_entropy(x[0], Tensor::indices({2}, {-100, -100}));
        },
        {random_tensor({2, classes}, 1)});
    expect_gradients([&](const Inputs& x) { return cross_entropy(x[0], Tensor::indices({0}, {})); },
                     {random_tensor({0, classes}, 1)});
  }
}

}  // namespace
}  // namespace lockstep::ops_gradient_test
