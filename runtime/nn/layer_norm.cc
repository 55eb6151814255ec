// SPDX-License-Identifier: Apache-2.0
#include "lockstep/nn/nn.h"

namespace lockstep::nn {

LayerNorm::LayerNorm(std::int64_t channels, float epsilon)
    : weight_(register_parameter("weight", {channels}, Init::ones())),
      bias_(register_parameter("bias", {channels}, Init::zeros())),
      epsilon_(epsilon) {}

Tensor LayerNorm::forward(const Tensor& x) {
  ensure_initialized();
  return layer_norm(x, weight_, bias_, epsilon_);
}

}  // namespace lockstep::nn
