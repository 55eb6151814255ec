// SPDX-License-Identifier: Apache-2.0
#include "lockstep/nn/nn.h"

#include <fmt/format.h>

#include <cmath>

#include "lockstep/base/error.h"

namespace lockstep::nn {
namespace {

LinearOptions plain(const TransformerOptions& options) { return {.init = Init::normal(options.deviation)}; }

// Every layer adds two branches to the residual stream; this keeps its variance from growing with the depth.
LinearOptions residual(const TransformerOptions& options) {
  return {.init = Init::normal(options.deviation / std::sqrt(2.0f * static_cast<float>(options.layers)))};
}

const TransformerOptions& checked(const TransformerOptions& options) {
  if (options.channels < 1 || options.heads < 1 || options.channels % options.heads != 0 || options.layers < 1) {
    throw InvalidArgument(
        fmt::format("transformer: channels is {}, heads {} and layers {}; give at least 1 of each, and channels that "
                    "are a multiple of heads",
                    options.channels, options.heads, options.layers));
  }
  return options;
}

}  // namespace

CausalSelfAttention::CausalSelfAttention(const TransformerOptions& options)
    : heads_(checked(options).heads),
      qkv_(register_module("qkv", Linear(options.channels, 3 * options.channels, plain(options)))),
      project_(register_module("project", Linear(options.channels, options.channels, residual(options)))) {}

Tensor CausalSelfAttention::forward(const Tensor& x) { return project_(causal_self_attention(qkv_(x), heads_)); }

TransformerBlock::TransformerBlock(const TransformerOptions& options)
    : norm1_(register_module("norm1", LayerNorm(checked(options).channels))),
      attention_(register_module("attention", CausalSelfAttention(options))),
      dropout1_(register_module("dropout1", Dropout(options.dropout))),
      norm2_(register_module("norm2", LayerNorm(options.channels))),
      widen_(register_module("widen", Linear(options.channels, 4 * options.channels, plain(options)))),
      narrow_(register_module("narrow", Linear(4 * options.channels, options.channels, residual(options)))),
      dropout2_(register_module("dropout2", Dropout(options.dropout))) {}

Tensor TransformerBlock::forward(const Tensor& x) {
  const Tensor attended = x + dropout1_(attention_(norm1_(x)));
  return attended + dropout2_(narrow_(gelu(widen_(norm2_(attended)))));
}

Dropout::Dropout(float p) : p_(p) {
  if (!(p >= 0 && p < 1))
    throw InvalidArgument(fmt::format(
        "Dropout: probability {} is not in [0, 1); give the part of the values to set to 0, such as 0.1", p));
}

Tensor Dropout::forward(const Tensor& x) { return is_training() && p_ > 0 ? dropout(x, p_, random_source()) : x; }

Embedding::Embedding(std::int64_t rows, std::int64_t channels, const Init& init)
    : weight_(register_parameter("weight", {rows, channels}, init)) {}

Tensor Embedding::forward(const Tensor& indices) { return embedding(weight(), indices); }

Tensor Embedding::first_rows(std::int64_t batch, std::int64_t count) const {
  return repeat(rows(weight(), 0, count), batch);
}

Tensor Embedding::weight() const {
  ensure_initialized();
  return weight_;
}

LayerNorm::LayerNorm(std::int64_t channels, float epsilon)
    : weight_(register_parameter("weight", {channels}, Init::ones())),
      bias_(register_parameter("bias", {channels}, Init::zeros())),
      epsilon_(epsilon) {}

Tensor LayerNorm::forward(const Tensor& x) {
  ensure_initialized();
  return layer_norm(x, weight_, bias_, epsilon_);
}

Linear::Linear(std::int64_t in, std::int64_t out, const LinearOptions& options)
    : weight_(register_parameter("weight", {in, out}, options.init.value_or(Init::kaiming_uniform(in)),
                                 FileLayout::transposed)) {
  if (options.bias) {
    bias_ = register_parameter("bias", {out}, options.init ? Init::zeros() : Init::kaiming_uniform(in));
  }
}

Tensor Linear::forward(const Tensor& x) {
  ensure_initialized();
  const std::int64_t in = weight_.size(0);
  if (x && x.shape().dims() > 0 && x.size(-1) != in) {
    throw InvalidArgument(
        fmt::format("Linear({}, {}): x of shape {} has {} columns, and the layer's in_features is {}; give x that many "
                    "columns, or make the layer with as many in_features as x has columns",
                    in, weight_.size(1), x.shape().str(), x.size(-1), in));
  }
  return linear(x, weight_, bias_);
}

Tensor Linear::weight() const {
  ensure_initialized();
  return weight_;
}

Tensor Linear::bias() const {
  ensure_initialized();
  return bias_;
}

}  // namespace lockstep::nn
