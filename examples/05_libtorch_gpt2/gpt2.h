// SPDX-License-Identifier: Apache-2.0
// GPT-2 as a torch::nn::Module. Its parameters have the names and shapes of the files that Hugging Face publishes, so
// that those are read, and its own are read there, without a conversion.
#pragma once

#include <lockstep/libtorch/linear.h>
#include <torch/torch.h>

#include <cmath>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>

// GPT-2's 50257 tokens, padded to a multiple of 64, at which matrix products are faster; and one token for each byte.
constexpr int64_t kGpt2Vocabulary = 50304, kByteVocabulary = 256;

struct Gpt2Config {
  int64_t layers, heads, width, context, vocabulary;
};

// The sizes by Hugging Face's names, and a tiny one to try things out. Throws std::invalid_argument for another name.
inline Gpt2Config gpt2_config(const std::string& name) {
  static const std::map<std::string, Gpt2Config> sizes = {{"tiny", {2, 2, 32, 64, kByteVocabulary}},
                                                          {"gpt2", {12, 12, 768, 1024, kGpt2Vocabulary}},
                                                          {"gpt2-medium", {24, 16, 1024, 1024, kGpt2Vocabulary}},
                                                          {"gpt2-large", {36, 20, 1280, 1024, kGpt2Vocabulary}},
                                                          {"gpt2-xl", {48, 25, 1600, 1024, kGpt2Vocabulary}}};
  const auto found = sizes.find(name);
  if (found != sizes.end()) return found->second;
  throw std::invalid_argument("there is no size '" + name + "'; use tiny, gpt2, gpt2-medium, gpt2-large or gpt2-xl");
}

// A linear layer whose weight is [in, out], as in GPT-2's files; that of torch::nn::Linear is [out, in]. lockstep's
// linear() adds the bias within the matrix product, as at::linear does, where torch::nn::Linear needs a second pass for
// an input of three dimensions; and on several ranks it computes the weight's gradient where it is summed.
struct Gpt2LinearImpl : torch::nn::Module {
  Gpt2LinearImpl(int64_t in, int64_t out, double deviation)
      : weight(register_parameter("weight", torch::empty({in, out}).normal_(0, deviation))),
        bias(register_parameter("bias", torch::zeros({out}))) {}
  torch::Tensor forward(const torch::Tensor& x) { return lockstep::libtorch::linear(x, weight.t(), bias); }
  torch::Tensor weight, bias;
};
TORCH_MODULE(Gpt2Linear);

// The two linear layers of a block's attention, and of its MLP. What the second one makes is added to the residual, so
// its deviation depends on how often that happens.
struct Gpt2PairImpl : torch::nn::Module {
  Gpt2PairImpl(const Gpt2Config& config, const std::string& name, int64_t out, int64_t in)
      : first(register_module(name, Gpt2Linear(config.width, out, 0.02))),
        second(register_module("c_proj", Gpt2Linear(in, config.width, 0.02 / std::sqrt(2.0 * config.layers)))) {}
  Gpt2Linear first, second;
};
TORCH_MODULE(Gpt2Pair);

struct Gpt2BlockImpl : torch::nn::Module {
  explicit Gpt2BlockImpl(const Gpt2Config& config)
      : heads(config.heads),
        ln_1(register_module("ln_1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.width})))),
        ln_2(register_module("ln_2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.width})))),
        attn(register_module("attn", Gpt2Pair(config, "c_attn", 3 * config.width, config.width))),
        mlp(register_module("mlp", Gpt2Pair(config, "c_fc", 4 * config.width, 4 * config.width))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    const auto qkv = attn->first(ln_1(x)).view({x.size(0), x.size(1), 3 * heads, x.size(2) / heads}).chunk(3, 2);
    const auto q = qkv[0].transpose(1, 2), k = qkv[1].transpose(1, 2), v = qkv[2].transpose(1, 2);
#if TORCH_VERSION_MAJOR >= 2
    const torch::Tensor y = at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true);
#else  // of [rows, heads, length, width of a head], too
    const torch::Tensor y = std::get<0>(at::_scaled_dot_product_attention(q, k, v, {}, 0.0, false, true));
#endif
    const torch::Tensor attended = x + attn->second(y.transpose(1, 2).reshape(x.sizes()));
    return attended + mlp->second(at::gelu(mlp->first(ln_2(attended)), "tanh"));
  }

  int64_t heads;
  torch::nn::LayerNorm ln_1, ln_2;
  Gpt2Pair attn, mlp;
};
TORCH_MODULE(Gpt2Block);

struct Gpt2Impl : torch::nn::Module {
  explicit Gpt2Impl(const Gpt2Config& config)
      : wte(register_module("wte", torch::nn::Embedding(config.vocabulary, config.width))),
        wpe(register_module("wpe", torch::nn::Embedding(config.context, config.width))),
        h(register_module("h", torch::nn::ModuleList())),
        ln_f(register_module("ln_f", torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.width})))) {
    for (auto& embedding : {wte, wpe}) torch::nn::init::normal_(embedding->weight, 0, 0.02);
    for (int64_t i = 0; i < config.layers; ++i) h->push_back(Gpt2Block(config));
  }
  // Tokens [rows, length] to logits [rows, length, vocabulary]; the length is at most the context.
  torch::Tensor forward(torch::Tensor tokens) {
    torch::Tensor x = wte(tokens) + wpe->weight.slice(0, 0, tokens.size(1));
    for (const auto& block : *h) x = block->as<Gpt2Block>()->forward(x);
    return at::linear(ln_f(x), wte->weight);  // the head is the embedding
  }

  torch::nn::Embedding wte, wpe;
  torch::nn::ModuleList h;
  torch::nn::LayerNorm ln_f;
};
TORCH_MODULE(Gpt2);
