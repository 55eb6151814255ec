// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/libtorch_ddp/models.h"

#include <cmath>
#include <limits>
#include <stdexcept>

#include "benchmarks/libtorch_ddp/gpt_size.h"
#include "examples/05_libtorch_gpt2/gpt2.h"
#include "lockstep/libtorch/fused_optimizers.h"
#include "lockstep/libtorch/linear.h"

namespace lockstep::benchmark {
namespace {

namespace nn = ::torch::nn;
namespace F = nn::functional;

struct Mlp : Model {
  explicit Mlp(const std::vector<std::int64_t>& widths) {
    for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
      layers->push_back(nn::Linear(widths[i], widths[i + 1]));
      if (i + 2 < widths.size()) layers->push_back(nn::ReLU());
    }
    register_module("layers", layers);
  }
  at::Tensor forward(const at::Tensor& x) override {
    at::Tensor h = x;
    for (std::size_t i = 0; i < layers->size(); ++i) {
      const auto* const layer = layers->ptr(i)->as<nn::LinearImpl>();
      h = layer != nullptr ? linear(*layer, h) : at::relu(h);
    }
    return h;
  }
  nn::Sequential layers;
};

nn::LayerNorm norm_of(std::int64_t width) {
  return nn::LayerNorm(nn::LayerNormOptions(std::vector<std::int64_t>{width}));
}

struct BlockImpl : nn::Module {
  explicit BlockImpl(const GptSize& size) : width(size.width), heads(size.heads) {}
  std::int64_t width;
  std::int64_t heads;
  nn::LayerNorm before_attention = register_module("before_attention", norm_of(width));
  nn::LayerNorm before_mlp = register_module("before_mlp", norm_of(width));
  nn::Linear qkv = register_module("qkv", nn::Linear(width, 3 * width));
  nn::Linear out = register_module("out", nn::Linear(width, width));
  nn::Linear up = register_module("up", nn::Linear(width, 4 * width));
  nn::Linear down = register_module("down", nn::Linear(4 * width, width));

  at::Tensor forward(const Model& model, const at::Tensor& input, const at::Tensor& mask) {
    const auto rows = input.size(0);
    const auto length = input.size(1);
    const auto parts = model.linear(*qkv, before_attention(input))
                           .view({rows, length, 3, heads, width / heads})
                           .permute({2, 0, 3, 1, 4});
    const double scale = 1 / std::sqrt(static_cast<double>(width / heads));
    const at::Tensor attention = (at::matmul(parts[0], parts[1].transpose(-1, -2)) * scale)
                                     .masked_fill(mask, -std::numeric_limits<float>::infinity())
                                     .softmax(-1);
    const at::Tensor attended = at::matmul(attention, parts[2]).transpose(1, 2).reshape({rows, length, width});
    const at::Tensor x = input + model.linear(*out, attended);
    return x + model.linear(*down, at::gelu(model.linear(*up, before_mlp(x)), "tanh"));
  }
};
TORCH_MODULE(Block);

struct Gpt : Model {
  Gpt(const GptSize& of, at::Device device)
      : size(of),
        mask(at::ones({of.length, of.length}, at::kBool).triu(1).to(device)),
        numbers(at::arange(of.length).to(device)) {
    for (std::int64_t i = 0; i < of.layers; ++i) blocks->push_back(Block(of));
    register_module("blocks", blocks);
  }
  at::Tensor forward(const at::Tensor& x) override {
    at::Tensor h = (in_place ? libtorch::embedding(tokens->weight, x) : tokens(x)) + positions(numbers);
    for (const auto& block : *blocks) h = block->as<BlockImpl>()->forward(*this, h, mask);
    return linear(*head, norm(h));
  }
  GptSize size;
  nn::Embedding tokens = register_module("tokens", nn::Embedding(size.tokens, size.width));
  nn::Embedding positions = register_module("positions", nn::Embedding(size.length, size.width));
  nn::ModuleList blocks;
  nn::LayerNorm norm = register_module("norm", norm_of(size.width));
  nn::Linear head = register_module("head", nn::Linear(nn::LinearOptions(size.width, size.tokens).bias(false)));
  // No buffers: gloo can't broadcast a bool one.
  at::Tensor mask;
  at::Tensor numbers;
};

struct ExampleGpt2 : Model {
  explicit ExampleGpt2(const GptSize& size)
      : gpt2(register_module("gpt2", Gpt2(Gpt2Config{size.layers, size.heads, size.width, size.length, size.tokens}))) {
  }
  at::Tensor forward(const at::Tensor& x) override { return gpt2->forward(x); }
  Gpt2 gpt2;
};

at::Tensor cross_entropy(const at::Tensor& output, const at::Tensor& y) { return at::cross_entropy_loss(output, y); }

void add_sgd(Problem& problem) {
  problem.optimizer = std::make_unique<::torch::optim::SGD>(problem.model->parameters(), 1e-3);
}

}  // namespace

