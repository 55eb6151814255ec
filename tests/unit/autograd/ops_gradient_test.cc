// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/autograd/gradient_check.h"

// Sizes: none, one, below, at and above the width of a vector, and with a remainder.
namespace lockstep::ops_gradient_test {
namespace {

using testing::expect_gradients;
using testing::random_tensor;
using Inputs = std::vector<Tensor>;

TEST(OpsGradient, ElementByElement) {
  struct Case {
    const char* name;
    testing::Function function;
    std::vector<float> gaps = {0};  // of each input, away from 0
  };
  const Case cases[] = {
      {"add", [](const Inputs& x) { return add(x[0], x[1]); }, {0, 0}},
      {"sub", [](const Inputs& x) { return sub(x[0], x[1]); }, {0, 0}},
      {"mul", [](const Inputs& x) { return mul(x[0], x[1]); }, {0, 0}},
      {"mse_loss", [](const Inputs& x) { return mse_loss(x[0], x[1]); }, {0, 0}},
      // Away from the kink by more than the steps of the quotient.
      {"relu", [](const Inputs& x) { return relu(x[0]); }, {0.1f}},
      {"tanh", [](const Inputs& x) { return tanh(x[0]); }},
      {"gelu", [](const Inputs& x) { return gelu(x[0]); }, {1}},
      {"scale", [](const Inputs& x) { return scale(x[0], -1.5f); }},
      {"sum", [](const Inputs& x) { return sum(x[0]); }},
      {"mean", [](const Inputs& x) { return mean(x[0]); }},
      {"mul of one", [](const Inputs& x) { return mul(x[0], x[0]); }},
      {"add of one", [](const Inputs& x) { return add(x[0], x[0]); }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    for (const Shape& shape : {Shape{0, 5}, Shape{1}, Shape{3, 5}, Shape{2, 16}, Shape{67}, Shape{}}) {
      Inputs inputs;
      for (const float gap : c.gaps) inputs.push_back(random_tensor(shape, inputs.size(), gap));
      expect_gradients(c.function, inputs);
    }
  }
}

TEST(OpsGradient, RowsAndShapes) {
  for (const Shape& shape : {Shape{0, 5}, Shape{1, 1}, Shape{7, 67}, Shape{2, 3, 64}, Shape{70, 3}}) {
    expect_gradients([](const Inputs& x) { return add_row(x[0], x[1]); },
                     {random_tensor(shape, 1), random_tensor({shape.columns()}, 2)});
  }
  for (const Shape& shape : {Shape{0, 8}, Shape{1, 8}, Shape{3, 5}, Shape{2, 2, 17}, Shape{2, 64}}) {
    const Tensor gain = random_tensor({shape.columns()}, 2), bias = random_tensor({shape.columns()}, 3);
    expect_gradients([](const Inputs& x) { return layer_norm(x[0], x[1], x[2], 1e-2f); },
                     {random_tensor(shape, 1), gain, bias});
  }
  for (const std::int64_t n : {0, 1, 5, 33}) {
    expect_gradients([n](const Inputs& x) { return reshape(x[0], {3, n}); }, {random_tensor({n, 3}, 1)});
    expect_gradients([](const Inputs& x) { return transpose(x[0]); }, {random_tensor({n, 17}, 2)});
    expect_gradients([n](const Inputs& x) { return rows(x[0], n / 3, n); }, {random_tensor({n, 4}, 3)});
    expect_gradients([n](const Inputs& x) { return repeat(x[0], n); }, {random_tensor({2, 5}, 4)});
  }
}

TEST(OpsGradient, Products) {
  const auto product = [](const Inputs& t) { return matmul(t[0], t[1]); };
  const auto with_bias = [](const Inputs& t) { return linear(t[0], t[1], t[2]); };
  for (const std::int64_t m : {0, 1, 7}) {
    for (const std::int64_t k : {1, 5, 18}) {
      for (const std::int64_t n : {1, 2, 33}) {
        const Tensor x = random_tensor({m, k}, 1), w = random_tensor({k, n}, 2), b = random_tensor({n}, 3);
        expect_gradients(product, {x, w});
        expect_gradients(with_bias, {x, w, b});
      }
    }
  }
  expect_gradients(with_bias, {random_tensor({2, 3, 4}, 1), random_tensor({4, 5}, 2), random_tensor({5}, 3)});
  expect_gradients([](const Inputs& x) { return matmul(x[0], x[0]); }, {random_tensor({4, 4}, 3)});
}

TEST(OpsGradient, ByIndices) {
  for (const std::int64_t channels : {1, 5, 17}) {
    for (const Tensor& indices : {Tensor::indices({2, 3}, {4, 0, 4, 5, 4, 1}), Tensor::indices({0, 3}, {})}) {
      expect_gradients([&](const Inputs& x) { return embedding(x[0], indices); }, {random_tensor({6, channels}, 1)});
    }
  }
  for (const std::int64_t classes : {1, 2, 19}) {
    for (const Tensor& targets : {Tensor::indices({4}, {0, classes - 1, -100, classes / 2}),
                                  Tensor::indices({2}, {-100, -100}), Tensor::indices({0}, {})}) {
      expect_gradients([&](const Inputs& x) { return cross_entropy(x[0], targets); },
                       {random_tensor({targets.count(), classes}, 1)});
    }
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
  for (const std::vector<std::int64_t>& ids : {std::vector<std::int64_t>{7, 3, 1000000007}, {}}) {
    const RandomSource source{.key = {.seed = 1, .layer = 2, .step = 3},
                              .sample_ids = std::make_shared<const std::vector<std::int64_t>>(ids)};
    for (const std::int64_t elements : {1, 63, 130}) {
      expect_gradients([&](const Inputs& x) { return dropout(x[0], 0.3f, source); },
                       {random_tensor({std::ssize(ids), elements}, 1)});
    }
  }
}

}  // namespace
}  // namespace lockstep::ops_gradient_test
