// SPDX-License-Identifier: Apache-2.0
// The model of examples/05_libtorch_gpt2. tests/libtorch/python_gpt2_test.py compares its loss with Python's.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "examples/05_libtorch_gpt2/gpt2.h"

namespace {

int64_t parameters_of(const Gpt2Config& c) {
  return (c.vocabulary + c.context + 2) * c.width + c.layers * (12 * c.width * c.width + 13 * c.width);
}

TEST(Gpt2Model, SizesHaveTheParametersThatArePublished) {
  const auto published = [](const std::string& name) {
    Gpt2Config config = gpt2_config(name);
    EXPECT_EQ(config.vocabulary, 50304);
    config.vocabulary = 50257;
    return parameters_of(config);
  };
  EXPECT_EQ(published("gpt2"), 124439808);
  EXPECT_EQ(published("gpt2-medium"), 354823168);
  EXPECT_EQ(published("gpt2-large"), 774030080);
  EXPECT_EQ(published("gpt2-xl"), 1557611200);
  EXPECT_THROW(gpt2_config("124M"), std::invalid_argument);
}

TEST(Gpt2Model, NamesAndShapesAreThoseOfPublishedFiles) {
  const Gpt2Config config = gpt2_config("tiny");
  Gpt2 model(config);
  std::map<std::string, std::vector<int64_t>> shapes;
  int64_t count = 0;
  for (const auto& item : model->named_parameters()) {
    shapes[item.key()] = item.value().sizes().vec();
    count += item.value().numel();
  }
  EXPECT_EQ(count, parameters_of(config));
  EXPECT_EQ(shapes.size(), 4u + 12u * 2u);
  const std::map<std::string, std::vector<int64_t>> some{{"wte.weight", {256, 32}},
                                                         {"wpe.weight", {64, 32}},
                                                         {"h.0.attn.c_attn.weight", {32, 96}},
                                                         {"h.1.mlp.c_fc.weight", {32, 128}},
                                                         {"h.1.mlp.c_proj.weight", {128, 32}},
                                                         {"h.1.ln_2.bias", {32}},
                                                         {"ln_f.weight", {32}}};
  for (const auto& [name, shape] : some) EXPECT_EQ(shapes[name], shape) << name;
}

TEST(Gpt2Model, GradientsLieInMemoryAsTheirParametersDo) {
  torch::manual_seed(1);
  Gpt2 model(gpt2_config("tiny"));
  const torch::Tensor tokens = torch::randint(256, {3, 65}, torch::kLong);
  at::cross_entropy_loss(model(tokens.slice(1, 0, 64)).flatten(0, 1), tokens.slice(1, 1).flatten()).backward();
  for (const auto& item : model->named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_EQ(item.value().grad().strides(), item.value().strides()) << item.key();
  }
}

TEST(Gpt2Model, ATokenSeesThoseBeforeItAlone) {
  torch::manual_seed(1);
  const torch::NoGradGuard no_grad;
  Gpt2 model(gpt2_config("tiny"));
  const torch::Tensor tokens = torch::randint(255, {2, 20}, torch::kLong);
  torch::Tensor other = tokens.clone();
  other.slice(1, 12) += 1;
  const torch::Tensor before = model(tokens);
  const torch::Tensor after = model(other);
  EXPECT_EQ(before.sizes().vec(), (std::vector<int64_t>{2, 20, 256}));
  EXPECT_TRUE(torch::allclose(before.slice(1, 0, 12), after.slice(1, 0, 12), 1e-5, 1e-6));
  EXPECT_FALSE(torch::allclose(before.slice(1, 12), after.slice(1, 12), 1e-2, 1e-2));
}

TEST(Gpt2Model, BeginsAsGpt2Does) {
  torch::manual_seed(1);
  const Gpt2Config config{8, 4, 128, 64, 1024};
  Gpt2 model(config);
  for (const auto& item : model->named_parameters()) {
    const double deviation = item.value().std().item<double>();
    if (item.key().find("c_proj.weight") != std::string::npos) {
      EXPECT_NEAR(deviation, 0.02 / 4, 2e-4) << item.key();  // sqrt(2 * 8) additions to the residual
    } else if (item.value().dim() == 2) {
      EXPECT_NEAR(deviation, 0.02, 6e-4) << item.key();
    } else {
      EXPECT_EQ(deviation, 0) << item.key();
    }
  }
}

}  // namespace
