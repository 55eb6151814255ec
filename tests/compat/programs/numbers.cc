// SPDX-License-Identifier: Apache-2.0
// Operations of ours on inputs of many offsets and scales, for tests/compat/numbers_test.py, which has PyTorch compute
// the same. To stdout, for each case one line `NAME {tensor:extents ...}` and then the tensors' bytes, one after the
// other.
#include <cstdio>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/autograd/graph.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/optim/optimizer.h"
#include "runtime/tensor/tensor_internals.h"

namespace lockstep {
namespace {

using Tensors = std::vector<Tensor>;
using Named = std::vector<std::pair<std::string, Tensor>>;

constexpr std::int64_t kRows = 5;
constexpr std::int64_t kColumns = 19;  // not a multiple of a vector

void write(const std::string& name, const Named& tensors) {
  std::string line = name;
  for (const auto& [title, tensor] : tensors) {
    line += " " + title;
    for (const std::int64_t extent : tensor.shape().extents()) line += ":" + std::to_string(extent);
  }
  std::puts(line.c_str());
  for (const auto& [title, tensor] : tensors) {
    const std::vector<float> values = tensor.to_vector();
    std::fwrite(values.data(), sizeof(float), values.size(), stdout);
  }
}

Tensor uniform(const Shape& shape, float offset, float scale, std::uint64_t stream) {
  Generator generator(5, stream);
  const Tensor result = Tensor::empty(shape);
  for (float& value : result.values<float>()) value = scale * (offset + (2 * generator.uniform() - 1));
  return result;
}

Tensor special() {
  const float infinity = std::numeric_limits<float>::infinity(), largest = std::numeric_limits<float>::max();
  return Tensor::of({2, 8}, {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity, 0.0f, -0.0f, 1e-45f, -1e-40f,
                             1, 1.2e-38f, largest, -largest, -1, 1e20f, -1e20f, 100, -100});
}

// Inputs, the gradient that came in, the result, and the inputs' gradients.
void run(const std::string& name, const std::function<Tensor(const Tensors&)>& operation, const Tensors& inputs) {
  for (const Tensor& input : inputs) input.set_requires_grad();
  const Tensor y = operation(inputs);
  const Tensor dy = uniform(y.shape(), 0, 1, 9);
  backward(sum(y * dy));
  Named tensors{{"dy", dy}, {"y", y.detach()}};
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    tensors.emplace_back("x" + std::to_string(i), inputs[i].detach());
    tensors.emplace_back("dx" + std::to_string(i), inputs[i].grad());
  }
  write(name, tensors);
}

void element_by_element(const Tensor& x) {
  const auto of = [&](const char* name, Tensor (*function)(const Tensor&)) {
    run(name, [=](const Tensors& t) { return function(t[0]); }, {x.clone()});
  };
  of("relu", relu);
  of("tanh", tanh);
  of("gelu", gelu);
}

void over_rows(float offset, float scale) {
  const Tensor x = uniform({kRows, kColumns}, offset, scale, 1);
  run("sum", [](const Tensors& t) { return sum(t[0]); }, {x.clone()});
  run("mean", [](const Tensors& t) { return mean(t[0]); }, {x.clone()});
  run("mse_loss", [](const Tensors& t) { return mse_loss(t[0], t[1]); },
      {x.clone(), uniform({kRows, kColumns}, offset, scale, 2)});
  run("layer_norm", [](const Tensors& t) { return layer_norm(t[0], t[1], t[2]); },
      {x.clone(), uniform({kColumns}, 1, 1, 3), uniform({kColumns}, 0, 1, 4)});
  run("cross_entropy",
      [](const Tensors& t) {
        return cross_entropy(t[0], Tensor::indices({kRows}, {0, 18, 7, -100, 3}));
      },
      {x.clone()});
  run("linear", [](const Tensors& t) { return linear(t[0], t[1], t[2]); },
      {x.clone(), uniform({kColumns, 3}, 0, 1, 5), uniform({3}, 0, 1, 6)});
  // One channel, queries of 1: scores are the keys.
  const Tensor qkv = Tensor::empty({1, kColumns, 3});
  for (std::int64_t t = 0; t < kColumns; ++t) {
    qkv.data<float>()[3 * t] = 1;
    qkv.data<float>()[3 * t + 1] = x.data<float>()[t];
    qkv.data<float>()[3 * t + 2] = x.data<float>()[kColumns + t] / scale - offset;
  }
  run("attention", [](const Tensors& t) { return causal_self_attention(t[0], 1); }, {qkv});
}

// Six steps; there is no gradient at the first three, as of a layer that is thawed at the fourth beside one that was
// not.
void optimizer(const std::string& name, optim::Optimizer& steps, const Tensor& weight, const Tensor& thawed,
               float scale) {
  Named tensors{{"w", weight.clone()}, {"t", thawed.clone()}};
  for (std::uint64_t step = 0; step < 6; ++step) {
    for (const Tensor& parameter : {weight, thawed}) {
      if (step < 3 && parameter.id() == thawed.id()) continue;
      const Tensor gradient = uniform({kColumns}, 0, scale, 20 + step);
      TensorInternals(parameter).grad_for_writing().copy_from(gradient);
      if (parameter.id() == weight.id()) tensors.emplace_back("g" + std::to_string(step), gradient);
    }
    steps.step();
  }
  tensors.emplace_back("w6", weight.detach());
  tensors.emplace_back("t6", thawed.detach());
  write(name, tensors);
}

void optimizers(float scale) {
  const auto weight = [](std::uint64_t stream) { return uniform({kColumns}, 0, 1, stream).set_requires_grad(); };
  const Tensor a = weight(30), b = weight(31), c = weight(32), d = weight(33);
  optim::AdamW adamw({a, b}, {.lr = 0.1});
  optimizer("adamw", adamw, a, b, scale);
  optim::SGD sgd({c, d}, {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true});
  optimizer("sgd", sgd, c, d, scale);
}

int main_without_arguments() {
  element_by_element(special());
  for (const float scale : {1e-30f, 1e-10f, 1e-3f, 1.0f, 3.0f, 10.0f, 1e5f, 1e15f, 1e18f, 1e30f}) {
    for (const float offset : {0.0f, 1.0f, 1e3f, 1e4f, 1e6f}) {
      element_by_element(uniform({kRows, kColumns}, offset, scale, 1));
      over_rows(offset, scale);
    }
    optimizers(scale);
  }
  return 0;
}

}  // namespace
}  // namespace lockstep

int main() { return lockstep::main_without_arguments(); }
