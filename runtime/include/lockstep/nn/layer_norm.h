// SPDX-License-Identifier: Apache-2.0
// Layer normalisation.
#pragma once

#include "lockstep/base/api.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

// Over the last dimension. Parameters `weight` [channels], ones, and `bias` [channels], zeros.
class LOCKSTEP_API LayerNorm : public Module {
 public:
  explicit LayerNorm(std::int64_t channels, float epsilon = 1e-5f);
  Tensor forward(const Tensor& x) override;

 private:
  Tensor weight_;
  Tensor bias_;
  float epsilon_;
};

}  // namespace lockstep::nn
