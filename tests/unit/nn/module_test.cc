// SPDX-License-Identifier: Apache-2.0
// Modules, and a transformer of them.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/nn/module.h"
#include "lockstep/nn/nn.h"
#include "runtime/tensor/tensor_internals.h"
#include "tests/support/error_of.h"
#include "tests/support/messages.h"
#include "tests/unit/autograd/gradient_check.h"

namespace lockstep::nn::module_test {
namespace {

std::vector<std::string> names(const Module& module) {
  std::vector<std::string> result;
  for (const NamedParameter& parameter : module.named_parameters()) result.push_back(parameter.name);
  return result;
}

struct Tied : Module {
  Embedding tokens = register_module("tokens", Embedding(5, 4));
  Sequential body = register_module("body", Sequential{Linear(4, 4), ReLU(), Linear(4, 4)});
  Tensor head = share_parameter("head", tokens.weight());
  Tensor gain = register_parameter("gain", {4}, Init::ones());
};

TEST(Module, NamesParametersInOrderOfRegistrationAndSharedOnesOnce) {
  EXPECT_EQ(names(Linear(3, 2)), (std::vector<std::string>{"weight", "bias"}));
  EXPECT_EQ(names(Linear(3, 2, {.bias = false})), (std::vector<std::string>{"weight"}));
  EXPECT_EQ(names(Sequential{Linear(3, 2), ReLU(), LayerNorm(2)}),
            (std::vector<std::string>{"0.weight", "0.bias", "2.weight", "2.bias"}));
  EXPECT_EQ(names(Tied()),
            (std::vector<std::string>{"head", "gain", "body.0.weight", "body.0.bias", "body.2.weight", "body.2.bias"}));
  EXPECT_EQ(Tied().parameter_count(), 5 * 4 + 4 + 2 * (16 + 4));
}

TEST(Module, OfALinearNamesItsSizesForRowsOfAnother) {
  lockstep::testing::expect_message("nn", "25 rows of 3", lockstep::testing::error_of([] {
                                      Linear(8, 4).forward(Tensor::zeros({25, 3}));
                                    }));
}

TEST(Module, CopiesAndMovedModulesAreTheSameModel) {
  Linear a(3, 2);
  Linear b = a;
  EXPECT_EQ(a.weight().id(), b.weight().id());
  const void* id = a.weight().id();
  Sequential model{std::move(a)};
  EXPECT_EQ(model.parameters()[0].id(), id);
  model.eval();
  EXPECT_FALSE(b.is_training());
}

TEST(Module, ParametersDependOnSeedAndNameOnly) {
  const Sequential first{Linear(4, 4), Linear(4, 4)};
  const auto before = first.parameters()[2].to_vector();
  EXPECT_NE(first.parameters()[0].to_vector(), before) << "equal layers must not begin equal";

  // The same tree, put together and first used in another order.
  Linear second(4, 4), other(4, 4);
  const Sequential again{other, second};
  EXPECT_EQ(second.weight().to_vector(), before);
  again.initialize(1);
  EXPECT_NE(second.weight().to_vector(), before);
  again.initialize(0);
  EXPECT_EQ(second.weight().to_vector(), before);
}

TEST(Module, RegistrationKeepsWeightsThatWereUsedBefore) {
  const Linear layer(2, 2);
  layer.weight().fill(3);
  const Sequential model{layer};
  EXPECT_EQ(model.parameters()[0].to_vector(), std::vector<float>(4, 3));
}

TEST(Module, LinearBeginsUniformWithinItsBound) {
  const Linear layer(100, 200);
  double sum = 0, squares = 0;
  const Tensor weight = layer.weight();
  for (const float value : weight.values<float>()) {
    ASSERT_LE(std::abs(value), 0.1f);
    sum += value;
    squares += static_cast<double>(value) * value;
  }
  EXPECT_NEAR(sum / 20000, 0, 0.002);
  EXPECT_NEAR(squares / 20000, 0.01 / 3, 1e-4);
}

TEST(Module, WrongNamesAreRefused) {
  struct Bad : Module {
    explicit Bad(const std::string& name) {
      register_parameter("w", {1}, Init::zeros());
      register_parameter(name, {1}, Init::zeros());
    }
  };
  EXPECT_THROW(Bad("w"), InvalidArgument);
  EXPECT_THROW(Bad(""), InvalidArgument);
  EXPECT_THROW(Bad("a.b"), InvalidArgument);
  EXPECT_THROW(Module()(Tensor::zeros({1})), InvalidArgument) << "a forward that is not overridden";
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

// The whole block against difference quotients: residuals, and parameters used in their places, dropout included.
TEST(Transformer, ABlocksGradientsEqualDifferenceQuotients) {
  TransformerBlock block({.channels = 6, .heads = 2, .dropout = 0.3f, .deviation = 0.5f});
  block.set_context({.seed = 5, .step = 9, .sample_ids = {3, 8}});
  std::vector<Tensor> inputs{testing::random_tensor({2, 3, 6}, 1)};
  for (const Tensor& parameter : block.parameters()) inputs.push_back(parameter);
  testing::expect_gradients([&](const std::vector<Tensor>& x) { return block(x[0]); }, inputs);
}

TEST(Transformer, RandomnessNeedsAContextInTrainingOnly) {
  TransformerBlock block({.channels = 6, .heads = 2, .dropout = 0.3f});
  const Tensor x = testing::random_tensor({1, 3, 6}, 1);
  lockstep::testing::expect_text(lockstep::testing::error_of([&] { block(x); }), {"call ddp(x, ids)", "set_context"});
  block.eval();
  const std::vector<float> evaluated = block(x).to_vector();
  EXPECT_EQ(block(x).to_vector(), evaluated);
  block.train();
  block.set_context({.seed = 1, .step = 1, .sample_ids = {4}});
  EXPECT_NE(block(x).to_vector(), evaluated);
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
}  // namespace lockstep::nn::module_test
