// SPDX-License-Identifier: Apache-2.0
// Layers without parameters: element by element.
#pragma once

#include "lockstep/base/api.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

class LOCKSTEP_API ReLU : public Module {
 public:
  Tensor forward(const Tensor& x) override { return relu(x); }
};

class LOCKSTEP_API Tanh : public Module {
 public:
  Tensor forward(const Tensor& x) override { return tanh(x); }
};

// The tanh form, as GPT-2's.
class LOCKSTEP_API GELU : public Module {
 public:
  Tensor forward(const Tensor& x) override { return gelu(x); }
};

// Zeroes elements with probability p in training, the identity in evaluation. Which elements is a function of
// (seed, layer name, step, sample id, element): needs Module::set_context before each forward in training.
// InvalidArgument if p is not in [0, 1). Use one Dropout per place: one layer used twice draws the same mask twice.
class LOCKSTEP_API Dropout : public Module {
 public:
  explicit Dropout(float p);
  Tensor forward(const Tensor& x) override;

 private:
  float p_;
};

}  // namespace lockstep::nn
