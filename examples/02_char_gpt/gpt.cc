// SPDX-License-Identifier: Apache-2.0
#include "examples/02_char_gpt/gpt.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

#include <lockstep/base/environment.h>
#include <lockstep/base/error.h>

namespace char_gpt {

using lockstep::InvalidArgument;
using lockstep::Tensor;
namespace nn = lockstep::nn;

namespace {

std::optional<std::int64_t> parse_number(const std::string& text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

constexpr float kDeviation = 0.02f;

nn::TransformerOptions block_options(const GptOptions& options) {
  return {.channels = options.channels,
          .heads = options.heads,
          .dropout = options.dropout,
          .deviation = kDeviation,
          .layers = options.layers};
}

}  // namespace

Gpt::Gpt(const GptOptions& options)
    : options_(options),
      token_(
          register_module("token", nn::Embedding(options.vocabulary, options.channels, nn::Init::normal(kDeviation)))),
      position_(
          register_module("position", nn::Embedding(options.context, options.channels, nn::Init::normal(kDeviation)))),
      dropout_(register_module("dropout", nn::Dropout(options.dropout))),
      norm_(nn::LayerNorm(options.channels)),
      head_(nn::Linear(options.channels, options.vocabulary, {.bias = false, .init = nn::Init::normal(kDeviation)})) {
  for (std::int64_t i = 0; i < options.layers; ++i) {
    blocks_.push_back(register_module(fmt::format("block{}", i), nn::TransformerBlock(block_options(options))));
  }
  register_module("norm", norm_);
  register_module("head", head_);
}

Tensor Gpt::forward(const Tensor& tokens) {
  if (tokens.shape().dims() != 2 || tokens.size(1) > options_.context) {
    throw InvalidArgument(
        fmt::format("Gpt: tokens are {}, wanted [batch, at most {}]", tokens.str(), options_.context));
  }
  Tensor x = dropout_(token_(tokens) + position_.first_rows(tokens.size(0), tokens.size(1)));
  for (nn::TransformerBlock& block : blocks_) x = block(x);
  return head_(norm_(x));
}

std::map<std::string, std::string> to_metadata(const GptOptions& options) {
  return {{"vocabulary_size", fmt::to_string(options.vocabulary)},
          {"context", fmt::to_string(options.context)},
          {"layers", fmt::to_string(options.layers)},
          {"heads", fmt::to_string(options.heads)},
          {"channels", fmt::to_string(options.channels)}};
}

GptOptions from_metadata(const std::map<std::string, std::string>& metadata) {
  const auto number = [&](const char* name) {
    const auto found = metadata.find(name);
    const auto value = found == metadata.end() ? std::nullopt : parse_number(found->second);
    if (!value || *value < 1 || *value > 1 << 24) {
      throw InvalidArgument(
          fmt::format("the weights' '{}' is {}, wanted a number from 1; were they saved by this program?", name,
                      found == metadata.end() ? "missing" : "'" + found->second + "'"));
    }
    return *value;
  };
  return {.vocabulary = number("vocabulary_size"),
          .context = number("context"),
          .layers = number("layers"),
          .heads = number("heads"),
          .channels = number("channels")};
}

}  // namespace char_gpt
