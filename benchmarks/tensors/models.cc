// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/tensors/models.h"

#include <numeric>
#include <stdexcept>

#include "benchmarks/libtorch_ddp/gpt_size.h"
#include "examples/02_char_gpt/gpt.h"

namespace lockstep::benchmark {
namespace {

std::unique_ptr<nn::Module> mlp(const std::vector<std::int64_t>& widths) {
  auto layers = std::make_unique<nn::Sequential>();
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
    layers->append(nn::Linear(widths[i], widths[i + 1]));
    if (i + 2 < widths.size()) layers->append(nn::ReLU());
  }
  return layers;
}

Tensor floats(const Shape& shape, Generator& generator) {
  std::vector<float> values(static_cast<std::size_t>(shape.count()));
  for (float& value : values) value = 2 * generator.uniform() - 1;
  return Tensor::of(shape, values);
}
Tensor numbers(const Shape& shape, std::int64_t limit, Generator& generator) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(shape.count()));
  for (auto& value : values) value = static_cast<std::int64_t>(generator.below(static_cast<std::uint64_t>(limit)));
  return Tensor::of(shape, values);
}

}  // namespace

Problem make_problem(const std::string& name, int rank, DeviceId device) {
  Problem problem;
  Generator generator(1000 + static_cast<std::uint64_t>(rank));
  problem.loss = [](const Tensor& output, const Tensor& y) { return cross_entropy(output, y); };
  const auto gpt = gpt_size(name);
  if (name == "tiny") {
    problem.model = std::make_unique<nn::Linear>(5, 2);
    problem.x = floats({30, 5}, generator);
    problem.y = floats({30, 2}, generator);
    problem.loss = [](const Tensor& output, const Tensor& y) { return mse_loss(output, y); };
  } else if (name == "mlp") {
    problem.model = mlp({784, 1024, 1024, 10});
    problem.x = floats({64, 784}, generator);
    problem.y = numbers({64}, 10, generator);
  } else if (name == "big" || name == "big-adamw") {
    problem.model = mlp({1024, 2048, 2048, 2048, 2048, 2048, 2048, 1024});
    problem.x = floats({32, 1024}, generator);
    problem.y = numbers({32}, 1024, generator);
  } else if (gpt) {
    problem.model = std::make_unique<char_gpt::Gpt>(char_gpt::GptOptions{.vocabulary = gpt->tokens,
                                                                         .context = gpt->length,
                                                                         .layers = gpt->layers,
                                                                         .heads = gpt->heads,
                                                                         .channels = gpt->width,
                                                                         .dropout = 0});
    problem.x = numbers({gpt->rows, gpt->length}, gpt->tokens, generator);
    problem.y = numbers({gpt->rows, gpt->length}, gpt->tokens, generator);
  } else {
    throw std::invalid_argument("no model is named '" + name + "'; there are tiny, mlp, big, big-adamw, gpt and gpt2");
  }
  problem.ids.resize(static_cast<std::size_t>(problem.x.size(0)));
  std::iota(problem.ids.begin(), problem.ids.end(), rank * problem.x.size(0));
  problem.model->to(device);
  problem.x = problem.x.to(device);
  problem.y = problem.y.to(device);
  problem.make_optimizer = [is_adamw = gpt || name == "big-adamw"](const nn::Module& model) {
    std::unique_ptr<optim::Optimizer> made;
    if (is_adamw) {
      made = std::make_unique<optim::AdamW>(model.parameters(), optim::AdamWOptions{.lr = 1e-4});
    } else {
      made = std::make_unique<optim::SGD>(model.parameters(), optim::SgdOptions{.lr = 1e-3});
    }
    return made;
  };
  return problem;
}

}  // namespace lockstep::benchmark
