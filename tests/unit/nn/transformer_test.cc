// SPDX-License-Identifier: Apache-2.0
#include "lockstep/nn/nn.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lockstep/base/error.h"
#include "runtime/tensor/tensor_internals.h"
#include "tests/support/error_of.h"
#include "tests/unit/autograd/gradient_check.h"

namespace lockstep::nn::transformer_test {
namespace {

constexpr std::int64_t kVocabulary = 11;
constexpr std::int64_t kTime = 6;

struct Gpt : Module {
  explicit Gpt(const TransformerOptions& options) : norm(options.channels), head(options.channels, kVocabulary) {
    tokens = register_module("tokens", Embedding(kVocabulary, options.channels));
    positions = register_module("positions", Embedding(kTime, options.channels));
    drop = register_module("drop", Dropout(options.dropout));
    for (std::int64_t i = 0; i < options.layers; ++i) blocks.append(TransformerBlock(options));
    register_module("blocks", blocks);
    register_module("norm", norm);
    register_module("head", head);
  }
  Tensor forward(const Tensor& x) override {
    return head(norm(blocks(drop(tokens(x) + positions.first_rows(x.size(0), x.size(1))))));
  }
  Embedding tokens{1, 1}, positions{1, 1};
  Dropout drop{0};
  Sequential blocks;
  LayerNorm norm;
  Linear head;
};

const TransformerOptions kOptions{.channels = 12, .heads = 3, .dropout = 0.3f, .layers = 2};

Tensor batch(std::int64_t rows, std::int64_t shift, std::int64_t first = 0) {
  std::vector<std::int64_t> values;
  for (std::int64_t b = first; b < first + rows; ++b) {
    for (std::int64_t t = 0; t < kTime; ++t) values.push_back((b * 3 + (t + shift) * 7) % kVocabulary);
  }
  return Tensor::of({rows, kTime}, values);
}

std::vector<std::int64_t> ids(std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> result;
  for (std::int64_t i = 0; i < count; ++i) result.push_back(first + i);
  return result;
}

TEST(Transformer, NamesItsParameters) {
  const TransformerBlock block({.channels = 4, .heads = 2, .dropout = 0});
  std::vector<std::string> names;
  for (const NamedParameter& p : block.named_parameters()) names.push_back(p.name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"norm1.weight", "norm1.bias", "attention.qkv.weight", "attention.qkv.bias",
                                      "attention.project.weight", "attention.project.bias", "norm2.weight",
                                      "norm2.bias", "widen.weight", "widen.bias", "narrow.weight", "narrow.bias"}));
}

// The parts of a batch, with their own sample ids and weights, give the gradient of the whole: what the ranks rely on,
// with dropout on, and a part of 0 rows among them.
TEST(Transformer, PartsOfABatchAddUpToTheWhole) {
  const Gpt model(kOptions);
  const auto gradients = [&](std::vector<std::pair<std::int64_t, std::int64_t>> parts) {
    std::vector<std::vector<float>> result;
    for (const Tensor& p : model.parameters()) {
      TensorInternals(p).bind_grad(Tensor::full(p.shape(), std::numeric_limits<float>::quiet_NaN()));
    }
    bool first = true;
    for (const auto& [begin, rows] : parts) {
      model.set_context({.seed = 5, .step = 9, .sample_ids = ids(begin, rows)});
      Gpt handle = model;
      const Tensor loss = cross_entropy(handle(batch(rows, 0, begin)), batch(rows, 1, begin));
      backward(loss, static_cast<float>(rows), {.accumulate = !first});
      first = false;
    }
    for (const Tensor& p : model.parameters()) result.push_back(p.grad().to_vector());
    return result;
  };
  const auto whole = gradients({{0, 5}});
  const auto parts = gradients({{0, 0}, {3, 2}, {0, 3}, {5, 0}});
  for (std::size_t p = 0; p < whole.size(); ++p) {
    float largest = 0, difference = 0;
    for (std::size_t i = 0; i < whole[p].size(); ++i) {
      largest = std::max(largest, std::abs(whole[p][i]));
      difference = std::max(difference, std::abs(whole[p][i] - parts[p][i]));
    }
    EXPECT_GT(largest, 0) << p;
    EXPECT_LE(difference, 1e-5f * largest) << p;
  }
}

// The whole block against difference quotients: residuals, and parameters used in their places, dropout included.
TEST(Transformer, ABlocksGradientsEqualDifferenceQuotients) {
  TransformerBlock block({.channels = 6, .heads = 2, .dropout = 0.3f, .deviation = 0.5f});
  block.set_context({.seed = 5, .step = 9, .sample_ids = {3, 8}});
  std::vector<Tensor> inputs{testing::random_tensor({2, 3, 6}, 1)};
  for (const Tensor& parameter : block.parameters()) inputs.push_back(parameter);
  testing::expect_gradients([&](const std::vector<Tensor>& x) { return block(x[0]); }, inputs);
}

TEST(Transformer, RandomnessNeedsAContextInTrainingOnly) {
  Gpt model(kOptions);
  lockstep::testing::expect_text(lockstep::testing::error_of([&] { model(batch(1, 0)); }), {"set_context"});
  model.eval();
  const std::vector<float> evaluated = model(batch(1, 0)).to_vector();
  EXPECT_EQ(model(batch(1, 0)).to_vector(), evaluated);
  model.train();
  model.set_context({.seed = 1, .step = 1, .sample_ids = {4}});
  EXPECT_NE(model(batch(1, 0)).to_vector(), evaluated);
}

TEST(Transformer, TwoDropoutsOfATreeDrawDifferently) {
  Sequential model{Dropout(0.5f), Dropout(0.5f)};
  model.set_context({.seed = 1, .step = 1, .sample_ids = {0}});
  int once = 0, both = 0;
  for (const float value : model(Tensor::ones({1, 10000})).to_vector()) (value == 0 ? once : both) += 1;
  EXPECT_NEAR(both, 2500, 200);
}

TEST(Transformer, BadSizesAreRefused) {
  EXPECT_THROW(TransformerBlock({.channels = 10, .heads = 4}), InvalidArgument);
  EXPECT_THROW(CausalSelfAttention({.channels = 8, .heads = 0}), InvalidArgument);
  EXPECT_THROW(Dropout(1.0f), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::nn::transformer_test