at::Tensor Model::linear(const nn::LinearImpl& layer, const at::Tensor& x) const {
  return in_place ? libtorch::linear(x, layer.weight, layer.bias) : F::linear(x, layer.weight, layer.bias);
}

Problem make_problem(const std::string& name, int rank, at::Device device) {
  Problem problem;
  ::torch::manual_seed(0);
  const auto seed_data = [&] { ::torch::manual_seed(1000 + static_cast<std::uint64_t>(rank)); };
  if (name == "tiny") {
    problem.model = std::make_shared<Mlp>(std::vector<std::int64_t>{5, 2});
    seed_data();
    problem.x = at::randn({30, 5});
    problem.y = at::randn({30, 2});
    problem.loss = [](const at::Tensor& output, const at::Tensor& y) { return at::mse_loss(output, y); };
    add_sgd(problem);
  } else if (name == "mlp") {
    problem.model = std::make_shared<Mlp>(std::vector<std::int64_t>{784, 1024, 1024, 10});
    seed_data();
    problem.x = at::randn({64, 784});
    problem.y = at::randint(10, {64}, at::kLong);
    problem.loss = cross_entropy;
    add_sgd(problem);
  } else if (name == "big" || name == "big-adamw") {
    problem.model = std::make_shared<Mlp>(std::vector<std::int64_t>{1024, 2048, 2048, 2048, 2048, 2048, 2048, 1024});
    seed_data();
    problem.x = at::randn({32, 1024});
    problem.y = at::randint(1024, {32}, at::kLong);
    problem.loss = cross_entropy;
    add_sgd(problem);
    if (name == "big-adamw") {
      problem.optimizer = std::make_unique<::torch::optim::AdamW>(problem.model->parameters(), 1e-4);
    }
  } else if (const auto gpt = gpt_size(name)) {
    problem.in_bfloat16 = gpt->in_bfloat16;
    if (gpt->in_bfloat16) {
      problem.model = std::make_shared<ExampleGpt2>(*gpt);
      problem.model->to(device);
      problem.optimizer = std::make_unique<libtorch::FusedAdamW>(problem.model->parameters(), 1e-4);
    } else {
      problem.model = std::make_shared<Gpt>(*gpt, device);
      problem.optimizer = std::make_unique<::torch::optim::AdamW>(problem.model->parameters(), 1e-4);
    }
    seed_data();
    problem.x = at::randint(gpt->tokens, {gpt->rows, gpt->length}, at::kLong);
    problem.y = at::randint(gpt->tokens, {gpt->rows, gpt->length}, at::kLong);
    problem.loss = [tokens = gpt->tokens](const at::Tensor& output, const at::Tensor& y) {
      return at::cross_entropy_loss(output.view({-1, tokens}), y.view({-1}));
    };
  } else {
    throw std::invalid_argument("no model is named '" + name + "'; run_libtorch_ddp --help names those that there are");
  }
  problem.model->to(device);
  problem.x = problem.x.to(device);
  problem.y = problem.y.to(device);
  return problem;
}

}  // namespace lockstep::benchmark
