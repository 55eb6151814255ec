// SPDX-License-Identifier: Apache-2.0
// This header defines layers, which are the modules that models are made of.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/autograd/graph.h"
#include "lockstep/base/api.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

// The layers ReLU, Tanh, GELU and Dropout have no parameters, and compute each element of the output from one element
// of the input.

class LOCKSTEP_API ReLU : public Module {
 public:
  Tensor forward(const Tensor& x) override { return relu(x); }
};

class LOCKSTEP_API Tanh : public Module {
 public:
  Tensor forward(const Tensor& x) override { return tanh(x); }
};

// GELU computes the tanh approximation of the GELU function, as GPT-2 does.
class LOCKSTEP_API GELU : public Module {
 public:
  Tensor forward(const Tensor& x) override { return gelu(x); }
};

// Dropout zeroes elements with probability p in training mode, and returns its input unchanged in evaluation mode. The
// zeroed elements depend only on (seed, layer name, step, sample id, element), so Module::set_context() must be called
// before each forward in training. Use one Dropout per place in the model: a layer that runs twice in a forward draws
// the same mask twice. Throws InvalidArgument if p is not in [0, 1).
class LOCKSTEP_API Dropout : public Module {
 public:
  explicit Dropout(float p);
  Tensor forward(const Tensor& x) override;

 private:
  float p_;
};

// Linear: y = x W + b.

struct LinearOptions {
  bool bias = true;
  // The initial values of the weight; the default is kaiming_uniform(in). The bias begins with values from a uniform
  // distribution with bound 1 / sqrt(in), or with zeros if `init` is given.
  std::optional<Init> init = std::nullopt;
};

// Linear maps an input of shape [..., in] to an output of shape [..., out]. Linear's parameters are `weight` [in, out],
// which is the transpose of PyTorch's weight (see autograd/ops.h), and `bias` [out]. Files store the weight in
// PyTorch's layout, [out, in].
class LOCKSTEP_API Linear : public Module {
 public:
  Linear(std::int64_t in, std::int64_t out, const LinearOptions& options = {});
  Tensor forward(const Tensor& x) override;

  Tensor weight() const;
  // Returns the bias, or an undefined tensor if the layer has no bias.
  Tensor bias() const;

 private:
  Tensor weight_;
  Tensor bias_;
};

// Embedding is a table of vectors that are looked up by index.

// Embedding maps i64 indices of shape [...] to vectors of shape [..., channels]. Embedding's parameter is `weight`
// [rows, channels], which is initialised by default from a normal distribution with mean 0 and standard deviation 1.
class LOCKSTEP_API Embedding : public Module {
 public:
  Embedding(std::int64_t rows, std::int64_t channels, const Init& init = Init::normal(1.0f));
  Tensor forward(const Tensor& indices) override;
  // Returns the table's first `count` rows, repeated for each of `batch` samples, as a tensor of shape [batch, count,
  // channels]. Models with learned positions use first_rows().
  Tensor first_rows(std::int64_t batch, std::int64_t count) const;

  Tensor weight() const;

 private:
  Tensor weight_;
};

// Layer normalisation.

// LayerNorm normalises the last dimension. LayerNorm's parameters are `weight` [channels], initialised with ones, and
// `bias` [channels], initialised with zeros.
class LOCKSTEP_API LayerNorm : public Module {
 public:
  explicit LayerNorm(std::int64_t channels, float epsilon = 1e-5f);
  Tensor forward(const Tensor& x) override;

 private:
  Tensor weight_;
  Tensor bias_;
  float epsilon_;
};

// Sequential: layers that run one after another.

//   Sequential model{Linear(784, 256), ReLU(), Linear(256, 10)};
//
// The layers are named "0", "1", ...
class LOCKSTEP_API Sequential : public Module {
 public:
  Sequential() = default;
  // Makes a Sequential of layers. If the only argument is a Sequential, the constructor makes a copy of that
  // Sequential; use append() to nest a Sequential in another.
  template <typename First, typename... Rest>
  requires std::is_base_of_v<Module, std::decay_t<First>> &&
      (sizeof...(Rest) > 0 || !std::is_same_v<Sequential, std::decay_t<First>>)explicit Sequential(First&& first,
                                                                                                   Rest&&... rest) {
    append(std::forward<First>(first));
    (append(std::forward<Rest>(rest)), ...);
  }

  template <typename M>
  Sequential& append(M&& layer) {
    add_child(std::to_string(layers_.size()), layer);
    layers_.push_back(std::make_shared<std::decay_t<M>>(std::forward<M>(layer)));
    return *this;
  }
  std::size_t size() const { return layers_.size(); }

  Tensor forward(const Tensor& x) override {
    Tensor y = x;
    for (const auto& layer : layers_) y = layer->forward(y);
    return y;
  }

 private:
  std::vector<std::shared_ptr<Module>> layers_;
};

// CausalSelfAttention and TransformerBlock are the layers of a decoder-only transformer (Radford et al., "Language
// models are unsupervised multitask learners", 2019).

struct TransformerOptions {
  std::int64_t channels = 128;
  std::int64_t heads = 4;  // number of heads, a divisor of `channels`
  float dropout = 0.1f;    // dropout probability of the values that each branch adds to the residual stream
  // The standard deviation of the initial weights. The initial weights of the Linear layers that write into the
  // residual stream have the standard deviation `deviation` / sqrt(2 * layers).
  float deviation = 0.02f;
  std::int64_t layers = 1;
};

// CausalSelfAttention computes causal multi-head self-attention, from an input [B, T, C] to an output [B, T, C]. The
// children of CausalSelfAttention are the Linear layer `qkv`, from C to 3C channels, and the Linear layer `project`,
// from C to C channels.
class LOCKSTEP_API CausalSelfAttention : public Module {
 public:
  explicit CausalSelfAttention(const TransformerOptions& options);
  Tensor forward(const Tensor& x) override;

 private:
  std::int64_t heads_;
  Linear qkv_;
  Linear project_;
};

// TransformerBlock computes y = x + attention(norm1(x)) and returns y + mlp(norm2(y)). The mlp of a TransformerBlock
// has one hidden layer, with 4 * channels elements and GELU as its activation.
class LOCKSTEP_API TransformerBlock : public Module {
 public:
  explicit TransformerBlock(const TransformerOptions& options);
  Tensor forward(const Tensor& x) override;

 private:
  LayerNorm norm1_;
  CausalSelfAttention attention_;
  Dropout dropout1_;
  LayerNorm norm2_;
  Linear widen_;
  Linear narrow_;
  Dropout dropout2_;
};

}  // namespace lockstep::nn
