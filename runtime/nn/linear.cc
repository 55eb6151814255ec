// SPDX-License-Identifier: Apache-2.0
#include "lockstep/nn/nn.h"

namespace lockstep::nn {

Linear::Linear(std::int64_t in, std::int64_t out, const LinearOptions& options)
    : weight_(register_parameter("weight", {in, out}, options.init.value_or(Init::kaiming_uniform(in)),
                                 FileLayout::transposed)) {
  if (options.bias) {
    bias_ = register_parameter("bias", {out}, options.init ? Init::zeros() : Init::kaiming_uniform(in));
  }
}

Tensor Linear::forward(const Tensor& x) {
  ensure_initialized();
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
