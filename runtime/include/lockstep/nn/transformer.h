// SPDX-License-Identifier: Apache-2.0
// Layers of a decoder-only transformer. Radford et al., "Language models are unsupervised multitask learners", 2019.
#pragma once

#include "lockstep/base/api.h"
#include "lockstep/nn/activation.h"
#include "lockstep/nn/layer_norm.h"
#include "lockstep/nn/linear.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

struct TransformerOptions {
  std::int64_t channels = 128;
  std::int64_t heads = 4;  // channels is a multiple of it
  float dropout = 0.1f;    // of what each branch adds to the residual stream
  // Deviation of weights; projections into the residual stream use it over sqrt(2 layers).
  float deviation = 0.02f;
  std::int64_t layers = 1;
};

// Causal multi-head self-attention, x [B, T, C] to [B, T, C]. Children `qkv` (C to 3C) and `project` (C to C).
class LOCKSTEP_API CausalSelfAttention : public Module {
 public:
  explicit CausalSelfAttention(const TransformerOptions& options);
  Tensor forward(const Tensor& x) override;

 private:
  std::int64_t heads_;
  Linear qkv_;
  Linear project_;
};

// x + attention(norm(x)), then + mlp(norm): pre-normalised, GELU, four times as wide inside.
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
